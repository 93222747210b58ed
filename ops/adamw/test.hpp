// How AdamW's tests call it: a list of parameters that own their tensors, and one step that is held
// against the reference with everything else that a call owes.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/adamw/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::adamw_test {

using reference::adamw_spec;
using verify::layout;
using verify::tensor;

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// The dtypes of one parameter's tensors.
struct kind {
  DLDataType param = f32, grad = f32, moments = f32;
  bool master = false;

  bool stochastic() const { return param.bits == 16 && !master; }
  std::string name() const {
    return verify::name_of(param) +
           (master         ? "+master"
            : stochastic() ? " stochastic"
                           : "") +
           " grad " + verify::name_of(grad) + " moments " + verify::name_of(moments);
  }
};

inline std::vector<kind> all_kinds() {
  std::vector<kind> kinds;
  for (const DLDataType grad : {f32, f16, bf16})
    for (const DLDataType moments : {f32, bf16})
      for (const auto& [param, master] :
           {std::pair{f32, false}, {f16, true}, {bf16, true}, {bf16, false}})
        kinds.push_back({param, grad, moments, master});
  return kinds;
}

// One parameter's tensors, random, v positive. Offsets misalign the data, by element.
struct parameter {
  kind of;
  tensor param, grad, m, v, master;
  double weight_decay = 0, lr_scale = 0;

  parameter(DLDevice device, const kind& k, int64_t n, uint64_t seed, layout where = {},
            int64_t grad_offset = 0)
      : of(k),
        param(k.param, at(where, n, where.offset), device),
        grad(k.grad, at(where, n, grad_offset), device),
        m(k.moments, at(where, n, where.offset), device),
        v(k.moments, at(where, n, where.offset), device),
        master(f32, k.master ? at(where, n, where.offset) : layout{{0}}, device) {
    param.fill_normal(seed);
    grad.fill_normal(seed + 1);
    m.fill_normal(seed + 2);
    std::vector<double> squares = verify::normal(n, seed + 3);
    for (double& each : squares) each = each * each + 0.01;
    v.store(squares);
    if (k.master) {
      master.fill_normal(seed);
      param.poison();  // it is written only
    }
  }

  // Before the first step.
  void clear_moments() {
    const std::vector<double> zeros(static_cast<size_t>(m.count()));
    m.store(zeros);
    v.store(zeros);
  }
  nf_adamw_tensor view() const {
    return {param,        grad,    m, v, of.master ? static_cast<const DLTensor*>(master) : nullptr,
            weight_decay, lr_scale};
  }
  const tensor& exact() const { return of.master ? master : param; }
  bool canaries_intact() const {
    return param.canaries_intact() && grad.canaries_intact() && m.canaries_intact() &&
           v.canaries_intact() && master.canaries_intact();
  }
  // What a step may change, and what it may not.
  std::vector<std::vector<std::byte>> state() const {
    return {param.snapshot(), m.snapshot(), v.snapshot(), master.snapshot()};
  }

 private:
  static layout at(const layout& where, int64_t n, int64_t offset) {
    return {where.shape.empty() ? std::vector<int64_t>{n} : where.shape, where.strides, offset};
  }
};

using parameter_list = std::vector<std::unique_ptr<parameter>>;

inline parameter_list one_parameter(DLDevice device, const kind& k, int64_t n, uint64_t seed = 1) {
  parameter_list list;
  list.push_back(std::make_unique<parameter>(device, k, n, seed));
  return list;
}

inline std::vector<nf_adamw_tensor> views(const parameter_list& list) {
  std::vector<nf_adamw_tensor> out;
  for (const auto& p : list) out.push_back(p->view());
  return out;
}

// One step of the list, with the workspace that it needs.
inline nf_status run(const parameter_list& list, nf_adamw_args args, DLDevice device,
                     nf_stream stream = nullptr) {
  const std::vector<nf_adamw_tensor> tensors = views(list);
  args.tensors = tensors.data();
  args.count = static_cast<int64_t>(tensors.size());
  int64_t bytes = 0;
  if (const nf_status status = nf_adamw_workspace_size(&args, &bytes)) return status;
  const tensor workspace(u8, {{bytes}}, device);
  if (bytes > 0) args.workspace = workspace;
  const nf_status status = nf_adamw_step(&args, stream);
  EXPECT_TRUE(workspace.canaries_intact());
  return status;
}

// The bits that the list holds.
inline std::vector<std::vector<std::byte>> states(const parameter_list& list) {
  std::vector<std::vector<std::byte>> out;
  for (const auto& p : list)
    for (auto& each : p->state()) out.push_back(std::move(each));
  return out;
}

inline double norm_of(const parameter_list& list, double grad_scale = 1) {
  double sum = 0;
  for (const auto& p : list)
    for (const double g : p->grad.load()) sum += g * g;
  return std::abs(grad_scale) * std::sqrt(sum);
}

// One step against the reference: `spec` has the step's options, the parameters their own.
// `args` must ask for the same.
inline void check_step(const parameter_list& list, adamw_spec spec, const nf_adamw_args& args,
                       DLDevice device) {
  std::vector<reference::adamw_result> expected;
  std::vector<std::vector<std::byte>> gradients;
  for (const auto& p : list) {
    spec.weight_decay = p->weight_decay;
    spec.lr_scale = p->lr_scale == 0 ? 1 : p->lr_scale;
    spec.param = p->of.param;
    spec.moments = p->of.moments;
    spec.master = p->of.master;
    spec.stochastic = p->of.stochastic();
    expected.push_back(
        reference::adamw_step(spec, p->exact().load(), p->grad.load(), p->m.load(), p->v.load()));
    gradients.push_back(p->grad.snapshot());
  }
  ASSERT_EQ(run(list, args, device), NF_OK) << nf_last_error();
  for (size_t i = 0; i < list.size(); ++i) {
    SCOPED_TRACE("tensor " + std::to_string(i) + " " + list[i]->of.name());
    const parameter& p = *list[i];
    EXPECT_TRUE(verify::matches(p.m, expected[i].m)) << "m";
    EXPECT_TRUE(verify::matches(p.v, expected[i].v)) << "v";
    EXPECT_TRUE(verify::matches(p.param, expected[i].param)) << "param";
    if (p.of.master) {
      EXPECT_TRUE(verify::matches(p.master, expected[i].p)) << "master";
      // And param is the master, rounded to nearest.
      const std::vector<double> master = p.master.load(), param = p.param.load();
      for (size_t j = 0; j < master.size(); ++j)
        ASSERT_EQ(param[j], verify::rounded(p.of.param, master[j])) << j;
    }
    EXPECT_TRUE(p.canaries_intact());
    EXPECT_TRUE(p.grad.snapshot() == gradients[i]) << "a gradient was written";
  }
}

// What PyTorch made of one tensor by one step (test_torch.cpp, written by torch_trajectory.py).
struct recorded {
  int64_t step;
  size_t tensor;
  std::vector<double> p, m, v;
};
std::vector<recorded> torch_trajectory();

// The rungs of a device, from the message that refuses any other.
inline std::vector<std::string> rungs(DLDevice device) {
  nf_adamw_args args{};
  args.rung = "?";
  EXPECT_EQ(run(one_parameter(device, {}, 1), args, device), NF_UNSUPPORTED);
  std::string text = nf_last_error();
  text = text.substr(text.find("there are ") + 10);
  std::vector<std::string> names;
  for (size_t comma; (comma = text.find(", ")) != std::string::npos; text = text.substr(comma + 2))
    names.push_back(text.substr(0, comma));
  names.push_back(text);
  return names;
}

}  // namespace ninefold::adamw_test
