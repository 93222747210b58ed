// Tensor maps for the copy engine, made on the host (bulk_tensor.hpp uses them).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/view.hpp"

namespace ninefold::cuda::sm90 {

// Three dimensions, the innermost first; that one's elements lie side by side. Strides are in
// elements.
struct boxed_tensor {
  const void* data;
  dtype type;
  int64_t size[3];
  int64_t stride[2];  // of the second and third dimension
  int box[2] = {};    // of the inner two; the inner one fills 128 bytes, the other is at most 256
};

// Whether the copy engine can address it: 16-byte strides and beginning, sizes below 2^31.
bool mappable(const boxed_tensor& t);

// Boxes of 128-byte rows, swizzled. `what` is for messages.
CUtensorMap map_of(const char* what, const boxed_tensor& t);

}  // namespace ninefold::cuda::sm90
