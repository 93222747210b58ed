#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "lab/ceilings.hpp"

namespace ninefold::lab {
namespace {

// Every implementation of every mix writes all of its outputs, and what it should.
TEST(Streams, MoveEveryByte) {
  constexpr int64_t bytes = 64 * 1001;  // does not divide evenly among threads
  for (const stream_mix& mix : all_mixes()) {
    std::vector<std::vector<uint64_t>> storage(7, std::vector<uint64_t>(bytes / 8 + 8));
    uint64_t* buffers[7];
    for (size_t b = 0; b < 7; ++b) {
      buffers[b] = reinterpret_cast<uint64_t*>(
          (reinterpret_cast<uintptr_t>(storage[b].data()) + 63) / 64 * 64);
    }
    for (const stream_kernel& kernel : cpu_stream_kernels(mix)) {
      for (size_t b = 0; b < 7; ++b) std::iota(buffers[b], buffers[b] + bytes / 8, 1000 * (b + 1));
      const void* ins[4] = {buffers[0], buffers[1], buffers[2], buffers[3]};
      void* outs[3] = {buffers[mix.ins], buffers[mix.ins + (mix.outs > 1)],
                       buffers[mix.ins + (mix.outs > 2) * 2]};
      for (int o = 0; o < mix.outs; ++o) std::memset(outs[o], 0xFF, bytes);
      kernel.run(ins, outs, bytes, nullptr);
      for (int o = 0; o < mix.outs; ++o) {
        const auto* out = static_cast<const uint64_t*>(outs[o]);
        int64_t wrong = 0;
        for (int64_t i = 0; i < bytes / 8; ++i) {
          uint64_t expected = mix.ins == 0 ? out[0] : 0;
          for (int k = 0; k < mix.ins; ++k) expected ^= buffers[k][i];
          wrong += out[i] != expected || out[i] == ~uint64_t{0};
        }
        EXPECT_EQ(wrong, 0) << mix.name << ' ' << kernel.name;
      }
    }
  }
}

TEST(Streams, VolumeIsTheCases) {
  for (const stream_mix& mix : all_mixes()) {
    const int64_t each = ceiling_buffer_bytes(mix, 1000000);
    EXPECT_EQ(each % 64, 0);
    EXPECT_LE(std::abs(each * (mix.ins + mix.outs) - 1000000), 64 * 7);
  }
  EXPECT_THROW(find_mix("7:1"), std::invalid_argument);
}

}  // namespace
}  // namespace ninefold::lab
