// fp32 vectors from and to the storage formats, and exp. Compiled once per instruction set: include
// it after foreach_target.h, and write fp32 arithmetic whatever is stored.

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/cpu/scalar.hpp"

#if defined(NF_BACKEND_CPU_VEC_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_BACKEND_CPU_VEC_HPP
#undef NF_BACKEND_CPU_VEC_HPP
#else
#define NF_BACKEND_CPU_VEC_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using floats = hn::ScalableTag<float>;
using vec = hn::Vec<floats>;
using vec_mask = hn::Mask<floats>;

// A constant: targets.hpp leaves out the sets whose width only the running CPU knows.
inline constexpr size_t kLanes = hn::MaxLanes(floats());

HWY_INLINE vec set(float x) { return hn::Set(floats(), x); }

HWY_INLINE vec load(const float* p) { return hn::LoadU(floats(), p); }

HWY_INLINE vec load(const bf16* p) {
  const hn::Rebind<uint16_t, floats> d16;
  const hn::Rebind<uint32_t, floats> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(floats(), hn::ShiftLeft<16>(bits));
}

// A mask as what is to be added: 0 where true, -inf where false.
HWY_INLINE vec load(const byte_bool* p) {
  const hn::Rebind<uint8_t, floats> d8;
  const hn::Rebind<int32_t, floats> d32;
  const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p)));
  const auto hidden = hn::RebindMask(floats(), hn::Eq(bytes, hn::Zero(d32)));
  return hn::IfThenElseZero(hidden, set(-INFINITY));
}

HWY_INLINE void store(vec v, float* p) { hn::StoreU(v, floats(), p); }

// fp32 bits rounded so that the upper half is the nearest bf16, ties to even. By integers: Highway
// 1.0.3 would cut the low half off.
template <bool kMayBeNaN = true>
HWY_INLINE auto rounded_to_bf16(vec v) {
  const hn::Rebind<uint32_t, floats> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  if constexpr (!kMayBeNaN) return rounded;
  // Rounding could carry a NaN's payload into Inf or zero.
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  return hn::IfThenElse(nan, hn::Or(bits, hn::Set(d32, 0x400000)), rounded);
}

HWY_INLINE auto bf16_bits(vec v) {
  const hn::Rebind<uint16_t, floats> d16;
  const hn::Rebind<int32_t, floats> d32;
  return hn::DemoteTo(d16, hn::BitCast(d32, hn::ShiftRight<16>(rounded_to_bf16(v))));
}

HWY_INLINE void store(vec v, bf16* p) {
  hn::StoreU(bf16_bits(v), hn::Rebind<uint16_t, floats>(), reinterpret_cast<uint16_t*>(p));
}

// Without conversion instructions fp16 goes one by one.
#undef NF_F16_BY_ONE
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
#define NF_F16_BY_ONE 1
#else
#define NF_F16_BY_ONE 0
#endif

#if NF_F16_BY_ONE
HWY_INLINE vec load(const f16* p) {
  HWY_ALIGN float lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = to_float(p[i]);
  return hn::Load(floats(), lanes);
}

HWY_INLINE void store(vec v, f16* p) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, floats(), lanes);
  for (size_t i = 0; i < kLanes; ++i) p[i] = from_float<f16>(lanes[i]);
}
#else
HWY_INLINE vec load(const f16* p) {
  const hn::Rebind<uint16_t, floats> d16;
  const hn::Rebind<hwy::float16_t, floats> df16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::PromoteTo(floats(), hn::BitCast(df16, bits));
}

HWY_INLINE auto f16_bits(vec v) {
  const hn::Rebind<uint16_t, floats> d16;
  const hn::Rebind<hwy::float16_t, floats> df16;
  return hn::BitCast(d16, hn::DemoteTo(df16, v));
}

HWY_INLINE void store(vec v, f16* p) {
  hn::StoreU(f16_bits(v), hn::Rebind<uint16_t, floats>(), reinterpret_cast<uint16_t*>(p));
}
#endif

// Stores past the caches; `p` must be aligned to kLanes elements. Without fp16 instructions half a
// vector is also too narrow for a non-temporal store, so the 16-bit formats take the ordinary way.
HWY_INLINE void stream(vec v, float* p) { hn::Stream(v, floats(), p); }

#if NF_F16_BY_ONE
HWY_INLINE void stream(vec v, f16* p) { store(v, p); }

HWY_INLINE void stream(vec v, bf16* p) { store(v, p); }
#else
HWY_INLINE void stream(vec v, f16* p) {
  hn::Stream(f16_bits(v), hn::Rebind<uint16_t, floats>(), reinterpret_cast<uint16_t*>(p));
}

HWY_INLINE void stream(vec v, bf16* p) {
  hn::Stream(bf16_bits(v), hn::Rebind<uint16_t, floats>(), reinterpret_cast<uint16_t*>(p));
}
#endif

// 2 * kLanes bf16 numbers as two vectors, those at even and those at odd places: one instruction
// each to load and no shuffle to store. Sums and element-wise work do not mind the order.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE vec load_even(const bf16* p) { return load(p); }

HWY_INLINE vec load_odd(const bf16* p) { return load(p + 1); }

template <bool kMayBeNaN>
HWY_INLINE void store_even_odd(vec even, vec odd, bf16* p) {
  store(even, p);
  store(odd, p + 1);
}

template <bool kMayBeNaN>
HWY_INLINE void stream_even_odd(vec even, vec odd, bf16* p) {
  store_even_odd<kMayBeNaN>(even, odd, p);
}
#else
HWY_INLINE auto load_pairs(const bf16* p) {
  const hn::Repartition<uint16_t, floats> d16;
  const hn::Repartition<uint32_t, floats> d32;
  return hn::BitCast(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
}

HWY_INLINE vec load_even(const bf16* p) {
  return hn::BitCast(floats(), hn::ShiftLeft<16>(load_pairs(p)));
}

HWY_INLINE vec load_odd(const bf16* p) {
  const hn::Repartition<uint32_t, floats> d32;
  return hn::BitCast(floats(), hn::And(load_pairs(p), hn::Set(d32, 0xffff0000u)));
}

template <bool kMayBeNaN>
HWY_INLINE auto bf16_pairs(vec even, vec odd) {
  const hn::Repartition<uint16_t, floats> d16;
  const hn::Repartition<uint32_t, floats> d32;
  const auto low = hn::ShiftRight<16>(rounded_to_bf16<kMayBeNaN>(even));
  const auto high = rounded_to_bf16<kMayBeNaN>(odd);
  return hn::BitCast(d16, hn::OrAnd(low, high, hn::Set(d32, 0xffff0000u)));
}

template <bool kMayBeNaN>
HWY_INLINE void store_even_odd(vec even, vec odd, bf16* p) {
  const hn::Repartition<uint16_t, floats> d16;
  hn::StoreU(bf16_pairs<kMayBeNaN>(even, odd), d16, reinterpret_cast<uint16_t*>(p));
}

template <bool kMayBeNaN>
HWY_INLINE void stream_even_odd(vec even, vec odd, bf16* p) {
  const hn::Repartition<uint16_t, floats> d16;
  hn::Stream(bf16_pairs<kMayBeNaN>(even, odd), d16, reinterpret_cast<uint16_t*>(p));
}
#endif

// The first `count` < kLanes elements at `p`; the other lanes are 0 in storage. Touches no byte
// beyond them.
template <class T>
HWY_INLINE vec load_first(size_t count, const T* p) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, count * sizeof(T));
  return load(lanes);
}

template <class T>
HWY_INLINE void store_first(size_t count, vec v, T* p) {
  T lanes[kLanes];
  store(v, lanes);
  std::memcpy(p, lanes, count * sizeof(T));
}

// a * b + c with one rounding, also where the CPU has no such instruction.
HWY_INLINE vec fused(vec a, vec b, vec c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, floats(), x);
  hn::Store(b, floats(), y);
  hn::Store(c, floats(), z);
  for (size_t i = 0; i < kLanes; ++i) x[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(floats(), x);
#endif
}

// The larger of v and `low`; NaN stays NaN.
HWY_INLINE vec at_least(vec low, vec v) {
#if HWY_ARCH_X86 && HWY_TARGET < HWY_EMU128
  return hn::Max(low, v);  // MAXPS returns its second operand if one is NaN
#else
  return hn::IfThenElse(hn::Lt(v, low), low, v);
#endif
}

// What exp_times_2_24 multiplies by: with it the smallest results are normal numbers, so that no
// step is rounded twice and a later division brings on gradual underflow by itself.
inline constexpr float exp_unit = 0x1p24f;

// 2^24 * exp(v) for v <= 64. exp(v) = 2^k * exp(r) with k = round(v / ln 2) and |r| <= ln(2) / 2;
// exp(r) = 1 + r + r^2 q(r) with a minimax q. Its degree is 4 (relative error 3.1e-9, in all within
// 2 ulp where v > -40), or with kFor16Bits only 2: 5.3e-6, a hundredth of the rounding to fp16.
// Below -104 it is that of -104, half the smallest subnormal; NaN stays NaN.
template <bool kFor16Bits>
HWY_INLINE vec exp_times_2_24(vec v) {
  const hn::Rebind<uint32_t, floats> d32;
  const vec x = at_least(set(-104.0f), v);
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum, here with 24 on top.
  const vec magic = set(0x1.8p23f + 24.0f);
  const vec shifted = hn::MulAdd(x, set(0x1.715476p0f), magic);
  const vec k = hn::Sub(shifted, magic);
#if HWY_NATIVE_FMA
  // ln 2 as one number is off by 2e-9: half an ulp of the result at x = -20, 2 ulp at x = -87.
  const vec r = hn::NegMulAdd(k, set(0x1.62e43p-1f), x);
#else
  // In two parts, so that k * high is exact.
  const vec high = hn::NegMulAdd(k, set(0x1.62e4p-1f), x);
  const vec r = hn::NegMulAdd(k, set(0x1.7f7d1cp-20f), high);
#endif
  vec p;
  if constexpr (kFor16Bits) {
    p = hn::MulAdd(set(0x1.5224eap-5f), r, set(0x1.571d1ep-3f));
    p = hn::MulAdd(p, r, set(0x1.0006b8p-1f));
  } else {
    p = hn::MulAdd(set(0x1.6a23dp-10f), r, set(0x1.123a2p-7f));
    p = hn::MulAdd(p, r, set(0x1.5558f2p-5f));
    p = hn::MulAdd(p, r, set(0x1.555492p-3f));
    p = hn::MulAdd(p, r, set(0x1.fffffcp-2f));
  }
  p = hn::MulAdd(p, r, set(1.0f));
  p = hn::MulAdd(p, r, set(1.0f));
  // 2^(k + 24) goes into the exponent by an integer addition.
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(d32, shifted));
  return hn::BitCast(floats(), hn::Add(hn::BitCast(d32, p), exponent));
}

// exp(v) for any v.
HWY_INLINE vec exp(vec v) {
  const vec_mask large = hn::Gt(v, set(64.0f));
  if (HWY_LIKELY(hn::AllFalse(floats(), large)))
    return hn::Mul(exp_times_2_24<false>(v), set(1 / exp_unit));
  // exp(v) = exp(v / 2)^2; from 128 on that is Inf in any case.
  const vec half = hn::Mul(hn::IfThenElse(hn::Gt(v, set(128.0f)), set(128.0f), v), set(0.5f));
  const vec root =
      hn::Mul(exp_times_2_24<false>(hn::IfThenElse(large, half, v)), set(1 / exp_unit));
  return hn::IfThenElse(large, hn::Mul(root, root), root);
}

}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
