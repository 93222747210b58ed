// A ring of stages in shared memory between one thread that asks for data and the warps that work
// on it, in one block or a cluster of them (sm_90).
#pragma once

#include "backend/cuda/sm90/cluster.hpp"

namespace ninefold::cuda::sm90 {

// An mbarrier that `count` arrivals complete.
class counted_mbarrier : public mbarrier {
 public:
  __device__ void init(uint32_t count) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
#endif
  }
  // Arrives on the barrier at this place in the shared memory of block `rank` of the cluster. For
  // readers: it says that reads are done, and is no release of stores to the other block, which
  // would cost a fence of all memory each time.
  __device__ void arrive_at(uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(address()),
        "r"(rank)
        : "memory");
#endif
  }
};

__device__ inline uint32_t cluster_blocks() {
#if __CUDA_ARCH__ >= 900
  uint32_t count;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return count;
#else
  return 1;
#endif
}

// All threads of all blocks of the cluster meet; what they wrote to shared memory is seen.
__device__ inline void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
#endif
}

template <int kStages>
struct ring_barriers {
  counted_mbarrier full[kStages], empty[kStages];

  // By one thread; then announce_barriers and meet_cluster. A stage is full when one thread has
  // announced its bytes and they are there, wherever in the cluster they were asked for. It is
  // empty when every reading warp of the cluster has said so: the block may fill the stage of
  // the others too.
  __device__ void init(uint32_t reading_warps_of_a_block, uint32_t blocks) {
    for (int s = 0; s < kStages; ++s) {
      full[s].init(1);
      empty[s].init(reading_warps_of_a_block * blocks);
    }
  }
};

// A walker's place in the ring. Whoever fills waits for empty(parity ^ 1), which a new barrier
// passes; whoever reads waits for full(parity).
template <int kStages>
struct ring_place {
  uint32_t stage = 0, parity = 0;

  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Moves registers between warpgroups. Every warp of the warpgroup, in one branch of the kernel's
// one division into roles.
template <int kRegisters>
__device__ inline void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ inline void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// A barrier among `threads` threads of the block. 0 is __syncthreads'.
__device__ inline void meet_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace ninefold::cuda::sm90
