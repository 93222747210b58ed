// rms_norm and layer_norm over the last dimension, alone or (add_...) after dropout and a residual
// addition. The names that end in _train also return what the backward needs from them: statistics
// in fp32, of shape (1, rows) for RMSNorm, which are rstd, and (2, rows) for LayerNorm, mean and
// rstd.
#include <ninefold/norm.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "library.hpp"
#include "tensor.hpp"

namespace ninefold::torch_door {
namespace {

using maybe = const optional_tensor&;

struct kind {
  int64_t statistics;  // a row
  decltype(&nf_rms_norm_forward) forward, backward;
  decltype(&nf_rms_norm_workspace_size) workspace_size;
};
constexpr kind rms = {1, nf_rms_norm_forward, nf_rms_norm_backward, nf_rms_norm_workspace_size};
constexpr kind layer = {2, nf_layer_norm_forward, nf_layer_norm_backward,
                        nf_layer_norm_workspace_size};

struct dropout {
  double p = 0;
  maybe seed_tensor = absent;
  int64_t seed = 0, offset = 0;
};

struct outputs {
  const Tensor& y;
  maybe h = absent, statistics = absent;
};

struct statistics_view {
  statistics_view(const kind& k, maybe statistics)
      : mean(k.statistics == 2 ? statistics : absent), rstd(statistics) {
    mean.select(0);
    rstd.select(k.statistics - 1);
  }
  optional_view mean, rstd;
};

void forward(const kind& k, const Tensor& input, maybe residual, maybe weight, maybe bias,
             double eps, double weight_offset, int64_t rounding, const dropout& drop,
             const outputs& out) {
  if (eps == 0) throw std::domain_error("norm: eps: 0 is not supported");  // in C it is the default
  const view x(input), y(out.y);
  const optional_view r(residual), w(weight), b(bias), h(out.h), seed(drop.seed_tensor);
  const statistics_view saved(k, out.statistics);
  const nf_norm_args args = {.x = x,
                             .residual = r,
                             .bias = b,
                             .weight = w,
                             .residual_out = h,
                             .mean = saved.mean,
                             .rstd = saved.rstd,
                             .y = y,
                             .eps = eps,
                             .weight_offset = weight_offset,
                             .rounding = static_cast<nf_norm_rounding>(rounding),
                             .dropout_p = drop.p,
                             .dropout_seed = {seed, drop.seed},
                             .dropout_offset = {.value = drop.offset}};
  check(k.forward(&args, stream_of(input)));
}

Tensor empty_statistics(const kind& k, const Tensor& input) {
  const auto shape = shape_of(input);
  std::vector<int64_t> sizes = {k.statistics};
  if (!shape.empty()) sizes.insert(sizes.end(), shape.begin(), shape.end() - 1);
  return empty(input, sizes, aoti_torch_dtype_float32());
}

template <const kind& k>
Tensor norm(const Tensor& input, maybe weight, maybe bias, double eps, double weight_offset,
            int64_t rounding) {
  Tensor y = empty_like(input);
  forward(k, input, absent, weight, bias, eps, weight_offset, rounding, {}, {y});
  return y;
}

template <const kind& k>
void norm_(const Tensor& input, maybe weight, maybe bias, double eps, double weight_offset,
           int64_t rounding) {
  forward(k, input, absent, weight, bias, eps, weight_offset, rounding, {}, {input});
}

template <const kind& k>
std::tuple<Tensor, Tensor> norm_train(const Tensor& input, maybe weight, maybe bias, double eps,
                                      double weight_offset, int64_t rounding) {
  Tensor y = empty_like(input);
  const optional_tensor statistics = empty_statistics(k, input);
  forward(k, input, absent, weight, bias, eps, weight_offset, rounding, {},
          {.y = y, .statistics = statistics});
  return {y, *statistics};
}

template <const kind& k>
std::tuple<Tensor, Tensor> add_norm(const Tensor& input, const Tensor& residual, maybe weight,
                                    maybe bias, double eps, double weight_offset, int64_t rounding,
                                    double dropout_p, maybe seed_tensor, int64_t seed,
                                    int64_t offset) {
  Tensor y = empty_like(input);
  const optional_tensor h = empty_like(residual);
  forward(k, input, residual, weight, bias, eps, weight_offset, rounding,
          {dropout_p, seed_tensor, seed, offset}, {y, h});
  return {y, *h};
}

template <const kind& k>  // y lies over the input, h over the residual
void add_norm_(const Tensor& input, const Tensor& residual, maybe weight, maybe bias, double eps,
               double weight_offset, int64_t rounding, double dropout_p, maybe seed_tensor,
               int64_t seed, int64_t offset) {
  forward(k, input, residual, weight, bias, eps, weight_offset, rounding,
          {dropout_p, seed_tensor, seed, offset}, {input, residual});
}

template <const kind& k>
std::tuple<Tensor, Tensor, Tensor> add_norm_train(const Tensor& input, const Tensor& residual,
                                                  maybe weight, maybe bias, double eps,
                                                  double weight_offset, int64_t rounding,
                                                  double dropout_p, maybe seed_tensor, int64_t seed,
                                                  int64_t offset) {
  Tensor y = empty_like(input);
  const optional_tensor h = empty_like(residual), statistics = empty_statistics(k, input);
  forward(k, input, residual, weight, bias, eps, weight_offset, rounding,
          {dropout_p, seed_tensor, seed, offset}, {y, h, statistics});
  return {y, *h, *statistics};
}

// The gradients that are asked for, in the order of the flags. `hidden` is what was normalised: the
// input, or h.
template <const kind& k>
std::vector<Tensor> backward(const Tensor& grad_output, const Tensor& hidden,
                             const Tensor& statistics, maybe weight, bool input, bool weight_too,
                             bool bias, double weight_offset, maybe grad_hidden, bool residual,
                             optional_dtype input_dtype, double dropout_p, maybe seed_tensor,
                             int64_t seed, int64_t offset) {
  const auto shape = shape_of(hidden);
  const auto columns = shape.empty() ? shape : shape.last(1);
  const dtype_code stream = dtype_of(hidden);
  const dtype_code parameter = weight ? dtype_of(*weight) : aoti_torch_dtype_float32();
  std::vector<Tensor> grads;
  const auto gradient = [&](bool wanted, std::span<const int64_t> sizes, dtype_code dtype) {
    if (!wanted) return optional_tensor();
    return optional_tensor(grads.emplace_back(empty(hidden, sizes, dtype)));
  };
  const optional_tensor x = gradient(input, shape, input_dtype.value_or(stream));
  const optional_tensor w = gradient(weight_too, columns, parameter);
  const optional_tensor b = gradient(bias, columns, parameter);
  const optional_tensor r = gradient(residual, shape, stream);

  const view h(hidden), dy(grad_output);
  const optional_view factor(weight), dh(grad_hidden), dx(x), dweight(w), dbias(b), d_residual(r);
  const optional_view seed_view(seed_tensor);
  const statistics_view saved(k, statistics);
  nf_norm_args args = {.weight = factor,
                       .residual_out = h,
                       .mean = saved.mean,
                       .rstd = saved.rstd,
                       .dy = dy,
                       .d_residual_out = dh,
                       .dx = dx,
                       .d_residual = d_residual,
                       .dweight = dweight,
                       .dbias = dbias,
                       .weight_offset = weight_offset,
                       .dropout_p = dropout_p,
                       .dropout_seed = {seed_view, seed},
                       .dropout_offset = {.value = offset}};
  int64_t bytes;
  check(k.workspace_size(&args, &bytes));
  const optional_tensor scratch = workspace(hidden, bytes);
  const optional_view bytes_of(scratch);
  args.workspace = bytes_of;
  check(k.backward(&args, stream_of(hidden)));
  return grads;
}

const std::string options =
    "Tensor? weight, Tensor? bias, float eps, float weight_offset=0.0, int rounding=0";
const std::string dropout_options =
    ", float dropout_p=0.0, Tensor? seed_tensor=None, int seed=0, int offset=0";

template <const kind& k>
struct norm_operators : operators {
  explicit norm_operators(const std::string& name)
      : operators{
            {name + "(Tensor input, " + options + ") -> Tensor", TORCH_BOX(&norm<k>)},
            {name + "_(Tensor(a!) input, " + options + ") -> ()", TORCH_BOX(&norm_<k>)},
            {name + "_train(Tensor input, " + options + ") -> (Tensor, Tensor)",
             TORCH_BOX(&norm_train<k>)},
            {"add_" + name + "(Tensor input, Tensor residual, " + options + dropout_options +
                 ") -> (Tensor, Tensor)",
             TORCH_BOX(&add_norm<k>)},
            {"add_" + name + "_(Tensor(a!) input, Tensor(b!) residual, " + options +
                 dropout_options + ") -> ()",
             TORCH_BOX(&add_norm_<k>)},
            {"add_" + name + "_train(Tensor input, Tensor residual, " + options + dropout_options +
                 ") -> (Tensor, Tensor, Tensor)",
             TORCH_BOX(&add_norm_train<k>)},
            {name +
                 "_backward(Tensor grad_output, Tensor hidden, Tensor statistics, "
                 "Tensor? weight, bool input_grad, bool weight_grad, bool bias_grad, "
                 "float weight_offset=0.0, Tensor? grad_hidden=None, "
                 "bool residual_grad=False, ScalarType? input_dtype=None" +
                 dropout_options + ") -> Tensor[]",
             TORCH_BOX(&backward<k>)},
        } {}
};
const norm_operators<rms> rms_operators("rms_norm");
const norm_operators<layer> layer_operators("layer_norm");

}  // namespace
}  // namespace ninefold::torch_door
