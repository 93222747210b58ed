// Blocks of a cluster exchanging a word each warp through distributed shared memory (sm_90).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/sm90/mbarrier.hpp"

namespace ninefold::cuda::sm90 {

__device__ inline uint32_t block_rank() {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// Every warp of every block of the cluster sends one T to every block; all see all.
//
// A store to another block's shared memory also counts its bytes on that block's mbarrier
// (st.async), so waiting for the data is waiting on a local barrier: no cluster-wide barrier stands
// in the loop. Two barriers and two buffers alternate: a block can be one call ahead of another,
// for it waits for every warp's word of each call, and never two.
template <class T, int kWarps, int kCluster>
class cluster_exchange {
  static_assert(sizeof(T) == 4 || sizeof(T) % 8 == 0);

 public:
  // Sets up the barriers and announces it to the cluster. Costs nothing until the first exchange,
  // which waits for the others' announcement; loads issued in between overlap with it.
  __device__ void begin() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (mbarrier& barrier : barrier_) barrier.init();
      announce_barriers();
      expect(0);
      expect(1);
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  __device__ const T* all_to_all(T value, int call) {
#if __CUDA_ARCH__ >= 900
    if (call == 0) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    const int buffer = call & 1;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane < kCluster) send(value, buffer, block_rank() * kWarps + warp, lane);
    barrier_[buffer].wait((call >> 1) & 1);
    // The next phase of this barrier, before any block can send for it: they wait for this warp.
    if (threadIdx.x == 0) expect(buffer);
    __syncwarp();
    return word_[buffer];
#else
    return word_[call & 1];
#endif
  }

 private:
  __device__ void expect(int buffer) {
    barrier_[buffer].expect(static_cast<uint32_t>(kCluster * kWarps * sizeof(T)));
  }

  __device__ void send(T value, int buffer, uint32_t slot, uint32_t block) {
    uint32_t to, barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(to)
                 : "r"(shared_address(&word_[buffer][slot])), "r"(block));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(barrier)
                 : "r"(barrier_[buffer].address()), "r"(block));
    if constexpr (sizeof(T) % 8 == 0) {
      uint64_t bits[sizeof(T) / 8];
      __builtin_memcpy(bits, &value, sizeof(T));
#pragma unroll
      for (uint32_t i = 0; i < sizeof(T) / 8; ++i)
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                to + 8 * i),
            "l"(bits[i]), "r"(barrier)
            : "memory");
    } else {
      uint32_t bits;
      __builtin_memcpy(&bits, &value, 4);
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
          "r"(bits), "r"(barrier)
          : "memory");
    }
  }

  mbarrier barrier_[2];
  alignas(8) T word_[2][kWarps * kCluster];
};

}  // namespace ninefold::cuda::sm90
