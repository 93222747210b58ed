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
  __device__ sums<2> sum_of(Function&& f) const {
    sums<2> total{};
    for (int64_t c = thread; c < p.layout.cols;) {
      sums<2> part{};
      for (const int64_t stop = c + 16 * kThreads; c < stop && c < p.layout.cols; c += kThreads)
        part = combine(part, f(c));
      total = combine(total, part);
    }
    if constexpr (kThreads > 1) {
      __shared__ warp_reduction<sums<2>, kThreads, 1> reduction;
      __syncthreads();
      total = reduction.reduce(reduce_lanes<32>(total), 0);
    }
    return total;
  }

  __device__ void run() const {
    float mean = 0, rest = 0;
    if (p.layer) {
      mean = sum_of([&](int64_t c) { return sums<2>{h(c), 0}; }).of[0] * per_column(p);
    }
    const sums<2> around = sum_of([&](int64_t c) {
      const float d = h(c) - mean;
      return sums<2>{d, d * d};
    });
    float variance = around.of[1] * per_column(p);
    if (p.layer) {
      rest = around.of[0] * per_column(p);
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

// What is between x and h: nothing, so that h is x; the stream; or dropout, and perhaps the stream.
enum class before_norm { nothing, stream, dropout };

// One read: the row stays in registers as h, packed. Equivalent to, for each row:
//   h = residual + dropout(x)            all loads in flight together
//   m = mean(h)                          LayerNorm: lanes, then warps, then blocks of the cluster
//   s, d = sum((h - m)^2), sum(h - m)    what m lost in rounding is d / N
//   y = (h - m - d / N) / sqrt(...) * weight + bias
template <class H, class Y, int kLanes, int kVectors, int kCluster, int kResident, bool kLayer,
          before_norm kBefore>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    norm_forward_kernel(const __grid_constant__ norm_problem p, int64_t ahead) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  constexpr int width = 16 / sizeof(Y);
  using slice = row_slice<width, kLanes, kVectors, kCluster>;
  using reduction = row_reduction<slice, kCluster, 1>;
  __shared__ typename reduction::shared across_warps;
  const slice part(static_cast<const Y*>(nullptr));  // cut at the row's own start
  const int cols = static_cast<int>(p.layout.cols);
  const float per = per_column(p);
  const int64_t step = int64_t{gridDim.x / kCluster} * slice::rows_per_block;

  reduction reduce(across_warps);
  for (int64_t first = int64_t{blockIdx.x / kCluster} * slice::rows_per_block;
       first < p.layout.rows; first += step) {
    const int64_t wanted = first + static_cast<int>(threadIdx.x) / kLanes;
    const bool live = slice::rows_per_block == 1 || wanted < p.layout.rows;
    const int64_t row = live ? wanted : 0;  // lanes without one help to reduce
    const auto at = [&](int tensor) { return brief_row_offset(p.layout, tensor, row); };
    const auto* const x_row = row_of<Y>(p.x, at(p.x_index));
    const auto* const residual = row_of<H>(p.residual, at(p.residual_index));
    auto* const h_row = row_of<H>(p.h, at(p.h_index));
    auto* const y = row_of<Y>(p.y, at(p.y_index));
    // Vectors beyond the row read its last one, and count for nothing.
    const auto column = [&](int i) { return min(part.column(i), cols - width); };

    const int64_t coming = row + ahead;
    if (ahead > 0 && threadIdx.x % kLanes == 0 && slice::rank() == 0 && coming < p.layout.rows) {
      const auto bytes = [&](int size) { return static_cast<uint32_t>(cols * size); };
      sm90::bulk_prefetch(row_of<Y>(p.x, brief_row_offset(p.layout, p.x_index, coming)),
                          bytes(sizeof(Y)));
      if (p.residual)
        sm90::bulk_prefetch(
            row_of<H>(p.residual, brief_row_offset(p.layout, p.residual_index, coming)),
            bytes(sizeof(H)));
    }

    packed<H, width> h[kVectors];
    if constexpr (kBefore == before_norm::nothing) {
      static_assert(std::is_same_v<H, Y>);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) h[i] = load_vector<H, width>(x_row + column(i));
    } else {
      packed<Y, width> x[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) x[i] = load_vector<Y, width>(x_row + column(i));
      const auto make_h = [&](int i, const auto& element) {
        float a[width], b[width];
        unpack(x[i], a);
        if (p.residual) unpack(h[i], b);
#pragma unroll
        for (int j = 0; j < width; ++j)
          a[j] = element(a[j], p.residual ? b[j] : 0.0f, i * width + j);
        h[i] = pack<H, width>(a);
      };
      if (p.residual) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) h[i] = load_vector<H, width>(residual + column(i));
      }
      if constexpr (kBefore == before_norm::dropout) {
        const uint64_t kept = kept_mask<kVectors, width>(p, part, row);
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
          make_h(i, [&](float x, float residual, int at) {
            return kept >> at & 1 ? fmaf(x, p.keep_scale, residual) : residual;
          });
      } else if (p.residual) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
          make_h(i, [](float x, float residual, int) { return x + residual; });
      } else {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) make_h(i, [](float x, float, int) { return x; });
      }
    }
    if (p.h) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        if (live && part.column(i) < cols) store_vector<H, width>(h_row + part.column(i), h[i]);
    }

    float sum = 0;  // of squares for RMSNorm
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width], some = 0;
      keep_packed(h[i]);
      unpack(h[i], v);
#pragma unroll
      for (float value : v) some = kLayer ? some + value : fmaf(value, value, some);
      if (part.column(i) < cols) sum += some;
    }
    sum = reduce(sums<1>{sum}).of[0] * per;

    float mean = 0, rest = 0, variance = sum;
    if constexpr (kLayer) {
      mean = sum;
      const auto around_mean = [&](auto f) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          float v[width], some = 0;
          keep_packed(h[i]);
          unpack(h[i], v);
#pragma unroll
          for (float value : v) some = f(value - mean, some);
          if (part.column(i) < cols) total += some;
        }
        return reduce(sums<1>{total}).of[0] * per;
      };
      variance = around_mean([](float d, float sum) { return fmaf(d, d, sum); });
      if (mean_lost_digits<kLanes>(mean, rstd_of(p, variance))) {
        rest = around_mean([](float d, float sum) { return d + sum; });
        variance -= rest * rest;
      }
    }
    const float rstd = rstd_of(p, variance), shift = rest * rstd;

    const auto write = [&](auto parameter) {
      using P = decltype(parameter);
      const auto* const weight = static_cast<const P*>(p.weight);
      const auto* const bias = static_cast<const P*>(p.bias);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float v[width], w[width], b[width];
        if (weight) unpack(load_parameter<P, width>(weight + column(i)), w);
        if (bias) unpack(load_parameter<P, width>(bias + column(i)), b);
        keep_packed(h[i]);
        unpack(h[i], v);
#pragma unroll
        for (float& value : v) value = kLayer ? fmaf(value - mean, rstd, -shift) : value * rstd;
        if (p.round_llama) unpack(pack<Y, width>(v), v);
        if (p.weight_offset != 0) {
#pragma unroll
          for (float& value : w) value += p.weight_offset;
        }
#pragma unroll
        for (int j = 0; j < width; ++j) {
          if (!weight) w[j] = 1;
          v[j] = bias ? fmaf(v[j], w[j], b[j]) : v[j] * w[j];
        }
        const int c = part.column(i);
        if (live && c < cols) store_vector<Y, width>(y + c, pack<Y, width>(v));
      }
    };
    p.weight_type == dtype::f32 ? write(float()) : write(Y());
    if (live && threadIdx.x % kLanes == 0 && slice::rank() == 0) {
      if (kLayer && p.mean) p.mean[at(p.mean_index)] = mean_or_nan(mean + rest);
      if (p.rstd) p.rstd[at(p.rstd_index)] = rstd;
    }
  }
}

}  // namespace ninefold::cuda
