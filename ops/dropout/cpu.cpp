// Dropout on the CPU: "scalar", one element at a time over any strides, and "stream", Highway
// vectors.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/dropout/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "backend/cpu/draws.hpp"
#include "backend/cpu/pointwise.hpp"
#include "ops/dropout/dropout.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class T, int kIn>
void drop_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count, bool past) {
  draw_block draws(p.seed.get(), p.offset.get(), p.keep_from);
  const float scale = p.scale;
  pointwise_run<false, false, false>(
      piece_of<T>(dropout_tensors<kIn>(p), row, from, count), past,
      [&](lanes_at at, const vec(&in)[kIn], vec(&out)[1]) NF_VECTOR {
        const vec_mask drops = draws.drops(at.first, at.step);
        if constexpr (kIn == 2) {
          out[0] = hn::IfThenElse(drops, in[1], fused(in[0], set(scale), in[1]));
        } else {
          out[0] = hn::IfThenZeroElse(drops, hn::Mul(in[0], set(scale)));
        }
      });
}

template <class T>
void span_of_type(const dropout_problem& p, int64_t row, int64_t from, int64_t count, bool past) {
  if (p.work == dropout_work::add)
    return pointwise_run<false, false, false>(piece_of<T>(dropout_tensors<2>(p), row, from, count),
                                              past,
                                              [](lanes_at, const vec(&in)[2], vec(&out)[1])
                                                  NF_VECTOR { out[0] = hn::Add(in[0], in[1]); });
  p.with_residual() ? drop_span<T, 2>(p, row, from, count, past)
                    : drop_span<T, 1>(p, row, from, count, past);
}

void stream_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count, bool past) {
  if (p.type == dtype::f32) return span_of_type<float>(p, row, from, count, past);
  if (p.type == dtype::f16) return span_of_type<f16>(p, row, from, count, past);
  span_of_type<bf16>(p, row, from, count, past);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/isa.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(stream_span);

constexpr const char* op = "dropout";
constexpr const char* rungs[] = {"scalar", "stream"};
enum rung : int { scalar_rung, stream_rung };

int choose_rung(const dropout_problem& p) {
  const bool fits = columns_side_by_side(p);
  if (!p.rung) return fits ? stream_rung : scalar_rung;
  const int rung = find_rung(op, p.rung, rungs, std::size(rungs));
  if (rung == stream_rung && !fits)
    fail(NF_UNSUPPORTED, "%s: rung \"stream\" needs columns of stride 1; leave the rung out", op);
  return rung;
}

template <class T>
void scalar_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count) {
  const auto piece = piece_of<T>(dropout_tensors<2>(p), row, from, count);
  const auto* const stride = p.layout.col_stride;
  const uint64_t seed = p.seed.get(), offset = p.offset.get();
  for (int64_t i = 0; i < count; ++i) {
    const float x = to_float(piece.in[0][i * stride[p.in_index]]);
    const float r = p.with_residual() ? to_float(piece.in[1][i * stride[p.residual_index]]) : 0.0f;
    const auto element = static_cast<uint64_t>(piece.index + i);
    float y = r;
    if (p.work == dropout_work::add)
      y = x + r;
    else if (dropout_keeps(seed, offset, element, p.keep_from))
      y = p.with_residual() ? std::fma(x, p.scale, r) : x * p.scale;
    piece.out[0][i * stride[p.out_index]] = from_float<T>(y);
  }
}

// Copies bits, or writes zeros: T is an integer, so that no NaN is touched.
template <class T>
void copy_span(const dropout_problem& p, int64_t row, int64_t from, int64_t count) {
  const auto piece = piece_of<T>(dropout_tensors<1>(p), row, from, count);
  const int64_t in = p.layout.col_stride[p.in_index], out = p.layout.col_stride[p.out_index];
  const bool zero = p.work == dropout_work::zero;
  if (in == 1 && out == 1 && !zero) {
    std::memmove(piece.out[0], piece.in[0], static_cast<size_t>(count) * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < count; ++i) piece.out[0][i * out] = zero ? T{0} : piece.in[0][i * in];
}

void span(const dropout_problem& p, int rung, bool past, int64_t row, int64_t from, int64_t count) {
  const bool wide = p.type == dtype::f32;
  if (p.work == dropout_work::copy || p.work == dropout_work::zero)
    return wide ? copy_span<uint32_t>(p, row, from, count)
                : copy_span<uint16_t>(p, row, from, count);
  if (rung == stream_rung) return HWY_DYNAMIC_DISPATCH(stream_span)(p, row, from, count, past);
  if (wide) return scalar_span<float>(p, row, from, count);
  p.type == dtype::f16 ? scalar_span<f16>(p, row, from, count)
                       : scalar_span<bf16>(p, row, from, count);
}

}  // namespace

void dropout(const dropout_problem& p) {
  const char* isa = isa_name();  // applies NF_CPU_ISA before the first dispatch
  const int rung = choose_rung(p);
  const int64_t element = size_of(p.type);
  const bool past = p.with_residual() ? passes_caches(dropout_tensors<2>(p), element)
                                      : passes_caches(dropout_tensors<1>(p), element);
  const row_split split = pointwise_rows(
      p.layout.rows, p.layout.cols, (p.with_residual() ? 3 : 2) * element,
      [&](int64_t row, int64_t from, int64_t count) { span(p, rung, past, row, from, count); });
  record({.op = op,
          .direction = p.direction,
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
