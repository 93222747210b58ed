// What all row kernels share, and the two that read a row more than once: three_pass and online.
#pragma once

#include "backend/cuda/reduce.hpp"
#include "backend/cuda/row.hpp"
#include "backend/cuda/sm90/early_launch.hpp"
#include "backend/cuda/vec.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"

namespace ninefold::cuda {

// A logit on its way to z: scale * x, or soft_cap * tanh(scale * x / soft_cap). kPlain: the options
// are only such as give each row a factor, see cross_entropy_problem::plain().
template <bool kPlain>
struct logit_rule {
  float scale, cap;

  __device__ explicit logit_rule(const cross_entropy_problem& p)
      : scale(p.scale), cap(p.soft_cap) {}

  __device__ bool capped() const { return !kPlain && cap != 0; }
  // tanh(y) = 1 - 2 q
  __device__ float q(float x) const {
    return fast_reciprocal(1.0f + fast_exp2(x * (2 * log2_e * scale / cap)));
  }
  __device__ float z(float x) const { return capped() ? fmaf(-2 * cap, q(x), cap) : scale * x; }
  // The logit that sums are taken below: the largest, or any where that one's z is -inf, for then
  // the sums are 0.
  __device__ float base(float most) const { return !capped() && most == -INFINITY ? 0.0f : most; }
  // What z is linear in: q(x) or x.
  __device__ float variable(float x) const { return capped() ? q(x) : x; }
  // z - max, with one rounding where there is no cap.
  __device__ float below(float x, float max) const {
    return capped() ? z(x) - max : fmaf(x, scale, -max);
  }
  // dz/dx from q, as a share of the scale.
  __device__ static float slope(float q) { return 4 * fmaf(-q, q, q); }
};

// The exponentials of a row's columns below a base, in one multiply-add and one power of 2 each:
//   2^(x * scale * log2(e) - base * log2(e))
// Its constants are rounded, so all columns come out with a factor near 1 in common: what the
// base's own column comes to, and sums over the row are divided by that.
struct exponentials {
  float factor, addend;

  template <bool kPlain>
  __device__ exponentials(const logit_rule<kPlain>& rule, float base)
      : factor(rule.capped() ? -2 * rule.cap * log2_e : rule.scale * log2_e),
        addend(rule.capped() ? (rule.cap - base) * log2_e : -base * log2_e) {}

  // Of rule.variable(x).
  __device__ float operator()(float variable) const {
    return fast_exp2(fmaf(variable, factor, addend));
  }
};

// The gradient at a column, from the row's maximum and 1 / sum exp(z - max).
template <bool kPlain>
class column_gradient {
 public:
  __device__ column_gradient(const cross_entropy_problem& p, const logit_rule<kPlain>& rule,
                             const gradient_rule& row, float max, float inverse)
      : p_(p), rule_(rule), row_(row), exponentials_(rule, max), max_(max), inverse_(inverse) {
    // What the columns have in common, see exponentials.
    if (!rule.capped()) common_ = fast_exp2(-fmaf(max, log2_e, exponentials_.addend));
  }

  __device__ float operator()(float x, int64_t column) const {
    if constexpr (kPlain) {
      return exponentials_(x) * (inverse_ * common_ * (row_.softmax * row_.scale));
    } else {
      const float variable = rule_.variable(x);
      const float slope = rule_.capped() ? rule_.slope(variable) : 1.0f;
      const float dz = row_.softmax * (exponentials_(variable) * (inverse_ * common_)) -
                       row_.even * class_weight(p_, column);
      return dz * (row_.scale * slope);
    }
  }
  __device__ float at_target(float x, int64_t column) const {
    const float slope = rule_.capped() ? rule_.slope(rule_.q(x)) : 1.0f;
    const float dz = row_.softmax * (fast_exp(rule_.below(x, max_)) * inverse_) -
                     row_.even * class_weight(p_, column) - row_.hot;
    return dz * (row_.scale * slope);
  }

 private:
  const cross_entropy_problem& p_;
  const logit_rule<kPlain>& rule_;
  const gradient_rule& row_;
  exponentials exponentials_;
  float max_, inverse_, common_ = 1;
};

// A column's part in sum_j w_j (max - z_j) and in sum_j exp(z_j - max) (max - z_j).
template <bool kPlain>
__device__ inline sums<2> below_max(const cross_entropy_problem& p, const logit_rule<kPlain>& rule,
                                    float x, int64_t column, float max) {
  const float distance = -rule.below(x, max), e = fast_exp(-distance);
  const float w = p.smoothing == 0 ? 0.0f : class_weight(p, column);
  // By selection: where w or e is 0 the distance may be infinite.
  return {w == 0 ? 0.0f : w * distance, e == 0 ? 0.0f : e * distance};
}

// Whether a column counts. Those beyond the row read as -inf, which counts for nothing by itself
// where there is no cap, nor weights to look up.
template <bool kPlain, class Index>
__device__ inline bool in_row(Index column, Index end) {
  return kPlain || (column >= 0 && column < end);
}

// The token, with what plain calls have known to the compiler, which spares registers.
template <bool kPlain>
__device__ inline token known_token(const cross_entropy_problem& p,
                                    const cross_entropy_problem::offsets& at) {
  token t = token_of(p, at);
  if constexpr (kPlain) {
    t.hot = t.target < 0 ? 0.0f : 1.0f;
    t.even = 0.0f;
  }
  return t;
}

// Waits for cross_entropy_prepare, which may still run when the rows' kernel begins.
__device__ inline void add_prepared_when_there(const cross_entropy_problem& p, token& t) {
  sm90::wait_for_the_previous();
  add_prepared(p, t);
}

template <bool kPlain>
__device__ inline row_sums sums_of(const logit_rule<kPlain>& rule, const max_sum& found,
                                   float target_x) {
  return {.max = found.max,
          .log_sum = log_of_sum(found.max, found.total),
          .target_below = -rule.below(target_x, found.max),
          .below = 0,
          .mean_below = 0};
}

// What the row's first thread writes beside the gradient.
template <bool kForward, bool kGradient>
__device__ inline void write_numbers(const cross_entropy_problem& p, const token& t, int64_t row,
                                     const row_sums& s, int64_t hit) {
  // Found anew, not kept in registers since the row's beginning.
  const auto at = offsets_of_row(p.layout, row);
  if constexpr (kForward) write_row(p, t, row, at, s, hit);
  if constexpr (kGradient) write_row_scale(p, t, at);
  if (p.bad_target && t.bad()) *p.bad_target = 1;
}

// What backward knows of a row: as if its maximum were lse and its sum 1.
__device__ inline row_sums saved_sums(const cross_entropy_problem& p, const token& t,
                                      const cross_entropy_problem::offsets& at) {
  row_sums s{};
  if (!t.ignored) s.max = p.lse[at[p.lse_index]];
  return s;
}

// three_pass: one thread a row, each pass reads it anew; any strides.
template <class T, bool kForward, bool kGradient>
__global__ void cross_entropy_three_pass(const __grid_constant__ cross_entropy_problem p) {
  const int64_t step = int64_t{blockDim.x} * gridDim.x, cols = p.layout.cols;
  const int64_t stride = p.layout.col_stride[p.logits_index];
  const int64_t out_stride = p.layout.col_stride[p.dlogits_index];
  const logit_rule<false> rule(p);
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < p.layout.rows;
       row += step) {
    const auto at = offsets_of_row(p.layout, row);
    token t = token_of(p, at);
    add_prepared_when_there(p, t);
    const T* x = static_cast<const T*>(p.logits) + at[p.logits_index];
    const float target_x = t.target >= 0 ? to_float(x[t.target * stride]) : 0.0f;
    row_sums s{};
    float inverse = 1;
    int64_t hit = -1;
    if (kForward && !t.ignored) {
      float most = -INFINITY;
      for (int64_t c = 0; c < cols; ++c) {
        const float v = to_float(x[c * stride]);
        if (v > most) most = v, hit = c;
      }
      const float max = rule.z(most), base = max == -INFINITY ? 0.0f : max;
      float total = 0;
      sums<2> below{};
      for (int64_t c = 0; c < cols;) {
        float part = 0;
        sums<2> below_part{};
        for (const int64_t stop = c + 256; c < stop && c < cols; ++c) {
          const float v = to_float(x[c * stride]);
          part += fast_exp(rule.below(v, base));
          below_part = combine(below_part, below_max(p, rule, v, c, base));
        }
        total += part;
        below = combine(below, below_part);
      }
      s = sums_of(rule, {max, total}, target_x);
      inverse = 1 / total;
      s.below = below.of[0];
      s.mean_below = below.of[1] * inverse;
    }
    if (!kForward) s = saved_sums(p, t, at);
    write_numbers<kForward, kGradient>(p, t, row, s, hit);
    if constexpr (kGradient) {
      const gradient_rule g = gradient_of(p, t, s.max + s.log_sum);
      const column_gradient<false> gradient{p, rule, g, s.max, inverse};
      T* out = static_cast<T*>(p.dlogits) + at[p.dlogits_index];
      for (int64_t c = 0; c < cols; ++c) {
        float value = g.constant();
        if (!g.is_constant()) {
          const float v = c == t.target ? target_x : to_float(x[c * stride]);
          value = c == t.target ? gradient.at_target(v, c) : gradient(v, c);
        }
        out[c * out_stride] = from_float<T>(value);
      }
    }
  }
}

// A block's walk along a row, kWidth columns a step; with kWidth > 1 in whole vectors.
template <class T, int kWidth, int kThreads>
struct row_walk {
  using held = std::conditional_t<kWidth == 1, T, packed<T, kWidth>>;  // a step's columns
  static constexpr int64_t step = int64_t{kThreads} * kWidth;

  const T* x;
  int64_t stride, cols;
  int64_t begin;   // where the block begins, at a boundary
  int64_t offset;  // of this thread's columns in a step
  const memory_range& range;

  __device__ row_walk(const T* row, int64_t column_stride, int64_t columns,
                      const memory_range& memory)
      : x(row),
        stride(column_stride),
        cols(columns),
        begin(kWidth > 1 ? -misalignment(row) : 0),
        offset(int64_t{threadIdx.x} * kWidth),
        range(memory) {}

  // This thread's columns of kSteps steps from `c`, where the block is. Those beyond the row read
  // as -inf, once masked.
  template <int kSteps>
  __device__ void read(int64_t c, held (&to)[kSteps]) const {
    const bool whole = c >= 0 && c + kSteps * step <= cols;  // the same for all threads
    if constexpr (kWidth == 1) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int64_t at = c + i * step + offset;
        to[i] = at < cols ? x[at * stride] : from_float<T>(-INFINITY);
      }
    } else if (whole) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) to[i] = load_vector<T, kWidth>(x + c + offset + i * step);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        to[i] = read_edge(x, c + i * step + offset, -INFINITY, readable());
    }
  }
  template <int kSteps>
  __device__ void mask(int64_t c, held (&v)[kSteps]) const {
    if constexpr (kWidth > 1) {
      if (c >= 0 && c + kSteps * step <= cols) return;
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        finish_edge(v[i], x, c + i * step + offset, cols, -INFINITY, readable());
    }
  }
  __device__ readable_columns<kWidth, int64_t> readable() const { return {x, cols, range}; }
  __device__ static void values(const held& from, float (&v)[kWidth]) {
    if constexpr (kWidth == 1)
      v[0] = to_float(from);
    else
      unpack(from, v);
  }
  __device__ static float largest_of(const held& from) {
    if constexpr (kWidth == 1)
      return to_float(from);
    else
      return largest(from);
  }
  __device__ void store(T* out, int64_t out_stride, int64_t c, const float (&v)[kWidth]) const {
    if constexpr (kWidth == 1) {
      if (c < cols) out[c * out_stride] = from_float<T>(v[0]);
    } else if (c >= 0 && c + kWidth <= cols) {
      store_vector<T, kWidth>(out + c, pack<T, kWidth>(v));
    } else {
      store_edge(out, c, cols, pack<T, kWidth>(v));
    }
  }
  // Whether this thread's walk comes by a column.
  __device__ bool meets(int64_t c) const {
    const int64_t shift = kWidth > 1 ? misalignment(x) : 0;
    return (c + shift) / kWidth % kThreads == threadIdx.x;
  }
  // The first column from `c`, where a step begins, whose logit is `value`.
  __device__ int64_t first_column(int64_t c, float value) const {
    if (c < 0) c = 0;
#pragma unroll 1
    while (c + 1 < cols && to_float(x[c * stride]) != value) ++c;
    return c;
  }
};

// online: a block walks its row once for the loss and once more for the gradient. Any V and any
// strides.
template <class T, int kWidth, int kThreads, int kResident, bool kPlain, bool kForward,
          bool kGradient>
__global__ void __launch_bounds__(kThreads, resident_blocks(kResident, kThreads))
    cross_entropy_online(const __grid_constant__ cross_entropy_problem p,
                         const __grid_constant__ memory_range range) {
  using walk = row_walk<T, kWidth, kThreads>;
  using held = typename walk::held;
  __shared__ warp_reduction<max_sum, kThreads, 1> reduction;
  const logit_rule<kPlain> rule(p);
  const bool wants_argmax = p.argmax || p.row_hit;
  constexpr int group = 4;  // steps that a thread has in flight
  int call = 0;
  for (int64_t row = blockIdx.x; row < p.layout.rows; row += gridDim.x) {
    const auto offsets = offsets_of_row(p.layout, row);
    token t = known_token<kPlain>(p, offsets);
    const int64_t cols = p.layout.cols;
    const walk at(static_cast<const T*>(p.logits) + offsets[p.logits_index],
                  p.layout.col_stride[p.logits_index], cols, range);
    row_sums s{};
    float inverse = 1, target_x = 0;
    largest_at best = largest_at::identity();
    if constexpr (kForward) {
      const int64_t end = t.ignored ? 0 : cols;
      float most = -INFINITY, total = 0, addend = 0;
      int64_t begin = 0;  // of the first step that holds it
      held next[group];
      at.read(at.begin, next);
      if (t.target >= 0) target_x = to_float(at.x[t.target * at.stride]);
      for (int64_t c = at.begin; c < end; c += group * walk::step) {
        held now[group];
#pragma unroll
        for (int i = 0; i < group; ++i) now[i] = next[i];
        at.read(c + group * walk::step, next);
        at.mask(c, now);
#pragma unroll
        for (int i = 0; i < group; ++i) {
          const float here = walk::largest_of(now[i]);
          if (here > most) begin = c + i * walk::step + at.offset;
          most = fmaxf(most, here);
        }
        const exponentials exp(rule, rule.z(rule.base(most)));
        total = total == 0 ? 0.0f : total * fast_exp2(exp.addend - addend);
        addend = exp.addend;
        float part = 0;  // by itself, for small terms one by one would be lost on a large total
#pragma unroll
        for (int i = 0; i < group; ++i) {
          float v[kWidth];
          walk::values(now[i], v);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            const float e = exp(rule.variable(v[j]));
            part += in_row<kPlain>(c + i * walk::step + at.offset + j, cols) ? e : 0.0f;
          }
        }
        total += part;
      }
      const float base = rule.base(most);
      const exponentials exp(rule, rule.z(base));
      const max_sum mine{rule.z(most), total / exp(rule.variable(base))};
      add_prepared_when_there(p, t);
      const max_sum found = reduction.reduce(reduce_lanes<32>(mine), call++);
      s = sums_of(rule, found, target_x);
      inverse = 1 / found.total;
      if (!kPlain && !t.ignored && (p.smoothing != 0 || p.entropy)) {
        sums<2> below{};
        for (int64_t c = at.begin; c < cols; c += walk::step) {
          float v[kWidth];
          held raw[1];
          at.read(c, raw);
          at.mask(c, raw);
          walk::values(raw[0], v);
#pragma unroll
          for (int j = 0; j < kWidth; ++j)
            if (in_row<kPlain>(c + at.offset + j, cols))
              below = combine(below, below_max(p, rule, v[j], c + at.offset + j, s.max));
        }
        below = reduction.reduce(reduce_lanes<32>(below), call++);
        s.below = below.of[0];
        s.mean_below = below.of[1] * inverse;
      }
      if (wants_argmax) {
        if (most > -INFINITY && rule.z(most) == found.max)  // only such threads can have it
          best = {most, static_cast<int>(at.first_column(begin, most))};
        best = reduction.reduce(reduce_lanes<32>(best), call++);
      }
    } else {
      // No barrier stands between this and the first store, so only who stores there reads it.
      if (t.target >= 0 && at.meets(t.target)) target_x = to_float(at.x[t.target * at.stride]);
      add_prepared_when_there(p, t);
      s = saved_sums(p, t, offsets);
    }
    if constexpr (kGradient) {
      T* out = static_cast<T*>(p.dlogits) + offsets[p.dlogits_index];
      const int64_t out_stride = p.layout.col_stride[p.dlogits_index];
      const gradient_rule g = gradient_of(p, t, s.max + s.log_sum);
      const column_gradient<kPlain> gradient{p, rule, g, s.max, inverse};
      for (int64_t c = at.begin; c < cols; c += group * walk::step) {
        held raw[group];
        if (!g.is_constant()) {
          at.read(c, raw);
          at.mask(c, raw);
        }
#pragma unroll
        for (int i = 0; i < group; ++i) {
          const int64_t here = c + i * walk::step + at.offset;
          float v[kWidth];
          if (g.is_constant()) {
#pragma unroll
            for (float& value : v) value = g.constant();
          } else {
            walk::values(raw[i], v);
#pragma unroll
            for (int j = 0; j < kWidth; ++j)
              if (in_row<kPlain>(here + j, cols)) v[j] = gradient(v[j], here + j);
          }
          at.store(out, out_stride, here, v);
        }
      }
      // By the thread that has just stored there.
      if (t.target >= 0 && !g.is_constant() && at.meets(t.target))
        out[t.target * out_stride] = from_float<T>(gradient.at_target(target_x, t.target));
    }
    if (threadIdx.x == 0) write_numbers<kForward, kGradient>(p, t, row, s, best.index);
  }
}

}  // namespace ninefold::cuda
