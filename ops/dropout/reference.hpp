// What dropout means: forward and backward in float64, element by element, with a generator of its
// own, and how far a kernel that computes in fp32 and rounds at the store may be from it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::reference {

struct dropout_spec {
  double p = 0;
  uint64_t seed = 0, offset = 0;
  DLDataType type{kDLFloat, 32, 1};

  double scale() const { return p == 1 ? 0 : static_cast<float>(1 / (1 - p)); }
};

// Philox4x32-10 as its authors wrote it down, apart from the library's.
inline std::array<uint32_t, 4> dropout_words(const dropout_spec& s, uint64_t group) {
  std::array<uint64_t, 4> c{group & 0xffffffff, group >> 32, s.offset & 0xffffffff, s.offset >> 32};
  std::array<uint64_t, 2> k{s.seed & 0xffffffff, s.seed >> 32};
  for (int round = 0; round < 10; ++round) {
    if (round > 0) k = {(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff};
    const uint64_t even = c[0] * 0xD2511F53, odd = c[2] * 0xCD9E8D57;
    c = {(odd >> 32) ^ c[1] ^ k[0], odd & 0xffffffff, (even >> 32) ^ c[3] ^ k[1],
         even & 0xffffffff};
  }
  return {static_cast<uint32_t>(c[0]), static_cast<uint32_t>(c[1]), static_cast<uint32_t>(c[2]),
          static_cast<uint32_t>(c[3])};
}

// Whether an element is kept, by its index in row-major order.
inline bool dropout_keeps(const dropout_spec& s, uint64_t index) {
  return static_cast<double>(dropout_words(s, index / 4)[index % 4]) >= std::round(s.p * 0x1p32);
}

// y, without a residual if that is empty, and dx where x is dy. `first` is the index of x[0].
inline verify::expectation dropout(const dropout_spec& s, std::span<const double> x,
                                   std::span<const double> residual = {}, uint64_t first = 0) {
  verify::expectation out{std::vector<double>(x.size()), std::vector<double>(x.size())};
  for (size_t i = 0; i < x.size(); ++i) {
    out.values[i] = residual.empty() ? 0 : residual[i];
    if (!dropout_keeps(s, first + i)) continue;  // exact, and so is what nothing is allowed for
    const double kept = x[i] * s.scale();
    out.values[i] = residual.empty() ? kept : kept + residual[i];
    if (s.p > 0 || !residual.empty())
      out.allowed[i] = (verify::epsilon(s.type) + verify::unit) * std::abs(out.values[i]) +
                       verify::smallest_step(s.type);
  }
  verify::overflow_to(s.type, out.values);
  return out;
}

}  // namespace ninefold::reference
