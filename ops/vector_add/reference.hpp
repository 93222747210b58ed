// What vector_add means: x + y, rounded once to the dtype.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "verify/tensor.hpp"

namespace ninefold::reference {

// The correctly rounded sum. A kernel must give these very numbers: fp32's 24 bits are at least
// 2 p + 2 for fp16 (p = 11) and bf16 (p = 8), so adding in fp32 and rounding to them is as good as
// rounding the exact sum once (Figueroa 1995); the same holds for double and fp32 here.
inline std::vector<double> vector_add(DLDataType type, std::span<const double> x,
                                      std::span<const double> y) {
  std::vector<double> z(x.size());
  for (size_t i = 0; i < x.size(); ++i) z[i] = verify::rounded(type, x[i] + y[i]);
  return z;
}

}  // namespace ninefold::reference
