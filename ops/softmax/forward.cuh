// The forward kernels, from the naive rung up.
#pragma once

#include "backend/cuda/dropout.hpp"
#include "backend/cuda/reduce.hpp"
#include "backend/cuda/row.hpp"
#include "backend/cuda/vec.hpp"
#include "ops/softmax/softmax.hpp"

namespace ninefold::cuda {

// v of one position: what softmax sees. -inf where the position is not allowed, whatever x holds.
template <class In>
__device__ inline float transformed(const softmax_forward_problem& p, float x, int64_t mask_row,
                                    int64_t column) {
  if (x == -INFINITY) return x;
  if (p.mask_type == mask_kind::none) return p.scale * x;
  const int64_t at = mask_row + column * p.layout.col_stride[p.mask_index];
  if (p.mask_type == mask_kind::boolean)
    return static_cast<const uint8_t*>(p.mask)[at] ? p.scale * x : -INFINITY;
  const float m = p.mask_type == mask_kind::f32 ? static_cast<const float*>(p.mask)[at]
                                                : to_float(static_cast<const In*>(p.mask)[at]);
  return m == -INFINITY ? -INFINITY : fmaf(p.scale, x, m);
}

// A position's v from memory; -inf beyond the row's allowed columns.
template <class In>
__device__ inline float value_at(const softmax_forward_problem& p, const In* x, int64_t mask_row,
                                 int64_t column, int64_t allowed) {
  if (column >= allowed) return -INFINITY;
  return transformed<In>(p, to_float(x[column * p.layout.col_stride[p.x_index]]), mask_row, column);
}

// What a row's statistics make of each v. Holds the special cases in one place.
struct softmax_output {
  float max, total, factor, log_total;
  bool log;

  __device__ softmax_output(max_sum row, bool want_log) : total(row.total), log(want_log) {
    const bool empty = row.max == -INFINITY && row.total == 0.0f;
    max = row.max == -INFINITY ? 0.0f : row.max;  // keeps -inf - -inf away
    factor = empty ? 0.0f : 1.0f / row.total;
    log_total = empty ? 0.0f : logf(row.total);
  }

  // NaN or +inf among the row's values: all become NaN, but for those that are not allowed, which
  // only the operator below tells apart.
  __device__ bool poisoned() const { return isnan(total); }

  __device__ float operator()(float v) const {
    if (v == -INFINITY) return log ? v : 0.0f;
    return log ? (v - max) - log_total : fast_exp(v - max) * factor;
  }
};

// Where a row's results go: y, the probabilities after dropout, or both.
template <class Out>
struct forward_outputs {
  Out *y, *dropped;

  // Without dropout, y is there, and that is not asked.
  __device__ forward_outputs(const softmax_forward_problem& p, int64_t row, bool dropout)
      : y(dropout ? softmax_row<Out>(p.layout, p.y_index, p.y, row)
                  : static_cast<Out*>(p.y) + row_offset(p.layout, p.y_index, row)),
        dropped(dropout ? softmax_row<Out>(p.layout, p.dropped_index, p.dropped, row) : nullptr) {}

  // One result, over any strides.
  __device__ void store(const softmax_forward_problem& p, int64_t row, int64_t c, float v) const {
    const Out rounded = from_float<Out>(v);
    if (y) y[c * p.layout.col_stride[p.y_index]] = rounded;
    if (!dropped) return;
    const bool kept = p.dropout.keeps(row * p.layout.cols + c);
    dropped[c * p.layout.col_stride[p.dropped_index]] =
        from_float<Out>(kept ? to_float(rounded) * p.dropout.scale : 0.0f);
  }
};

// A vector of y after dropout. `index` is the number of its first element.
template <class Out, int kWidth>
__device__ inline packed<Out, kWidth> drop(const softmax_dropout& dropout, int64_t index,
                                           const packed<Out, kWidth>& y) {
  float v[kWidth];
  unpack(y, v);
  for_each_draw<kWidth>(dropout.seed.get(), dropout.offset.get(), keep_rule(dropout.keep_from),
                        index,
                        [&](int i, bool kept) { v[i] = kept ? v[i] * dropout.scale : 0.0f; });
  return pack<Out, kWidth>(v);
}

// A row of one value.
__device__ inline max_sum one(float v) {
  return v == -INFINITY ? max_sum::identity() : max_sum{v, 1.0f};
}

// three_pass: the loop of the CPU, one thread a row. Neighbouring threads read addresses a whole
// row apart, and each value is fetched three times.
template <class In, class Out>
__global__ void softmax_forward_three_pass(const __grid_constant__ softmax_forward_problem p) {
  const int64_t step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < p.layout.rows;
       row += step) {
    const In* x = static_cast<const In*>(p.x) + row_offset(p.layout, p.x_index, row);
    const forward_outputs<Out> out(p, row, p.dropout.on);
    const int64_t mask_row = row_offset(p.layout, p.mask_index, row);
    const int64_t allowed = allowed_columns(p.causal, p.limit, row, p.layout.cols);

    max_sum total = max_sum::identity();
    for (int64_t c = 0; c < allowed; ++c)
      total.max = fmaxf(total.max, value_at(p, x, mask_row, c, allowed));
    const float base = total.max == -INFINITY ? 0.0f : total.max;
    // A sum of sums: one long fp32 sum would lose digits as it grows.
    for (int64_t c = 0; c < allowed;) {
      float part = 0.0f;
      for (const int64_t stop = c + 256; c < stop && c < allowed; ++c)
        part += fast_exp(value_at(p, x, mask_row, c, allowed) - base);
      total.total += part;
    }
    const softmax_output result(total, p.log);
    for (int64_t c = 0; c < p.layout.cols; ++c)
      out.store(p, row, c, result(value_at(p, x, mask_row, c, allowed)));
  }
}

// online: a block walks its row twice; the first walk finds maximum and sum together. Any N, any
// strides, any mask. With kWidth > 1 the row is read in 16-byte vectors.
template <class In, class Out, int kWidth, int kThreads, bool kDropout>
__global__ void __launch_bounds__(kThreads, kDropout ? 1 : 2)
    softmax_forward_online(const __grid_constant__ softmax_forward_problem p,
                           const __grid_constant__ memory_range range) {
  __shared__ warp_reduction<max_sum, kThreads, 1> reduction;
  int call = 0;
  for (int64_t row = blockIdx.x; row < p.layout.rows; row += gridDim.x, ++call) {
    const In* x = static_cast<const In*>(p.x) + row_offset(p.layout, p.x_index, row);
    const forward_outputs<Out> out(p, row, kDropout);
    const int64_t mask_row = row_offset(p.layout, p.mask_index, row);
    const int64_t cols = p.layout.cols;
    const int64_t allowed = allowed_columns(p.causal, p.limit, row, cols);
    max_sum mine = max_sum::identity();

    if constexpr (kWidth == 1) {
      for (int64_t c = threadIdx.x; c < allowed; c += kThreads)
        mine = combine(mine, one(value_at(p, x, mask_row, c, allowed)));
      const softmax_output result(reduction.reduce(reduce_lanes<32>(mine), call), p.log);
      for (int64_t c = threadIdx.x; c < cols; c += kThreads)
        out.store(p, row, c, result(value_at(p, x, mask_row, c, allowed)));
    } else {
      const int64_t begin = int64_t{threadIdx.x} * kWidth - misalignment(x);
      const auto load = [&](int64_t c, float(&v)[kWidth]) {
        const bool inside = c >= 0 && c + kWidth <= allowed;
        unpack(inside ? load_vector<In, kWidth>(x + c)
                      : load_edge<In, kWidth>(x, c, allowed, -INFINITY, range),
               v);
#pragma unroll
        for (float& value : v) value = value == -INFINITY ? value : p.scale * value;
      };
      for (int64_t c = begin; c < allowed; c += kThreads * kWidth) {
        float v[kWidth];
        load(c, v);
        // One maximum for the vector, then its sum: one rescale of the running sum, not kWidth.
        max_sum here = max_sum::identity();
#pragma unroll
        for (float value : v) here.max = fmaxf(here.max, value);
        const float base = here.max == -INFINITY ? 0.0f : here.max;
#pragma unroll
        for (float value : v) here.total += fast_exp(value - base);
        mine = combine(mine, here);
      }
      const softmax_output result(reduction.reduce(reduce_lanes<32>(mine), call), p.log);
      for (int64_t c = begin; c < cols; c += kThreads * kWidth) {
        float v[kWidth];
        load(c, v);
#pragma unroll
        for (float& value : v) value = result(value);
        const auto store = [&](Out* to, const packed<Out, kWidth>& results) {
          if (c >= 0 && c + kWidth <= cols)
            store_vector<Out, kWidth>(to + c, results);
          else
            store_edge(to, c, cols, results);
        };
        const auto y = pack<Out, kWidth>(v);
        if (!kDropout || out.y) store(out.y, y);
        if constexpr (kDropout) store(out.dropped, drop(p.dropout, row * cols + c, y));
      }
    }
  }
}

// One read and one write: the row stays in registers, still packed, between the two.
//
// kLanes threads of a block share a row, each holding kVectors 16-byte vectors of it; kCluster
// blocks share it beyond that. Every rung from half a warp to a cluster is this kernel.
// Equivalent to, for each row:
//   v = x[row]                        one vector load each, all in flight together
//   (m, s) = reduce(max, sum of exp)  lanes, then warps, then blocks of the cluster
//   y[row] = exp(v - m) / s           the exponential again: cheaper than keeping it
//   dropped[row] = dropout(y[row])    the same registers again
template <class In, class Out, int kLanes, int kVectors, int kCluster, bool kTransformed,
          bool kDropout>
struct one_read_forward {
  static constexpr int width = 16 / sizeof(In);
  using slice = row_slice<width, kLanes, kVectors, kCluster>;

  static constexpr int unroll = held_vectors<In, width, kVectors, false>::unroll;

  const softmax_forward_problem& p;
  const memory_range& range;  // of x

  // A thread's values of the row. A scale above 0 is applied whenever they are looked at; with a
  // mask, or a scale that turns their order around, v is kept instead of x, as fp32.
  struct values {
    float scale;
    held_vectors<In, width, kVectors, false> raw;
    float kept[kTransformed ? kVectors : 1][width];

    __device__ void get(int i, float (&v)[width]) {
      if constexpr (kTransformed) {
#pragma unroll
        for (int j = 0; j < width; ++j) v[j] = kept[i][j];
      } else {
        unpack(raw.template get<slice>(i), v);
#pragma unroll
        for (float& value : v) value *= scale;
      }
    }
    __device__ float max() {
      float best = -INFINITY;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if constexpr (kTransformed) {
#pragma unroll
          for (int j = 0; j < width; ++j) best = fmaxf(best, kept[i][j]);
        } else {
          best = fmaxf(best, largest(raw.template get<slice>(i)));
        }
      }
      return kTransformed ? best : best * scale;
    }
  };

  __device__ void transform(const slice& part, int64_t row, int end, values& held) const {
    const int64_t mask_row = row_offset(p.layout, p.mask_index, row);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      unpack(held.raw.template get<slice>(i), held.kept[i]);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const int c = part.column(i) + j;
        if (c >= 0 && c < end) held.kept[i][j] = transformed<In>(p, held.kept[i][j], mask_row, c);
      }
    }
  }

  template <class Function>
  __device__ void store(const slice& part, const forward_outputs<Out>& out, int64_t row, int end,
                        values& held, Function&& f) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width];
      held.get(i, v);
#pragma unroll
      for (float& value : v) value = f(value);
      const auto y = pack<Out, width>(v);
      if (!kDropout || out.y) part.store(out.y, end, i, y);
      if constexpr (kDropout)
        part.store(out.dropped, end, i, drop(p.dropout, row * p.layout.cols + part.column(i), y));
    }
  }

  __device__ void run() const {
    __shared__ warp_reduction<max_sum, slice::threads, kCluster> across_warps;
    constexpr int per_block = slice::rows_per_block;
    constexpr int near = kLanes < 32 ? kLanes : 32;  // the lanes that reduce without shared memory
    const int64_t step = int64_t{gridDim.x / kCluster} * per_block;

    if constexpr (kLanes > 32) across_warps.begin();
    int call = 0;
    for (int64_t first = int64_t{blockIdx.x / kCluster} * per_block; first < p.layout.rows;
         first += step, ++call) {
      const int64_t wanted = first + static_cast<int>(threadIdx.x) / kLanes;
      const bool live = per_block == 1 || wanted < p.layout.rows;
      const int64_t row = live ? wanted : 0;
      const In* x = static_cast<const In*>(p.x) + row_offset(p.layout, p.x_index, row);
      const forward_outputs<Out> out(p, row, kDropout);
      const int end = live ? static_cast<int>(p.layout.cols) : 0;
      const int readable =
          live ? static_cast<int>(allowed_columns(p.causal, p.limit, row, p.layout.cols)) : 0;
      const slice part(x);

      values held;
      held.scale = p.scale;
      held.raw.load(part, x, readable, -INFINITY, range);
      if constexpr (kTransformed) transform(part, row, readable, held);

      // The sum is taken below the maximum of the near lanes: no exponential to bring it there.
      const float near_max = max_of_lanes<near>(held.max());
      const float base = near_max == -INFINITY ? 0.0f : near_max;
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float v[width];
        held.get(i, v);
#pragma unroll
        for (float value : v) total += fast_exp(value - base);
      }
      max_sum found{near_max, reduce_lanes<near>(sum{total}).total};
      if constexpr (kLanes > 32) found = across_warps.reduce(found, call);

      const softmax_output result(found, !kDropout && p.log);
      const auto plain = [&](float v) { return fast_exp(v - result.max) * result.factor; };
      if constexpr (kDropout) {
        // The generator once a vector, not twice: one way for poisoned rows and others.
        store(part, out, row, end, held, [&](float v) { return v == -INFINITY ? 0.0f : plain(v); });
      } else if (p.log || result.poisoned()) {
        store(part, out, row, end, held, [&](float v) { return result(v); });
      } else {
        store(part, out, row, end, held, plain);
      }
    }
  }
};

template <class In, class Out, int kLanes, int kVectors, int kCluster, int kResident,
          bool kTransformed, bool kDropout>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    softmax_forward_kernel(const __grid_constant__ softmax_forward_problem p,
                           const __grid_constant__ memory_range range) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  one_read_forward<In, Out, kLanes, kVectors, kCluster, kTransformed, kDropout>{p, range}.run();
}

}  // namespace ninefold::cuda
