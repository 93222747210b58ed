// One step of AdamW over a list of parameters.
#include <ninefold/adamw.h>

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <vector>

#include "library.hpp"
#include "tensor.hpp"

namespace ninefold::torch_door {
namespace {

using tensors = std::vector<Tensor>;
using numbers = std::vector<double>;

// In C, 0 stands for the default; a number this small does what 0 would.
double or_tiny(double value) { return value == 0 ? 1e-300 : value; }

struct parameter {
  view param, grad, m, v;
  optional_view master;

  parameter(const Tensor& p, const Tensor& g, const Tensor& exp_avg, const Tensor& exp_avg_sq,
            const optional_tensor& copy)
      : param(p), grad(g), m(exp_avg), v(exp_avg_sq), master(copy) {}
};

// The parameters of a call, as the C library wants them.
class parameter_list {
 public:
  parameter_list(const tensors& params, const tensors& grads, const tensors& exp_avgs,
                 const tensors& exp_avg_sqs, const tensors& masters, const numbers& lrs,
                 const numbers& weight_decays) {
    for (const size_t length :
         {grads.size(), exp_avgs.size(), exp_avg_sqs.size(), lrs.size(), weight_decays.size()})
      if (length != params.size())
        throw std::runtime_error("adamw: expected lists of one length, that of params");
    auto master = masters.begin();
    for (size_t i = 0; i < params.size(); ++i) {
      optional_tensor copy;
      if (master != masters.end() && dtype_of(params[i]) != aoti_torch_dtype_float32())
        copy = *master++;
      // Torch's strides of an empty tensor are not what the library calls contiguous.
      if (std::ranges::count(shape_of(params[i]), 0) > 0) continue;
      const parameter& p =
          parameters_.emplace_back(params[i], grads[i], exp_avgs[i], exp_avg_sqs[i], copy);
      tensors_.push_back({.param = p.param,
                          .grad = p.grad,
                          .m = p.m,
                          .v = p.v,
                          .master = p.master,
                          .weight_decay = weight_decays[i],
                          .lr_scale = or_tiny(lrs[i])});
    }
    if (master != masters.end())
      throw std::runtime_error("adamw: masters: expected one for each 16-bit parameter, or none");
  }

  const nf_adamw_tensor* data() const { return tensors_.data(); }
  int64_t count() const { return std::ssize(tensors_); }

 private:
  std::deque<parameter> parameters_;  // whose elements stay where they are
  std::vector<nf_adamw_tensor> tensors_;
};

// `lr` multiplies `lrs`, and `inv_scale` the gradients. A seed asks for stochastic rounding; the
// count of steps is its offset. Returns the norm of the gradients, empty where max_norm is 0.
Tensor adamw_(const tensors& params, const tensors& grads, const tensors& exp_avgs,
              const tensors& exp_avg_sqs, const tensors& masters, const Tensor& step,
              const numbers& lrs, const numbers& weight_decays, double beta1, double beta2,
              double eps, const optional_tensor& lr, const optional_tensor& inv_scale,
              const optional_tensor& found_inf, double max_norm, std::optional<int64_t> seed) {
  if (eps == 0) throw std::domain_error("adamw: eps: 0 is not supported");
  const parameter_list list(params, grads, exp_avgs, exp_avg_sqs, masters, lrs, weight_decays);
  const view step_view(step);
  const optional_view lr_view(lr), inv_scale_view(inv_scale), found_inf_view(found_inf);
  const std::array<int64_t, 1> nothing = {0};
  const std::span<const int64_t> norm_shape =
      max_norm == 0 ? std::span<const int64_t>(nothing) : std::span<const int64_t>();
  Tensor norm = empty(step, norm_shape, aoti_torch_dtype_float32());
  const view norm_view(norm);

  nf_adamw_args args = {.tensors = list.data(),
                        .count = list.count(),
                        .lr = {.tensor = lr_view, .value = 1},
                        .beta1 = or_tiny(beta1),
                        .beta2 = or_tiny(beta2),
                        .eps = eps,
                        .step = {.tensor = step_view},
                        .grad_scale = {.tensor = inv_scale_view},
                        .found_inf = found_inf_view,
                        .max_grad_norm = max_norm};
  if (max_norm != 0) args.grad_norm = norm_view;
  if (seed) {
    args.stochastic_rounding = 1;
    args.seed.value = *seed;
    args.offset.tensor = step_view;
  }
  int64_t bytes;
  check(nf_adamw_workspace_size(&args, &bytes));
  const optional_tensor scratch = workspace(step, bytes);
  const optional_view scratch_view(scratch);
  args.workspace = scratch_view;
  check(nf_adamw_step(&args, stream_of(step)));
  return norm;
}

const operators registered = {
    {"adamw_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
     "Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] masters, Tensor(e!) step, float[] lrs, "
     "float[] weight_decays, float beta1=0.9, float beta2=0.999, float eps=1e-08, "
     "Tensor? lr=None, Tensor? inv_scale=None, Tensor? found_inf=None, float max_norm=0.0, "
     "int? seed=None) -> Tensor",
     TORCH_BOX(&adamw_)},
};

}  // namespace
}  // namespace ninefold::torch_door
