// Which elements dropout keeps, as docs/numerics.md defines it: written apart from the library's
// own code, for the references.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace ninefold::verify {

// Philox4x32-10 as its authors wrote it down.
inline std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
    const uint64_t even = uint64_t{c[0]} * 0xD2511F53u, odd = uint64_t{c[2]} * 0xCD9E8D57u;
    c = {static_cast<uint32_t>(odd >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(odd),
         static_cast<uint32_t>(even >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(even)};
  }
  return c;
}

struct dropout_spec {
  double p = 0;
  uint64_t seed = 0, offset = 0;

  // p as it is drawn: to the nearest 2^-16.
  double drawn() const { return std::round(p * 0x1p16) * 0x1p-16; }

  // What kept elements are multiplied by, and the fp32 number that stands for it.
  double exact_scale() const { return drawn() == 1 ? 0 : 1 / (1 - drawn()); }
  double scale() const { return static_cast<float>(exact_scale()); }

  // By the element's number in row-major order: half `element % 8` of the words of its group.
  bool keeps(uint64_t element) const {
    const uint64_t group = element / 8;
    const auto low = [](uint64_t n) { return static_cast<uint32_t>(n); };
    const uint32_t word =
        philox4x32_10({low(group), low(group >> 32), low(offset), low(offset >> 32)},
                      {low(seed), low(seed >> 32)})[element % 8 / 2];
    return (element % 2 == 0 ? word & 0xffff : word >> 16) >= drawn() * 0x1p16;
  }
};

}  // namespace ninefold::verify
