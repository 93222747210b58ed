// Boxes of a tensor between global and shared memory by the copy engine, described by a tensor map
// that the host has made (tensor_map.hpp; sm_90).
//
// A box lies in shared memory as rows of 128 bytes whose eight 16-byte words are swizzled: word w
// of row r lies where word w ^ (r % 8) would (CU_TENSOR_MAP_SWIZZLE_128B). So eight rows of the
// same word, which is what the tensor cores read at a time, lie in different banks. Boxes begin at
// multiples of 1024 bytes, for the hardware takes r from the address.
#pragma once

#include <cuda.h>

#include "backend/cuda/sm90/mbarrier.hpp"
#include "backend/host_device.hpp"

namespace ninefold::cuda::sm90 {

inline constexpr uint32_t box_row_bytes = 128, box_alignment = 1024;

// Where byte `byte` of row `row` of a box lies, from the box's beginning.
NF_HOST_DEVICE constexpr uint32_t swizzled(uint32_t row, uint32_t byte) {
  return row * box_row_bytes + (byte ^ (row % 8 * 16));
}

// Fetches the map itself, ahead of its first use.
__device__ inline void prefetch_map(const CUtensorMap& map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// Coordinates are in elements, the innermost first; what lies outside of the tensor arrives as 0,
// and counts in the barrier's bytes like the rest.
__device__ inline void load_box(void* to, const CUtensorMap& map, int x, int y, int z,
                                mbarrier& arrived) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(arrived.address())
      : "memory");
#endif
}

// The same to every block of the cluster whose bit is set: to the same place of its shared memory,
// counted on its own barrier at the same place.
__device__ inline void load_box_to_all(void* to, const CUtensorMap& map, int x, int y, int z,
                                       mbarrier& arrived, uint16_t blocks) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(arrived.address()), "h"(blocks)
      : "memory");
#endif
}

// Between a thread's ordinary stores to shared memory and a barrier behind which the copy engine or
// the tensor cores read them.
__device__ inline void show_stores_to_engines() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// What lies outside of the tensor is not written.
__device__ inline void store_box(const CUtensorMap& map, int x, int y, int z, const void* from) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
      : "memory");
#endif
}

// Ends a group of this thread's stores.
__device__ inline void commit_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Until of this thread's groups all but the last kPending have read their shared memory.
template <int kPending>
__device__ inline void wait_until_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
#endif
}

// Until all of this thread's stores are done.
__device__ inline void wait_for_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

}  // namespace ninefold::cuda::sm90
