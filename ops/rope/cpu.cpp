// rope on the CPU: "scalar", the formula a pair at a time over any strides, and "row_per_token",
// Highway vectors with the angles of a token made once for all its heads.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "ops/rope/cpu_heads.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// All heads of the tokens in [begin, end).
template <class T, bool kInterleaved>
HWY_INLINE void turn_tokens(const rope_problem& p, const bool (&past)[2], int64_t begin,
                            int64_t end) {
  rope_rows rows;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t b = token / p.length, s = token - b * p.length;
    const int64_t position = rope_position(p, b, s);
    if (p.with_table)
      read_rotations(p, position, rows.cos, rows.sin);
    else
      make_rotations(p, position, rows.cos, rows.sin);
    arrange<T, kInterleaved>(p, rows);
    for (int t = 0; t < 2; ++t) {
      const rope_tensor& of = p.of[t];
      rope_head head{.in = static_cast<const T*>(of.in) + of.in_at(b, s, 0),
                     .out = static_cast<T*>(of.out) + of.out_at(b, s, 0),
                     .pairs = p.pairs,
                     .head_size = p.head_size,
                     .cos = rows.cos,
                     .sin = rows.sin};
      for (int64_t h = 0; h < of.heads; ++h) {
        if (past[t])
          turn_head<T, kInterleaved, true>(head);
        else
          turn_head<T, kInterleaved, false>(head);
        head.in = static_cast<const T*>(head.in) + of.in_stride[2];
        head.out = static_cast<T*>(head.out) + of.out_stride[2];
      }
    }
  }
  if (past[0] || past[1]) hwy::FlushStream();
}

template <class T>
HWY_INLINE void turn_tokens_of(const rope_problem& p, const bool (&past)[2], int64_t begin,
                               int64_t end) {
  if (p.interleaved)
    turn_tokens<T, true>(p, past, begin, end);
  else
    turn_tokens<T, false>(p, past, begin, end);
}

void turn_f32(const rope_problem& p, const bool (&past)[2], int64_t begin, int64_t end) {
  turn_tokens_of<float>(p, past, begin, end);
}
void turn_f16(const rope_problem& p, const bool (&past)[2], int64_t begin, int64_t end) {
  turn_tokens_of<f16>(p, past, begin, end);
}
void turn_bf16(const rope_problem& p, const bool (&past)[2], int64_t begin, int64_t end) {
  turn_tokens_of<bf16>(p, past, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/isa.hpp"
#include "backend/cpu/parallel.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(turn_f32);
HWY_EXPORT(turn_f16);
HWY_EXPORT(turn_bf16);

// A head at a time, the angles anew for each.
template <class T>
void scalar_heads(const rope_problem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t token = row / p.heads(), head = row - token * p.heads();
    const int64_t b = token / p.length, s = token - b * p.length;
    const bool is_q = head < p.of[0].heads;
    const rope_tensor& t = is_q ? p.of[0] : p.of[1];
    const int64_t h = is_q ? head : head - p.of[0].heads;
    const T* in = static_cast<const T*>(t.in) + t.in_at(b, s, h);
    T* out = static_cast<T*>(t.out) + t.out_at(b, s, h);
    const int64_t position = rope_position(p, b, s);
    for (int64_t i = 0; i < p.pairs; ++i) {
      const int64_t first = p.column(i, 0), second = p.column(i, 1);
      float x0 = to_float(in[first * t.in_stride[3]]), x1 = to_float(in[second * t.in_stride[3]]);
      rope_rotation_of(p, position, i).turn(x0, x1);
      out[first * t.out_stride[3]] = from_float<T>(x0);
      out[second * t.out_stride[3]] = from_float<T>(x1);
    }
    if (t.in_place()) continue;
    for (int64_t c = 2 * p.pairs; c < p.head_size; ++c)
      out[c * t.out_stride[3]] = in[c * t.in_stride[3]];
  }
}

constexpr const char* rungs[] = {"scalar", "row_per_token"};
enum rung : int { scalar, row_per_token };

int choose_rung(const rope_problem& p) {
  bool fits = p.pairs <= rope_problem::most_pairs;
  for (const rope_tensor& t : p.of)
    fits = fits && (t.heads == 0 || (t.in_stride[3] == 1 && t.out_stride[3] == 1));
  if (!p.rung) return fits ? row_per_token : scalar;
  const int rung = find_rung("rope", p.rung, rungs, std::size(rungs));
  if (rung == row_per_token && !fits)
    fail(NF_UNSUPPORTED,
         "rope: rung row_per_token needs heads whose elements lie side by side, and a rotary_dim "
         "of at most %d",
         2 * rope_problem::most_pairs);
  return rung;
}

// Output this large leaves the caches before anyone reads it, so it need not pass through them;
// where all of a head's vectors begin at whole ones, as such stores must.
bool past_caches(const rope_problem& p, const rope_tensor& t) {
  constexpr int64_t threshold = 8 << 20, line = 64;
  const int64_t bytes = size_of(p.type);
  bool past = !t.in_place() && p.tokens() * t.heads * p.head_size * bytes > threshold &&
              reinterpret_cast<uintptr_t>(t.out) % line == 0 &&
              (p.interleaved || p.pairs * bytes % line == 0);
  const int64_t size[] = {p.batches, p.length, t.heads};
  for (int d = 0; d < 3; ++d) past = past && (size[d] == 1 || t.out_stride[d] * bytes % line == 0);
  return past;
}

row_split run_scalar(const rope_problem& p) {
  const int64_t rows = p.tokens() * p.heads();
  // An angle takes as long as some hundred bytes.
  const row_split split = split_rows(rows, 100 * p.head_size);
  parallel_rows(rows, split, [&](int64_t begin, int64_t end) {
    if (p.type == dtype::f32)
      scalar_heads<float>(p, begin, end);
    else if (p.type == dtype::f16)
      scalar_heads<f16>(p, begin, end);
    else
      scalar_heads<bf16>(p, begin, end);
  });
  return split;
}

row_split run_rows(const rope_problem& p) {
  const auto turn = p.type == dtype::f32   ? HWY_DYNAMIC_DISPATCH(turn_f32)
                    : p.type == dtype::f16 ? HWY_DYNAMIC_DISPATCH(turn_f16)
                                           : HWY_DYNAMIC_DISPATCH(turn_bf16);
  const bool past[] = {past_caches(p, p.of[0]), past_caches(p, p.of[1])};
  const row_split split = split_rows(p.tokens(), 2 * p.heads() * p.head_size * size_of(p.type));
  parallel_rows(p.tokens(), split, [&](int64_t begin, int64_t end) { turn(p, past, begin, end); });
  return split;
}

}  // namespace

void rope(const rope_problem& p) {
  const char* isa = isa_name();
  const int rung = choose_rung(p);
  const row_split split = rung == scalar ? run_scalar(p) : run_rows(p);
  record({.op = "rope",
          .direction = p.backward ? "backward" : "forward",
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
