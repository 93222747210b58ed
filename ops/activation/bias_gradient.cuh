// dx together with dbias, its sum over the rows, in two stages of fixed order: no atomics, so the
// same call gives the same bits.
#pragma once

#include "ops/activation/formulas.cuh"

namespace ninefold::cuda {

inline constexpr int strip_threads = 128;

// Where the sums over rows go: `partials` rows of them.
struct partial_sums {
  float* to;
  int64_t partials, rows_each;
};

// A block has a strip of columns, a vector of them a thread, and the rows of one partial sum. The
// next row is on its way while this one is worked on.
template <class T, int kIn, class Op>
__global__ void __launch_bounds__(strip_threads)
    activation_backward_strips(const __grid_constant__ pointwise_tensors<kIn, 1> p,
                               const __grid_constant__ Op op, partial_sums sums, int64_t strips) {
  using row_type = pointwise_vectors<T, kIn, 1, pairs::none>;
  constexpr int width = row_type::width;
  const int64_t part = blockIdx.x / strips, strip = blockIdx.x - part * strips,
                cols = p.layout.cols;
  const int64_t c = (strip * strip_threads + threadIdx.x) * width;
  if (c >= cols) return;
  const int64_t begin = part * sums.rows_each;
  const int64_t end = min(begin + sums.rows_each, p.layout.rows);

  float total[width] = {};
  row_type next(p, begin);
  bool next_whole = next.whole(c, cols);
  next.load(c, cols, next_whole);
  for (int64_t row = begin; row < end; ++row) {
    const row_type now = next;
    const bool whole = next_whole;
    if (row + 1 < end) {
      next = row_type(p, row + 1);
      next_whole = next.whole(c, cols);
      next.load(c, cols, next_whole);
    }
    float in[kIn][width], out[1][width];
    now.values(in);
    op(row * cols + c, in, out);
#pragma unroll
    for (int i = 0; i < width; ++i) total[i] += out[0][i];
    now.store(c, cols, whole, out);
  }
  float* const to = sums.to + part * cols + c;
#pragma unroll
  for (int i = 0; i < width; ++i)
    if (c + i < cols) to[i] = total[i];
}

// The same over any strides: a column a thread.
template <class T, int kIn, class Op>
__global__ void __launch_bounds__(pointwise_threads)
    activation_backward_columns(const __grid_constant__ pointwise_tensors<kIn, 1> p,
                                const __grid_constant__ Op op, partial_sums sums) {
  const auto& at = p.layout;
  const int64_t count = sums.partials * at.cols, step = int64_t{gridDim.x} * pointwise_threads;
  for (int64_t i = int64_t{blockIdx.x} * pointwise_threads + threadIdx.x; i < count; i += step) {
    const int64_t part = i / at.cols, col = i - part * at.cols;
    const int64_t begin = part * sums.rows_each, end = min(begin + sums.rows_each, at.rows);
    float total = 0;
    for (int64_t row = begin; row < end; ++row) {
      const auto offsets = offsets_of_row(at, row);
      float in[kIn][1], out[1][1];
#pragma unroll
      for (int t = 0; t < kIn; ++t)
        in[t][0] = to_float(static_cast<const T*>(p.in[t])[offsets[t] + col * at.col_stride[t]]);
      op(row * at.cols + col, in, out);
      total += out[0][0];
      static_cast<T*>(p.out[0])[offsets[kIn] + col * at.col_stride[kIn]] = from_float<T>(out[0][0]);
    }
    sums.to[i] = total;
  }
}

inline constexpr int add_threads = 256, add_columns = 8;

// Stage two: a block has 8 columns, each group of 8 lanes takes every 32nd partial sum, and then a
// tree, in fp64.
template <class G>
__global__ void __launch_bounds__(add_threads)
    activation_add_partials(partial_sums sums, G* dbias, int64_t cols, bool accumulate) {
  constexpr int groups = add_threads / add_columns;
  __shared__ double of[groups][add_columns];
  const int lane = static_cast<int>(threadIdx.x) % add_columns,
            group = static_cast<int>(threadIdx.x) / add_columns;
  const int64_t c = int64_t{blockIdx.x} * add_columns + lane;
  double sum = 0;
  if (c < cols)
    for (int64_t i = group; i < sums.partials; i += groups) sum += sums.to[i * cols + c];
  of[group][lane] = sum;
#pragma unroll
  for (int half = groups / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group < half) of[group][lane] += of[group + half][lane];
  }
  if (group != 0 || c >= cols) return;
  double total = of[0][lane];
  if (accumulate) total += to_float(dbias[c]);
  dbias[c] = from_float<G>(static_cast<float>(total));
}

}  // namespace ninefold::cuda
