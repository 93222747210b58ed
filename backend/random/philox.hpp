// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): 128 random
// bits as a function of a 128-bit counter and a 64-bit key. Integers only and one definition for
// host and device, so every backend draws the same stream. docs/numerics.md has its vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/rows.hpp"

namespace ninefold {

struct philox_words {
  uint32_t word[4];
};

NF_HOST_DEVICE inline philox_words philox4x32(philox_words counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The words of elements 4 * group to 4 * group + 3 of a tensor, by logical index.
NF_HOST_DEVICE inline philox_words philox_group(uint64_t seed, uint64_t offset, uint64_t group) {
  return philox4x32({{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                      static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// An element is kept if its word is at least this: 0 keeps all, 2^32 keeps none.
inline uint64_t dropout_threshold(double p) {
  return static_cast<uint64_t>(std::llround(p * 0x1p32));
}

// What kept elements are multiplied by; p = 1 keeps none, and divides nothing.
inline float dropout_scale(double p) { return p == 1 ? 0.0f : static_cast<float>(1 / (1 - p)); }

}  // namespace ninefold
