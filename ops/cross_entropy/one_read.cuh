// The one-read kernel, which is every rung from half a warp to a cluster.
#pragma once

#include "ops/cross_entropy/rows.cuh"

namespace ninefold::cuda {

// One read and one write: the row stays in registers, still packed, until its sum is known, and the
// exponential is computed again on the way out, which is cheaper than keeping it.
//
// kLanes threads of a block share a row, each holding kVectors 16-byte vectors of it; kCluster
// blocks share it beyond that. Equivalent to, for each row:
//   x = logits[row]                     one vector load each, all in flight together
//   (m, s) = reduce(max, sum of exp)    lanes, then warps, then blocks of the cluster
//   dlogits[row] = f * exp(z - m) / s   and at the target, by whoever stored it, f * (p - 1)
template <class T, int kLanes, int kVectors, int kCluster, bool kPlain>
struct one_read_cross_entropy {
  static constexpr int width = 16 / sizeof(T);
  using slice = row_slice<width, kLanes, kVectors, kCluster>;
  using row_vectors = held_vectors<T, width, kVectors, false>;

  const cross_entropy_problem& p;
  const memory_range& range;  // of the logits

  template <class Function>
  __device__ void for_columns(const slice& part, row_vectors& held, Function&& f) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width];
      unpack(held.template get<slice>(i), v);
#pragma unroll
      for (int j = 0; j < width; ++j) f(v[j], part.column(i) + j);
    }
  }

  // The first of this thread's columns whose logit is `value`. The vector is found as it is held,
  // the element in memory, which is not written yet: taking all vectors apart here would spill.
  __device__ int first_column_of(const slice& part, row_vectors& held, const T* x, int end,
                                 float value) const {
    int first = 0;
#pragma unroll
    for (int i = kVectors - 1; i >= 0; --i)
      if (largest(held.template get<slice>(i)) == value) first = part.column(i);
    int c = first < 0 ? 0 : first;
#pragma unroll 1
    while (c + 1 < end && to_float(x[c]) != value) ++c;
    return c;
  }

  __device__ void store(const slice& part, row_vectors& held, T* out, int end,
                        const column_gradient<kPlain>& gradient) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width];
      unpack(held.template get<slice>(i), v);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const int c = part.column(i) + j;
        v[j] = in_row<kPlain>(c, end) ? gradient(v[j], c) : 0.0f;
      }
      part.store(out, end, i, pack<T, width>(v));
    }
  }

  __device__ void fill(const slice& part, T* out, int end, float value) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      part.store(out, end, i, filled<T, width>(from_float<T>(value)));
  }

  // By the thread that has just stored there.
  __device__ void store_target(const slice& part, T* out, int end, int64_t target,
                               const column_gradient<kPlain>& gradient, float x) const {
    bool mine = false;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int c = static_cast<int>(target) - part.column(i);
      mine = mine || (c >= 0 && c < width);
    }
    if (mine && end > 0) out[target] = from_float<T>(gradient.at_target(x, target));
  }

  __device__ void run() const {
    __shared__ warp_reduction<max_sum, slice::threads, kCluster> across_warps;
    constexpr int per_block = slice::rows_per_block;
    constexpr int near = kLanes < 32 ? kLanes : 32;  // the lanes that reduce without shared memory
    const int64_t step = int64_t{gridDim.x / kCluster} * per_block;
    const logit_rule<kPlain> rule(p);
    const bool wants_argmax = p.argmax || p.row_hit;

    if constexpr (kLanes > 32) across_warps.begin();
    int call = 0;
    const auto reduce = [&](auto value) {
      value = reduce_lanes<near>(value);
      if constexpr (kLanes > 32) value = across_warps.reduce(value, call++);
      return value;
    };
    for (int64_t first = int64_t{blockIdx.x / kCluster} * per_block; first < p.layout.rows;
         first += step) {
      const int64_t wanted = first + static_cast<int>(threadIdx.x) / kLanes;
      const bool live = per_block == 1 || wanted < p.layout.rows;
      const int64_t row = live ? wanted : 0;
      const T* x = static_cast<const T*>(p.logits) + p.at(p.logits_index, row);
      T* out = static_cast<T*>(p.dlogits) + p.at(p.dlogits_index, row);
      const int end = live ? static_cast<int>(p.layout.cols) : 0;
      const slice part(misalignment(x));

      // Before anything is known of the row's target: waiting for that would cost more than it
      // saves, for an ignored row's logits.
      row_vectors held;
      held.load(part, x, end, -INFINITY, range);
      const token t = known_token<kPlain>(p, row);
      const float target_x = live && t.target >= 0 ? to_float(x[t.target]) : 0.0f;

      float most = -INFINITY;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) most = fmaxf(most, largest(held.template get<slice>(i)));
      // The sum is taken below the maximum of the near lanes: no exponential to bring it there.
      const float near_max = rule.z(max_of_lanes<near>(most));
      const float base = near_max == -INFINITY ? 0.0f : near_max;
      float total = 0.0f;
      for_columns(part, held, [&](float v, int c) {
        const float e = fast_exp(rule.below(v, base));
        total += in_row<kPlain>(c, end) ? e : 0.0f;
      });
      max_sum found{near_max, reduce_lanes<near>(sum{total}).total};
      if constexpr (kLanes > 32) found = across_warps.reduce(found, call++);
      row_sums s = sums_of(rule, found, target_x);

      if (!kPlain && (p.smoothing != 0 || p.entropy)) {
        two_sums below{};
        for_columns(part, held, [&](float v, int c) {
          if (in_row<kPlain>(c, end)) below = combine(below, below_max(p, rule, v, c, s.max));
        });
        below = reduce(below);
        s.below = below.first;
        s.mean_below = below.second / found.total;
      }
      largest_at best = largest_at::identity();
      if (wants_argmax) {
        if (most > -INFINITY && rule.z(most) == found.max)  // only such threads can have it
          best = {most, first_column_of(part, held, x, end, most)};
        best = reduce(best);
      }

      const gradient_rule g = gradient_of(p, t, s.max + s.log_sum);
      if (g.is_constant()) {
        fill(part, out, end, g.constant());
      } else {
        const column_gradient<kPlain> gradient{p, rule, g, found.max, 1 / found.total};
        store(part, held, out, end, gradient);
        if (t.target >= 0) store_target(part, out, end, t.target, gradient, target_x);
      }
      // Last, when the row's registers are free again.
      const bool leads = threadIdx.x % kLanes == 0 && (kCluster == 1 || sm90::block_rank() == 0);
      if (live && leads) write_numbers<true, true>(p, t, row, s, best.index);
    }
  }
};

template <class T, int kLanes, int kVectors, int kCluster, int kResident, bool kPlain>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    cross_entropy_kernel(const __grid_constant__ cross_entropy_problem p,
                         const __grid_constant__ memory_range range) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  one_read_cross_entropy<T, kLanes, kVectors, kCluster, kPlain>{p, range}.run();
}

}  // namespace ninefold::cuda
