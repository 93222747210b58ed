// A checked call of matmul as the backends see it.
#pragma once

#include <ninefold/matmul.h>

#include "backend/view.hpp"

namespace ninefold {

using matmul_epilogue = nf_matmul_epilogue;

NF_HOST_DEVICE constexpr bool is_gated(matmul_epilogue e) {
  return e == NF_MATMUL_SWIGLU_CONCATENATED || e == NF_MATMUL_SWIGLU_INTERLEAVED;
}
NF_HOST_DEVICE constexpr bool is_backward(matmul_epilogue e) {
  return e == NF_MATMUL_GELU_TANH_BACKWARD || e == NF_MATMUL_GELU_ERF_BACKWARD;
}

// A matrix, or `batch` of them: element (b, i, j) is data[b * batch_stride + i * row + j * column].
struct matrix {
  void* data = nullptr;  // nullptr where not given
  int64_t batch_stride = 0, row = 0, column = 0;

  NF_HOST_DEVICE int64_t at(int64_t b, int64_t i, int64_t j) const {
    return b * batch_stride + i * row + j * column;
  }
};

// A checked nf_scalar.
struct scale {
  const float* at = nullptr;
  float value = 1;

  NF_HOST_DEVICE float get() const { return at ? *at : value; }
};

struct matmul_problem {
  // n of z; d has n / 2 columns with SWIGLU. k may be 0; where m or n is, only sums are to be
  // written: zeros, or what they hold.
  int64_t batch, m, n, k;

  // A call whose d has its rows side by side (d.row == 1) comes here transposed: its operands are
  // swapped, M with N, and what belongs to rows with what belongs to columns. So d.column is 1
  // unless d is strided in both, or gated. A dimension of one element has a stride of 1, or a
  // multiple of 16 elements that clears the other dimension; a batch of one, 0.
  matrix a, b;                // (M, K), (K, N)
  matrix c, residual, saved;  // (M, N), (M, H), (M, N)
  matrix d, preactivation;    // (M, H), (M, N)
  const void* bias;           // (N), or (M) where bias_by_row
  int64_t bias_stride;
  bool bias_by_row;
  void *row_sums, *column_sums;  // (M), (H), contiguous
  bool accumulate;
  void* workspace;

  scale alpha, beta;
  matmul_epilogue epilogue;
  dtype type;    // of a and b
  dtype d_type;  // of d, c, residual, saved and preactivation
  dtype bias_type, sums_type;
  bool tf32;
  const char* rung;  // asked for by name, or nullptr
};

// Of d: H.
NF_HOST_DEVICE inline int64_t matmul_columns(const matmul_problem& p) {
  return is_gated(p.epilogue) ? p.n / 2 : p.n;
}

namespace cpu {
int64_t matmul_workspace(const matmul_problem& p);
void matmul_forward(const matmul_problem& p);
}  // namespace cpu

namespace cuda {
int64_t matmul_workspace(const matmul_problem& p, DLDevice device);
void matmul_forward(const matmul_problem& p, DLDevice device, nf_stream stream);
}  // namespace cuda

}  // namespace ninefold
