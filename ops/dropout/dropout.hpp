// A checked call of dropout as the backends see it. The backward is the forward of dy, without a
// residual.
#pragma once

#include <ninefold/dropout.h>

#include "backend/random/philox.hpp"
#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

// What is to be done, once p is known: only `drop` draws random numbers.
enum class dropout_work { drop, add, copy, zero };

struct dropout_problem {
  // An integer, or where it will be when the work runs.
  struct integer {
    const int64_t* at = nullptr;
    int64_t value = 0;

    NF_HOST_DEVICE uint64_t get() const { return static_cast<uint64_t>(at ? *at : value); }
  };

  enum : int { in_index, residual_index, out_index, tensor_count };
  row_layout<tensor_count> layout;  // contiguous tensors come as one row
  const void *in, *residual;        // residual: nullptr where not given
  void* out;

  dtype type;
  dropout_work work;
  uint32_t keep_from;  // dropout_threshold
  float scale;         // dropout_scale
  integer seed, offset;

  const char* direction;
  const char* rung;  // asked for by name, or nullptr
};

// Whether the columns of every tensor are side by side.
inline bool columns_side_by_side(const dropout_problem& p) {
  bool good = true;
  for (const int64_t stride : p.layout.col_stride) good &= stride == 1;
  return good || p.layout.cols <= 1;
}

// The tensors of one pointwise call, inputs first: Tensors is a backend's pointwise_tensors<1, 1>,
// or with the residual <2, 1>.
template <class Tensors>
Tensors tensors_of(const dropout_problem& p) {
  Tensors tensors{};
  tensors.layout.rows = p.layout.rows;
  tensors.layout.cols = p.layout.cols;
  tensors.layout.dims = p.layout.dims;
  for (int d = 0; d < NF_MAX_RANK; ++d) tensors.layout.size[d] = p.layout.size[d];
  const auto enter = [&](int to, int from) {
    tensors.layout.col_stride[to] = p.layout.col_stride[from];
    for (int d = 0; d < NF_MAX_RANK; ++d) tensors.layout.stride[to][d] = p.layout.stride[from][d];
  };
  tensors.in[0] = p.in;
  enter(0, p.in_index);
  if constexpr (Tensors::inputs == 2) {
    tensors.in[1] = p.residual ? p.residual : p.in;  // the latter is not looked at
    enter(1, p.residual_index);
  }
  tensors.out[0] = p.out;
  enter(Tensors::inputs, p.out_index);
  return tensors;
}

namespace cpu {
void dropout(const dropout_problem& p);
}  // namespace cpu

namespace cuda {
void dropout(const dropout_problem& p, DLDevice device, nf_stream stream);
}  // namespace cuda

}  // namespace ninefold
