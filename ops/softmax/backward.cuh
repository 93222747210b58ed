// The backward kernels: the forward's rungs with two rows in and one sum to reduce.
#pragma once

#include "backend/cuda/dropout.hpp"
#include "backend/cuda/reduce.hpp"
#include "backend/cuda/row.hpp"
#include "backend/cuda/vec.hpp"
#include "ops/softmax/softmax.hpp"

namespace ninefold::cuda {

// One position's part in the row's sum, and its gradient once the sum is known. A position without
// probability takes no part, whatever dy holds there: select, do not multiply by zero.
struct softmax_gradient {
  float scale;  // with dropout's factor, for what is left of dy has it everywhere
  bool log;

  __device__ explicit softmax_gradient(const softmax_backward_problem& p)
      : scale(p.scale * p.dropout.scale), log(p.log) {}

  __device__ float term(float y, float dy) const {
    if (log) return y == -INFINITY ? 0.0f : dy;
    return y == 0.0f ? 0.0f : y * dy;
  }
  __device__ float gradient(float y, float dy, float total) const {
    if (log) return y == -INFINITY ? 0.0f : scale * (dy - fast_exp(y) * total);
    return y == 0.0f ? 0.0f : scale * (y * (dy - total));
  }
  // What stands for a position beyond the row or the causal limit.
  __device__ float nothing() const { return log ? -INFINITY : 0.0f; }
};

struct backward_ranges {
  memory_range y, dy;
};

template <class In, class Out>
struct backward_row {
  const Out *y, *dy;
  In* dx;
  int64_t allowed;

  __device__ backward_row(const softmax_backward_problem& p, int64_t row)
      : y(static_cast<const Out*>(p.y) + row_offset(p.layout, p.y_index, row)),
        dy(static_cast<const Out*>(p.dy) + row_offset(p.layout, p.dy_index, row)),
        dx(static_cast<In*>(p.dx) + row_offset(p.layout, p.dx_index, row)),
        allowed(allowed_columns(p.causal, p.limit, row, p.layout.cols)) {}

  // dy of one position, 0 where dropped.
  __device__ float left_of_dy(const softmax_backward_problem& p, int64_t row, int64_t c) const {
    const bool kept = !p.dropout.on || p.dropout.keeps(row * p.layout.cols + c);
    return kept ? to_float(dy[c * p.layout.col_stride[p.dy_index]]) : 0.0f;
  }
};

// Sets to 0 what dropout drops of a vector of dy. `index` is the number of its first position.
template <int kWidth>
__device__ inline void drop(const softmax_dropout& dropout, int64_t index, float (&dy)[kWidth]) {
  for_each_draw<kWidth>(dropout.seed.get(), dropout.offset.get(), keep_rule(dropout.keep_from),
                        index, [&](int i, bool kept) { dy[i] = kept ? dy[i] : 0.0f; });
}

template <class In, class Out>
__global__ void softmax_backward_three_pass(const __grid_constant__ softmax_backward_problem p) {
  const int64_t step = int64_t{blockDim.x} * gridDim.x;
  const int64_t* stride = p.layout.col_stride;
  const softmax_gradient rule(p);
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < p.layout.rows;
       row += step) {
    const backward_row<In, Out> at(p, row);
    float total = 0;
    for (int64_t c = 0; c < at.allowed;) {
      float part = 0.0f;
      for (const int64_t stop = c + 256; c < stop && c < at.allowed; ++c)
        part += rule.term(to_float(at.y[c * stride[0]]), at.left_of_dy(p, row, c));
      total += part;
    }
    for (int64_t c = 0; c < p.layout.cols; ++c) {
      const float y = c < at.allowed ? to_float(at.y[c * stride[0]]) : rule.nothing();
      at.dx[c * stride[2]] = from_float<In>(rule.gradient(y, at.left_of_dy(p, row, c), total));
    }
  }
}

// online: a block walks its row twice. Any N and any strides; with kWidth > 1 in whole vectors.
template <class In, class Out, int kWidth, int kThreads, bool kDropout>
__global__ void __launch_bounds__(kThreads, kDropout ? 1 : 2)
    softmax_backward_online(const __grid_constant__ softmax_backward_problem p,
                            const __grid_constant__ backward_ranges ranges) {
  __shared__ warp_reduction<sum, kThreads, 1> reduction;
  const softmax_gradient rule(p);
  const int64_t* stride = p.layout.col_stride;
  const int64_t cols = p.layout.cols;
  int call = 0;
  for (int64_t row = blockIdx.x; row < p.layout.rows; row += gridDim.x, ++call) {
    const backward_row<In, Out> at(p, row);
    sum mine = sum::identity();
    if constexpr (kWidth == 1) {
      for (int64_t c = threadIdx.x; c < at.allowed; c += kThreads)
        mine.total += rule.term(to_float(at.y[c * stride[0]]), at.left_of_dy(p, row, c));
      const float total = reduction.reduce(reduce_lanes<32>(mine), call).total;
      for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
        const float y = c < at.allowed ? to_float(at.y[c * stride[0]]) : rule.nothing();
        at.dx[c * stride[2]] = from_float<In>(rule.gradient(y, at.left_of_dy(p, row, c), total));
      }
    } else {
      const int64_t begin = int64_t{threadIdx.x} * kWidth - misalignment(at.dx);
      const auto load = [&](const Out* row, const memory_range& range, int64_t c, float fill,
                            float(&v)[kWidth]) {
        const bool inside = c >= 0 && c + kWidth <= at.allowed;
        unpack(inside ? load_vector<Out, kWidth>(row + c)
                      : load_edge<Out, kWidth>(row, c, at.allowed, fill, range),
               v);
      };
      const auto load_both = [&](int64_t c, float(&y)[kWidth], float(&dy)[kWidth]) {
        load(at.y, ranges.y, c, rule.nothing(), y);
        load(at.dy, ranges.dy, c, 0.0f, dy);
        if constexpr (kDropout) drop(p.dropout, row * cols + c, dy);
      };
      for (int64_t c = begin; c < at.allowed; c += kThreads * kWidth) {
        float y[kWidth], dy[kWidth], here = 0;
        load_both(c, y, dy);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) here += rule.term(y[j], dy[j]);
        mine.total += here;
      }
      const float total = reduction.reduce(reduce_lanes<32>(mine), call).total;
      for (int64_t c = begin; c < cols; c += kThreads * kWidth) {
        float y[kWidth], dy[kWidth];
        load_both(c, y, dy);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) dy[j] = rule.gradient(y[j], dy[j], total);
        if (c >= 0 && c + kWidth <= cols)
          store_vector<In, kWidth>(at.dx + c, pack<In, kWidth>(dy));
        else
          store_edge(at.dx, c, cols, pack<In, kWidth>(dy));
      }
    }
  }
}

// Two reads (y, dy) and one write: both rows stay on chip, packed, until the sum is known. Lanes,
// vectors and clusters as in the forward. kShared: y waits in shared memory and only dy in
// registers, so that twice the bytes are on chip and the loads of one block cover the reduction of
// another. With dropout, what it drops of dy is cleared where it waits.
template <class In, class Out, int kLanes, int kVectors, int kCluster, bool kShared, bool kDropout>
struct one_read_backward {
  static constexpr int width = 16 / sizeof(In);
  using slice = row_slice<width, kLanes, kVectors, kCluster>;
  using vector = packed<Out, width>;
  static constexpr int shared_bytes =
      kShared * slice::block_vectors * static_cast<int>(sizeof(vector));

  const softmax_backward_problem& p;
  const backward_ranges& ranges;

  __device__ void run() const {
    __shared__ warp_reduction<sum, slice::threads, kCluster> across_warps;
    extern __shared__ __align__(16) unsigned char stage[];
    constexpr int per_block = slice::rows_per_block;
    constexpr int near = kLanes < 32 ? kLanes : 32;
    const int64_t step = int64_t{gridDim.x / kCluster} * per_block;
    const softmax_gradient rule(p);

    if constexpr (kLanes > 32) across_warps.begin();
    int call = 0;
    for (int64_t first = int64_t{blockIdx.x / kCluster} * per_block; first < p.layout.rows;
         first += step, ++call) {
      const int64_t wanted = first + static_cast<int>(threadIdx.x) / kLanes;
      const bool live = per_block == 1 || wanted < p.layout.rows;
      const int64_t row = live ? wanted : 0;
      const backward_row<In, Out> at(p, row);
      const int end = live ? static_cast<int>(p.layout.cols) : 0;
      const int readable = live ? static_cast<int>(at.allowed) : 0;
      const slice part(at.dx);

      held_vectors<Out, width, kVectors, kShared> y;
      held_vectors<Out, width, kVectors, false> dy;
      if constexpr (kShared) y.stage = reinterpret_cast<vector*>(stage);
      y.load(part, at.y, readable, rule.nothing(), ranges.y);
      dy.load(part, at.dy, readable, 0.0f, ranges.dy);
      if constexpr (kShared) wait_for_copies();

      sum mine = sum::identity();
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float a[width], b[width];
        unpack(y.template get<slice>(i), a);
        unpack(dy.template get<slice>(i), b);
        if constexpr (kDropout) {
          drop(p.dropout, row * p.layout.cols + part.column(i), b);
          dy.raw[i] = pack<Out, width>(b);
        }
#pragma unroll
        for (int j = 0; j < width; ++j) mine.total += rule.term(a[j], b[j]);
      }
      mine = reduce_lanes<near>(mine);
      if constexpr (kLanes > 32) mine = across_warps.reduce(mine, call);

#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float a[width], b[width];
        unpack(y.template get<slice>(i), a);
        unpack(dy.template get<slice>(i), b);
#pragma unroll
        for (int j = 0; j < width; ++j) b[j] = rule.gradient(a[j], b[j], mine.total);
        part.store(at.dx, end, i, pack<In, width>(b));
      }
    }
  }
};

template <class In, class Out, int kLanes, int kVectors, int kCluster, int kResident, bool kShared,
          bool kDropout>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    softmax_backward_kernel(const __grid_constant__ softmax_backward_problem p,
                            const __grid_constant__ backward_ranges ranges) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  one_read_backward<In, Out, kLanes, kVectors, kCluster, kShared, kDropout>{p, ranges}.run();
}

}  // namespace ninefold::cuda
