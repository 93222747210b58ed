// The activations on CUDA, backward: by the same walk as the forward, and where dbias is wanted by
// strips of columns.
#include "ops/activation/bias_gradient.cuh"
#include "ops/activation/calls.cuh"

namespace ninefold::cuda {
namespace {

using problem = activation_problem;

template <class T>
void gated(const problem& p, bool wide, nf_stream stream) {
  const auto tensors = tensors_of<3>(p, p.x_index, p.up_index, p.dy_index, p.dx_index, p.dup_index);
  if (!wide)
    return launch_scalar<T>(activation_op, tensors, any_kind<true, false>{p.kind, p.alpha, p.limit},
                            stream);
  with_kind<true>(p.kind, [&](auto kind) {
    const gated_backward<kind.value> op{p.alpha, p.limit};
    if (p.interleaved)
      launch_vector16<T, pairs::of_inputs_and_outputs>(activation_op, tensors, op, stream);
    else
      launch_vector16<T, pairs::none>(activation_op, tensors, op, stream);
  });
}

template <class T, int kIn>
void ungated_with_sums(const problem& p, const pointwise_tensors<kIn, 1>& tensors, bool wide,
                       nf_stream stream) {
  const partial_sums sums{p.partial_sums, p.partials, p.rows_a_partial};
  const int64_t cols = p.layout.cols;
  if (!wide)
    return launch(activation_op, activation_backward_columns<T, kIn, any_kind<false, false>>,
                  {grid_for(p.partials * cols, pointwise_threads), pointwise_threads}, stream,
                  tensors, any_kind<false, false>{p.kind, 1.0f, 0.0f}, sums);
  constexpr int64_t strip = strip_threads * (16 / sizeof(T));
  const int64_t strips = (cols + strip - 1) / strip;
  with_kind<false>(p.kind, [&](auto kind) {
    using op = ungated_backward<kind.value>;
    launch(activation_op, activation_backward_strips<T, kIn, op>,
           {p.partials * strips, strip_threads}, stream, tensors, op{}, sums, strips);
  });
}

template <class T, int kIn>
void ungated(const problem& p, const pointwise_tensors<kIn, 1>& tensors, bool wide,
             nf_stream stream) {
  if (p.dbias) return ungated_with_sums<T>(p, tensors, wide, stream);
  if (!wide)
    return launch_scalar<T>(activation_op, tensors, any_kind<false, false>{p.kind, 1.0f, 0.0f},
                            stream);
  with_kind<false>(p.kind, [&](auto kind) {
    launch_vector16<T, pairs::none>(activation_op, tensors, ungated_backward<kind.value>{}, stream);
  });
}

void add_partials(const problem& p, nf_stream stream) {
  const partial_sums sums{p.partial_sums, p.partials, p.rows_a_partial};
  with_type(p.dbias_type, [&](auto zero) {
    using G = decltype(zero);
    launch(activation_op, activation_add_partials<G>,
           {grid_for(p.layout.cols, add_columns), add_threads}, stream, sums,
           static_cast<G*>(p.dbias), p.layout.cols, p.accumulate);
  });
}

}  // namespace

void activation_backward(const problem& p, DLDevice device, nf_stream stream) {
  const device_scope scope(device);
  const bool wide = takes_vectors(p);
  if (p.layout.rows > 0)
    with_type(p.type, [&](auto zero) {
      using T = decltype(zero);
      if (p.gated)
        gated<T>(p, wide, stream);
      else if (p.with_bias())
        ungated<T>(p, tensors_of<3>(p, p.x_index, p.bias_index, p.dy_index, p.dx_index), wide,
                   stream);
      else
        ungated<T>(p, tensors_of<2>(p, p.x_index, p.dy_index, p.dx_index), wide, stream);
    });
  if (p.dbias) add_partials(p, stream);
  record_launch("backward", wide, p.dbias && wide ? strip_threads : pointwise_threads);
}

}  // namespace ninefold::cuda
