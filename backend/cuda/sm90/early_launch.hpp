// A kernel that begins while the one launched before it still runs (launch_shape::early; sm_90).
#pragma once

namespace ninefold::cuda::sm90 {

// By the first kernel: the next may begin once every block has said so or ended.
__device__ inline void let_the_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// By the second, before it reads what the first wrote. Returns at once where it did not begin
// early.
__device__ inline void wait_for_the_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ninefold::cuda::sm90
