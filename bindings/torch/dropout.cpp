// Dropout, alone and with the residual addition that follows it. The seed is an int, or one int64
// element on the device that is read when the work runs: see ninefold/ops/dropout.py.
#include <ninefold/dropout.h>

#include "library.hpp"
#include "tensor.hpp"

namespace ninefold::torch_door {
namespace {

constexpr int64_t last = -1;  // a scalar gets a dimension to be that

void forward(const Tensor& input, const optional_tensor& residual, const Tensor& output, double p,
             const optional_tensor& seed_tensor, int64_t seed, int64_t offset) {
  const view x(input, last), y(output, last);
  const optional_view r(residual, last), s(seed_tensor);
  const nf_dropout_args args = {.x = x,
                                .residual = r,
                                .y = y,
                                .p = p,
                                .seed = {.tensor = s, .value = seed},
                                .offset = {.value = offset}};
  check(nf_dropout_forward(&args, stream_of(input)));
}

Tensor dropout(const Tensor& input, double p, const optional_tensor& seed_tensor, int64_t seed,
               int64_t offset) {
  Tensor output = empty_like(input);
  forward(input, std::nullopt, output, p, seed_tensor, seed, offset);
  return output;
}

void dropout_(const Tensor& input, double p, const optional_tensor& seed_tensor, int64_t seed,
              int64_t offset) {
  forward(input, std::nullopt, input, p, seed_tensor, seed, offset);
}

Tensor dropout_add(const Tensor& input, const Tensor& residual, double p,
                   const optional_tensor& seed_tensor, int64_t seed, int64_t offset) {
  Tensor output = empty_like(input);
  forward(input, residual, output, p, seed_tensor, seed, offset);
  return output;
}

Tensor dropout_backward(const Tensor& grad_output, double p, const optional_tensor& seed_tensor,
                        int64_t seed, int64_t offset) {
  Tensor grad_input = empty_like(grad_output);
  const view dy(grad_output, last), dx(grad_input, last);
  const optional_view s(seed_tensor);
  const nf_dropout_args args = {.dy = dy,
                                .dx = dx,
                                .p = p,
                                .seed = {.tensor = s, .value = seed},
                                .offset = {.value = offset}};
  check(nf_dropout_backward(&args, stream_of(grad_output)));
  return grad_input;
}

const std::string options = "float p, Tensor? seed_tensor=None, int seed=0, int offset=0)";
const operators registered = {
    {"dropout(Tensor input, " + options + " -> Tensor", TORCH_BOX(&dropout)},
    {"dropout_(Tensor(a!) input, " + options + " -> ()", TORCH_BOX(&dropout_)},
    {"dropout_add(Tensor input, Tensor residual, " + options + " -> Tensor",
     TORCH_BOX(&dropout_add)},
    {"dropout_backward(Tensor grad_output, " + options + " -> Tensor",
     TORCH_BOX(&dropout_backward)},
};

}  // namespace
}  // namespace ninefold::torch_door
