// Verify's own conversions between double and the storage dtypes, independent of the library's:
// bit by bit, round to nearest even, no hardware instruction.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace ninefold::verify {

// An IEEE-like binary format: sign, kExponent bits, kMantissa bits, all-ones exponent for inf, NaN.
template <int kExponent, int kMantissa>
struct binary_format {
  static constexpr int bias = (1 << (kExponent - 1)) - 1;
  static constexpr uint32_t infinity = ((1u << kExponent) - 1) << kMantissa;
  static constexpr uint32_t sign_bit = 1u << (kExponent + kMantissa);

  static constexpr uint32_t encode(double value) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    const uint32_t sign = bits >> 63 ? sign_bit : 0;
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
    if (exponent == 0x7ff)
      return sign | infinity | (fraction ? 1u << (kMantissa - 1) : 0);  // NaN becomes the quiet one
    if (exponent == 0)
      return sign;  // a double's subnormal is below half of every format's smallest

    // value = significand * 2^-52 * 2^(exponent - 1023). `shift` bits fall off; a subnormal result
    // loses more of them, as its exponent cannot go below 1.
    const uint64_t significand = fraction | uint64_t{1} << 52;
    const int biased = exponent - 1023 + bias;
    const int shift = 52 - kMantissa + (biased < 1 ? 1 - biased : 0);
    if (shift > 54) return sign;
    const uint64_t kept = significand >> shift;
    const uint64_t lost = significand & ((uint64_t{1} << shift) - 1);
    const uint64_t half = uint64_t{1} << (shift - 1);
    const uint64_t nearest = kept + (lost > half || (lost == half && (kept & 1)) ? 1 : 0);
    // The significand's leading one carries into the exponent field, and so does a rounding up.
    const uint64_t magnitude =
        nearest + (biased > 1 ? static_cast<uint64_t>(biased - 1) << kMantissa : 0);
    return sign | (magnitude >= infinity ? infinity : static_cast<uint32_t>(magnitude));
  }

  static double decode(uint32_t bits) {
    const uint32_t magnitude = bits & (sign_bit - 1);
    double value;
    if (magnitude > infinity)
      value = std::numeric_limits<double>::quiet_NaN();
    else if (magnitude == infinity)
      value = std::numeric_limits<double>::infinity();
    else  // the same fields in a double, whose larger bias one exact product takes out again
      value = std::bit_cast<double>(uint64_t{magnitude} << (52 - kMantissa)) *
              std::bit_cast<double>(uint64_t{2046 - bias} << 52);
    return bits & sign_bit ? -value : value;
  }
};

using half_format = binary_format<5, 10>;
using bfloat_format = binary_format<8, 7>;

}  // namespace ninefold::verify
