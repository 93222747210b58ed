// Cross-entropy of logits whose classes are dimension 1, as torch has them. `reduction` of the
// schemas counts as ATen does: 0 is none, 1 mean, 2 sum.
#include <ninefold/cross_entropy.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

#include "library.hpp"
#include "tensor.hpp"

namespace ninefold::torch_door {
namespace {

struct options {
  int64_t reduction, ignore_index;
  double label_smoothing, z_loss, soft_cap, scale;
};

// What every call is given.
class problem {
 public:
  problem(const Tensor& input, const Tensor& target, const optional_tensor& weight,
          const options& o, const optional_tensor& denominator)
      : classes_(class_dimension(input)),
        input_(input),
        target_(target),
        logits_(input, classes_),
        targets_(target),
        weights_(weight),
        denominator_(denominator),
        ignore_index_(o.ignore_index) {
    if (o.reduction < 0 || o.reduction > 2)
      throw std::runtime_error("cross_entropy: reduction: expected 0 (none), 1 (mean) or 2 (sum)");
    if (o.scale == 0) throw std::domain_error("cross_entropy: scale: 0 is not supported");
    constexpr nf_reduction reductions[] = {NF_REDUCTION_NONE, NF_REDUCTION_MEAN, NF_REDUCTION_SUM};
    args.logits = logits_;
    args.targets = targets_;
    args.class_weights = weights_;
    args.denominator.tensor = denominator_;
    args.reduction = reductions[o.reduction];
    args.ignore_index = &ignore_index_;
    args.label_smoothing = o.label_smoothing;
    args.z_loss = o.z_loss;
    args.soft_cap = o.soft_cap;
    args.scale = o.scale;
  }

  nf_cross_entropy_args args{};

  int64_t classes() const { return classes_; }
  bool per_token() const { return args.reduction == NF_REDUCTION_NONE; }
  bool on_cpu() const { return args.logits->device.device_type == kDLCPU; }

  // Where nobody has to wait for it, a target out of range is an error as in torch. On CUDA its
  // loss and gradient are NaN.
  void run(nf_status (*call)(const nf_cross_entropy_args*, nf_stream)) {
    // The library takes an output without memory for one that is not asked for.
    if (per_token() && std::ranges::count(shape_of(target_), 0) > 0) return;
    int64_t bytes;
    check(nf_cross_entropy_workspace_size(&args, &bytes));
    const optional_tensor scratch = workspace(input_, bytes);
    const optional_view scratch_view(scratch);
    args.workspace = scratch_view;
    int32_t bad = 0;
    const DLTensor bad_target = {.data = &bad, .device = {kDLCPU, 0}, .dtype = {kDLInt, 32, 1}};
    if (on_cpu()) args.bad_target = &bad_target;
    check(call(&args, stream_of(input_)));
    if (bad)
      throw std::out_of_range("Target is out of bounds: neither ignore_index nor one of " +
                              std::to_string(args.logits->shape[args.logits->ndim - 1]) +
                              " classes");
  }

 private:
  static int64_t class_dimension(const Tensor& input) {
    const auto rank = std::ssize(shape_of(input));
    if (rank == 0) throw std::runtime_error("cross_entropy: input: expected classes, got a scalar");
    return rank > 1 ? 1 - rank : -1;
  }

  int64_t classes_;
  const Tensor &input_, &target_;
  view logits_, targets_;
  optional_view weights_, denominator_;
  int64_t ignore_index_;
};

// aten::<name>, which returns one tensor.
template <class... Args>
Tensor aten(const char* name, const char* overload, const Args&... args) {
  StableIValue stack[] = {torch::stable::detail::from(args)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor in_dtype(const Tensor& tensor, dtype_code dtype) {
  if (dtype_of(tensor) == dtype) return tensor;
  return aten("aten::to", "dtype", tensor, dtype, false, false, std::nullopt);
}

// The mean over no tokens is NaN in torch and 0 in the C library: it is divided by whether there
// are any. Nobody waits for the answer.
void divide_by_any(const problem& p, const Tensor& loss, const Tensor& target) {
  if (p.args.reduction != NF_REDUCTION_MEAN || p.args.denominator.tensor) return;
  if (p.on_cpu() && *static_cast<const float*>(p.args.loss->data) != 0) return;
  AtenTensorHandle scalar;  // of the CPU: it goes with a target on any device
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(0, nullptr, nullptr, aoti_torch_dtype_int64(),
                                                  aoti_torch_device_type_cpu(), 0, &scalar));
  const Tensor ignored(scalar);
  *static_cast<int64_t*>(ignored.data_ptr()) = *p.args.ignore_index;
  aten("aten::div_", "Tensor", loss,
       aten("aten::any", "", aten("aten::ne", "Tensor", target, ignored)));
}

// The loss of a call, in fp32 until it is taken.
class loss_output {
 public:
  loss_output(problem& p, const Tensor& input, const Tensor& target)
      : problem_(p),
        target_(target),
        tensor_(empty(input, p.per_token() ? shape_of(target) : std::span<const int64_t>(),
                      aoti_torch_dtype_float32())),
        view_(tensor_) {
    (p.per_token() ? p.args.token_loss : p.args.loss) = view_;
  }
  Tensor take(dtype_code dtype) const {
    divide_by_any(problem_, tensor_, target_);
    return in_dtype(tensor_, dtype);
  }

 private:
  const problem& problem_;
  const Tensor& target_;
  Tensor tensor_;
  view view_;
};

Tensor forward(const Tensor& input, const Tensor& target, const optional_tensor& weight,
               int64_t reduction, int64_t ignore_index, double label_smoothing, double z_loss,
               double soft_cap, double scale, const optional_tensor& denominator,
               bool /*inplace_backward: for autograd*/, optional_dtype dtype) {
  problem p(input, target, weight,
            {reduction, ignore_index, label_smoothing, z_loss, soft_cap, scale}, denominator);
  const loss_output loss(p, input, target);
  p.run(nf_cross_entropy_forward);
  return loss.take(dtype.value_or(dtype_of(input)));
}

std::tuple<Tensor, Tensor> train(const Tensor& input, const Tensor& target,
                                 const optional_tensor& weight, int64_t reduction,
                                 int64_t ignore_index, double label_smoothing, double z_loss,
                                 double soft_cap, double scale, const optional_tensor& denominator,
                                 bool /*inplace_backward*/, optional_dtype dtype) {
  problem p(input, target, weight,
            {reduction, ignore_index, label_smoothing, z_loss, soft_cap, scale}, denominator);
  const loss_output loss(p, input, target);
  Tensor lse = empty(input, shape_of(target), aoti_torch_dtype_float32());
  const view lse_view(lse);
  p.args.lse = lse_view;
  p.run(nf_cross_entropy_forward);
  return {loss.take(dtype.value_or(dtype_of(input))), lse};
}

// The gradient of the loss times `grad_output`, over the input or beside it.
void backward_into(const Tensor& grad_input, const Tensor& grad_output, const Tensor& input,
                   const Tensor& target, const optional_tensor& weight, const Tensor& lse,
                   const options& o, const optional_tensor& denominator) {
  problem p(input, target, weight, o, denominator);
  const Tensor upstream = in_dtype(grad_output, aoti_torch_dtype_float32());
  const view lse_view(lse), upstream_view(upstream), dlogits(grad_input, p.classes());
  (p.per_token() ? p.args.token_weights : p.args.loss_scale.tensor) = upstream_view;
  p.args.lse = lse_view;
  p.args.dlogits = dlogits;
  p.run(nf_cross_entropy_backward);
}

Tensor backward(const Tensor& grad_output, const Tensor& input, const Tensor& target,
                const optional_tensor& weight, const Tensor& lse, int64_t reduction,
                int64_t ignore_index, double label_smoothing, double z_loss, double soft_cap,
                double scale, const optional_tensor& denominator) {
  Tensor grad_input = empty_like(input);
  backward_into(grad_input, grad_output, input, target, weight, lse,
                {reduction, ignore_index, label_smoothing, z_loss, soft_cap, scale}, denominator);
  return grad_input;
}

void backward_(const Tensor& grad_output, const Tensor& input, const Tensor& target,
               const optional_tensor& weight, const Tensor& lse, int64_t reduction,
               int64_t ignore_index, double label_smoothing, double z_loss, double soft_cap,
               double scale, const optional_tensor& denominator) {
  backward_into(input, grad_output, input, target, weight, lse,
                {reduction, ignore_index, label_smoothing, z_loss, soft_cap, scale}, denominator);
}

// Both in one pass, for an upstream gradient that is known beforehand.
Tensor one_pass(const Tensor& grad_input, const Tensor& input, const Tensor& target,
                const optional_tensor& loss_scale, const optional_tensor& weight, const options& o,
                const optional_tensor& denominator, optional_dtype dtype) {
  problem p(input, target, weight, o, denominator);
  const loss_output loss(p, input, target);
  const optional_view loss_scale_view(loss_scale);
  const view dlogits(grad_input, p.classes());
  p.args.loss_scale.tensor = loss_scale_view;
  p.args.dlogits = dlogits;
  p.run(nf_cross_entropy_forward_backward);
  return loss.take(dtype.value_or(dtype_of(input)));
}

std::tuple<Tensor, Tensor> forward_backward(const Tensor& input, const Tensor& target,
                                            const optional_tensor& loss_scale,
                                            const optional_tensor& weight, int64_t reduction,
                                            int64_t ignore_index, double label_smoothing,
                                            double z_loss, double soft_cap, double scale,
                                            const optional_tensor& denominator,
                                            optional_dtype dtype) {
  Tensor grad_input = empty_like(input);
  Tensor loss = one_pass(grad_input, input, target, loss_scale, weight,
                         {reduction, ignore_index, label_smoothing, z_loss, soft_cap, scale},
                         denominator, dtype);
  return {loss, grad_input};
}

Tensor forward_backward_(const Tensor& input, const Tensor& target,
                         const optional_tensor& loss_scale, const optional_tensor& weight,
                         int64_t reduction, int64_t ignore_index, double label_smoothing,
                         double z_loss, double soft_cap, double scale,
                         const optional_tensor& denominator, optional_dtype dtype) {
  return one_pass(input, input, target, loss_scale, weight,
                  {reduction, ignore_index, label_smoothing, z_loss, soft_cap, scale}, denominator,
                  dtype);
}

const std::string settings =
    "int reduction=1, int ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0, "
    "float soft_cap=0.0, float scale=1.0, Tensor? denominator=None";
const std::string of_forward = "(Tensor input, Tensor target, Tensor? weight=None, " + settings +
                               ", bool inplace_backward=False, ScalarType? dtype=None) -> ";
const std::string of_backward = "Tensor target, Tensor? weight, Tensor lse, " + settings + ") -> ";
const std::string of_one_pass = "Tensor target, Tensor? loss_scale=None, Tensor? weight=None, " +
                                settings + ", ScalarType? dtype=None) -> ";
const operators registered = {
    {"cross_entropy" + of_forward + "Tensor", TORCH_BOX(&forward)},
    {"cross_entropy_train" + of_forward + "(Tensor loss, Tensor lse)", TORCH_BOX(&train)},
    {"cross_entropy_backward(Tensor grad_output, Tensor input, " + of_backward + "Tensor",
     TORCH_BOX(&backward)},
    {"cross_entropy_backward_(Tensor grad_output, Tensor(a!) input, " + of_backward + "()",
     TORCH_BOX(&backward_)},
    {"cross_entropy_forward_backward(Tensor input, " + of_one_pass +
         "(Tensor loss, Tensor grad_input)",
     TORCH_BOX(&forward_backward)},
    {"cross_entropy_forward_backward_(Tensor(a!) input, " + of_one_pass + "Tensor",
     TORCH_BOX(&forward_backward_)},
};

}  // namespace
}  // namespace ninefold::torch_door
