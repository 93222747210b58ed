// What comes before the rows and after them: a block each, in double and in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/sm90/early_launch.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"

namespace ninefold::cuda {

inline constexpr int totals_threads = 1024;

// The sum of value(i) for i in [0, count), by every thread of the block.
template <class Value>
__device__ inline double block_sum(int64_t count, Value&& value) {
  __shared__ double partial[totals_threads];
  double mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += totals_threads) mine += value(i);
  partial[threadIdx.x] = mine;
  for (int width = totals_threads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
  }
  __syncthreads();
  const double total = partial[0];
  __syncthreads();  // before the next sum writes there
  return total;
}

// The denominator and the sum of the class weights, which every row needs.
__global__ void __launch_bounds__(totals_threads)
    cross_entropy_prepare(const __grid_constant__ cross_entropy_problem p) {
  sm90::let_the_next_begin();
  if (p.count_denominator) {
    const double sum =
        block_sum(p.layout.rows, [&](int64_t row) { return counted_weight(p, row); });
    if (threadIdx.x == 0) p.prepared[0] = static_cast<float>(sum);
  }
  if (p.sum_class_weights) {
    const double sum =
        block_sum(p.layout.cols, [&](int64_t column) { return p.class_weights[column]; });
    if (threadIdx.x == 0) p.prepared[1] = static_cast<float>(sum);
  }
}

// The scalar outputs from the rows' numbers.
__global__ void __launch_bounds__(totals_threads)
    cross_entropy_finish(const __grid_constant__ cross_entropy_problem p) {
  const int64_t rows = p.layout.rows;
  const bool writes = threadIdx.x == 0;
  const float inverse = inverse_denominator(p);
  if (p.loss) {
    const double sum = block_sum(rows, [&](int64_t row) { return p.row_loss[row]; });
    if (writes) *p.loss = static_cast<float>(sum) * inverse;
  }
  if (p.z_loss_sum) {
    const double sum = block_sum(rows, [&](int64_t row) { return p.row_z_loss[row]; });
    if (writes) *p.z_loss_sum = static_cast<float>(sum) * inverse;
  }
  if (p.accuracy) {
    const double hits = block_sum(rows, [&](int64_t row) { return p.row_hit[row] > 0; });
    const double counted = block_sum(rows, [&](int64_t row) { return p.row_hit[row] >= 0; });
    if (writes) *p.accuracy = counted == 0 ? 0.0f : static_cast<float>(hits / counted);
  }
}

}  // namespace ninefold::cuda
