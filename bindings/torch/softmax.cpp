// softmax and log_softmax over any dimension. `causal` of the schemas is nf_causal; with another
// dimension than the last, the queries are the last of those that remain.
#include <ninefold/softmax.h>

#include <stdexcept>

#include "library.hpp"
#include "tensor.hpp"

namespace ninefold::torch_door {
namespace {

double checked(double scale) {
  if (scale == 0) throw std::domain_error("softmax: scale: 0 is not supported");
  return scale;  // in C, 0 stands for the default
}

void forward(const Tensor& input, const Tensor& output, int64_t dim, const optional_tensor& mask,
             double scale, int64_t causal, bool log) {
  dim = from_end(input, dim);
  const view x(input, dim), y(output, dim);
  const optional_view allowed(mask, dim);
  const nf_softmax_args args = {.x = x,
                                .y = y,
                                .mask = allowed,
                                .scale = checked(scale),
                                .causal = static_cast<nf_causal>(causal),
                                .log = log};
  check(nf_softmax_forward(&args, stream_of(input)));
}

template <bool log>
Tensor softmax(const Tensor& input, int64_t dim, optional_dtype dtype, const optional_tensor& mask,
               double scale, int64_t causal) {
  Tensor output = empty(input, shape_of(input), dtype.value_or(dtype_of(input)));
  forward(input, output, dim, mask, scale, causal, log);
  return output;
}

template <bool log>
void softmax_(const Tensor& input, int64_t dim, const optional_tensor& mask, double scale,
              int64_t causal) {
  forward(input, input, dim, mask, scale, causal, log);
}

template <bool log>
Tensor backward(const Tensor& grad_output, const Tensor& output, int64_t dim, optional_dtype dtype,
                double scale, int64_t causal) {
  Tensor grad_input = empty(output, shape_of(output), dtype.value_or(dtype_of(output)));
  dim = from_end(output, dim);
  const view y(output, dim), dy(grad_output, dim), dx(grad_input, dim);
  const nf_softmax_args args = {.y = y,
                                .dy = dy,
                                .dx = dx,
                                .scale = checked(scale),
                                .causal = static_cast<nf_causal>(causal),
                                .log = log};
  check(nf_softmax_backward(&args, stream_of(output)));
  return grad_input;
}

const std::string options = "Tensor? mask=None, float scale=1.0, int causal=0)";
const std::string function = "(Tensor input, int dim, ScalarType? dtype=None, " + options;
const std::string in_place = "(Tensor(a!) input, int dim, " + options;
const std::string gradient =
    "(Tensor grad_output, Tensor output, int dim, ScalarType? dtype=None, float scale=1.0, "
    "int causal=0)";
const operators registered = {
    {"softmax" + function + " -> Tensor", TORCH_BOX(&softmax<false>)},
    {"softmax_" + in_place + " -> ()", TORCH_BOX(&softmax_<false>)},
    {"softmax_backward" + gradient + " -> Tensor", TORCH_BOX(&backward<false>)},
    {"log_softmax" + function + " -> Tensor", TORCH_BOX(&softmax<true>)},
    {"log_softmax_" + in_place + " -> ()", TORCH_BOX(&softmax_<true>)},
    {"log_softmax_backward" + gradient + " -> Tensor", TORCH_BOX(&backward<true>)},
};

}  // namespace
}  // namespace ninefold::torch_door
