// The list of tensors as it travels in a kernel's parameters, and how a block finds its tensor.
#pragma once

#include "backend/cuda/vec.hpp"
#include "ops/adamw/adamw.hpp"

namespace ninefold::cuda {

inline constexpr int adamw_threads = 256;
// GPT-2 small has 148 tensors, so it is one launch; the parameters of a kernel may be 32 KiB.
inline constexpr int adamw_tensors_a_launch = 160;
// Accesses go by four elements: 16 bytes in fp32, 8 in the narrow types.
inline constexpr int quad = 4;

struct adamw_item {
  void* param;
  const void* grad;
  void *m, *v;
  float* master;
  int64_t count;
  uint64_t first;
  double weight_decay, lr_scale;
  int32_t head;     // elements by which the tensor lies past a quad's boundary
  int32_t aligned;  // all its tensors alike; else its elements go one by one, and head is 0
};

struct adamw_list {
  adamw_item item[adamw_tensors_a_launch];
  uint32_t first_block[adamw_tensors_a_launch + 1];
  int32_t count;
};
static_assert(sizeof(adamw_list) <= 32 << 10);

// A block's share: its tensor, and the element that it begins at, which may lie before the first.
struct adamw_share {
  const adamw_item* item;
  int64_t begin;
};

template <int kElements>
__device__ inline adamw_share adamw_share_of_block(const adamw_list& list) {
  int low = 0, high = list.count;  // first_block[low] <= blockIdx.x < first_block[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (blockIdx.x >= list.first_block[middle]) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const adamw_item& item = list.item[low];
  return {&item, int64_t{blockIdx.x - list.first_block[low]} * kElements - item.head};
}

template <class T>
__device__ inline void load_quad(const T* from, float (&to)[quad]) {
  if constexpr (sizeof(T) == 4) {
    unpack(load_vector<T, quad>(from), to);
  } else {
    const uint2 bits = __ldca(reinterpret_cast<const uint2*>(from));
    const float2 low = unpack_pair(bits.x, T{}), high = unpack_pair(bits.y, T{});
    to[0] = low.x;
    to[1] = low.y;
    to[2] = high.x;
    to[3] = high.y;
  }
}

template <class T>
__device__ inline void store_quad(T* to, const float (&from)[quad]) {
  if constexpr (sizeof(T) == 4) {
    store_vector<T, quad>(to, pack<T, quad>(from));
  } else {
    __stwb(reinterpret_cast<uint2*>(to),
           uint2{pack_pair(from[0], from[1], T{}), pack_pair(from[2], from[3], T{})});
  }
}

}  // namespace ninefold::cuda
