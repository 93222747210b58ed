// Reductions among the threads that share a row: lanes of a warp, warps of a block, blocks of a
// cluster. Every thread gets the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cuda/std/bit>
#include <type_traits>

#include "backend/cuda/sm90/cluster.hpp"

namespace ninefold::cuda {

// 2^x by the special function unit: about 2^-22 relative error, 0 below 2^-126.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x by the special function unit: within 1 ulp, and 0 above 2^126.
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float log2_e = 1.44269504088896340736f;

__device__ inline float fast_exp(float x) { return fast_exp2(x * log2_e); }

// A sum, and how neighbouring lanes add theirs: every lane ends with the same bits.
struct sum {
  float total;
  __device__ static sum identity() { return {0.0f}; }
};

__device__ inline sum combine(sum a, sum b) { return {a.total + b.total}; }

template <int kWidth>
__device__ inline sum reduce_lanes(sum v) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2)
    v.total += __shfl_xor_sync(0xffffffffu, v.total, mask, kWidth);
  return v;
}

template <int kWidth>
__device__ inline float max_of_lanes(float v) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask, kWidth));
  return v;
}

// The maximum and the sum of exp(v - max) below it. Nothing seen yet: (-inf, 0).
struct max_sum {
  float max, total;
  __device__ static max_sum identity() { return {-INFINITY, 0.0f}; }
};

__device__ inline max_sum combine(max_sum a, max_sum b) {
  // One exponential brings the smaller side down; equal maxima (both -inf included) need none.
  const float down = a.max == b.max ? 1.0f : fast_exp(-fabsf(a.max - b.max));
  const bool a_leads = a.max >= b.max;
  const float lead = a_leads ? a.total : b.total, rest = a_leads ? b.total : a.total;
  return {fmaxf(a.max, b.max), fmaf(rest, down, lead)};
}

// First the maximum of all, then one exponential a lane, then the sum: half the work of combining
// pair by pair.
template <int kWidth>
__device__ inline max_sum reduce_lanes(max_sum v) {
  const float max = max_of_lanes<kWidth>(v.max);
  const float scaled = v.max == max ? v.total : v.total * fast_exp(v.max - max);
  return {max, reduce_lanes<kWidth>(sum{scaled}).total};
}

// Several sums at once.
template <int kCount>
struct sums {
  float of[kCount];
  __device__ static sums identity() { return {}; }
};

template <int kCount>
__device__ inline sums<kCount> combine(sums<kCount> a, const sums<kCount>& b) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) a.of[i] += b.of[i];
  return a;
}

template <int kWidth, int kCount>
__device__ inline sums<kCount> reduce_lanes(sums<kCount> v) {
#pragma unroll
  for (float& value : v.of) value = reduce_lanes<kWidth>(sum{value}).total;
  return v;
}

// The largest value and the lowest place where it stands; -1 where nothing is above -inf.
struct largest_at {
  float value;
  int index;
  __device__ static largest_at identity() { return {-INFINITY, -1}; }
};

__device__ inline largest_at combine(largest_at a, largest_at b) {
  const bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
  return second ? b : a;
}

template <int kWidth>
__device__ inline largest_at reduce_lanes(largest_at v) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2)
    v = combine(v, largest_at{__shfl_xor_sync(0xffffffffu, v.value, mask, kWidth),
                              __shfl_xor_sync(0xffffffffu, v.index, mask, kWidth)});
  return v;
}

// Across the warps of a block of kThreads, and of kCluster blocks: each warp brings a value that
// its lanes already agree on. Lives in shared memory; calls in a loop alternate between two
// buffers, so one barrier a call is enough: no thread can be two calls ahead of one that still
// reads. A row may reduce several things one after the other, of other types of T's size.
template <class T, int kThreads, int kCluster>
class warp_reduction {
 public:
  static constexpr int warps = kThreads / 32;

  __device__ void begin() {
    if constexpr (kCluster > 1) exchange_.begin();
  }

  template <class U>
  __device__ U reduce(U value, int call) {
    const T word = ::cuda::std::bit_cast<T>(value);
    if constexpr (kCluster > 1) {
      return over<U>(exchange_.all_to_all(word, call));
    } else {
      if (threadIdx.x % 32 == 0) partial_[call & 1][threadIdx.x / 32] = word;
      __syncthreads();
      return over<U>(partial_[call & 1]);
    }
  }

 private:
  __device__ static constexpr int lanes_for(int count) {
    int lanes = 1;
    while (lanes < count && lanes < 32) lanes *= 2;
    return lanes;
  }

  // Each warp reduces all values for itself, on as many lanes as there are values.
  template <class U>
  __device__ static U over(const T* partial) {
    constexpr int count = warps * kCluster, width = lanes_for(count);
    const int lane = static_cast<int>(threadIdx.x) % width;
    const auto at = [partial](int i) {
      if (count % width != 0 && i >= count) return U::identity();
      return ::cuda::std::bit_cast<U>(partial[i]);
    };
    U value = at(lane);
#pragma unroll
    for (int i = width; i < count; i += width) value = combine(value, at(i + lane));
    return reduce_lanes<width>(value);
  }

  struct nothing {};
  std::conditional_t<(kCluster > 1), sm90::cluster_exchange<T, warps, kCluster>, nothing> exchange_;
  T partial_[2][kCluster > 1 ? 1 : warps];
};

}  // namespace ninefold::cuda
