#include "lab/cuda_call.hpp"
#include "lab/delay.hpp"

namespace ninefold::lab {
namespace {

__global__ void spin(long long nanoseconds) {
  long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

}  // namespace

void enqueue_delay(cudaStream_t stream, double microseconds) {
  spin<<<1, 1, 0, stream>>>(static_cast<long long>(microseconds * 1000));
  NF_CUDA_CALL(cudaGetLastError());
}

}  // namespace ninefold::lab
