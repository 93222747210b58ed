// A checked call of activation as the backends see it.
#pragma once

#include <ninefold/activation.h>

#include <algorithm>
#include <array>

#include "backend/pointwise.hpp"
#include "backend/view.hpp"

namespace ninefold {

using activation_kind = nf_activation_kind;

// GELU's tanh form as x sigmoid(z), for (1 + tanh(a)) / 2 = sigmoid(2 a):
// z = x (slope + cube x^2), slope = 2 sqrt(2 / pi) and cube = 0.044715 slope.
inline constexpr float activation_tanh_slope = 0x1.988454p0f, activation_tanh_cube = 0x1.2444f2p-4f;

// 1 / sqrt(2 pi)
inline constexpr float activation_density_at_0 = 0x1.988454p-2f;

// Phi(-x) exp(x^2 / 2) = k q(k) for x >= 0, with k = 1 / (1 + 0.3 x): the coefficients of q, a
// minimax fit of relative error 1.4e-7. README.md.
inline constexpr int activation_tail_degree = 7;
NF_HOST_DEVICE constexpr float activation_tail(int i) {
  constexpr float q[activation_tail_degree + 1] = {0x1.e9fdfep-4f,  0x1.eec0bcp-4f,  0x1.98587ap-4f,
                                                   0x1.08c676p-3f,  -0x1.c2f27ap-5f, 0x1.a9a3c0p-3f,
                                                   -0x1.43b4a6p-3f, 0x1.25edacp-5f};
  return q[i];
}

struct activation_problem {
  // Tensors of the layout, by the element of y that they belong to. Gate and up that lie in one
  // tensor are two views of it, N columns each.
  enum : int {
    x_index,
    up_index,
    bias_index,
    y_index,
    dy_index,
    dx_index,
    dup_index,
    tensor_count
  };
  row_layout<tensor_count> layout;  // contiguous tensors come as one row, unless there is a bias
  std::array<void*, tensor_count> data;  // by index; nullptr where not given

  // dbias: in the workspace are `partials` rows of N sums over `rows_a_partial` rows each.
  void* dbias;
  float* partial_sums;
  int64_t partials, rows_a_partial;

  dtype type, dbias_type;
  activation_kind kind;
  bool gated;
  bool interleaved;  // up is one element after the gate, and dup after dgate
  bool accumulate;
  float alpha, limit;
  const char* rung;  // asked for by name, or nullptr

  bool with_bias() const { return data[bias_index] != nullptr; }
};

// Whether the columns of every given tensor are side by side, those of gate and up interleaved ones
// as pairs.
inline bool columns_side_by_side(const activation_problem& p) {
  using problem = activation_problem;
  bool good = true;
  for (int t = 0; t < problem::tensor_count; ++t) {
    const bool pair = p.interleaved && (t == problem::x_index || t == problem::up_index ||
                                        t == problem::dx_index || t == problem::dup_index);
    if (!p.data[static_cast<size_t>(t)]) continue;
    // A single column of a pair has its stride looked at too: what it reaches is wider than itself.
    good &= pair ? p.layout.col_stride[t] == 2 : columns_side_by_side(p.layout, t);
  }
  return good;
}

namespace cpu {
// Few enough that a sum in fp32 costs no digits, and enough that the sums are little beside the
// rows.
inline int64_t activation_rows_a_partial(int64_t rows) {
  return std::clamp<int64_t>((rows + 63) / 64, 16, 128);
}
void activation_forward(const activation_problem& p);
void activation_backward(const activation_problem& p);
}  // namespace cpu

namespace cuda {
// Enough partial sums for the blocks of a GPU, a function of the shape alone.
inline int64_t activation_rows_a_partial(int64_t rows, int64_t cols) {
  int64_t each = 128;
  while (each > 16 && (rows + each - 1) / each * (cols / 8) < int64_t{1} << 19) each /= 2;
  return each;
}
void activation_forward(const activation_problem& p, DLDevice device, nf_stream stream);
void activation_backward(const activation_problem& p, DLDevice device, nf_stream stream);
}  // namespace cuda

}  // namespace ninefold
