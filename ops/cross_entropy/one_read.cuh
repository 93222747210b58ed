// The one-read kernel, which is every rung from half a warp to a cluster.
#pragma once

#include "ops/cross_entropy/rows.cuh"

namespace ninefold::cuda {

// A row that kLanes threads of each of kCluster blocks share, each thread holding kVectors 16-byte
// vectors of it: where it lies, and what is done with it beyond arithmetic.
template <class T, int kLanes, int kVectors, int kCluster>
struct one_read_row {
  static constexpr int width = 16 / sizeof(T);
  using slice = row_slice<width, kLanes, kVectors, kCluster>;

  bool live;
  int64_t row;
  cross_entropy_problem::offsets offsets;
  const T* x;
  T* out;
  int end;
  slice part;

  // `first`: the row of the block's first lanes.
  __device__ one_read_row(const cross_entropy_problem& p, int64_t first)
      : live(slice::rows_per_block == 1 || first + lane_group() < p.layout.rows),
        row(live ? first + lane_group() : 0),
        offsets(offsets_of_row(p.layout, row)),
        x(static_cast<const T*>(p.logits) + offsets[p.logits_index]),
        out(static_cast<T*>(p.dlogits) + offsets[p.dlogits_index]),
        end(live ? static_cast<int>(p.layout.cols) : 0),
        part(x) {}

  __device__ static int lane_group() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ bool leads() const {
    return live && threadIdx.x % kLanes == 0 && (kCluster == 1 || sm90::block_rank() == 0);
  }
  __device__ float at(int64_t target) const {
    return live && target >= 0 ? to_float(x[target]) : 0.0f;
  }

  __device__ void fill(float value) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      part.store(out, end, i, filled<T, width>(from_float<T>(value)));
  }

  // By the thread that has just stored there.
  template <bool kPlain>
  __device__ void store_target(int64_t target, const column_gradient<kPlain>& gradient,
                               float value) const {
    if (live && part.meets(static_cast<int>(target)))
      out[target] = from_float<T>(gradient.at_target(value, target));
  }

  // The first column from `begin`, a vector's, whose logit is `value`; in memory, which is not
  // written yet, for taking the vectors apart again would spill.
  __device__ int first_column(int begin, float value) const {
    int c = begin < 0 ? 0 : begin;
#pragma unroll 1
    while (c + 1 < end && to_float(x[c]) != value) ++c;
    return c;
  }
};

// For plain calls. One read and one write: the row stays in registers, still packed, until its sum
// is known, and the exponential is computed again on the way out, which is cheaper than keeping it.
// Equivalent to, for each row:
//   x = logits[row]                     one vector load each, all in flight together
//   (m, s) = reduce(max, sum of exp)    lanes, then warps, then blocks of the cluster
//   dlogits[row] = f * exp(z - m) / s   and at the target, by whoever stored it, f * (p - 1)
template <class T, int kLanes, int kVectors, int kCluster, int kResident>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    cross_entropy_kernel(const __grid_constant__ cross_entropy_problem p,
                         const __grid_constant__ memory_range range) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  using shared_row = one_read_row<T, kLanes, kVectors, kCluster>;
  using slice = typename shared_row::slice;
  constexpr int width = shared_row::width;
  __shared__ warp_reduction<max_sum, slice::threads, kCluster> across_warps;
  constexpr int near = kLanes < 32 ? kLanes : 32;  // the lanes that reduce without shared memory
  const int64_t step = int64_t{gridDim.x / kCluster} * slice::rows_per_block;
  const logit_rule<true> rule(p);
  const bool wants_argmax = p.argmax || p.row_hit;

  if constexpr (kLanes > 32) across_warps.begin();
  int call = 0;
  for (int64_t first = int64_t{blockIdx.x / kCluster} * slice::rows_per_block;
       first < p.layout.rows; first += step) {
    const shared_row at(p, first);
    // What the row needs from elsewhere is asked for first: a load that only starts once the sum
    // is known has nothing to hide behind.
    token t = known_token<true>(p, at.offsets);
    held_vectors<T, width, kVectors, false> held;
    held.load(at.part, at.x, at.end, -INFINITY, range);
    const float target_x = at.at(t.target);

    float most = -INFINITY;
    int begin = 0;  // of the first vector that holds it
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float here = largest(held.template get<slice>(i));
      if (here > most) begin = at.part.column(i);
      most = fmaxf(most, here);
    }
    // The sum is taken below the maximum of the near lanes: no exponential to bring it there.
    const float near_most = max_of_lanes<near>(most), base = rule.base(near_most);
    const exponentials exp(rule, rule.z(base));
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float v[width], part = 0;
      unpack(held.template get<slice>(i), v);
#pragma unroll
      for (float each : v) part += exp(each);
      total += part;
    }
    max_sum found{rule.z(near_most), reduce_lanes<near>(sum{total}).total / exp(base)};
    add_prepared_when_there(p, t);
    if constexpr (kLanes > 32) found = across_warps.reduce(found, call++);
    const row_sums s = sums_of(rule, found, target_x);

    largest_at best = largest_at::identity();
    if (wants_argmax) {
      if (most > -INFINITY && rule.z(most) == found.max)  // only such threads can have it
        best = {most, at.first_column(begin, most)};
      best = reduce_lanes<near>(best);
      if constexpr (kLanes > 32) best = across_warps.reduce(best, call++);
    }

    const gradient_rule g = gradient_of(p, t, s.max + s.log_sum);
    if (g.is_constant()) {
      at.fill(g.constant());
    } else {
      const column_gradient<true> gradient{p, rule, g, found.max, 1 / found.total};
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float v[width];
        unpack(held.template get<slice>(i), v);
#pragma unroll
        for (int j = 0; j < width; ++j) v[j] = gradient(v[j], at.part.column(i) + j);
        held.raw[i] = pack<T, width>(v);
      }
      held.store(at.part, at.out, at.end);
      if (t.target >= 0) at.store_target(t.target, gradient, target_x);
    }
    // Last, when the row's registers are free again.
    if (at.leads()) write_numbers<true, true>(p, t, at.row, s, best.index);
  }
}

}  // namespace ninefold::cuda
