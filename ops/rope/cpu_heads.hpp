// The vector code of row_per_token: a token's rotations, and a head that is turned by them.
// Compiled once per instruction set, as backend/cpu/vec.hpp.

#include <cstring>
#include <type_traits>

#include "backend/cpu/reduce.hpp"
#include "ops/rope/rope.hpp"

#ifndef NF_OPS_ROPE_CPU_HEADS_ONCE
#define NF_OPS_ROPE_CPU_HEADS_ONCE
namespace ninefold::cpu {

// One head on its way, and the rotations of its token in the order that `arrange` gave them.
struct rope_head {
  const void* in;
  void* out;
  int64_t pairs, head_size;
  const float *cos, *sin;
};

// The rotations of a token: `pairs` each of cos and sin, twice that for the order of some types.
struct rope_rows {
  alignas(64) float cos[2 * rope_problem::most_pairs];
  alignas(64) float sin[2 * rope_problem::most_pairs];
};

}  // namespace ninefold::cpu
#endif

#if defined(NF_OPS_ROPE_CPU_HEADS_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_OPS_ROPE_CPU_HEADS_HPP
#undef NF_OPS_ROPE_CPU_HEADS_HPP
#else
#define NF_OPS_ROPE_CPU_HEADS_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {

inline constexpr int64_t lanes = kLanes;

// cos and sin of computed angles, as the series in rope.hpp says.
HWY_INLINE void make_rotations(const rope_problem& p, int64_t position, float* cos, float* sin) {
  using series = rope_series;
  HWY_ALIGN float rest[rope_problem::most_pairs];
  HWY_ALIGN int32_t quarters[rope_problem::most_pairs];
  // Whole vectors: beyond the pairs, frequencies are 0 up to the end of the arrays.
  const int64_t padded = (p.pairs + lanes - 1) / lanes * lanes;
  for (int64_t i = 0; i < padded; ++i) {
    const rope_angle angle = rope_angle_of(p.frequency[i], position);
    rest[i] = angle.rest;
    quarters[i] = static_cast<int32_t>(angle.quarters);
  }
  const hn::Rebind<int32_t, floats> d32;
  const auto one = hn::Set(d32, 1), two = hn::Set(d32, 2);
  const vec cos_factor = set(p.cos_factor), sin_factor = set(p.sin_factor);
  for (int64_t i = 0; i < padded; i += lanes) {
    const vec r = load(rest + i), z = hn::Mul(r, r);
    const auto quarter = hn::Load(d32, quarters + i);
    vec c = fused(set(series::c3), z, set(series::c2));
    c = fused(c, z, set(series::c1));
    c = fused(c, z, set(series::c0));
    c = fused(c, z, set(1.0f));
    vec s = fused(set(series::s2), z, set(series::s1));
    s = fused(s, z, set(series::s0));
    s = fused(s, z, set(series::rest));
    s = fused(r, set(series::two_pi), hn::Mul(r, s));
    const auto swapped = hn::RebindMask(floats(), hn::Eq(hn::And(quarter, one), one));
    const vec x = hn::IfThenElse(swapped, s, c), y = hn::IfThenElse(swapped, c, s);
    // Bit 1 becomes the sign.
    const auto x_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quarter, one), two));
    const auto y_sign = hn::ShiftLeft<30>(hn::And(quarter, two));
    store(hn::Mul(hn::Xor(x, hn::BitCast(floats(), x_sign)), cos_factor), cos + i);
    store(hn::Mul(hn::Xor(y, hn::BitCast(floats(), y_sign)), sin_factor), sin + i);
  }
}

// Those of a table.
HWY_INLINE void read_rotations(const rope_problem& p, int64_t position, float* cos, float* sin) {
  for (int64_t i = 0; i < p.pairs; ++i) {
    const rope_rotation r = rope_rotation_of(p, position, i);
    cos[i] = r.cos;
    sin[i] = r.sin;
  }
}

// Puts a token's rotations in the order in which its heads' vectors come. Interleaved fp32 and fp16
// have each twice, and -sin before sin: out = x cos + (x with each pair swapped) sin. bf16 in
// halves is read by even and odd places. Interleaved bf16 is too, and needs no other order.
template <class T, bool kInterleaved>
HWY_INLINE void arrange(const rope_problem& p, rope_rows& rows) {
  constexpr bool by_pairs = std::is_same_v<T, bf16>;
  [[maybe_unused]] const floats d;
  if constexpr (kInterleaved && !by_pairs) {
    for (int64_t i = (p.pairs - 1) / lanes * lanes; i >= 0; i -= lanes) {
      const vec c = load(rows.cos + i), s = load(rows.sin + i);
      hn::StoreInterleaved2(c, c, d, rows.cos + 2 * i);
      hn::StoreInterleaved2(hn::Neg(s), s, d, rows.sin + 2 * i);
    }
  } else if constexpr (!kInterleaved && by_pairs) {
    for (int64_t i = 0; i + 2 * lanes <= p.pairs; i += 2 * lanes)
      for (float* row : {rows.cos + i, rows.sin + i}) {
        vec even, odd;
        hn::LoadInterleaved2(d, row, even, odd);
        store(even, row);
        store(odd, row + lanes);
      }
  }
}

struct turned {
  vec x0, x1;
};

HWY_INLINE turned turn(vec x0, vec x1, vec c, vec s) {
  return {fused(x0, c, hn::Neg(hn::Mul(x1, s))), fused(x1, c, hn::Mul(x0, s))};
}

template <bool kPast, class T>
HWY_INLINE void put(vec v, T* to) {
  if constexpr (kPast)
    stream(v, to);
  else
    store(v, to);
}

template <bool kPast>
HWY_INLINE void put_even_odd(vec even, vec odd, bf16* to) {
  if constexpr (kPast)
    stream_even_odd<true>(even, odd, to);
  else
    store_even_odd<true>(even, odd, to);
}

template <class T, bool kPast>
HWY_INLINE void turn_halves(const rope_head& h) {
  const T *x0 = static_cast<const T*>(h.in), *x1 = x0 + h.pairs;
  T *y0 = static_cast<T*>(h.out), *y1 = y0 + h.pairs;
  int64_t i = 0;
  if constexpr (std::is_same_v<T, bf16>)
    for (; i + 2 * lanes <= h.pairs; i += 2 * lanes) {
      const turned even =
          turn(load_even(x0 + i), load_even(x1 + i), load(h.cos + i), load(h.sin + i));
      const turned odd = turn(load_odd(x0 + i), load_odd(x1 + i), load(h.cos + i + lanes),
                              load(h.sin + i + lanes));
      put_even_odd<kPast>(even.x0, odd.x0, y0 + i);
      put_even_odd<kPast>(even.x1, odd.x1, y1 + i);
    }
  for (; i + lanes <= h.pairs; i += lanes) {
    const turned t = turn(load(x0 + i), load(x1 + i), load(h.cos + i), load(h.sin + i));
    put<kPast>(t.x0, y0 + i);
    put<kPast>(t.x1, y1 + i);
  }
  if (i == h.pairs) return;
  const size_t rest = static_cast<size_t>(h.pairs - i);
  const turned t =
      turn(load_first(rest, x0 + i), load_first(rest, x1 + i), load(h.cos + i), load(h.sin + i));
  store_first(rest, t.x0, y0 + i);
  store_first(rest, t.x1, y1 + i);
}

template <class T, bool kPast>
HWY_INLINE void turn_neighbours(const rope_head& h) {
  const T* x = static_cast<const T*>(h.in);
  T* y = static_cast<T*>(h.out);
  const auto by_swap = [&](vec v, int64_t i) NF_VECTOR {
    return fused(v, load(h.cos + i), hn::Mul(hn::Reverse2(floats(), v), load(h.sin + i)));
  };
  const int64_t n = 2 * h.pairs;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) put<kPast>(by_swap(load(x + i), i), y + i);
  if (i == n) return;
  const size_t rest = static_cast<size_t>(n - i);
  store_first(rest, by_swap(load_first(rest, x + i), i), y + i);
}

// bf16: the two of a pair come apart by loading.
template <bool kPast>
HWY_INLINE void turn_neighbours_bf16(const rope_head& h) {
  const bf16* x = static_cast<const bf16*>(h.in);
  bf16* y = static_cast<bf16*>(h.out);
  int64_t i = 0;  // pair
  for (; i + lanes <= h.pairs; i += lanes) {
    const turned t =
        turn(load_even(x + 2 * i), load_odd(x + 2 * i), load(h.cos + i), load(h.sin + i));
    put_even_odd<kPast>(t.x0, t.x1, y + 2 * i);
  }
  if (i == h.pairs) return;
  bf16 part[2 * kLanes] = {};
  const size_t bytes = static_cast<size_t>(h.pairs - i) * 2 * sizeof(bf16);
  std::memcpy(part, x + 2 * i, bytes);
  const turned t = turn(load_even(part), load_odd(part), load(h.cos + i), load(h.sin + i));
  store_even_odd<true>(t.x0, t.x1, part);
  std::memcpy(y + 2 * i, part, bytes);
}

template <class T, bool kInterleaved, bool kPast>
HWY_INLINE void turn_head(const rope_head& h) {
  if constexpr (!kInterleaved)
    turn_halves<T, kPast>(h);
  else if constexpr (std::is_same_v<T, bf16>)
    turn_neighbours_bf16<kPast>(h);
  else
    turn_neighbours<T, kPast>(h);
  if (h.in == h.out) return;
  const int64_t from = 2 * h.pairs;
  std::memcpy(static_cast<T*>(h.out) + from, static_cast<const T*>(h.in) + from,
              static_cast<size_t>(h.head_size - from) * sizeof(T));
}

}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
