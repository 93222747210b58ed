// A checked softmax call, as the backends see it.
#pragma once

#include <ninefold/softmax.h>

#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

enum class mask_kind : uint8_t { none, boolean, f32, same_as_x };

struct causal_limit {
  int64_t queries = 1;        // S: the row's query index is row % queries
  int64_t first = INT64_MAX;  // query 0 sees `first` keys, query i sees first + i, within [0, N]
};

struct softmax_forward_problem {
  static constexpr int x_index = 0, y_index = 1, mask_index = 2;
  row_layout<3> layout;
  const void* x;
  void* y;
  const void* mask;
  dtype in, out;
  mask_kind mask_type;
  float scale;
  bool causal;
  causal_limit limit;
  bool log;
  const char* rung;  // asked for by name, or nullptr
};

struct softmax_backward_problem {
  static constexpr int y_index = 0, dy_index = 1, dx_index = 2;
  row_layout<3> layout;
  const void* y;
  const void* dy;
  void* dx;
  dtype in, out;  // in: dx (and x); out: y and dy
  float scale;
  bool causal;
  causal_limit limit;
  bool log;
  const char* rung;
};

// How many leading columns row `row` may see.
NF_HOST_DEVICE inline int64_t allowed_columns(bool causal, const causal_limit& limit, int64_t row,
                                              int64_t cols) {
  if (!causal) return cols;
  const int64_t seen = limit.first + row % limit.queries;
  return seen < 0 ? 0 : seen > cols ? cols : seen;
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
