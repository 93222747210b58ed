#include <cuda/std/chrono>

#include "lab/cuda_call.hpp"
#include "lab/delay.hpp"

namespace ninefold::lab {
namespace {

__global__ void spin(long long nanoseconds) {
  using clock = cuda::std::chrono::high_resolution_clock;  // the device's own, in nanoseconds
  const auto stop = clock::now() + cuda::std::chrono::nanoseconds(nanoseconds);
  while (clock::now() < stop) {
  }
}

}  // namespace

void enqueue_delay(cudaStream_t stream, double microseconds) {
  spin<<<1, 1, 0, stream>>>(static_cast<long long>(microseconds * 1000));
  NF_CUDA_CALL(cudaGetLastError());
}

}  // namespace ninefold::lab
