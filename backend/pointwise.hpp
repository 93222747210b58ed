// The tensors of an element-wise call. {cpu,cuda}/pointwise.hpp walk them.
#pragma once

#include "backend/rows.hpp"

namespace ninefold {

// N inputs and M outputs of one dtype, any number of rows.
template <int kIn, int kOut>
struct pointwise_tensors {
  static constexpr int inputs = kIn, outputs = kOut;
  row_layout<kIn + kOut> layout;  // inputs, then outputs
  const void* in[kIn];
  void* out[kOut];
};

// Out of an op's tensors those of one walk, by their indices, inputs first: a Problem has the
// row_layout `layout` of all that it may be given, and in `data` where each begins.
template <int kIn, class Problem, class... Index>
auto tensors_of(const Problem& p, Index... index) {
  constexpr int count = sizeof...(Index);
  pointwise_tensors<kIn, count - kIn> out{};
  out.layout.rows = p.layout.rows;
  out.layout.cols = p.layout.cols;
  out.layout.dims = p.layout.dims;
  for (int d = 0; d < NF_MAX_RANK; ++d) out.layout.size[d] = p.layout.size[d];
  const int from[count] = {index...};
  for (int t = 0; t < count; ++t) {
    out.layout.col_stride[t] = p.layout.col_stride[from[t]];
    for (int d = 0; d < NF_MAX_RANK; ++d) out.layout.stride[t][d] = p.layout.stride[from[t]][d];
  }
  for (int t = 0; t < kIn; ++t) out.in[t] = p.data[static_cast<size_t>(from[t])];
  for (int t = kIn; t < count; ++t) out.out[t - kIn] = p.data[static_cast<size_t>(from[t])];
  return out;
}

}  // namespace ninefold
