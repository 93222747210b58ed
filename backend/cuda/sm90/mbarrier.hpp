// A barrier in shared memory that also counts bytes on their way into it (sm_90).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace ninefold::cuda::sm90 {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Completes a phase when one thread has arrived and all bytes that it announced are there. Waiting
// is for the phase of a parity: 0 first, then in turn.
class mbarrier {
 public:
  // By one thread, before anybody else uses it and before announce_barriers.
  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address()) : "memory");
#endif
  }
  // Arrives, for a phase that `bytes` bytes will come in.
  __device__ void expect(uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
#endif
  }
  __device__ void wait(uint32_t parity) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(address()),
        "r"(parity)
        : "memory");
#endif
  }
  __device__ uint32_t address() const { return shared_address(&bits_); }

 private:
  alignas(8) uint64_t bits_;
};

// Makes the barriers that this thread has set up visible to the copy engine and to the cluster.
__device__ inline void announce_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Global to this block's shared memory by the copy engine, counted on `arrived`. Both addresses and
// `bytes` are multiples of 16.
__device__ inline void bulk_copy(void* to, const void* from, uint32_t bytes, mbarrier& arrived) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(arrived.address())
      : "memory");
#endif
}

// Asks for memory that will be read later to come into L2. As bulk_copy.
__device__ inline void bulk_prefetch(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(bytes)
               : "memory");
#endif
}

}  // namespace ninefold::cuda::sm90
