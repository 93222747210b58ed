// What a reference returns, and the errors that kernels may make: fp32 arithmetic, one rounding at
// the store. docs/numerics.md derives the numbers.
#pragma once

#include <ninefold/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "verify/tensor.hpp"

namespace ninefold::verify {

// A result and what each of its elements may be off by.
struct expectation {
  std::vector<double> values, allowed;
};

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double unit = 0x1p-24;  // fp32's unit roundoff

// The relative error, in units, of an exponential, of a sum of n positive terms and of a division:
// a tree over lanes, threads and blocks gives log2 n, the runs inside a lane the square root.
inline double reduction_error(int64_t n) {
  const double count = static_cast<double>(std::max<int64_t>(n, 1));
  return 8 + std::log2(count) + std::sqrt(count) / 8;
}

// Below these a kernel may flush to zero (fp32, bf16) or rounds to a multiple (fp16).
inline double smallest_step(DLDataType type) {
  return type.code == kDLFloat && type.bits == 16 ? 0x1p-25 : 0x1p-126;
}

// A number and what it may be off by.
struct estimate {
  double value, error;
};

// Appends `e` as it is stored: with one rounding to `type`.
inline void add_rounded(expectation& to, DLDataType type, const estimate& e) {
  const double size = std::isfinite(e.value) ? std::abs(e.value) : 0;
  to.values.push_back(e.value);
  const double error = std::isfinite(e.error) ? e.error : 0;
  to.allowed.push_back(error + 1.01 * epsilon(type) * size + smallest_step(type));
}

// What `type` cannot hold is infinite.
inline void overflow_to(DLDataType type, std::span<double> values) {
  for (double& value : values)
    if (std::isinf(rounded(type, value))) value = std::copysign(infinity, value);
}

}  // namespace ninefold::verify
