// What all row kernels share, and the two that read a row more than once: three_pass and online.
#pragma once

#include "backend/cuda/reduce.hpp"
#include "backend/cuda/row.hpp"
#include "backend/cuda/vec.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"

namespace ninefold::cuda {

// A logit on its way to z: scale * x, or soft_cap * tanh(scale * x / soft_cap). kPlain: the options
// are only such as give each row a factor, see cross_entropy_problem::plain().
template <bool kPlain>
struct logit_rule {
  float scale, cap, exponent;

  __device__ explicit logit_rule(const cross_entropy_problem& p)
      : scale(p.scale), cap(p.soft_cap), exponent(2 * log2_e * p.scale / p.soft_cap) {}

  __device__ bool capped() const { return !kPlain && cap != 0; }
  // tanh(y) = 1 - 2 q
  __device__ float q(float x) const { return __fdividef(1.0f, 1.0f + fast_exp2(x * exponent)); }
  __device__ float z(float x) const { return capped() ? fmaf(-2 * cap, q(x), cap) : scale * x; }
  // z - max, with one rounding where there is no cap.
  __device__ float below(float x, float max) const {
    return capped() ? z(x) - max : fmaf(x, scale, -max);
  }
  __device__ float slope(float x) const {
    if (!capped()) return 1.0f;
    const float at = q(x);
    return 4 * at * (1 - at);
  }
};

// The gradient at a column, from the row's maximum and 1 / sum exp(z - max).
template <bool kPlain>
struct column_gradient {
  const cross_entropy_problem& p;
  logit_rule<kPlain> rule;
  gradient_rule row;
  float max, inverse;

  __device__ float operator()(float x, int64_t column) const {
    const float e = fast_exp(rule.below(x, max));
    if constexpr (kPlain) {
      return e * (inverse * (row.softmax * row.scale));
    } else {
      const float dz = row.softmax * (e * inverse) - row.even * weight(column);
      return dz * (row.scale * rule.slope(x));
    }
  }
  __device__ float at_target(float x, int64_t column) const {
    const float dz = row.softmax * (fast_exp(rule.below(x, max)) * inverse) -
                     row.even * weight(column) - row.hot;
    return dz * (row.scale * rule.slope(x));
  }

 private:
  __device__ float weight(int64_t column) const {
    return p.class_weights ? __ldg(p.class_weights + column) : 1.0f;
  }
};

// A column's part in sum_j w_j (max - z_j) and in sum_j exp(z_j - max) (max - z_j).
template <bool kPlain>
__device__ inline two_sums below_max(const cross_entropy_problem& p, const logit_rule<kPlain>& rule,
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
__device__ inline token known_token(const cross_entropy_problem& p, int64_t row) {
  token t = token_of(p, row);
  if constexpr (kPlain) {
    t.hot = t.target < 0 ? 0.0f : 1.0f;
    t.even = t.all_weights = 0.0f;
  }
  return t;
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
  if constexpr (kForward) write_row(p, t, row, s, hit);
  if constexpr (kGradient) write_row_scale(p, t, row);
  if (p.bad_target && t.bad()) *p.bad_target = 1;
}

// What backward knows of a row: as if its maximum were lse and its sum 1.
__device__ inline row_sums saved_sums(const cross_entropy_problem& p, const token& t, int64_t row) {
  row_sums s{};
  if (!t.ignored) s.max = p.lse[p.at(cross_entropy_problem::lse_index, row)];
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
    const token t = token_of(p, row);
    const T* x = static_cast<const T*>(p.logits) + p.at(p.logits_index, row);
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
      two_sums below{};
      for (int64_t c = 0; c < cols;) {
        float part = 0;
        two_sums below_part{};
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
      s.below = below.first;
      s.mean_below = below.second * inverse;
    }
    if (!kForward) s = saved_sums(p, t, row);
    write_numbers<kForward, kGradient>(p, t, row, s, hit);
    if constexpr (kGradient) {
      const gradient_rule g = gradient_of(p, t, s.max + s.log_sum);
      const column_gradient<false> gradient{p, rule, g, s.max, inverse};
      T* out = static_cast<T*>(p.dlogits) + p.at(p.dlogits_index, row);
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
  const T* x;
  int64_t stride, cols, begin;
  const memory_range& range;

  __device__ row_walk(const T* row, int64_t column_stride, int64_t columns,
                      const memory_range& memory)
      : x(row),
        stride(column_stride),
        cols(columns),
        begin(int64_t{threadIdx.x} * kWidth - (kWidth > 1 ? misalignment(row) : 0)),
        range(memory) {}

  static constexpr int64_t step = int64_t{kThreads} * kWidth;

  // Columns beyond the row read as -inf.
  __device__ void load(int64_t c, float (&v)[kWidth]) const {
    if constexpr (kWidth == 1) {
      v[0] = c < cols ? to_float(x[c * stride]) : -INFINITY;
    } else {
      const bool inside = c >= 0 && c + kWidth <= cols;
      unpack(inside ? load_vector<T, kWidth>(x + c)
                    : load_edge<T, kWidth>(x, c, cols, -INFINITY, range),
             v);
    }
  }
  __device__ void store(T* out, int64_t out_stride, int64_t c, const float (&v)[kWidth]) const {
    if constexpr (kWidth == 1) {
      out[c * out_stride] = from_float<T>(v[0]);
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
};

// online: a block walks its row once for the loss and once more for the gradient. Any V and any
// strides.
template <class T, int kWidth, int kThreads, bool kPlain, bool kForward, bool kGradient>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_online(const __grid_constant__ cross_entropy_problem p,
                         const __grid_constant__ memory_range range) {
  using walk = row_walk<T, kWidth, kThreads>;
  __shared__ warp_reduction<max_sum, kThreads, 1> reduction;
  const logit_rule<kPlain> rule(p);
  const bool wants_argmax = p.argmax || p.row_hit;
  constexpr int group = 4;  // vectors that a thread has in flight
  int call = 0;
  for (int64_t row = blockIdx.x; row < p.layout.rows; row += gridDim.x) {
    const token t = known_token<kPlain>(p, row);
    const int64_t cols = p.layout.cols;
    const walk at(static_cast<const T*>(p.logits) + p.at(p.logits_index, row),
                  p.layout.col_stride[p.logits_index], cols, range);
    // Backward has no barrier between this and the first store, so only who stores there reads.
    float target_x = 0;
    if (t.target >= 0 && (kForward || at.meets(t.target)))
      target_x = to_float(at.x[t.target * at.stride]);
    row_sums s{};
    float inverse = 1;
    largest_at best = largest_at::identity();
    if constexpr (kForward) {
      max_sum mine = max_sum::identity();
      for (int64_t c = at.begin; c < (t.ignored ? 0 : cols); c += group * walk::step) {
        float v[group][kWidth];
        float most = -INFINITY;
#pragma unroll
        for (int i = 0; i < group; ++i) at.load(c + i * walk::step, v[i]);
#pragma unroll
        for (int i = 0; i < group; ++i) {
#pragma unroll
          for (float value : v[i]) most = fmaxf(most, value);
        }
        if (wants_argmax && most > best.value) {
          best.value = most;
#pragma unroll
          for (int i = group - 1; i >= 0; --i) {
#pragma unroll
            for (int j = kWidth - 1; j >= 0; --j)
              if (v[i][j] == most) best.index = static_cast<int>(c + i * walk::step + j);
          }
        }
        max_sum here{rule.z(most), 0.0f};
        const float base = here.max == -INFINITY ? 0.0f : here.max;
#pragma unroll
        for (int i = 0; i < group; ++i) {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            const float e = fast_exp(rule.below(v[i][j], base));
            here.total += in_row<kPlain>(c + i * walk::step + j, cols) ? e : 0.0f;
          }
        }
        mine = combine(mine, here);
      }
      const max_sum found = reduction.reduce(reduce_lanes<32>(mine), call++);
      s = sums_of(rule, found, target_x);
      inverse = 1 / found.total;
      if (!kPlain && !t.ignored && (p.smoothing != 0 || p.entropy)) {
        two_sums below{};
        for (int64_t c = at.begin; c < cols; c += walk::step) {
          float v[kWidth];
          at.load(c, v);
#pragma unroll
          for (int j = 0; j < kWidth; ++j)
            if (in_row<kPlain>(c + j, cols))
              below = combine(below, below_max(p, rule, v[j], c + j, s.max));
        }
        below = reduction.reduce(reduce_lanes<32>(below), call++);
        s.below = below.first;
        s.mean_below = below.second * inverse;
      }
      if (wants_argmax) best = reduction.reduce(reduce_lanes<32>(best), call++);
    } else {
      s = saved_sums(p, t, row);
    }
    if constexpr (kGradient) {
      T* out = static_cast<T*>(p.dlogits) + p.at(p.dlogits_index, row);
      const int64_t out_stride = p.layout.col_stride[p.dlogits_index];
      const gradient_rule g = gradient_of(p, t, s.max + s.log_sum);
      const column_gradient<kPlain> gradient{p, rule, g, s.max, inverse};
      for (int64_t c = at.begin; c < cols; c += walk::step) {
        float v[kWidth];
        if (g.is_constant()) {
#pragma unroll
          for (float& value : v) value = g.constant();
        } else {
          at.load(c, v);
#pragma unroll
          for (int j = 0; j < kWidth; ++j)
            if (in_row<kPlain>(c + j, cols)) v[j] = gradient(v[j], c + j);
        }
        at.store(out, out_stride, c, v);
      }
      // By the thread that has just stored there.
      if (t.target >= 0 && !g.is_constant() && at.meets(t.target))
        out[t.target * out_stride] = from_float<T>(gradient.at_target(target_x, t.target));
    }
    if (threadIdx.x == 0) write_numbers<kForward, kGradient>(p, t, row, s, best.index);
  }
}

}  // namespace ninefold::cuda
