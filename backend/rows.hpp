// A tensor as rows over its last dimension, whatever the strides of the leading ones.
#pragma once

#include <array>
#include <cstdint>

#include "backend/view.hpp"

namespace ninefold {

// The leading dimensions, collapsed as far as every tensor of the call allows. One collapsed
// dimension is the common case: then a row's offset is one product.
// Plain data, passed by value to kernels.
template <int kTensors>
struct row_layout {
  int64_t rows = 0;  // product of the leading dimensions
  int64_t cols = 0;  // the last dimension
  int dims = 0;      // collapsed leading dimensions, innermost first
  int64_t size[NF_MAX_RANK] = {};
  int64_t stride[kTensors][NF_MAX_RANK] = {};
  int64_t col_stride[kTensors] = {};
};

#ifdef __CUDA_ARCH__
#define NF_ROLLED _Pragma("unroll 1")
#else
#define NF_ROLLED
#endif

// Whether the columns of tensor `t` are side by side.
template <int kTensors>
inline bool columns_side_by_side(const row_layout<kTensors>& layout, int t) {
  return layout.col_stride[t] == 1 || layout.cols <= 1;
}

// Where row `row` of tensor `t` begins, in elements. All int64 from the first factor on.
template <int kTensors>
NF_HOST_DEVICE inline int64_t row_offset(const row_layout<kTensors>& layout, int t, int64_t row) {
  if (layout.dims <= 1) return row * layout.stride[t][0];
  int64_t offset = 0;
  for (int d = 0; d < layout.dims; ++d) {
    offset += row % layout.size[d] * layout.stride[t][d];
    row /= layout.size[d];
  }
  return offset;
}

// Where a row begins in each tensor.
template <int kTensors>
struct row_offsets {
  int64_t of[kTensors];

  NF_HOST_DEVICE int64_t operator[](int t) const { return of[t]; }
};

// As row_offset for all tensors at once: the divisions are the same for all.
template <int kTensors>
NF_HOST_DEVICE inline row_offsets<kTensors> offsets_of_row(const row_layout<kTensors>& layout,
                                                           int64_t row) {
  row_offsets<kTensors> out{};
  if (layout.dims <= 1) {
    for (int t = 0; t < kTensors; ++t) out.of[t] = row * layout.stride[t][0];
    return out;
  }
  // Rare and slow, so it shall be small: every kernel that walks rows carries it.
  NF_ROLLED
  for (int d = 0; d < layout.dims; ++d) {
    const int64_t outer = row / layout.size[d], at = row - outer * layout.size[d];
    for (int t = 0; t < kTensors; ++t) out.of[t] += at * layout.stride[t][d];
    row = outer;
  }
  return out;
}

// The views must have one shape (broadcast ones already expanded with stride 0).
template <int kTensors>
row_layout<kTensors> collapse_rows(const std::array<const view*, kTensors>& views) {
  row_layout<kTensors> out;
  const view& first = *views[0];
  const int last = first.rank - 1;
  out.cols = first.shape[last];
  out.rows = 1;
  for (int t = 0; t < kTensors; ++t) out.col_stride[t] = views[t]->stride[last];
  for (int d = last - 1; d >= 0; --d) {
    const int64_t size = first.shape[d];
    if (size == 1) continue;
    out.rows *= size;
    bool joins = out.dims > 0;
    for (int t = 0; t < kTensors && joins; ++t) {
      const int64_t inner = out.stride[t][out.dims - 1] * out.size[out.dims - 1];
      joins = views[t]->stride[d] == inner;
    }
    if (joins) {
      out.size[out.dims - 1] *= size;
      continue;
    }
    out.size[out.dims] = size;
    for (int t = 0; t < kTensors; ++t) out.stride[t][out.dims] = views[t]->stride[d];
    ++out.dims;
  }
  return out;
}

// For element-wise ops: as collapse_rows, and contiguous tensors become one long row.
template <int kTensors>
row_layout<kTensors> collapse_elements(const std::array<const view*, kTensors>& views) {
  row_layout<kTensors> out = collapse_rows<kTensors>(views);
  if (out.dims > 1) return out;
  for (int t = 0; t < kTensors; ++t)
    if (out.col_stride[t] != 1 || (out.rows > 1 && out.stride[t][0] != out.cols)) return out;
  out.cols *= out.rows;
  out.rows = 1;
  out.dims = 0;
  return out;
}

}  // namespace ninefold
