// What the norm's kernels share: how an element comes in and goes out, whatever its dtype, and the
// dropout mask.
#pragma once

#include "backend/cuda/reduce.hpp"
#include "backend/cuda/row.hpp"
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
  if (!p.dropout) return true;
  const philox_words words =
      philox_group(p.seed.get(), p.offset.get(), static_cast<uint64_t>(element) / 4);
  return words.word[element % 4] >= p.keep_from;
}

// Bit j: whether element `first` + j is kept. `first` is a multiple of 4.
template <int kWidth>
__device__ inline uint32_t kept_mask(const norm_problem& p, int64_t first) {
  if (!p.dropout) return ~0u;
  const uint64_t seed = p.seed.get(), offset = p.offset.get();
  uint32_t mask = 0;
#pragma unroll 1
  for (int g = 0; g < kWidth / 4; ++g) {
    const philox_words words = philox_group(seed, offset, static_cast<uint64_t>(first) / 4 + g);
#pragma unroll
    for (int w = 0; w < 4; ++w)
      mask |= static_cast<uint32_t>(words.word[w] >= p.keep_from) << (4 * g + w);
  }
  return mask;
}

// A thread's vectors of a row, in registers. The one-read kernels take rows of whole vectors that
// begin on boundaries, so a vector is inside its row or outside; outside reads as 0.
template <class T, int kWidth, int kVectors>
struct whole_vectors {
  packed<T, kWidth> raw[kVectors];

  template <class Slice>
  __device__ void load(const Slice& part, const T* row, int end) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      raw[i] = {};
      load_vector_if(part.column(i) < end, row + part.column(i), raw[i]);
    }
  }
  template <class Slice>
  __device__ void store(const Slice& part, T* row, int end) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (part.column(i) < end) store_vector<T, kWidth>(row + part.column(i), raw[i]);
  }
  __device__ void get(int i, float (&to)[kWidth]) {
    keep_packed(raw[i]);
    unpack(raw[i], to);
  }
};

// A vector of a parameter (weight, bias) in fp32 or Y, or `none` where it is not given.
template <class Y, int kWidth>
__device__ inline void load_parameter(const void* data, dtype type, float none, int column, int end,
                                      float (&out)[kWidth]) {
  const auto load = [&](auto t) {
    packed<decltype(t), kWidth> raw{};
    load_vector_if(column < end, static_cast<const decltype(t)*>(data) + column, raw);
    unpack(raw, out);
  };
  if (!data) {
#pragma unroll
    for (float& value : out) value = none;
  } else if (type == dtype::f32) {
    load(float{});
  } else {
    load(Y{});
  }
}

// weight_offset + weight
template <class Y, int kWidth>
__device__ inline void load_weight(const norm_problem& p, int column, int end,
                                   float (&out)[kWidth]) {
  load_parameter<Y>(p.weight, p.weight_type, 1 - p.weight_offset, column, end, out);
#pragma unroll
  for (float& value : out) value += p.weight_offset;
}

// The row that a thread's lanes have in a turn of their block. Lanes without one take part in the
// reductions, with no columns.
template <class Slice>
struct row_turn {
  bool live;
  int64_t row;
  norm_problem::offsets at;
  int end;

  __device__ row_turn(const norm_problem& p, int64_t first) {
    constexpr int lanes = Slice::threads / Slice::rows_per_block;
    const int64_t wanted = first + static_cast<int>(threadIdx.x) / lanes;
    live = Slice::rows_per_block == 1 || wanted < p.layout.rows;
    row = live ? wanted : 0;
    at = offsets_of_row(p.layout, row);
    end = live ? static_cast<int>(p.layout.cols) : 0;
  }
};

// Sums over a row: lanes, then warps, then blocks of the cluster.
template <class Slice, int kCluster>
class row_reduction {
  static constexpr int lanes = Slice::threads / Slice::rows_per_block;

 public:
  using shared = warp_reduction<two_sums, Slice::threads, kCluster>;

  __device__ explicit row_reduction(shared& across_warps) : across_warps_(across_warps) {
    if constexpr (lanes > 32) across_warps_.begin();
  }
  __device__ two_sums operator()(two_sums value) {
    value = reduce_lanes<(lanes < 32 ? lanes : 32)>(value);
    if constexpr (lanes > 32) value = across_warps_.reduce(value, call_++);
    return value;
  }

 private:
  shared& across_warps_;
  int call_ = 0;
};

// 1 / N, and of a row without elements nothing that matters.
__device__ inline float per_column(const norm_problem& p) {
  return 1.0f / static_cast<float>(p.layout.cols > 0 ? p.layout.cols : 1);
}

// A mean that fp32 cannot hold is none.
__device__ inline float mean_or_nan(float mean) { return isfinite(mean) ? mean : NAN; }

__device__ inline float rstd_of(const norm_problem& p, float variance) {
  return 1.0f / sqrtf(variance + p.eps);
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
