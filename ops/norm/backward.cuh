// The backward kernels. dweight and dbias are sums over all rows: each group of threads that walks
// rows keeps its own sums, writes them to the workspace, and a second kernel adds those up, both in
// a fixed order.
#pragma once

#include "ops/norm/rows.cuh"

namespace ninefold::cuda {

// What a row's gradient needs of it beside its own elements.
struct row_gradient {
  float mean, rest;  // of h; LayerNorm: the saved mean, and what it lost in rounding
  float rstd;
  float mean_g, mean_gx;  // of g, and of g * xhat

  __device__ float xhat(float h) const { return ((h - mean) - rest) * rstd; }
  __device__ float dh(float g, float xhat) const { return rstd * (g - mean_g - xhat * mean_gx); }
};

// Sums over a row: g, g * (h - mean), h - mean.
struct three_sums {
  float g, gd, d;
  __device__ static three_sums identity() { return {0, 0, 0}; }
};
__device__ inline three_sums combine(three_sums a, three_sums b) {
  return {a.g + b.g, a.gd + b.gd, a.d + b.d};
}

template <bool kLayer>
__device__ inline row_gradient gradient_of(const norm_problem& p, float mean, float rstd,
                                           const three_sums& s) {
  const float per = per_column(p);
  row_gradient r{mean, 0, rstd, 0, 0};
  float gd = s.gd;
  if (kLayer) {
    r.rest = s.d * per;
    r.mean_g = s.g * per;
    gd -= r.rest * s.g;
  }
  r.mean_gx = gd * per * rstd;
  return r;
}

// three_pass: one thread a row; online: one block. Any strides and any N. Either adds the weights'
// gradients to row `partial` of the workspace, which nobody else writes.
template <int kThreads>
struct strided_backward {
  const norm_problem& p;
  int64_t row;
  int64_t partial;
  bool first;  // of the rows that add to this partial
  int thread;

  __device__ void run() const {
    const auto at = offsets_of_row(p.layout, row);
    const auto place = [&](int tensor, int64_t c) {
      return at[tensor] + c * p.layout.col_stride[tensor];
    };
    const float mean = p.layer ? p.mean[at[p.mean_index]] : 0.0f, rstd = p.rstd[at[p.rstd_index]];
    const auto element = [&](int64_t c, float& h, float& dy) {
      h = number_at(p.h, p.h_type, place(p.h_index, c));
      dy = number_at(p.dy, p.y_type, place(p.dy_index, c));
      return p.weight ? dy * (p.weight_offset + number_at(p.weight, p.weight_type, c)) : dy;
    };
    three_sums total{};
    for (int64_t c = thread; c < p.layout.cols;) {
      three_sums part{};
      for (const int64_t stop = c + 16 * kThreads; c < stop && c < p.layout.cols; c += kThreads) {
        float h, dy;
        const float g = element(c, h, dy);
        part = combine(part, {g, g * (h - mean), h - mean});
      }
      total = combine(total, part);
    }
    if constexpr (kThreads > 1) {
      __shared__ warp_reduction<two_sums, kThreads, 1> reduction;
      __syncthreads();
      const two_sums a = reduction.reduce(reduce_lanes<32>(two_sums{total.g, total.gd}), 0);
      const two_sums b = reduction.reduce(reduce_lanes<32>(two_sums{total.d, 0}), 1);
      total = {a.first, a.second, b.first};
    }
    const row_gradient r = p.layer ? gradient_of<true>(p, mean, rstd, total)
                                   : gradient_of<false>(p, mean, rstd, total);
    for (int64_t c = thread; c < p.layout.cols; c += kThreads) {
      float h, dy;
      const float g = element(c, h, dy), xhat = r.xhat(h);
      float dh = r.dh(g, xhat);
      if (p.d_residual_out)
        dh += number_at(p.d_residual_out, p.h_type, place(p.d_residual_out_index, c));
      const auto add = [&](float* sums, float value) {
        float& sum = sums[partial * p.layout.cols + c];
        sum = first ? value : sum + value;
      };
      if (p.dweight_partials) add(p.dweight_partials, dy * xhat);
      if (p.dbias_partials) add(p.dbias_partials, dy);
      if (p.d_residual) set_number(p.d_residual, p.h_type, place(p.d_residual_index, c), dh);
      if (p.dx) {
        const bool kept = is_kept(p, row * p.layout.cols + c);
        set_number(p.dx, p.x_type, place(p.dx_index, c),
                   !kept       ? 0.0f
                   : p.dropout ? dh * p.keep_scale
                               : dh);
      }
    }
  }
};

// Partial sums that no row added to are nothing.
template <int kThreads>
__device__ inline void clear_partials(const norm_problem& p, int64_t partial, int thread) {
  for (int64_t c = thread; c < p.layout.cols; c += kThreads) {
    if (p.dweight_partials) p.dweight_partials[partial * p.layout.cols + c] = 0;
    if (p.dbias_partials) p.dbias_partials[partial * p.layout.cols + c] = 0;
  }
}

__global__ void norm_backward_three_pass(const __grid_constant__ norm_problem p, int64_t walkers) {
  const int64_t walker = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (walker >= walkers) return;
  if (walker >= p.layout.rows) clear_partials<1>(p, walker, 0);
  for (int64_t row = walker; row < p.layout.rows; row += walkers)
    strided_backward<1>{p, row, walker, row == walker, 0}.run();
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    norm_backward_online(const __grid_constant__ norm_problem p) {
  const int64_t walker = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  if (walker >= p.layout.rows) clear_partials<kThreads>(p, walker, thread);
  for (int64_t row = walker; row < p.layout.rows; row += gridDim.x)
    strided_backward<kThreads>{p, row, walker, row == walker, thread}.run();
}

// One read of h and dy, which stay in registers, packed; a grid that walks the rows, so that the
// sums over rows stay in registers too. Equivalent to, for each row:
//   G, D, R = sum(g), sum(g * (h - mean)), sum(h - mean)       in one exchange
//   dh = d_residual_out + rstd * (g - mean_g - xhat * mean_gx)
//   dweight += dy * xhat, dbias += dy                          fp32, by column
template <class H, class Y, int kLanes, int kVectors, int kCluster, int kResident, bool kLayer>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    norm_backward_kernel(const __grid_constant__ norm_problem p) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  constexpr int width = 16 / sizeof(Y);
  using slice = row_slice<width, kLanes, kVectors, kCluster>;
  __shared__ typename row_reduction<slice, kCluster>::shared across_warps;
  const slice part(static_cast<const Y*>(nullptr));  // cut at the row's own start
  const int64_t step = int64_t{gridDim.x / kCluster} * slice::rows_per_block;

  row_reduction<slice, kCluster> reduce(across_warps);
  float dweight[kVectors][width] = {}, dbias[kVectors][width] = {};
  for (int64_t first = int64_t{blockIdx.x / kCluster} * slice::rows_per_block;
       first < p.layout.rows; first += step) {
    const auto [live, row, at, end] = row_turn<slice>(p, first);

    whole_vectors<H, width, kVectors> h, arriving;
    whole_vectors<Y, width, kVectors> dy;
    h.load(part, row_of<H>(static_cast<const void*>(p.h), at[p.h_index]), end);
    dy.load(part, row_of<Y>(p.dy, at[p.dy_index]), end);
    if (p.d_residual_out)
      arriving.load(part, row_of<H>(p.d_residual_out, at[p.d_residual_out_index]), end);
    const float mean = kLayer ? p.mean[at[p.mean_index]] : 0.0f, rstd = p.rstd[at[p.rstd_index]];

    three_sums sums{};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width], u[width], w[width];
      three_sums some{};
      h.get(i, v);
      dy.get(i, u);
      load_weight<Y>(p, part.column(i), end, w);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float d = v[j] - mean, g = u[j] * w[j];
        if (kLayer) some.g += g;
        some.gd = fmaf(g, d, some.gd);
        if (kLayer) some.d += d;
      }
      if (part.column(i) < end) sums = combine(sums, some);
    }
    const two_sums both = reduce(two_sums{sums.g, sums.gd});
    three_sums all{both.first, both.second, 0};
    if constexpr (kLayer) all.d = reduce(two_sums{sums.d, 0}).first;
    const row_gradient r = gradient_of<kLayer>(p, mean, rstd, all);

    whole_vectors<Y, width, kVectors> dx;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width], u[width], w[width], before[width] = {};
      h.get(i, v);
      dy.get(i, u);
      const int c = part.column(i);
      load_weight<Y>(p, c, end, w);
      if (p.d_residual_out) arriving.get(i, before);
      const bool inside = c < end;  // a row that is not there adds nothing
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float xhat = r.xhat(v[j]);
        if (inside) dweight[i][j] = fmaf(u[j], xhat, dweight[i][j]);
        if (inside) dbias[i][j] += u[j];
        v[j] = before[j] + r.dh(u[j] * w[j], xhat);
      }
      if (p.d_residual) h.raw[i] = pack<H, width>(v);
      if (p.dropout) {
        const uint32_t kept = kept_mask<width>(p, row * p.layout.cols + c);
#pragma unroll
        for (int j = 0; j < width; ++j) v[j] = kept >> j & 1 ? v[j] * p.keep_scale : 0.0f;
      }
      dx.raw[i] = pack<Y, width>(v);
    }
    if (p.d_residual) h.store(part, row_of<H>(p.d_residual, at[p.d_residual_index]), end);
    if (p.dx) dx.store(part, row_of<Y>(p.dx, at[p.dx_index]), end);
  }

  // A row of partial sums a block.
  const int end = static_cast<int>(p.layout.cols);
  const auto write = [&](float* partials, const float(&sums)[kVectors][width]) {
    float* const out = partials + int64_t{blockIdx.x / kCluster} * end;
    if constexpr (slice::rows_per_block == 1) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
#pragma unroll
        for (int j = 0; j < width; ++j)
          if (part.column(i) + j < end) out[part.column(i) + j] = sums[i][j];
    } else {
      __shared__ float shared[slice::block_vectors * width];
      for (int group = 0; group < slice::rows_per_block; ++group) {
        if (static_cast<int>(threadIdx.x) / kLanes == group) {
#pragma unroll
          for (int i = 0; i < kVectors; ++i)
#pragma unroll
            for (int j = 0; j < width; ++j) {
              float& sum = shared[part.column(i) + j];
              sum = group == 0 ? sums[i][j] : sum + sums[i][j];
            }
        }
        __syncthreads();
      }
      for (int c = static_cast<int>(threadIdx.x); c < end; c += slice::threads) out[c] = shared[c];
      __syncthreads();
    }
  };
  if (p.dweight_partials) write(p.dweight_partials, dweight);
  if (p.dbias_partials) write(p.dbias_partials, dbias);
}

inline constexpr int add_threads = 1024, add_columns = 32;

// Adds up the partial sums: a block has 32 columns, each of its warps takes every 32nd partial, and
// then a tree.
__global__ void __launch_bounds__(add_threads)
    norm_add_partials(const __grid_constant__ norm_problem p) {
  __shared__ double sums[add_columns][add_columns];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t c = int64_t{blockIdx.x} * add_columns + lane;
  const auto add_up = [&](const float* partials, void* out) {
    double sum = 0;
    if (c < p.layout.cols)
      for (int64_t i = warp; i < p.partials; i += 32) sum += partials[i * p.layout.cols + c];
    sums[warp][lane] = sum;
    for (int half = 16; half > 0; half /= 2) {
      __syncthreads();
      if (warp < half) sums[warp][lane] += sums[warp + half][lane];
    }
    if (warp == 0 && c < p.layout.cols) {
      double total = sums[0][lane];
      if (p.accumulate) total += number_at(out, p.dweight_type, c);
      set_number(out, p.dweight_type, c, static_cast<float>(total));
    }
    __syncthreads();
  };
  if (p.dweight) add_up(p.dweight_partials, p.dweight);
  if (p.dbias) add_up(p.dbias_partials, p.dbias);
}

}  // namespace ninefold::cuda
