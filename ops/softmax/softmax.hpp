// A checked softmax call, as the backends see it.
#pragma once

#include <ninefold/softmax.h>

#include "backend/random/philox.hpp"
#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

enum class mask_kind : uint8_t { none, boolean, f32, same_as_x };

struct causal_limit {
  int64_t queries = 1;        // S: the row's query index is row % queries
  int64_t first = INT64_MAX;  // query 0 sees `first` keys, query i sees first + i, within [0, N]
};

// Element (row, column) is kept or dropped by its number row * N + column.
struct softmax_dropout {
  bool on = false;  // otherwise the rest is not looked at
  uint64_t keep_from = 0;
  float scale = 1;
  integer seed, offset;

  NF_HOST_DEVICE bool keeps(int64_t element) const {
    return dropout_keeps(seed.get(), offset.get(), static_cast<uint64_t>(element), keep_from);
  }
};

struct softmax_forward_problem {
  enum : int { x_index, y_index, dropped_index, mask_index, tensor_count };
  row_layout<tensor_count> layout;
  const void* x;
  void *y, *dropped;  // one of them may be nullptr
  const void* mask;
  dtype in, out;
  mask_kind mask_type;
  float scale;
  bool causal;
  causal_limit limit;
  bool log;
  softmax_dropout dropout;  // on where `dropped` is given
  const char* rung;         // asked for by name, or nullptr
};

struct softmax_backward_problem {
  enum : int { y_index, dy_index, dx_index, tensor_count };
  row_layout<tensor_count> layout;
  const void* y;
  const void* dy;
  void* dx;
  dtype in, out;  // in: dx (and x); out: y and dy
  float scale;
  bool causal;
  causal_limit limit;
  bool log;
  softmax_dropout dropout;
  const char* rung;
};

// How many leading columns row `row` may see.
NF_HOST_DEVICE inline int64_t allowed_columns(bool causal, const causal_limit& limit, int64_t row,
                                              int64_t cols) {
  if (!causal) return cols;
  const int64_t seen = limit.first + row % limit.queries;
  return seen < 0 ? 0 : seen > cols ? cols : seen;
}

// Where row `row` of one of a call's tensors begins; nullptr where the tensor is not given.
template <class T, class Void, int kTensors>
NF_HOST_DEVICE inline T* softmax_row(const row_layout<kTensors>& layout, int index, Void* data,
                                     int64_t row) {
  return data ? static_cast<T*>(data) + row_offset(layout, index, row) : nullptr;
}

namespace cpu {
void softmax_forward(const softmax_forward_problem& p);
void softmax_backward(const softmax_backward_problem& p);
}  // namespace cpu

namespace cuda {
void softmax_forward(const softmax_forward_problem& p, DLDevice device, nf_stream stream);
void softmax_backward(const softmax_backward_problem& p, DLDevice device, nf_stream stream);
}  // namespace cuda

}  // namespace ninefold
