// Softmax on the CPU: "three_pass", the plain loops, and "stream", Highway vectors that read memory
// once and write it once per row.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "ops/softmax/cpu_forward.hpp"

#ifndef NF_SOFTMAX_CPU_WITH_TYPES
#define NF_SOFTMAX_CPU_WITH_TYPES
namespace ninefold::cpu {
namespace {

// Calls f with a value of each storage type of the pair.
template <class F>
void with_types(dtype in, dtype out, const F& f) {
  if (in == dtype::f32) return f(float{}, float{});
  if (in == dtype::f16) return out == dtype::f16 ? f(f16{}, f16{}) : f(f16{}, float{});
  return out == dtype::bf16 ? f(bf16{}, bf16{}) : f(bf16{}, float{});
}

}  // namespace
}  // namespace ninefold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class In, class Out>
HWY_NOINLINE void plain_range(const softmax_forward_problem& p, int64_t begin, int64_t end,
                              bool past_caches) {
  forward_range<In, Out>(p, begin, end, past_caches,
                         [](const In* x, int64_t) { return plain_row<In>{x}; });
}

template <class In, class Out>
HWY_NOINLINE void masked_range(const softmax_forward_problem& p, int64_t begin, int64_t end,
                               bool past_caches) {
  static constexpr uint8_t always = 1;
  const int64_t mask_bytes = p.mask_type == mask_kind::boolean ? 1
                             : p.mask_type == mask_kind::f32   ? sizeof(float)
                                                               : sizeof(In);
  forward_range<In, Out>(p, begin, end, past_caches, [&](const In* x, int64_t r) {
    if (p.mask_type == mask_kind::none)
      return masked_row<In>{x, p.scale, &always, mask_kind::boolean, 0};
    const int64_t offset = row_offset(p.layout, p.mask_index, r) * mask_bytes;
    return masked_row<In>{x, p.scale, static_cast<const char*>(p.mask) + offset, p.mask_type,
                          p.layout.col_stride[p.mask_index]};
  });
}

template <bool kLog, class Out, class In, bool pairs>
HWY_NOINLINE void backward_row(const Out* y, const Out* dy, In* dx, int64_t n, float scale,
                               bool past_caches, stack_space<In, pairs>& space) {
  late_row<In, pairs>& late = space.late;
  constexpr float no_probability = kLog ? -INFINITY : 0.0f;
  const vec nothing = set(no_probability);
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += block_size) {
    const Out* const out = y + begin;
    const Out* const slope = dy + begin;
    sum += sum_over<pairs>(
        HWY_MIN(n - begin, block_size),
        [=](vec acc, int64_t i, auto part) NF_VECTOR {
          const vec p = part.load(out + i, no_probability);
          const vec g = part.load(slope + i, 0.0f);
          // By selection, for dy may be NaN where there is no probability.
          const vec term = kLog ? hn::Add(acc, g) : hn::MulAdd(p, g, acc);
          return hn::IfThenElse(hn::Eq(p, nothing), acc, term);
        },
        [=, &late](int64_t i) NF_VECTOR {
          prefetch(out + i + block_size);
          prefetch(slope + i + block_size);
          late.template advance<4 * int64_t{kLanes}>();
        });
  }
  const vec total = set(static_cast<float>(sum)), factor = set(scale);
  const bool later = past_caches && n <= kept_size;
  In* const results = later ? reinterpret_cast<In*>(space.kept[space.current]) : dx;
  write<pairs>(n, results, past_caches && !later, [=](int64_t i, auto part) NF_VECTOR {
    const vec p = part.load(y + i, 0.0f);
    const vec g = part.load(dy + i, 0.0f);
    const vec d = kLog ? hn::NegMulAdd(exp(p), total, g) : hn::Mul(p, hn::Sub(g, total));
    return hn::IfThenZeroElse(hn::Eq(p, nothing), hn::Mul(d, factor));
  });
  if (later) {
    late.copy(n, results, dx);
    space.current = 1 - space.current;
  }
}

// As backward_row, of what dropout leaves of dy. That is kept while the sum is found, unless the
// row is too long; then it is drawn again.
template <class In, class Out>
HWY_NOINLINE void dropped_backward_row(const softmax_dropout& dropout, draw_block& draws,
                                       int64_t index, const Out* y, const Out* dy, In* dx,
                                       int64_t n, float scale, bool past_caches, float* kept) {
  const bool fits = n <= kept_size;
  const auto left_of_dy = [=, &draws](int64_t i, auto part) NF_VECTOR {
    return hn::IfThenZeroElse(draws.drops(index + i, 1), part.load(dy + i, 0.0f));
  };
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += block_size)
    sum += sum_over<false>(
        HWY_MIN(n - begin, block_size),
        [=, &left_of_dy](vec acc, int64_t i, auto part) NF_VECTOR {
          const vec p = part.load(y + begin + i, 0.0f), g = left_of_dy(begin + i, part);
          if (fits) store(g, kept + begin + i);
          return hn::IfThenElse(hn::Eq(p, set(0.0f)), acc, hn::MulAdd(p, g, acc));
        },
        [=](int64_t i) NF_VECTOR {
          prefetch(y + begin + i + block_size);
          prefetch(dy + begin + i + block_size);
        });
  const vec total = set(static_cast<float>(sum)), factor = set(scale * dropout.scale);
  write<false>(n, dx, past_caches, [=, &left_of_dy](int64_t i, auto part) NF_VECTOR {
    const vec p = part.load(y + i, 0.0f);
    const vec g = fits ? load(kept + i) : left_of_dy(i, part);
    return hn::IfThenZeroElse(hn::Eq(p, set(0.0f)), hn::Mul(hn::Mul(p, hn::Sub(g, total)), factor));
  });
}

template <class In, class Out>
void backward_range(const softmax_backward_problem& p, int64_t begin, int64_t end,
                    bool past_caches) {
  const auto& layout = p.layout;
  stack_space<In, all_bf16<In, Out>> space;
  draw_block draws(p.dropout.seed.get(), p.dropout.offset.get(), p.dropout.keep_from);
  for (int64_t r = begin; r < end; ++r) {
    const Out* y = softmax_row<const Out>(layout, p.y_index, p.y, r);
    const Out* dy = softmax_row<const Out>(layout, p.dy_index, p.dy, r);
    In* dx = softmax_row<In>(layout, p.dx_index, p.dx, r);
    const int64_t n = allowed_columns(p.causal, p.limit, r, layout.cols);
    if (p.dropout.on) {
      dropped_backward_row(p.dropout, draws, r * layout.cols, y, dy, dx, n, p.scale, past_caches,
                           space.kept[0]);
    } else if (p.log) {
      backward_row<true>(y, dy, dx, n, p.scale, past_caches, space);
    } else {
      backward_row<false>(y, dy, dx, n, p.scale, past_caches, space);
    }
    fill_hidden(layout.cols - n, dx + n, 0.0f, past_caches);
  }
  space.late.finish();
  if (past_caches) hwy::FlushStream();
}

void forward_rows(const softmax_forward_problem& p, int64_t begin, int64_t end, bool past_caches) {
  with_types(p.in, p.out, [&](auto in, auto out) {
    using in_type = decltype(in);
    using out_type = decltype(out);
    if (p.mask_type == mask_kind::none && p.scale == 1.0f) {
      plain_range<in_type, out_type>(p, begin, end, past_caches);
    } else {
      masked_range<in_type, out_type>(p, begin, end, past_caches);
    }
  });
}

void backward_rows(const softmax_backward_problem& p, int64_t begin, int64_t end,
                   bool past_caches) {
  with_types(p.in, p.out, [&](auto in, auto out) {
    backward_range<decltype(in), decltype(out)>(p, begin, end, past_caches);
  });
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

HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

// v at column i, -inf where it is hidden.
template <class In>
float value_at(const softmax_forward_problem& p, const In* x, int64_t mask_row, int64_t i) {
  const float in = to_float(x[i * p.layout.col_stride[p.x_index]]);
  if (in == -INFINITY) return -INFINITY;
  const int64_t at = mask_row + i * p.layout.col_stride[p.mask_index];
  switch (p.mask_type) {
    case mask_kind::none:
      return p.scale * in;
    case mask_kind::boolean:
      return static_cast<const uint8_t*>(p.mask)[at] ? p.scale * in : -INFINITY;
    default:
      break;
  }
  const float added = p.mask_type == mask_kind::f32 ? static_cast<const float*>(p.mask)[at]
                                                    : to_float(static_cast<const In*>(p.mask)[at]);
  return added == -INFINITY ? -INFINITY : std::fma(p.scale, in, added);
}

// The formula as it is written down, over any strides: each pass reads the row anew.
template <class In, class Out>
void three_pass_forward(const softmax_forward_problem& p, int64_t first_row, int64_t end_row) {
  const auto& layout = p.layout;
  const float hidden = p.log ? -INFINITY : 0.0f;
  for (int64_t r = first_row; r < end_row; ++r) {
    const In* x = softmax_row<const In>(layout, p.x_index, p.x, r);
    Out* y = softmax_row<Out>(layout, p.y_index, p.y, r);
    Out* dropped = softmax_row<Out>(layout, p.dropped_index, p.dropped, r);
    const int64_t mask_row = row_offset(layout, p.mask_index, r);
    const int64_t y_stride = layout.col_stride[p.y_index];
    const int64_t dropped_stride = layout.col_stride[p.dropped_index];
    const auto store = [&](int64_t i, float value) {
      const Out rounded = from_float<Out>(value);
      if (y) y[i * y_stride] = rounded;
      if (!dropped) return;
      const bool kept = p.dropout.keeps(r * layout.cols + i);
      dropped[i * dropped_stride] =
          from_float<Out>(kept ? to_float(rounded) * p.dropout.scale : 0.0f);
    };
    const int64_t n = allowed_columns(p.causal, p.limit, r, layout.cols);

    float max = -INFINITY;  // NaN is not above it, and comes back in the sum
    for (int64_t i = 0; i < n; ++i) {
      const float v = value_at(p, x, mask_row, i);
      if (v > max) max = v;
    }
    if (max == -INFINITY) max = 0;  // nothing allowed: no number, but no NaN either

    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(value_at(p, x, mask_row, i) - max);

    const float total = static_cast<float>(sum), log_total = static_cast<float>(std::log(sum));
    for (int64_t i = 0; i < n; ++i) {
      const float v = value_at(p, x, mask_row, i);
      float out = p.log ? v - max - log_total : std::exp(v - max) / total;
      if (v == -INFINITY) out = hidden;
      // NaN and Inf in the sum: every allowed position becomes NaN.
      else if (!(sum > 0))
        out = NAN;
      store(i, out);
    }
    for (int64_t i = n; i < layout.cols; ++i) store(i, hidden);
  }
}

template <class In, class Out>
void three_pass_backward(const softmax_backward_problem& p, int64_t first_row, int64_t end_row) {
  const auto& layout = p.layout;
  const int64_t y_stride = layout.col_stride[p.y_index];
  const int64_t dy_stride = layout.col_stride[p.dy_index];
  const int64_t dx_stride = layout.col_stride[p.dx_index];
  const float nothing = p.log ? -INFINITY : 0.0f;
  for (int64_t r = first_row; r < end_row; ++r) {
    const Out* y = softmax_row<const Out>(layout, p.y_index, p.y, r);
    const Out* dy = softmax_row<const Out>(layout, p.dy_index, p.dy, r);
    In* dx = softmax_row<In>(layout, p.dx_index, p.dx, r);
    const int64_t n = allowed_columns(p.causal, p.limit, r, layout.cols);

    const auto left_of_dy = [&](int64_t i) {
      const bool kept = !p.dropout.on || p.dropout.keeps(r * layout.cols + i);
      return kept ? to_float(dy[i * dy_stride]) : 0.0f;
    };
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float out = to_float(y[i * y_stride]), slope = left_of_dy(i);
      if (out != nothing) sum += p.log ? slope : out * slope;
    }

    const float total = static_cast<float>(sum), scale = p.scale * p.dropout.scale;
    for (int64_t i = 0; i < n; ++i) {
      const float out = to_float(y[i * y_stride]), slope = left_of_dy(i);
      const float d = p.log ? slope - std::exp(out) * total : out * (slope - total);
      dx[i * dx_stride] = from_float<In>(out != nothing ? scale * d : 0.0f);
    }
    for (int64_t i = n; i < layout.cols; ++i) dx[i * dx_stride] = from_float<In>(0.0f);
  }
}

constexpr const char* rungs[] = {"three_pass", "stream"};
enum rung : int { three_pass, stream };

// "stream" where the columns of all tensors named by `unit` lie side by side, else "three_pass".
template <int kTensors>
int choose_rung(const char* asked, const row_layout<kTensors>& layout,
                std::initializer_list<int> unit) {
  bool side_by_side = true;
  for (int t : unit) side_by_side &= layout.col_stride[t] == 1 || layout.cols == 1;
  if (!asked) return side_by_side ? stream : three_pass;
  const int rung = find_rung("softmax", asked, rungs, std::size(rungs));
  if (rung == stream && !side_by_side)
    fail(NF_UNSUPPORTED, "softmax: rung \"stream\" needs columns of stride 1; leave the rung out");
  return rung;
}

int64_t bytes_of(dtype type) { return type == dtype::f32 ? 4 : 2; }

// Output this large would leave the caches before anyone reads it, so it need not pass through
// them. In place the line is there already.
bool past_caches(bool in_place, int64_t bytes_out) {
  constexpr int64_t threshold = 32 << 20;
  return !in_place && bytes_out > threshold;
}

}  // namespace

void softmax_forward(const softmax_forward_problem& p) {
  const int rung = choose_rung(p.rung, p.layout, {p.x_index, p.y_index, p.dropped_index});
  const int64_t row_bytes = p.layout.cols * (bytes_of(p.in) + bytes_of(p.out));
  const row_split split = split_rows(p.layout.rows, row_bytes);
  const char* isa = isa_name();
  if (rung == stream) {
    const bool past = past_caches(p.x == p.y || p.x == p.dropped,
                                  p.layout.rows * p.layout.cols * bytes_of(p.out));
    parallel_rows(p.layout.rows, split, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(forward_rows)(p, begin, end, past);
    });
  } else {
    with_types(p.in, p.out, [&](auto in, auto out) {
      parallel_rows(p.layout.rows, split, [&](int64_t begin, int64_t end) {
        three_pass_forward<decltype(in), decltype(out)>(p, begin, end);
      });
    });
  }
  record({.op = "softmax",
          .direction = "forward",
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

void softmax_backward(const softmax_backward_problem& p) {
  const int rung = choose_rung(p.rung, p.layout, {p.y_index, p.dy_index, p.dx_index});
  const int64_t row_bytes = p.layout.cols * (2 * bytes_of(p.out) + bytes_of(p.in));
  const row_split split = split_rows(p.layout.rows, row_bytes);
  const char* isa = isa_name();
  if (rung == stream) {
    const bool past =
        past_caches(p.dx == p.y || p.dx == p.dy, p.layout.rows * p.layout.cols * bytes_of(p.in));
    parallel_rows(p.layout.rows, split, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(backward_rows)(p, begin, end, past);
    });
  } else {
    with_types(p.in, p.out, [&](auto in, auto out) {
      parallel_rows(p.layout.rows, split, [&](int64_t begin, int64_t end) {
        three_pass_backward<decltype(in), decltype(out)>(p, begin, end);
      });
    });
  }
  record({.op = "softmax",
          .direction = "backward",
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
