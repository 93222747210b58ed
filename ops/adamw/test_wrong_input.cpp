// Calls that must fail: the right status, a text that names the argument, and nothing written.
#include "ops/adamw/test.hpp"

namespace ninefold::adamw_test {
namespace {

using verify::spoilt;
using field = const DLTensor* nf_adamw_tensor::*;

class adamw_wrong_input : public verify::on_each_device {
 protected:
  static constexpr int64_t n = 6;
  parameter_list list;
  tensor lr{f32, {{}}, device()}, scale{f32, {{1}}, device()}, found{f32, {{}}, device()},
      norm{f32, {{}}, device()};
  tensor step{i64, {{}}, device()}, seed{i64, {{}}, device()}, offset{i64, {{}}, device()};
  tensor work{u8, {{4096}}, device()};
  std::vector<nf_adamw_tensor> tensors;

  void SetUp() override {
    const kind with_master{.param = bf16, .grad = bf16, .master = true};
    for (int i = 0; i < 3; ++i)
      list.push_back(
          std::make_unique<parameter>(device(), with_master, n, 1, layout{.shape = {2, 3}}));
    for (tensor* each : {&lr, &scale}) each->store(std::vector{0.5});
    found.store(std::vector{0.0});
    for (tensor* each : {&step, &seed, &offset}) each->store(std::vector{3.0});
    tensors = views(list);
  }

  // Every argument is given.
  nf_adamw_args good() const {
    nf_adamw_args args{};
    args.tensors = tensors.data();
    args.count = 3;
    args.lr.tensor = lr;
    args.grad_scale.tensor = scale;
    args.found_inf = found;
    args.grad_norm = norm;
    args.max_grad_norm = 1;
    args.step.tensor = step;
    args.seed.tensor = seed;
    args.offset.tensor = offset;
    args.stochastic_rounding = 1;
    args.workspace = work;
    return args;
  }

  static constexpr std::pair<const char*, field> fields[] = {{"param", &nf_adamw_tensor::param},
                                                             {"grad", &nf_adamw_tensor::grad},
                                                             {"m", &nf_adamw_tensor::m},
                                                             {"v", &nf_adamw_tensor::v},
                                                             {"master", &nf_adamw_tensor::master}};

  void fails(const nf_adamw_args& args, nf_status status,
             std::initializer_list<const char*> words) const {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(nf_adamw_step(&args, nullptr), status, words));
    EXPECT_TRUE(everything() == before) << "a failed call has written";
  }

  // Puts a spoilt copy in the place of each of the second parameter's tensors in turn.
  void each_tensor_fails(const std::function<bool(const std::string&, spoilt&)>& spoil,
                         nf_status status, const char* word = "") {
    const nf_adamw_tensor kept = tensors[1];
    for (const auto& [name, at] : fields) {
      SCOPED_TRACE(name);
      spoilt bad(kept.*at);
      if (!spoil(name, bad)) continue;
      tensors[1].*at = &bad.view;
      fails(good(), status, {"adamw: tensors[1].", name, word});
      tensors[1] = kept;
    }
  }

 private:
  std::vector<std::vector<std::byte>> everything() const {
    auto all = states(list);
    for (const auto& p : list) all.push_back(p->grad.snapshot());
    for (const tensor* each : {&lr, &scale, &found, &norm, &step, &seed, &offset, &work})
      all.push_back(each->snapshot());
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(devices, adamw_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(adamw_wrong_input, the_good_call_is_good) {
  const nf_adamw_args args = good();
  EXPECT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
}

TEST_P(adamw_wrong_input, null_arguments) {
  int64_t bytes = 0;
  nf_adamw_args args = good();
  EXPECT_TRUE(verify::fails(nf_adamw_step(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  EXPECT_TRUE(
      verify::fails(nf_adamw_workspace_size(nullptr, &bytes), NF_INVALID_ARGUMENT, {"args"}));
  EXPECT_TRUE(
      verify::fails(nf_adamw_workspace_size(&args, nullptr), NF_INVALID_ARGUMENT, {"bytes"}));
  args.tensors = nullptr;
  fails(args, NF_INVALID_ARGUMENT, {"tensors"});
  args = good();
  args.count = -1;
  fails(args, NF_INVALID_ARGUMENT, {"count"});
  args = good();
  args.workspace = nullptr;
  fails(args, NF_INVALID_ARGUMENT, {"workspace", "NULL"});
  for (const auto& [name, at] : fields) {
    if (std::string(name) == "master") continue;
    const nf_adamw_tensor kept = tensors[2];
    tensors[2].*at = nullptr;
    fails(good(), NF_INVALID_ARGUMENT, {"tensors[2].", name, "NULL"});
    tensors[2] = kept;
  }
}

TEST_P(adamw_wrong_input, data_shapes_and_strides) {
  each_tensor_fails(verify::without_data, NF_INVALID_ARGUMENT);
  each_tensor_fails(verify::of_negative_size, NF_INVALID_ARGUMENT);
  each_tensor_fails(
      [](const std::string& name, spoilt& bad) {
        std::swap(bad.shape[0], bad.shape[1]);
        bad.view.strides = nullptr;
        return name != "param";
      },
      NF_INVALID_ARGUMENT);
  each_tensor_fails(verify::of_rank_9, NF_UNSUPPORTED);
  for (const auto& [rows, cols] : {std::pair{4, 1}, {1, 2}, {0, 1}, {-3, 1}})
    each_tensor_fails(
        [&](const std::string&, spoilt& bad) {
          bad.strides[0] = rows;
          bad.strides[1] = cols;
          return true;
        },
        NF_UNSUPPORTED, "contiguous");
}

TEST_P(adamw_wrong_input, dtypes) {
  for (const DLDataType type :
       {DLDataType{kDLFloat, 64, 1}, {kDLInt, 16, 1}, {kDLFloat, 32, 4}, i32, u8})
    each_tensor_fails(
        [type](const std::string&, spoilt& bad) {
          bad.view.dtype = type;
          return true;
        },
        NF_UNSUPPORTED);
  each_tensor_fails(  // known ones, in the wrong place
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = f16;
        return name == "m" || name == "master";
      },
      NF_UNSUPPORTED, "expected");
  each_tensor_fails(
      [](const std::string& name, spoilt& bad) {
        bad.view.dtype = bf16;
        return name == "v";
      },
      NF_INVALID_ARGUMENT);
  // 16 bits alone would lose the updates; and a master beside fp32 is one too many.
  tensors[1].master = nullptr;
  nf_adamw_args args = good();
  args.stochastic_rounding = 0;
  fails(args, NF_UNSUPPORTED, {"tensors[1].param", "master", "stochastic_rounding"});
  const parameter half(device(), {.param = f16, .master = true}, n, 1);
  tensors[1] = half.view();
  tensors[1].master = nullptr;
  fails(good(), NF_UNSUPPORTED, {"tensors[1].param", "master", "fp16"});
  const parameter single(device(), {}, n, 1);
  tensors[1] = single.view();
  tensors[1].master = half.master;
  fails(good(), NF_INVALID_ARGUMENT, {"tensors[1].master", "fp32"});
}

TEST_P(adamw_wrong_input, devices) {
  each_tensor_fails(verify::on_vulkan, NF_UNSUPPORTED);
  each_tensor_fails(verify::on_a_missing_device, NF_UNAVAILABLE);
  if (on_cuda())
    each_tensor_fails(
        [](const std::string&, spoilt& bad) {
          bad.view.device = cpu_device;
          return true;
        },
        NF_INVALID_ARGUMENT);
}

TEST_P(adamw_wrong_input, options_out_of_range) {
  const auto refused = [&](const char* name, const std::function<double&(nf_adamw_args&)>& option,
                           std::initializer_list<double> values) {
    for (const double value : values) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(value));
      nf_adamw_args args = good();
      args.lr = {};
      args.grad_scale = {};
      option(args) = value;
      fails(args, NF_INVALID_ARGUMENT, {name});
      int64_t bytes = 0;
      EXPECT_TRUE(
          verify::fails(nf_adamw_workspace_size(&args, &bytes), NF_INVALID_ARGUMENT, {name}));
    }
  };
  using args_type = nf_adamw_args&;
  refused("beta1", [](args_type a) -> double& { return a.beta1; }, {-0.1, 1, 1.5, nan});
  refused("beta2", [](args_type a) -> double& { return a.beta2; }, {-0.1, 1, 1.5, nan});
  refused("eps", [](args_type a) -> double& { return a.eps; },
          {-1e-8, nan, verify::infinity, 1e39, 1e-60});
  refused("lr", [](args_type a) -> double& { return a.lr.value; }, {nan, verify::infinity});
  refused("grad_scale", [](args_type a) -> double& { return a.grad_scale.value; },
          {nan, -verify::infinity});
  refused("max_grad_norm", [](args_type a) -> double& { return a.max_grad_norm; }, {-1, nan});
  refused("weight_decay", [this](args_type) -> double& { return tensors[0].weight_decay; },
          {-0.1, nan, verify::infinity});
  tensors[0].weight_decay = 0;
  refused("lr_scale", [this](args_type) -> double& { return tensors[0].lr_scale; },
          {-1, nan, verify::infinity});
  tensors[0].lr_scale = 0;
  nf_adamw_args args = good();
  args.step = {nullptr, -1};
  fails(args, NF_INVALID_ARGUMENT, {"step"});
  for (const int value : {-1, 2}) {
    args = good();
    args.stochastic_rounding = value;
    fails(args, NF_INVALID_ARGUMENT, {"stochastic_rounding"});
  }
  for (const char* rung : {"", "fast", "%s%n"}) {
    args = good();
    args.rung = rung;
    fails(args, NF_UNSUPPORTED, {"rung", rung});
  }
}

TEST_P(adamw_wrong_input, numbers_of_the_wrong_kind) {
  const tensor two(f32, {{2}}, device()), two_whole(i64, {{2}}, device()),
      narrow(i32, {{}}, device()), half(f16, {{}}, device());
  using place = std::function<const DLTensor*&(nf_adamw_args&)>;
  const std::pair<const char*, place> real[] = {
      {"lr", [](nf_adamw_args& a) -> const DLTensor*& { return a.lr.tensor; }},
      {"grad_scale", [](nf_adamw_args& a) -> const DLTensor*& { return a.grad_scale.tensor; }},
      {"found_inf", [](nf_adamw_args& a) -> const DLTensor*& { return a.found_inf; }},
      {"grad_norm", [](nf_adamw_args& a) -> const DLTensor*& { return a.grad_norm; }}};
  const std::pair<const char*, place> whole[] = {
      {"step", [](nf_adamw_args& a) -> const DLTensor*& { return a.step.tensor; }},
      {"seed", [](nf_adamw_args& a) -> const DLTensor*& { return a.seed.tensor; }},
      {"offset", [](nf_adamw_args& a) -> const DLTensor*& { return a.offset.tensor; }}};
  const auto refused = [&](const auto& list_of, const tensor& many, const tensor& other) {
    for (const auto& [name, at] : list_of) {
      SCOPED_TRACE(name);
      nf_adamw_args args = good();
      at(args) = many;
      fails(args, NF_INVALID_ARGUMENT, {name, "one element"});
      at(args) = other;
      fails(args, NF_UNSUPPORTED, {name});
    }
  };
  refused(real, two, half);
  refused(whole, two_whole, narrow);
}

TEST_P(adamw_wrong_input, workspaces) {
  nf_adamw_args args = good();
  int64_t bytes = 0;
  ASSERT_EQ(nf_adamw_workspace_size(&args, &bytes), NF_OK);
  EXPECT_EQ(bytes, 128 + 3 * 8);
  const tensor small(u8, {{bytes - 1}}, device()), off(u8, {{bytes}, {}, 4}, device()),
      exact(u8, {{bytes}}, device()), apart(u8, {{bytes}, {2}}, device());
  args.workspace = small;
  fails(args, NF_INVALID_ARGUMENT, {"workspace", std::to_string(bytes).c_str()});
  args.workspace = off;
  fails(args, NF_INVALID_ARGUMENT, {"workspace", "16"});
  args.workspace = apart;
  fails(args, NF_INVALID_ARGUMENT, {"workspace", "contiguous"});
  args.workspace = lr;
  fails(args, NF_INVALID_ARGUMENT, {"workspace", "rank"});
  args.workspace = exact;
  EXPECT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
  EXPECT_TRUE(exact.canaries_intact());
  // No norm: only the step's numbers. And all of them by value: nothing.
  args.grad_norm = nullptr;
  args.max_grad_norm = 0;
  ASSERT_EQ(nf_adamw_workspace_size(&args, &bytes), NF_OK);
  EXPECT_EQ(bytes, 128);
  args.lr = args.grad_scale = {};
  args.step = args.seed = args.offset = {};
  args.found_inf = args.workspace = nullptr;
  ASSERT_EQ(nf_adamw_workspace_size(&args, &bytes), NF_OK);
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
}

TEST_P(adamw_wrong_input, overlaps) {
  const std::vector<nf_adamw_tensor> kept = tensors;
  const auto over = [&](const char* first, const char* second) {
    SCOPED_TRACE(std::string(first) + " over " + second);
    fails(good(), NF_INVALID_ARGUMENT, {first, "overlaps", second});
    tensors = kept;
  };
  tensors[2].v = tensors[2].m;
  over("tensors[2].m", "tensors[2].v");
  tensors[2].master = tensors[0].master;
  over("tensors[2].master", "tensors[0].master");
  tensors[1].grad = tensors[2].param;
  over("tensors[1].grad", "tensors[2].param");
  tensors[1] = tensors[0];  // one parameter, twice
  over("tensors[1].", "tensors[0].");
  // Half of one lies over another.
  spoilt shifted(tensors[0].m);
  shifted.view.byte_offset += 4 * n / 2;
  tensors[0].v = &shifted.view;
  over("tensors[0].m", "tensors[0].v");
  nf_adamw_args args = good();
  args.grad_norm = lr;
  fails(args, NF_INVALID_ARGUMENT, {"grad_norm", "overlaps", "lr"});
  args = good();
  args.seed.tensor = args.offset.tensor;  // only read
  EXPECT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
  tensors[1].grad = tensors[0].grad;  // only read
  EXPECT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
}

}  // namespace
}  // namespace ninefold::adamw_test
