// The activation functions. `kind` of the schemas is nf_activation_kind; where `up` is not given to
// a gated one, `gate` holds both.
#include <ninefold/activation.h>

#include <tuple>

#include "library.hpp"
#include "tensor.hpp"

namespace ninefold::torch_door {
namespace {

constexpr int64_t last = -1;  // a scalar gets a dimension to be that

void forward(const Tensor& input, const optional_tensor& bias, const Tensor& output, int64_t kind) {
  const view x(input, last), y(output, last);
  const optional_view b(bias);
  const nf_activation_args args = {
      .kind = static_cast<nf_activation_kind>(kind), .x = x, .bias = b, .y = y};
  check(nf_activation_forward(&args, stream_of(input)));
}

Tensor activation(const Tensor& input, int64_t kind) {
  Tensor output = empty_like(input);
  forward(input, std::nullopt, output, kind);
  return output;
}

void activation_(const Tensor& input, int64_t kind) { forward(input, std::nullopt, input, kind); }

Tensor activation_backward(const Tensor& grad_output, const Tensor& input, int64_t kind) {
  Tensor grad_input = empty_like(input);
  const view x(input, last), dy(grad_output, last), dx(grad_input, last);
  const nf_activation_args args = {
      .kind = static_cast<nf_activation_kind>(kind), .x = x, .dy = dy, .dx = dx};
  check(nf_activation_backward(&args, stream_of(input)));
  return grad_input;
}

Tensor bias_activation(const Tensor& input, const Tensor& bias, int64_t kind) {
  Tensor output = empty_like(input);
  forward(input, bias, output, kind);
  return output;
}

std::tuple<Tensor, Tensor> bias_activation_backward(const Tensor& grad_output, const Tensor& input,
                                                    const Tensor& bias, int64_t kind,
                                                    bool needs_grad_bias) {
  Tensor grad_input = empty_like(input);
  Tensor grad_bias = needs_grad_bias ? empty_like(bias) : empty(bias, {{0}}, dtype_of(bias));
  const view x(input, last), b(bias), dy(grad_output, last), dx(grad_input, last), db(grad_bias);
  nf_activation_args args = {
      .kind = static_cast<nf_activation_kind>(kind), .x = x, .bias = b, .dy = dy, .dx = dx};
  if (needs_grad_bias) args.dbias = db;
  int64_t bytes;
  check(nf_activation_workspace_size(&args, &bytes));
  const optional_tensor scratch = workspace(input, bytes);
  const optional_view work(scratch);
  args.workspace = work;
  check(nf_activation_backward(&args, stream_of(input)));
  return {grad_input, grad_bias};
}

// What the gated calls share: the options, and where gate and up are.
nf_activation_args gated(const optional_tensor& up, int64_t kind, bool interleaved, double alpha,
                         double limit) {
  return {.kind = static_cast<nf_activation_kind>(kind),
          .gating = interleaved ? NF_ACTIVATION_INTERLEAVED
                    : up        ? NF_ACTIVATION_TWO_TENSORS
                                : NF_ACTIVATION_CONCATENATED,
          .alpha = alpha,
          .limit = limit};
}

Tensor gated_activation(const Tensor& gate, const optional_tensor& up, int64_t kind,
                        bool interleaved, double alpha, double limit, bool) {
  std::vector<int64_t> shape(shape_of(gate).begin(), shape_of(gate).end());
  if (!up && !shape.empty()) shape.back() /= 2;  // an odd one is refused below
  Tensor output = empty(gate, shape, dtype_of(gate));
  const view x(gate, last), y(output, last);
  const optional_view u(up, last);
  nf_activation_args args = gated(up, kind, interleaved, alpha, limit);
  args.x = x, args.up = u, args.y = y;
  check(nf_activation_forward(&args, stream_of(gate)));
  return output;
}

void gated_backward(const Tensor& grad_output, const Tensor& gate, const optional_tensor& up,
                    const Tensor& grad_gate, const optional_tensor& grad_up,
                    nf_activation_args args) {
  const view x(gate, last), dy(grad_output, last), dx(grad_gate, last);
  const optional_view u(up, last), du(grad_up, last);
  args.x = x, args.up = u, args.dy = dy, args.dx = dx, args.dup = du;
  check(nf_activation_backward(&args, stream_of(gate)));
}

std::tuple<Tensor, Tensor> gated_activation_backward(const Tensor& grad_output, const Tensor& gate,
                                                     const optional_tensor& up, int64_t kind,
                                                     bool interleaved, double alpha, double limit) {
  const Tensor grad_gate = empty_like(gate);
  optional_tensor grad_up;
  if (up) grad_up = empty_like(*up);
  gated_backward(grad_output, gate, up, grad_gate, grad_up,
                 gated(up, kind, interleaved, alpha, limit));
  return {grad_gate, grad_up ? *grad_up : empty(gate, {{0}}, dtype_of(gate))};
}

void gated_activation_backward_(const Tensor& grad_output, const Tensor& gate,
                                const optional_tensor& up, int64_t kind, bool interleaved,
                                double alpha, double limit) {
  gated_backward(grad_output, gate, up, gate, up, gated(up, kind, interleaved, alpha, limit));
}

const std::string options = "int kind, bool interleaved=False, float alpha=0.0, float limit=0.0";
const operators registered = {
    {"activation(Tensor input, int kind) -> Tensor", TORCH_BOX(&activation)},
    {"activation_(Tensor(a!) input, int kind) -> ()", TORCH_BOX(&activation_)},
    {"activation_backward(Tensor grad_output, Tensor input, int kind) -> Tensor",
     TORCH_BOX(&activation_backward)},
    {"bias_activation(Tensor input, Tensor bias, int kind) -> Tensor", TORCH_BOX(&bias_activation)},
    {"bias_activation_backward(Tensor grad_output, Tensor input, Tensor bias, int kind, "
     "bool needs_grad_bias=True) -> (Tensor grad_input, Tensor grad_bias)",
     TORCH_BOX(&bias_activation_backward)},
    // overwrite_in_backward is a word to autograd: ninefold/ops/gated_activation.py.
    {"gated_activation(Tensor gate, Tensor? up, " + options +
         ", bool overwrite_in_backward=False) -> Tensor",
     TORCH_BOX(&gated_activation)},
    {"gated_activation_backward(Tensor grad_output, Tensor gate, Tensor? up, " + options +
         ") -> (Tensor grad_gate, Tensor grad_up)",
     TORCH_BOX(&gated_activation_backward)},
    {"gated_activation_backward_(Tensor grad_output, Tensor(a!) gate, Tensor(b!)? up, " + options +
         ") -> ()",
     TORCH_BOX(&gated_activation_backward_)},
};

}  // namespace
}  // namespace ninefold::torch_door
