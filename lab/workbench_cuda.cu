#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "lab/cuda_memory.hpp"
#include "lab/delay.hpp"
#include "lab/nvml.hpp"
#include "lab/workbench.hpp"

namespace ninefold::lab {
namespace {

class cuda_workbench : public workbench {
 public:
  explicit cuda_workbench(int id) : id_(id) {
    NF_CUDA_CALL(cudaGetDeviceProperties(&properties_, id));
    char text[32] = "";
    NF_CUDA_CALL(cudaDeviceGetPCIBusId(text, sizeof text, id));
    pci_bus_id_ = text;
  }

  DLDevice device() const override { return {kDLCUDA, id_}; }
  nf_stream stream() const override { return static_cast<cudaStream_t>(stream_); }
  void finish() override { NF_CUDA_CALL(cudaStreamSynchronize(stream_)); }
  void settle() override { NF_CUDA_CALL(cudaDeviceSynchronize()); }
  void read(void* to, const void* from, int64_t bytes) override {
    NF_CUDA_CALL(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
  }

  int64_t growth(const work& call) override {
    const int64_t before = free_bytes();
    call(stream());
    const int64_t queued = free_bytes();
    finish();
    return std::max<int64_t>(0, before - std::min(queued, free_bytes()));
  }

  std::string escaped(const work& call, const std::vector<buffer>& buffers) override {
    // The stream is kept busy; an honest call only queues behind that. What is written while the
    // stream has not got there was written by another one.
    constexpr double delay_us = 20000;
    const std::vector<char> poisoned = sampled(buffers);
    enqueue_delay(stream_, delay_us);
    NF_CUDA_CALL(cudaEventRecord(reached_, stream_));
    call(stream());
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(delay_us / 2)));
    const std::vector<char> early = sampled(buffers);
    const cudaError_t state = cudaEventQuery(reached_);
    if (state != cudaErrorNotReady) NF_CUDA_CALL(state);
    finish();
    // A call that waits for the device, or a slow host, proves nothing either way.
    if (state == cudaSuccess) return {};
    return early == poisoned ? "" : "the outputs were written before the stream reached the call";
  }

  nlohmann::json fingerprint() const override {
    int driver = 0, runtime = 0;
    NF_CUDA_CALL(cudaDriverGetVersion(&driver));
    NF_CUDA_CALL(cudaRuntimeGetVersion(&runtime));
    nlohmann::json out = nvml_limits(pci_bus_id_);
    out["gpu"] = name();
    out["compute_capability"] =
        std::to_string(properties_.major) + '.' + std::to_string(properties_.minor);
    out["multiprocessors"] = properties_.multiProcessorCount;
    out["l2_bytes"] = properties_.l2CacheSize;
    out["gpu_memory_bytes"] = properties_.totalGlobalMem;
    out["ecc"] = properties_.ECCEnabled != 0;
    out["cuda_driver"] = driver;
    out["cuda_runtime"] = runtime;
    return out;
  }

  nlohmann::json clocks() const override { return nvml_clocks(pci_bus_id_); }
  std::string name() const override { return properties_.name; }

 private:
  static int64_t free_bytes() {
    size_t available = 0, total = 0;
    NF_CUDA_CALL(cudaMemGetInfo(&available, &total));
    return static_cast<int64_t>(available);
  }

  // Through a stream of its own, so that it does not wait for the one under test.
  std::vector<char> sampled(const std::vector<buffer>& buffers) {
    std::vector<char> out;
    for (const buffer& b : buffers) {
      if (!b.output || b.bytes == 0) continue;
      const line_sample s = lines_of(b);
      const int64_t tail = b.bytes % 64;
      const size_t begin = out.size();
      out.resize(begin + static_cast<size_t>(s.lines * 64 + tail));
      if (s.lines > 0)
        NF_CUDA_CALL(cudaMemcpy2DAsync(out.data() + begin, 64, b.data, static_cast<size_t>(s.pitch),
                                       64, static_cast<size_t>(s.lines), cudaMemcpyDeviceToHost,
                                       observer_));
      if (tail > 0)
        NF_CUDA_CALL(cudaMemcpyAsync(out.data() + begin + s.lines * 64,
                                     static_cast<const char*>(b.data) + b.bytes - tail,
                                     static_cast<size_t>(tail), cudaMemcpyDeviceToHost, observer_));
      NF_CUDA_CALL(cudaStreamSynchronize(observer_));
    }
    return out;
  }

  int id_;
  cudaDeviceProp properties_{};
  std::string pci_bus_id_;
  device_stream stream_, observer_;
  device_event reached_;
};

}  // namespace

std::unique_ptr<workbench> make_cuda_workbench(int device) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || device < 0 || device >= count) {
    cudaGetLastError();
    const std::string text =
        "no CUDA device can be used: " +
        std::string(found != cudaSuccess ? cudaGetErrorString(found) : "there is no such device");
    throw error(NF_UNAVAILABLE, text.c_str());
  }
  NF_CUDA_CALL(cudaSetDevice(device));
  return std::make_unique<cuda_workbench>(device);
}

}  // namespace ninefold::lab
