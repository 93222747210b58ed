// Matrix products to compare with.
#pragma once

#include <ninefold/types.h>

#include <cstdint>
#include <string>

#include "lab/bench.hpp"

namespace ninefold::lab {

std::string cublaslt_version();  // "13.1.0"; "" if it is not found on this machine

// D = A B, of contiguous matrices, and what comes after. Pointers that are not wanted are NULL.
struct matmul_call {
  int64_t m, n, k;
  DLDataType type, d_type;          // of A, B and the bias; of all others
  bool a_transposed, b_transposed;  // A lies as (K, M), B as (N, K)
  bool accumulate = false;          // D += A B
  bool gelu = false;                // the tanh form
  bool gelu_backward = false;       // D = A B act'(saved)
  const void *a, *b, *bias = nullptr, *saved = nullptr;
  void *d, *preactivation = nullptr, *column_sums = nullptr;
  DLDevice device;
};

// One primitive for the product; a bias and a GELU by one call each, as a framework would make
// them.
contender onednn_matmul(const matmul_call& call);
// The same in one primitive, by oneDNN's own post-operations.
contender onednn_fused_matmul(const matmul_call& call);
// The fastest of the ten algorithms that its heuristic names first, with the epilogue that it has
// for the call.
contender cublaslt_matmul(const matmul_call& call);

}  // namespace ninefold::lab
