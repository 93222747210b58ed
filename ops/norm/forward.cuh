// The forward kernels.
#pragma once

#include "ops/norm/rows.cuh"

namespace ninefold::cuda {

// three_pass: one thread a row, each pass makes h anew; any strides. online: the same by a block,
// whose threads share the columns; any N.
template <int kThreads>
struct strided_forward {
  const norm_problem& p;
  int64_t row;
  norm_problem::offsets at;
  int thread;

  __device__ int64_t place(int tensor, int64_t c) const {
    return at[tensor] + c * p.layout.col_stride[tensor];
  }
  __device__ float h(int64_t c) const {
    const float x = number_at(p.x, p.x_type, place(p.x_index, c));
    if (!p.makes_h()) return x;
    const float residual =
        p.residual ? number_at(p.residual, p.h_type, place(p.residual_index, c)) : 0.0f;
    const bool kept = is_kept(p, row * p.layout.cols + c);
    if (p.h_type == dtype::f32) return h_of<float>(p, x, residual, kept);
    if (p.h_type == dtype::f16) return h_of<half>(p, x, residual, kept);
    return h_of<bfloat16>(p, x, residual, kept);
  }
  // The sum of f(c) over the row, for all threads that share it.
  template <class Function>
  __device__ two_sums sum_of(Function&& f) const {
    two_sums total{};
    for (int64_t c = thread; c < p.layout.cols;) {
      two_sums part{};
      for (const int64_t stop = c + 16 * kThreads; c < stop && c < p.layout.cols; c += kThreads)
        part = combine(part, f(c));
      total = combine(total, part);
    }
    if constexpr (kThreads > 1) {
      __shared__ warp_reduction<two_sums, kThreads, 1> reduction;
      __syncthreads();
      total = reduction.reduce(reduce_lanes<32>(total), 0);
    }
    return total;
  }

  __device__ void run() const {
    float mean = 0, rest = 0;
    if (p.layer) {
      mean = sum_of([&](int64_t c) { return two_sums{h(c), 0}; }).first * per_column(p);
    }
    const two_sums around = sum_of([&](int64_t c) {
      const float d = h(c) - mean;
      return two_sums{d, d * d};
    });
    float variance = around.second * per_column(p);
    if (p.layer) {
      rest = around.first * per_column(p);
      variance -= rest * rest;
    }
    const float rstd = rstd_of(p, variance);
    if (thread == 0) {
      if (p.mean) p.mean[at[p.mean_index]] = mean_or_nan(mean + rest);
      if (p.rstd) p.rstd[at[p.rstd_index]] = rstd;
    }
    for (int64_t c = thread; c < p.layout.cols; c += kThreads) {
      const float value = h(c);
      float xhat = ((value - mean) - rest) * rstd;
      if (p.round_llama && p.y_type == dtype::f16) xhat = stored_as<half>(xhat);
      if (p.round_llama && p.y_type == dtype::bf16) xhat = stored_as<bfloat16>(xhat);
      float y = xhat;
      if (p.weight) y *= p.weight_offset + number_at(p.weight, p.weight_type, c);
      if (p.bias) y += number_at(p.bias, p.weight_type, c);
      if (p.h) set_number(p.h, p.h_type, place(p.h_index, c), value);
      set_number(p.y, p.y_type, place(p.y_index, c), y);
    }
  }
};

__global__ void norm_forward_three_pass(const __grid_constant__ norm_problem p) {
  const int64_t step = int64_t{blockDim.x} * gridDim.x;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < p.layout.rows;
       row += step)
    strided_forward<1>{p, row, offsets_of_row(p.layout, row), 0}.run();
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    norm_forward_online(const __grid_constant__ norm_problem p) {
  for (int64_t row = blockIdx.x; row < p.layout.rows; row += gridDim.x)
    strided_forward<kThreads>{p, row, offsets_of_row(p.layout, row), static_cast<int>(threadIdx.x)}
        .run();
}

// One read: the row stays in registers as h, packed. Equivalent to, for each row:
//   h = residual + dropout(x)            all loads in flight together
//   m = mean(h)                          LayerNorm: lanes, then warps, then blocks of the cluster
//   s, d = sum((h - m)^2), sum(h - m)    what m lost in rounding is d / N
//   y = (h - m - d / N) / sqrt(...) * weight + bias
template <class H, class Y, int kLanes, int kVectors, int kCluster, int kResident, bool kLayer>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    norm_forward_kernel(const __grid_constant__ norm_problem p) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  constexpr int width = 16 / sizeof(Y);
  using slice = row_slice<width, kLanes, kVectors, kCluster>;
  __shared__ typename row_reduction<slice, kCluster>::shared across_warps;
  const int64_t step = int64_t{gridDim.x / kCluster} * slice::rows_per_block;
  const float per = per_column(p);
  const slice part(static_cast<const Y*>(nullptr));  // cut at the row's own start

  row_reduction<slice, kCluster> reduce(across_warps);
  for (int64_t first = int64_t{blockIdx.x / kCluster} * slice::rows_per_block;
       first < p.layout.rows; first += step) {
    const auto [live, row, at, end] = row_turn<slice>(p, first);

    whole_vectors<Y, width, kVectors> x;
    whole_vectors<H, width, kVectors> h;
    x.load(part, row_of<Y>(p.x, at[p.x_index]), end);
    if (p.residual) h.load(part, row_of<H>(p.residual, at[p.residual_index]), end);
    if (std::is_same_v<Y, H> && !p.makes_h()) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) __builtin_memcpy(&h.raw[i], &x.raw[i], sizeof(x.raw[i]));
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float a[width], b[width] = {};
        x.get(i, a);
        if (p.residual) h.get(i, b);
        const uint32_t kept = kept_mask<width>(p, row * p.layout.cols + part.column(i));
#pragma unroll
        for (int j = 0; j < width; ++j) a[j] = h_of<H>(p, a[j], b[j], kept >> j & 1);
        h.raw[i] = pack<H, width>(a);
      }
      if (p.h) h.store(part, row_of<H>(p.h, at[p.h_index]), end);
    }

    float mean = 0, rest = 0;
    if constexpr (kLayer) {
      two_sums sum{};
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float v[width], some = 0;
        h.get(i, v);
#pragma unroll
        for (float value : v) some += value;
        sum.first += some;
      }
      mean = reduce(sum).first * per;
    }
    two_sums around{};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width];
      two_sums some{};
      h.get(i, v);
#pragma unroll
      for (float value : v) {
        const float d = value - mean;
        if (kLayer) some.first += d;
        some.second = fmaf(d, d, some.second);
      }
      if (part.column(i) < end) around = combine(around, some);
    }
    around = reduce(around);
    float variance = around.second * per;
    if (kLayer) {
      rest = around.first * per;
      variance -= rest * rest;
    }
    const float rstd = rstd_of(p, variance);

    whole_vectors<Y, width, kVectors> y;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width], w[width], b[width];
      h.get(i, v);
      load_weight<Y>(p, part.column(i), end, w);
      load_parameter<Y>(p.bias, p.weight_type, 0.0f, part.column(i), end, b);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        float xhat = ((v[j] - mean) - rest) * rstd;
        if (p.round_llama) xhat = stored_as<Y>(xhat);
        v[j] = p.bias ? fmaf(xhat, w[j], b[j]) : xhat * w[j];
      }
      y.raw[i] = pack<Y, width>(v);
    }
    y.store(part, row_of<Y>(p.y, at[p.y_index]), end);
    if (live && threadIdx.x % kLanes == 0 && slice::rank() == 0) {
      if (kLayer && p.mean) p.mean[at[p.mean_index]] = mean_or_nan(mean + rest);
      if (p.rstd) p.rstd[at[p.rstd_index]] = rstd;
    }
  }
}

}  // namespace ninefold::cuda
