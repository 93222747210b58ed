// A checked call of dropout as the backends see it. The backward is the forward of dy, without a
// residual.
#pragma once

#include <ninefold/dropout.h>

#include <array>

#include "backend/pointwise.hpp"
#include "backend/random/philox.hpp"
#include "backend/view.hpp"

namespace ninefold {

// What is to be done, once p is known: only `drop` draws random numbers.
enum class dropout_work { drop, add, copy, zero };

struct dropout_problem {
  enum : int { in_index, residual_index, out_index, tensor_count };
  row_layout<tensor_count> layout;       // contiguous tensors come as one row
  std::array<void*, tensor_count> data;  // by index; nullptr where not given

  dtype type;
  dropout_work work;
  uint32_t keep_from;  // dropout_threshold
  float scale;         // dropout_scale
  integer seed, offset;

  const char* direction;
  const char* rung;  // asked for by name, or nullptr

  bool with_residual() const { return data[residual_index] != nullptr; }
};

// The tensors of a walk, with a place for the residual or without. Where there is none its place is
// the first input's, and not looked at.
template <int kIn>
pointwise_tensors<kIn, 1> dropout_tensors(const dropout_problem& p) {
  if constexpr (kIn == 1)
    return tensors_of<1>(p, p.in_index, p.out_index);
  else
    return tensors_of<2>(p, p.in_index, p.with_residual() ? p.residual_index : p.in_index,
                         p.out_index);
}

// Whether the columns of every tensor are side by side.
inline bool columns_side_by_side(const dropout_problem& p) {
  bool good = true;
  for (int t = 0; t < p.tensor_count; ++t) good &= columns_side_by_side(p.layout, t);
  return good;
}

namespace cpu {
void dropout(const dropout_problem& p);
}  // namespace cpu

namespace cuda {
void dropout(const dropout_problem& p, DLDevice device, nf_stream stream);
}  // namespace cuda

}  // namespace ninefold
