// What the norm's kernels share: how an element comes in and goes out, whatever its dtype, and the
// dropout mask.
#pragma once

#include "backend/cuda/reduce.hpp"
#include "backend/cuda/row.hpp"
#include "backend/cuda/staged.hpp"
#include "backend/cuda/vec.hpp"
#include "ops/norm/norm.hpp"

namespace ninefold::cuda {

// One element of a tensor whose dtype is known when the work runs.
__device__ inline float number_at(const void* data, dtype type, int64_t i) {
  if (type == dtype::f32) return static_cast<const float*>(data)[i];
  if (type == dtype::f16) return to_float(static_cast<const half*>(data)[i]);
  return to_float(static_cast<const bfloat16*>(data)[i]);
}

__device__ inline void set_number(void* data, dtype type, int64_t i, float value) {
  if (type == dtype::f32) {
    static_cast<float*>(data)[i] = value;
  } else if (type == dtype::f16) {
    static_cast<half*>(data)[i] = from_float<half>(value);
  } else {
    static_cast<bfloat16*>(data)[i] = from_float<bfloat16>(value);
  }
}

template <class T>
__device__ inline float stored_as(float value) {
  return to_float(from_float<T>(value));
}

// h from x and the residual, in fp32 and with one rounding to the dtype of h.
template <class H>
__device__ inline float h_of(const norm_problem& p, float x, float residual, bool kept) {
  if (!kept) return residual;
  if (!p.dropout && !p.residual) return stored_as<H>(x);
  return stored_as<H>(fmaf(x, p.keep_scale, residual));
}

__device__ inline bool is_kept(const norm_problem& p, int64_t element) {
  return !p.dropout ||
         dropout_keeps(p.seed.get(), p.offset.get(), static_cast<uint64_t>(element), p.keep_from);
}

// Bit i * kWidth + j: whether element j of the thread's vector i of a row is kept. A vector is a
// group, or one half of it. In a loop that is not unrolled, for a kernel shall not carry the
// generator once a vector.
template <int kVectors, int kWidth, class Slice>
__device__ inline uint64_t kept_mask(const norm_problem& p, const Slice& part, int64_t row) {
  static_assert(kVectors * kWidth <= 64 && dropout_group % kWidth == 0);
  const uint64_t seed = p.seed.get(), offset = p.offset.get();
  uint64_t mask = 0;
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    const auto element = static_cast<uint64_t>(row * p.layout.cols + part.column(i));
    const philox_words words = philox_group<5>(seed, offset, element / dropout_group);
    const uint32_t kept = dropout_kept(words, p.keep_from) >> element % dropout_group;
    mask |= uint64_t{kept & ((1u << kWidth) - 1)} << i * kWidth;
  }
  return mask;
}

// A vector of a parameter.
template <class P, int kWidth>
__device__ inline packed<P, kWidth> load_parameter(const P* from) {
  packed<P, kWidth> out;
#pragma unroll
  for (int w = 0; w < out.words; ++w) out.word[w] = __ldg(reinterpret_cast<const uint4*>(from) + w);
  return out;
}

// A parameter in shared memory, whatever its dtype: this block's columns as fp32, four to a word.
// Words of a rank within their vectors lie side by side, so that neighbouring threads do not meet
// in a bank.
template <class Slice, int kWidth>
class row_parameter {
  static constexpr int words = kWidth / 4;

 public:
  static constexpr int size = Slice::block_vectors * words;  // in 16-byte words

  __device__ explicit row_parameter(uint4* memory) : values_(reinterpret_cast<float4*>(memory)) {}

  // offset + data, or 1 where it is not given. The block must meet before a get.
  __device__ void load(const void* data, dtype type, float offset, int cols) {
    constexpr int part = Slice::block_vectors * kWidth;
    const int first = Slice::rank() * part;
    for (int c = static_cast<int>(threadIdx.x); c < part; c += Slice::threads) {
      float value = 1;
      if (data && first + c < cols) value = offset + number_at(data, type, first + c);
      const int vector = c / kWidth, word = c % kWidth / 4;
      reinterpret_cast<float*>(values_ + word * Slice::block_vectors + vector)[c % 4] = value;
    }
  }
  __device__ void get(int i, float (&out)[kWidth]) const {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      const float4 v = values_[w * Slice::block_vectors + Slice::number(i)];
      out[4 * w] = v.x;
      out[4 * w + 1] = v.y;
      out[4 * w + 2] = v.z;
      out[4 * w + 3] = v.w;
    }
  }

 private:
  float4* values_;
};

// Sums over a row, kMost at once at most: lanes, then warps, then blocks of the cluster. When a
// call returns, all threads that share the row have come to it.
template <class Slice, int kCluster, int kMost>
class row_reduction {
  static constexpr int lanes = Slice::threads / Slice::rows_per_block;

 public:
  using shared = warp_reduction<sums<kMost>, Slice::threads, kCluster>;

  __device__ explicit row_reduction(shared& across_warps) : across_warps_(across_warps) {
    if constexpr (lanes > 32) across_warps_.begin();
  }
  template <int kCount>
  __device__ sums<kCount> operator()(sums<kCount> value) {
    value = reduce_lanes<(lanes < 32 ? lanes : 32)>(value);
    if constexpr (lanes <= 32) {
      __syncwarp();
      return value;
    } else {
      sums<kMost> padded{};
#pragma unroll
      for (int i = 0; i < kCount; ++i) padded.of[i] = value.of[i];
      padded = across_warps_.reduce(padded, call_++);
#pragma unroll
      for (int i = 0; i < kCount; ++i) value.of[i] = padded.of[i];
      return value;
    }
  }

 private:
  shared& across_warps_;
  int call_ = 0;
};

// 1 / N, and of a row without elements nothing that matters.
__device__ inline float per_column(const norm_problem& p) {
  return 1.0f / static_cast<float>(p.layout.cols > 0 ? p.layout.cols : 1);
}

// Whether what the mean loses as an fp32 number is something beside the row's deviation: of a mean
// within 4 deviations it is not. The same for all threads that share a row; where several rows
// share a warp, for the warp.
template <int kLanes>
__device__ inline bool mean_lost_digits(float mean, float rstd) {
  const bool lost = !(fabsf(mean) * rstd < 4.0f);
  if constexpr (kLanes < 32) return __any_sync(0xffffffffu, lost);
  return lost;
}

// A mean that fp32 cannot hold is none.
__device__ inline float mean_or_nan(float mean) { return isfinite(mean) ? mean : NAN; }

__device__ inline float rstd_of(const norm_problem& p, float variance) {
  return rsqrtf(variance + p.eps);
}

template <class T>
__device__ inline const T* row_of(const void* data, int64_t offset) {
  return static_cast<const T*>(data) + offset;
}
template <class T>
__device__ inline T* row_of(void* data, int64_t offset) {
  return static_cast<T*>(data) + offset;
}

}  // namespace ninefold::cuda
