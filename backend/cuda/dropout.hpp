// Which elements of a vector dropout keeps: one group of random words for eight elements where the
// vector lies in it, two where it lies across.
#pragma once

#include <cstdint>

#include "backend/random/philox.hpp"

namespace ninefold::cuda {

// A threshold of 64 bits in one comparison.
struct keep_rule {
  uint32_t from;
  bool any;  // otherwise nothing is kept

  __device__ explicit keep_rule(uint64_t threshold)
      : from(static_cast<uint32_t>(threshold)), any(threshold <= UINT32_MAX) {}
  __device__ bool operator()(uint32_t draw) const { return any && draw >= from; }
};

// Calls set(i, kept) for the kWidth elements from number `index` on. What is before a tensor's
// first element has numbers below 0.
template <int kWidth, class Set>
__device__ inline void for_each_draw(uint64_t seed, uint64_t offset, keep_rule keeps, int64_t index,
                                     Set&& set) {
  static_assert(kWidth <= dropout_group);
  if (kWidth > 1 && index % kWidth == 0) {
    philox_words words = philox_group(seed, offset, static_cast<uint64_t>(index) / dropout_group);
    if (index % dropout_group != 0) {  // the upper half of a group
      words.word[0] = words.word[2];
      words.word[1] = words.word[3];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) set(i, keeps(dropout_draw(words, i)));
    return;
  }
  // One group after another, for this shall be little code.
  uint32_t kept = 0;
#pragma unroll 1
  for (int g = 0; dropout_group * g < kWidth + dropout_group - 1; ++g) {
    const philox_words words = philox_group(seed, offset, static_cast<uint64_t>((index >> 3) + g));
#pragma unroll
    for (int i = 0; i < dropout_group; ++i)
      kept |= uint32_t{keeps(dropout_draw(words, i))} << (dropout_group * g + i);
  }
  kept >>= index & (dropout_group - 1);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) set(i, kept >> i & 1);
}

}  // namespace ninefold::cuda
