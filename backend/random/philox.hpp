// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): 128 random
// bits as a function of a 128-bit counter and a 64-bit key. Integers only and one definition for
// host and device, so every backend draws the same stream. docs/numerics.md has its vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/host_device.hpp"

namespace ninefold {

struct philox_words {
  uint32_t word[4];
};

NF_HOST_DEVICE inline uint32_t upper_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __umulhi(a, b);
#else
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
#endif
}

// On CUDA, kUnrolled of the ten rounds are written out at a time. With all of them the compiler
// keeps the rounds' keys from one call to the next: fewer instructions, for 20 registers, which not
// every kernel has.
template <int kUnrolled = 10>
NF_HOST_DEVICE inline philox_words philox4x32(philox_words counter, uint32_t key0, uint32_t key1) {
  constexpr uint32_t m0 = 0xD2511F53u, m1 = 0xCD9E8D57u;
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
#ifdef __CUDA_ARCH__
#pragma unroll kUnrolled
#endif
  for (int round = 0; round < 10; ++round) {
    // Side by side, the halves of a product become one instruction. A 64-bit product does as well,
    // but one more takes it apart.
    const uint32_t upper0 = upper_product(m0, c0), low0 = m0 * c0;
    const uint32_t upper1 = upper_product(m1, c2), low1 = m1 * c2;
    c0 = upper1 ^ c1 ^ key0;
    c1 = low1;
    c2 = upper0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The words that (seed, offset) has for number `group`.
template <int kUnrolled = 10>
NF_HOST_DEVICE inline philox_words philox_group(uint64_t seed, uint64_t offset, uint64_t group) {
  return philox4x32<kUnrolled>(
      {{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
        static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}},
      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// Dropout draws 16 bits an element: element i of a tensor has half i % 8 of the words of group
// i / 8, lower halves first. They come in the upper half of the result; what stands below them is
// of no consequence, for thresholds have nothing there.
inline constexpr int dropout_group = 8;
NF_HOST_DEVICE inline uint32_t dropout_draw(const philox_words& words, int i) {
  return i % 2 == 0 ? words.word[i / 2] << 16 : words.word[i / 2];
}

// An element is kept if its draw is at least this, p to the nearest 2^-16: 0 keeps all, 2^32 keeps
// none.
inline uint64_t dropout_threshold(double p) {
  return static_cast<uint64_t>(std::llround(p * 0x1p16)) << 16;
}

// Bit i: whether element i of the group is kept.
NF_HOST_DEVICE inline uint32_t dropout_kept(const philox_words& words, uint64_t keep_from) {
  uint32_t kept = 0;
  for (int i = 0; i < dropout_group; ++i)
    kept |= uint32_t{dropout_draw(words, i) >= keep_from} << i;
  return kept;
}

// Whether the element of that index is kept.
NF_HOST_DEVICE inline bool dropout_keeps(uint64_t seed, uint64_t offset, uint64_t index,
                                         uint64_t keep_from) {
  const philox_words words = philox_group(seed, offset, index / dropout_group);
  return dropout_kept(words, keep_from) >> index % dropout_group & 1;
}

// What kept elements are multiplied by: the inverse of the share that `threshold` keeps, so that
// the mean is kept exactly. A threshold that keeps none divides nothing.
inline float dropout_scale(uint64_t threshold) {
  const double kept = 1 - static_cast<double>(threshold) * 0x1p-32;
  return kept == 0 ? 0.0f : static_cast<float>(1 / kept);
}

}  // namespace ninefold
