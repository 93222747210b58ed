// A checked call of RMSNorm or LayerNorm as the backends see it.
#pragma once

#include <ninefold/norm.h>

#include "backend/random/philox.hpp"
#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

struct norm_problem {
  // Tensors of the layout. Those per row are rows whose N columns are one element (stride 0).
  enum : int {
    x_index,
    residual_index,
    h_index,
    y_index,
    mean_index,
    rstd_index,
    dy_index,
    d_residual_out_index,
    dx_index,
    d_residual_index,
    tensor_count
  };
  row_layout<tensor_count> layout;

  // nullptr where not given, as all below.
  const void *x, *residual;
  void* h;  // forward: out; backward: in, and always there
  void* y;
  float *mean, *rstd;  // forward: out; backward: in
  const void *dy, *d_residual_out;
  void *dx, *d_residual;
  // Contiguous, N each.
  const void *weight, *bias;
  void *dweight, *dbias;
  // In the workspace: `partials` rows of N sums over some of the rows each.
  float *dweight_partials, *dbias_partials;
  int64_t partials;

  dtype x_type;        // of x and dx
  dtype h_type;        // of the stream: residual, h and their gradients
  dtype y_type;        // of y and dy
  dtype weight_type;   // of weight and bias
  dtype dweight_type;  // of dweight and dbias

  bool layer;  // LayerNorm; RMSNorm otherwise
  bool round_llama;
  bool accumulate;
  float eps, weight_offset;

  bool dropout;        // unless it keeps all
  uint64_t keep_from;  // dropout_threshold
  float keep_scale;    // dropout_scale
  integer seed, offset;

  const char* op;    // "rms_norm" or "layer_norm"
  const char* rung;  // asked for by name, or nullptr

  using offsets = row_offsets<tensor_count>;

  // In the forward, h is x unless something comes before the norm or asks for a copy.
  NF_HOST_DEVICE bool makes_h() const { return residual || dropout || h; }
};

namespace cpu {
// How many partial sums over rows the backward keeps in the workspace; a function of the shape
// alone, so that the result depends on nothing else.
int64_t norm_partials(const norm_problem& p);
void norm_forward(const norm_problem& p);
void norm_backward(const norm_problem& p);
}  // namespace cpu

namespace cuda {
int64_t norm_partials(const norm_problem& p, DLDevice device);
void norm_forward(const norm_problem& p, DLDevice device, nf_stream stream);
void norm_backward(const norm_problem& p, DLDevice device, nf_stream stream);
}  // namespace cuda

}  // namespace ninefold
