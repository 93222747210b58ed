#include <array>
#include <cstdio>
#include <mutex>

#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/device.hpp"

namespace ninefold::cuda {
namespace {

constexpr int max_devices = 64;

__global__ void probe() {}

arch ask(int device) {
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "arch");
    return value;
  };
  arch a{};
  const int major = attribute(cudaDevAttrComputeCapabilityMajor),
            minor = attribute(cudaDevAttrComputeCapabilityMinor);
  a.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  a.shared = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  a.shared_a_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, probe), "arch");
  // ptxVersion names the virtual architecture that the loaded code was made from.
  const bool own_code = attributes.ptxVersion == major * 10 + minor;
  a.sm90 = own_code && major == 9 && minor == 0;
  std::snprintf(a.name, sizeof a.name, own_code ? "sm_%d%s" : "compute_%d%s", attributes.ptxVersion,
                a.sm90 ? "a" : "");
  return a;
}

}  // namespace

const arch& current_arch() {
  static std::array<arch, max_devices> known;
  static std::array<std::once_flag, max_devices> once;
  int device = 0;
  check(cudaGetDevice(&device), "arch");
  if (device >= max_devices)
    fail(NF_UNSUPPORTED, "cuda: device %d; at most %d are known", device, max_devices);
  std::call_once(once[device], [&] { known[device] = ask(device); });
  return known[device];
}

device_scope::device_scope(DLDevice device) : now_(device.device_id) {
  check(cudaGetDevice(&before_), "cuda");
  if (before_ != now_) check(cudaSetDevice(now_), "cuda");
}

device_scope::~device_scope() {
  if (before_ != now_) cudaSetDevice(before_);
}

const char* why_unavailable(int id) {
  static const struct machine {
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
  } here;
  if (here.error != cudaSuccess) {
    cudaGetLastError();  // not the next call's error
    return cudaGetErrorString(here.error);
  }
  if (id < 0 || id >= here.devices) return "there is no such device here";
  return nullptr;
}

}  // namespace ninefold::cuda
