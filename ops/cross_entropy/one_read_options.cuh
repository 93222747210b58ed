// The one-read kernel for calls with a soft cap, smoothing, class weights or the entropy.
#pragma once

#include "ops/cross_entropy/one_read.cuh"

namespace ninefold::cuda {

// The class weights of a block's part of a row, in shared memory: 0 beyond the row, and 1 within it
// where the call has none. Column c is element c % kWidth of vector c / kWidth; all first elements
// lie together, then all second ones, and so on, so that neighbouring lanes read neighbouring
// words, wherever the row begins between two boundaries.
template <class Slice, int kWidth>
class staged_weights {
  static constexpr int before = Slice::boundary / 16;  // vectors that a row may begin earlier
  static constexpr int vectors = before + Slice::block_vectors;

 public:
  static constexpr size_t bytes = size_t{vectors} * kWidth * sizeof(float);

  __device__ explicit staged_weights(float* memory) : memory_(memory) {}

  __device__ void load(const cross_entropy_problem& p) const {
    const int first = (Slice::rank() * Slice::block_vectors - before) * kWidth;
    const int end = static_cast<int>(p.layout.cols);
    for (int i = static_cast<int>(threadIdx.x); i < vectors * kWidth; i += Slice::threads) {
      const int c = first + i;
      memory_[i % kWidth * vectors + i / kWidth] = c < 0 || c >= end ? 0.0f : class_weight(p, c);
    }
    __syncthreads();
  }

  // Of element j of the calling thread's vector i, in a row that begins `shift` past a boundary.
  __device__ float at(int i, int j, int shift) const {
    const int k = before * kWidth - shift + j;
    return memory_[k % kWidth * vectors + k / kWidth + Slice::number(i)];
  }

 private:
  float* memory_;
};

// As cross_entropy_kernel, but of each column its two parts in the gradient are kept, exponential
// and weight, both times the soft cap's slope: with options they cost more to compute again than
// the registers they take. Equivalent to, for each row:
//   u = exp(z - base) * z'(x)    v = w * z'(x)    and the sums that the loss needs
//   dlogits[row] = a * u - b * v
template <class T, int kLanes, int kVectors, int kCluster>
struct one_read_with_options {
  using shared_row = one_read_row<T, kLanes, kVectors, kCluster>;
  using slice = typename shared_row::slice;
  static constexpr int width = shared_row::width;
  using row_vectors = held_vectors<T, width, kVectors, false>;
  using weights = staged_weights<slice, width>;

  const cross_entropy_problem& p;
  const memory_range& range;
  logit_rule<false> rule;

  float u[kVectors][width], v[kVectors][width];

  // What a thread's columns come to.
  struct thread_sums {
    float exponentials = 0;  // of z - base
    float weights = 0;       // without a cap
    float weighted = 0;      // sum_j w_j (from - z_j), from the cap or else from the base
    float mean = 0;          // sum_j exp(z_j - base) (base - z_j), for the entropy
  };

  template <bool kCapped>
  __device__ thread_sums take(const shared_row& at, const row_vectors& held, const weights& w,
                              float base) {
    thread_sums s;
    const exponentials exp(rule, base);
    const int shift = slice::shift(at.x);
    const bool whole = at.part.whole(at.end);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float x[width], e[width], weighted = 0, total = 0;
      unpack(held.raw[i], x);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float each = w.at(i, j, shift);
        if constexpr (kCapped) {
          x[j] = rule.q(x[j]);
          e[j] = exp(x[j]);
          const float slope = fmaf(-x[j], x[j], x[j]);
          u[i][j] = e[j] * slope;
          v[i][j] = each * slope;
          weighted = fmaf(each, x[j], weighted);
        } else {
          e[j] = exp(x[j]);
          u[i][j] = e[j];
          v[i][j] = each;
          s.weights += each;
          // By selection: the distance may be infinite where the weight is 0.
          weighted += each == 0 ? 0.0f : each * fmaf(x[j], -rule.scale, base);
        }
      }
      if (!whole) {
#pragma unroll
        for (int j = 0; j < width; ++j)
          if (!in_row<false>(at.part.column(i) + j, at.end)) e[j] = 0;
      }
#pragma unroll
      for (float each : e) total += each;
      s.exponentials += total;
      s.weighted += weighted;
      if (p.entropy) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          const float distance =
              kCapped ? fmaf(x[j], 2 * rule.cap, base - rule.cap) : fmaf(x[j], -rule.scale, base);
          s.mean += e[j] == 0 ? 0.0f : e[j] * distance;
        }
      }
    }
    if (kCapped) s.weighted *= 2 * rule.cap;
    return s;
  }

  __device__ void store(const shared_row& at, row_vectors& held, float a, float b) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float out[width];
#pragma unroll
      for (int j = 0; j < width; ++j) out[j] = fmaf(a, u[i][j], -b * v[i][j]);
      held.raw[i] = pack<T, width>(out);
    }
    held.store(at.part, at.out, at.end);
  }

  __device__ void run(float* memory) {
    __shared__ warp_reduction<max_sum, slice::threads, kCluster> across_warps;
    constexpr int near = kLanes < 32 ? kLanes : 32;
    const int64_t step = int64_t{gridDim.x / kCluster} * slice::rows_per_block;
    const bool wants_argmax = p.argmax || p.row_hit;

    if constexpr (kLanes > 32) across_warps.begin();
    int call = 0;
    const auto reduce = [&](auto value) {
      value = reduce_lanes<near>(value);
      if constexpr (kLanes > 32) value = across_warps.reduce(value, call++);
      return value;
    };
    const weights w(memory);
    w.load(p);
    for (int64_t first = int64_t{blockIdx.x / kCluster} * slice::rows_per_block;
         first < p.layout.rows; first += step) {
      const shared_row at(p, first);
      token t = token_of(p, at.offsets);
      row_vectors held;
      held.load(at.part, at.x, at.end, -INFINITY, range);
      const float target_x = at.at(t.target);

      float most = -INFINITY;
      int begin = 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const float here = largest(held.raw[i]);
        if (here > most) begin = at.part.column(i);
        most = fmaxf(most, here);
      }
      const float near_most = max_of_lanes<near>(most), base_x = rule.base(near_most),
                  base = rule.z(base_x);
      const thread_sums mine =
          rule.capped() ? take<true>(at, held, w, base) : take<false>(at, held, w, base);
      const float own = exponentials(rule, base)(rule.variable(base_x));
      max_sum found{rule.z(near_most), reduce_lanes<near>(sum{mine.exponentials}).total / own};
      add_prepared_when_there(p, t);
      if constexpr (kLanes > 32) found = across_warps.reduce(found, call++);
      row_sums s = sums_of(rule, found, target_x);

      // From below the base to below the row's maximum.
      const float up = found.max - base, down = fast_exp(rule.z(near_most) - found.max) / own;
      if (p.smoothing != 0 || p.entropy) {
        const sums<2> below = reduce(sums<2>{fmaf(mine.weights, up, mine.weighted),
                                             down * fmaf(mine.exponentials, up, mine.mean)});
        s.below = below.of[0];
        if (rule.capped()) s.below -= t.all_weights * (rule.cap - found.max);
        s.mean_below = below.of[1] / found.total;
      }
      largest_at best = largest_at::identity();
      if (wants_argmax) {
        if (most > -INFINITY && rule.z(most) == found.max)
          best = {most, at.first_column(begin, most)};
        best = reduce(best);
      }

      const gradient_rule g = gradient_of(p, t, s.max + s.log_sum);
      if (g.is_constant()) {
        at.fill(g.constant());
      } else {
        const float scale = rule.capped() ? 4 * g.scale : g.scale;
        store(at, held, g.softmax * scale * (down / found.total), g.even * scale);
        if (t.target >= 0) {
          const column_gradient<false> gradient{p, rule, g, found.max, 1 / found.total};
          at.store_target(t.target, gradient, target_x);
        }
      }
      if (at.leads()) write_numbers<true, true>(p, t, at.row, s, best.index);
    }
  }
};

template <class T, int kLanes, int kVectors, int kCluster, int kResident>
__global__ void __launch_bounds__(row_threads(kLanes),
                                  resident_blocks(kResident, row_threads(kLanes)))
    cross_entropy_options_kernel(const __grid_constant__ cross_entropy_problem p,
                                 const __grid_constant__ memory_range range) {
#if __CUDA_ARCH__ < 900
  if constexpr (kCluster > 1) return;
#endif
  extern __shared__ float class_weights[];
  one_read_with_options<T, kLanes, kVectors, kCluster>{p, range, logit_rule<false>(p)}.run(
      class_weights);
}

}  // namespace ninefold::cuda
