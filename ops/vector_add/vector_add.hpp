// A checked vector_add call, as the backends see it.
#pragma once

#include <ninefold/vector_add.h>

#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

struct vector_add_problem {
  static constexpr int x_index = 0, y_index = 1, z_index = 2;
  row_layout<3> layout;  // contiguous tensors come as one row
  const void* x;
  const void* y;
  void* z;
  dtype type;
  const char* rung;  // asked for by name, or nullptr
};

namespace cpu {
void vector_add_forward(const vector_add_problem& p);
}

namespace cuda {
void vector_add_forward(const vector_add_problem& p, DLDevice device, nf_stream stream);
}

}  // namespace ninefold
