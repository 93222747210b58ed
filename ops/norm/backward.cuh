// The backward kernels. dweight and dbias are sums over all rows: each group of threads that walks
// rows keeps its own sums, writes them to the workspace, and a second kernel adds those up, both in
// a fixed order.
#pragma once

#include "backend/cuda/sm90/early_launch.hpp"
#include "ops/norm/rows.cuh"

namespace ninefold::cuda {

// What a row's gradient needs of it beside its own elements.
struct row_gradient {
  float mean,
      rest;  // of h; LayerNorm: the saved mean, and what it lost in rounding, in units of std
  float rstd;
  float mean_g, mean_gx;  // of g, and of g * xhat; both times rstd

  __device__ float xhat(float h) const { return fmaf(h - mean, rstd, -rest); }
  __device__ float dh(float g, float xhat) const {
    return fmaf(-xhat, mean_gx, fmaf(g, rstd, -mean_g));
  }
};

// From the sums over a row of g * (h - mean), of g, and of h - mean. RMSNorm needs the first only.
template <bool kLayer>
__device__ inline row_gradient gradient_of(const norm_problem& p, float mean, float rstd, float gd,
                                           float g, float d) {
  const float per = per_column(p);
  if (!kLayer) return {0, 0, rstd, 0, gd * per * rstd * rstd};
  const float rest = d * per;
  return {mean, rest * rstd, rstd, g * per * rstd, (gd - rest * g) * per * rstd * rstd};
}

// The sums over rows. A walker adds at most so many rows to one row of partial sums, in fp32, which
// then keeps its digits, be the rows all alike; its next is `walkers` rows of partials further on.
inline constexpr int rows_a_partial = 128;

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
    sums<3> total{};
    for (int64_t c = thread; c < p.layout.cols;) {
      sums<3> part{};
      for (const int64_t stop = c + 16 * kThreads; c < stop && c < p.layout.cols; c += kThreads) {
        float h, dy;
        const float g = element(c, h, dy);
        part = combine(part, sums<3>{g * (h - mean), g, h - mean});
      }
      total = combine(total, part);
    }
    if constexpr (kThreads > 1) {
      __shared__ warp_reduction<sums<3>, kThreads, 1> reduction;
      __syncthreads();
      total = reduction.reduce(reduce_lanes<32>(total), 0);
    }
    const auto [gd, g, d] = total.of;
    const row_gradient r = p.layer ? gradient_of<true>(p, mean, rstd, gd, g, d)
                                   : gradient_of<false>(p, 0, rstd, gd, 0, 0);
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

// All rows of one walker, and zeros where it has partial sums that no row adds to.
template <int kThreads>
__device__ inline void walk(const norm_problem& p, int64_t walker, int64_t walkers, int thread) {
  int64_t turn = 0, partial = walker;
  for (int64_t row = walker; row < p.layout.rows; row += walkers, ++turn) {
    if (turn > 0 && turn % rows_a_partial == 0) partial += walkers;
    strided_backward<kThreads>{p, row, partial, turn % rows_a_partial == 0, thread}.run();
  }
  if (turn > 0) partial += walkers;
  for (; partial < p.partials; partial += walkers)
    for (int64_t c = thread; c < p.layout.cols; c += kThreads) {
      if (p.dweight_partials) p.dweight_partials[partial * p.layout.cols + c] = 0;
      if (p.dbias_partials) p.dbias_partials[partial * p.layout.cols + c] = 0;
    }
}

__global__ void norm_backward_three_pass(const __grid_constant__ norm_problem p, int64_t walkers) {
  const int64_t walker = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (walker < walkers) walk<1>(p, walker, walkers, 0);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    norm_backward_online(const __grid_constant__ norm_problem p) {
  walk<kThreads>(p, blockIdx.x, gridDim.x, static_cast<int>(threadIdx.x));
}

// A row of partial sums, from what each thread of a block has for its columns.
template <class Slice, int kVectors, int kWidth>
__device__ inline void write_partial(const Slice& part, float* out, int end,
                                     float (&sums)[kVectors][kWidth]) {
  if constexpr (Slice::rows_per_block == 1) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (part.column(i) < end)
        store_vector<float, kWidth>(out + part.column(i), pack<float, kWidth>(sums[i]));
  } else {
    constexpr int lanes = Slice::threads / Slice::rows_per_block;
    __shared__ float shared[Slice::block_vectors * kWidth];
    for (int group = 0; group < Slice::rows_per_block; ++group) {
      if (static_cast<int>(threadIdx.x) / lanes == group) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            float& sum = shared[part.column(i) + j];
            sum = group == 0 ? sums[i][j] : sum + sums[i][j];
          }
      }
      __syncthreads();
    }
    for (int c = static_cast<int>(threadIdx.x); c < end; c += Slice::threads) out[c] = shared[c];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[i][j] = 0;
}

// One read of h and dy, which come in through shared memory, ahead of their turn, and stay there
// until the row is done; a grid that walks the rows, so that the sums over rows stay in registers.
// Equivalent to, for each row:
//   D, G = sum(g * (h - mean)), sum(g)                         in one exchange
//   R = sum(h - mean)                                          where it is not nothing
//   dh = d_residual_out + rstd * (g - mean_g - xhat * mean_gx)
//   dweight += dy * xhat, dbias += dy                          fp32, by column
// dbias for LayerNorm only.
template <class H, class Y, int kLanes, int kVectors, int kCluster, int kResident, bool kLayer>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    norm_backward_kernel(const __grid_constant__ norm_problem p, int stages) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  constexpr int width = 16 / sizeof(Y), count = kLayer ? 2 : 1;
  using slice = row_slice<width, kLanes, kVectors, kCluster>;
  using reduction = row_reduction<slice, kCluster, count>;
  using ring_of_rows = row_ring<slice, width, 3>;
  using parameter = row_parameter<slice, width>;
  __shared__ typename reduction::shared across_warps;
  __shared__ typename ring_of_rows::barriers barriers;
  extern __shared__ uint4 memory[];
  const slice part(static_cast<const Y*>(nullptr));  // cut at the row's own start
  const int cols = static_cast<int>(p.layout.cols);
  const int64_t walkers = gridDim.x / kCluster, step = walkers * slice::rows_per_block;

  sm90::let_the_next_begin();
  reduction reduce(across_warps);
  parameter weight(memory);
  weight.load(p.weight, p.weight_type, p.weight_offset, cols);
  ring_of_rows ring(barriers, memory + parameter::size, stages,
                    {{p.dy, p.dy_index, sizeof(Y)},
                     {p.h, p.h_index, sizeof(H)},
                     {p.d_residual_out, p.d_residual_out_index, sizeof(H)}},
                    cols);
  int64_t partial = blockIdx.x / kCluster, first = partial * slice::rows_per_block;
  int64_t row = first + static_cast<int>(threadIdx.x) / kLanes;
  const auto fetch = [&](int64_t turns, int stage) {
    const int64_t later = row + turns * step;
    if (later < p.layout.rows) ring.fetch(p.layout, later, stage);
  };
  for (int s = 0; s < stages; ++s) fetch(s, s);

  float dweight[kVectors][width] = {}, dbias[kVectors][width] = {};
  const auto write_sums = [&] {
    const int64_t at = partial * p.layout.cols;
    if (p.dweight_partials) write_partial(part, p.dweight_partials + at, cols, dweight);
    if (kLayer && p.dbias_partials) write_partial(part, p.dbias_partials + at, cols, dbias);
    partial += walkers;
  };
  // The numbers per row are asked for a turn ahead as well.
  float next_mean = 0, next_rstd = 0;
  const auto ask = [&](int64_t row) {
    if (row >= p.layout.rows) return;
    if (kLayer) next_mean = p.mean[brief_row_offset(p.layout, p.mean_index, row)];
    next_rstd = p.rstd[brief_row_offset(p.layout, p.rstd_index, row)];
  };
  ask(row);
  for (int turn = 0; first < p.layout.rows; first += step, row += step) {
    const bool live = row < p.layout.rows;  // lanes without a row help to reduce
    const float mean = next_mean, rstd = next_rstd;
    ask(row + step);
    if (live) ring.wait();
    const uint4 *const dy = ring.row(), *const h = dy + ring_of_rows::words(sizeof(Y)),
                       *const arriving = h + ring_of_rows::words(sizeof(H));

    sums<count> total{};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width], g[width], w[width];
      sums<2> some{};
      unpack(vector_of<Y, width>(part, dy, i), g);
      unpack(vector_of<H, width>(part, h, i), v);
      weight.get(i, w);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        g[j] *= w[j];
        some = {fmaf(g[j], v[j] - mean, some.of[0]), some.of[1] + g[j]};
      }
      if (part.column(i) < cols) {
#pragma unroll
        for (int s = 0; s < count; ++s) total.of[s] += some.of[s];
      }
    }
    total = reduce(total);
    // All threads are done with the row before.
    if (turn > 0) fetch(stages - 1, ring.stage_before());
    float d = 0;
    if (kLayer && mean_lost_digits<kLanes>(mean, rstd)) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float v[width];
        unpack(vector_of<H, width>(part, h, i), v);
        if (part.column(i) < cols) {
#pragma unroll
          for (float value : v) d += value - mean;
        }
      }
      d = reduce(sums<1>{d}).of[0];
    }
    const row_gradient r = gradient_of<kLayer>(p, mean, rstd, total.of[0], total.of[count - 1], d);

    if (live) {
      const uint64_t kept = p.dropout ? kept_mask<kVectors, width>(p, part, row) : ~uint64_t{0};
      H* const d_residual =
          row_of<H>(p.d_residual, brief_row_offset(p.layout, p.d_residual_index, row));
      Y* const dx = row_of<Y>(p.dx, brief_row_offset(p.layout, p.dx_index, row));
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float v[width], g[width], w[width];
        unpack(vector_of<Y, width>(part, dy, i), g);
        unpack(vector_of<H, width>(part, h, i), v);
        weight.get(i, w);
#pragma unroll
        for (int j = 0; j < width; ++j) {
          v[j] = r.xhat(v[j]);
          dweight[i][j] = fmaf(g[j], v[j], dweight[i][j]);
          if (kLayer) dbias[i][j] += g[j];
          v[j] = r.dh(g[j] * w[j], v[j]);
        }
        if (p.d_residual_out) {
          float before[width];
          unpack(vector_of<H, width>(part, arriving, i), before);
#pragma unroll
          for (int j = 0; j < width; ++j) v[j] += before[j];
        }
        const int c = part.column(i);
        if (p.d_residual && c < cols) store_vector<H, width>(d_residual + c, pack<H, width>(v));
        if (!p.dx) continue;
        if (p.dropout) {
#pragma unroll
          for (int j = 0; j < width; ++j)
            v[j] = kept >> (i * width + j) & 1 ? v[j] * p.keep_scale : 0.0f;
        }
        if (c < cols) store_vector<Y, width>(dx + c, pack<Y, width>(v));
      }
    }
    ring.advance();
    if (++turn % rows_a_partial == 0) write_sums();
  }
  while (partial < p.partials) write_sums();
}

inline constexpr int add_threads = 256, add_columns = 8;

// Adds up the partial sums: a block has 8 columns of one of the two gradients, each group of 8
// lanes takes every 32nd partial, and then a tree.
__global__ void __launch_bounds__(add_threads)
    norm_add_partials(const __grid_constant__ norm_problem p) {
  constexpr int groups = add_threads / add_columns;
  __shared__ double sums[groups][add_columns];
  const int lane = static_cast<int>(threadIdx.x) % add_columns,
            group = static_cast<int>(threadIdx.x) / add_columns;
  const int64_t blocks = (p.layout.cols + add_columns - 1) / add_columns;
  const bool second = blockIdx.x >= blocks;
  const float* const partials = second || !p.dweight ? p.dbias_partials : p.dweight_partials;
  void* const out = second || !p.dweight ? p.dbias : p.dweight;
  const int64_t c = (blockIdx.x - (second ? blocks : 0)) * add_columns + lane;
  sm90::wait_for_the_previous();

  double sum = 0;
  if (c < p.layout.cols) {
#pragma unroll 8
    for (int64_t i = group; i < p.partials; i += groups) sum += partials[i * p.layout.cols + c];
  }
  sums[group][lane] = sum;
#pragma unroll
  for (int half = groups / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group < half) sums[group][lane] += sums[group + half][lane];
  }
  if (group != 0 || c >= p.layout.cols) return;
  double total = sums[0][lane];
  if (p.accumulate) total += number_at(out, p.dweight_type, c);
  set_number(out, p.dweight_type, c, static_cast<float>(total));
}

}  // namespace ninefold::cuda
