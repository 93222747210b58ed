#include <algorithm>

#include "lab/cuda_memory.hpp"
#include "lab/delay.hpp"
#include "lab/stopwatch.hpp"

namespace ninefold::lab {
namespace {

__global__ void sweep_write(uint4* data, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    uint4 v = data[i];
    v.x += 1;
    data[i] = v;
  }
}

// Reads so much that every dirty line of sweep_write has been written back before the clock starts.
__global__ void sweep_read(const uint4* data, int64_t count, unsigned* sink) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  unsigned sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 v = data[i];
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;  // keeps the loads alive
}

class cuda_stopwatch : public stopwatch {
 public:
  explicit cuda_stopwatch(const nf_lab_options& options)
      : cold_(options.cache == NF_LAB_COLD), stream_(static_cast<cudaStream_t>(options.stream)) {
    NF_CUDA_CALL(cudaSetDevice(options.device.device_id));
    cudaDeviceProp properties;
    NF_CUDA_CALL(cudaGetDeviceProperties(&properties, options.device.device_id));
    blocks_ = properties.multiProcessorCount * 4;
    if (!cold_) return;
    const int64_t bytes = 4 * std::max<int64_t>(properties.l2CacheSize, int64_t{8} << 20);
    written_ = device_buffer(bytes);
    read_ = device_buffer(bytes);
    NF_CUDA_CALL(cudaMemsetAsync(written_.data(), 1, static_cast<size_t>(bytes), stream_));
    NF_CUDA_CALL(cudaMemsetAsync(read_.data(), 1, static_cast<size_t>(bytes), stream_));
    NF_CUDA_CALL(cudaStreamSynchronize(stream_));
  }

  sample take(const std::function<bool()>& call) override {
    if (cold_) evict();
    // The device waits here while the host queues event, call and event; what the host needs for
    // that is then outside of the interval.
    enqueue_delay(stream_, delay_us_);
    NF_CUDA_CALL(cudaEventRecord(start_, stream_));
    const bool fine = call();
    NF_CUDA_CALL(cudaEventRecord(stop_, stream_));
    const cudaError_t started = cudaEventQuery(start_);
    if (started != cudaErrorNotReady) NF_CUDA_CALL(started);
    NF_CUDA_CALL(cudaEventSynchronize(stop_));
    if (!fine) return {};
    sample out;
    float ms = 0;
    NF_CUDA_CALL(cudaEventElapsedTime(&ms, start_, stop_));
    out.ms = ms;
    out.late = started == cudaSuccess;
    // A call that takes the host longer than the delay gets a longer one from the next sample on.
    // One that waits for the device itself is always late; hence the limit.
    if (out.late) delay_us_ = std::min(2 * delay_us_, 3200.0);
    return out;
  }

  void synchronise() override { NF_CUDA_CALL(cudaStreamSynchronize(stream_)); }
  const char* timer() const override { return "cuda_event"; }
  const char* cache() const override {
    return cold_ ? "cold: 4x L2 written, then 4x L2 read" : "hot";
  }

 private:
  void evict() {
    const int64_t count = written_.bytes() / static_cast<int64_t>(sizeof(uint4));
    sweep_write<<<blocks_, 512, 0, stream_>>>(static_cast<uint4*>(written_.data()), count);
    NF_CUDA_CALL(cudaGetLastError());
    sweep_read<<<blocks_, 512, 0, stream_>>>(static_cast<const uint4*>(read_.data()), count,
                                             static_cast<unsigned*>(written_.data()));
    NF_CUDA_CALL(cudaGetLastError());
  }

  bool cold_;
  cudaStream_t stream_;
  int blocks_ = 1;
  double delay_us_ = 50;
  device_buffer written_, read_;
  device_event start_, stop_;
};

}  // namespace

std::unique_ptr<stopwatch> make_cuda_stopwatch(const nf_lab_options& options) {
  return std::make_unique<cuda_stopwatch>(options);
}

}  // namespace ninefold::lab
