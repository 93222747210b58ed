// The activations on CUDA, forward: "scalar", one element a thread over any strides, and
// "vector16", 16 bytes an access. The walk is backend/cuda/pointwise.hpp's.
#include "ops/activation/calls.cuh"

namespace ninefold::cuda {
namespace {

using problem = activation_problem;

template <class T>
void gated(const problem& p, bool wide, nf_stream stream) {
  const auto tensors = tensors_of<2>(p, p.x_index, p.up_index, p.y_index);
  if (!wide)
    return launch_scalar<T>(activation_op, tensors, any_kind<true, true>{p.kind, p.alpha, p.limit},
                            stream);
  with_kind<true>(p.kind, [&](auto kind) {
    const gated_forward<kind.value> op{p.alpha, p.limit};
    if (p.interleaved)
      launch_vector16<T, pairs::of_inputs>(activation_op, tensors, op, stream);
    else
      launch_vector16<T, pairs::none>(activation_op, tensors, op, stream);
  });
}

template <class T, int kIn>
void ungated(const problem& p, const pointwise_tensors<kIn, 1>& tensors, bool wide,
             nf_stream stream) {
  if (!wide)
    return launch_scalar<T>(activation_op, tensors, any_kind<false, true>{p.kind, 1.0f, 0.0f},
                            stream);
  with_kind<false>(p.kind, [&](auto kind) {
    launch_vector16<T, pairs::none>(activation_op, tensors, ungated_forward<kind.value>{}, stream);
  });
}

}  // namespace

void activation_forward(const problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  const bool wide = takes_vectors(p);
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    if (p.gated)
      gated<T>(p, wide, stream);
    else if (p.with_bias())
      ungated<T>(p, tensors_of<2>(p, p.x_index, p.bias_index, p.y_index), wide, stream);
    else
      ungated<T>(p, tensors_of<1>(p, p.x_index, p.y_index), wide, stream);
  });
  record_launch("forward", wide, pointwise_threads);
}

}  // namespace ninefold::cuda
