// The storage formats, one number at a time: what the plain loops use, and the meaning that the
// vector conversions in vec.hpp must agree with. Integer arithmetic only, so it needs no F16C.
#pragma once

#include <bit>
#include <cstdint>

#include "backend/view.hpp"

namespace ninefold::cpu {

struct f16 {
  uint16_t bits;
};

struct bf16 {
  uint16_t bits;
};

// A mask's byte: any but 0 is true.
struct byte_bool {
  uint8_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

inline float to_float(f16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)  // Inf and NaN keep their payload, a signalling NaN becomes quiet.
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 |
                                (magnitude > 0x7c00u ? 0x400000u : 0u));
  if (magnitude < 0x400u)  // Subnormals count 2^-24; exact in fp32.
    return std::bit_cast<float>(sign |
                                std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

// Round to nearest, ties to even; NaN stays NaN, overflow becomes Inf.
template <class T>
T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // Rounding could carry a NaN's payload into Inf or zero.
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <>
inline f16 from_float<f16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to Inf
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // Below 2^-14: adding 0.5 lets the FPU round at 2^-24.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - ((127u - 15u) << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// One element of a tensor whose dtype is known when the work runs.
inline float number_at(const void* data, dtype type, int64_t i) {
  if (type == dtype::f32) return static_cast<const float*>(data)[i];
  if (type == dtype::f16) return to_float(static_cast<const f16*>(data)[i]);
  return to_float(static_cast<const bf16*>(data)[i]);
}

inline void set_number(void* data, dtype type, int64_t i, float value) {
  if (type == dtype::f32) {
    static_cast<float*>(data)[i] = value;
  } else if (type == dtype::f16) {
    static_cast<f16*>(data)[i] = from_float<f16>(value);
  } else {
    static_cast<bf16*>(data)[i] = from_float<bf16>(value);
  }
}

}  // namespace ninefold::cpu
