// What dropout means: forward and backward in float64, element by element, and how
// far a kernel that computes in fp32 and rounds at the store may be from it.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "verify/dropout.hpp"
#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::reference {

struct dropout_spec {
  double p = 0;
  uint64_t seed = 0, offset = 0;
  DLDataType type{kDLFloat, 32, 1};

  verify::dropout_spec mask() const { return {p, seed, offset}; }
};

// y, without a residual if that is empty, and dx where x is dy. `first` is the index of x[0].
inline verify::expectation dropout(const dropout_spec& s, std::span<const double> x,
                                   std::span<const double> residual = {}, uint64_t first = 0) {
  verify::expectation out{std::vector<double>(x.size()), std::vector<double>(x.size())};
  for (size_t i = 0; i < x.size(); ++i) {
    out.values[i] = residual.empty() ? 0 : residual[i];
    if (!s.mask().keeps(first + i)) continue;  // exact, and so is what nothing is allowed for
    const double kept = x[i] * s.mask().scale();
    out.values[i] = residual.empty() ? kept : kept + residual[i];
    if (s.mask().drawn() > 0 || !residual.empty())
      out.allowed[i] = (verify::epsilon(s.type) + verify::unit) * std::abs(out.values[i]) +
                       verify::smallest_step(s.type);
  }
  verify::overflow_to(s.type, out.values);
  return out;
}

}  // namespace ninefold::reference
