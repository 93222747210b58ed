// Values: one step against the float64 reference, over dtypes, sizes, alignments, lists and
// options.
#include "ops/adamw/test.hpp"

namespace ninefold::adamw_test {
namespace {

class adamw : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, adamw, testing::ValuesIn(verify::devices()), verify::device_name);

TEST(adamw_on_cuda, is_tested_or_the_reason_is_told) {
  if (!verify::cuda_present())
    GTEST_SKIP() << "no CUDA in this build, or no device here: only the CPU tests have run";
}

// Nothing at its default.
nf_adamw_args options() {
  nf_adamw_args args{};
  args.lr.value = 0.0125;
  args.beta1 = 0.8;
  args.beta2 = 0.95;
  args.eps = 1e-6;
  args.step.value = 6;
  args.grad_scale.value = 0.25;
  args.stochastic_rounding = 1;
  args.seed.value = 0x123456789abcd;
  args.offset.value = (int64_t{5} << 32) + 17;
  return args;
}
adamw_spec spec_of_options() {
  return {.lr = 0.0125, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .step = 7, .grad_scale = 0.25};
}

// Every tail of a vector, of a warp's share, of a block's and of a piece.
std::vector<int64_t> sizes() {
  std::vector<int64_t> n{0};
  for (int64_t i = 1; i <= 140; i += verify::sanitized && i >= 70 ? 17 : 1) n.push_back(i);
  for (const int64_t i :
       {255, 768, 1023, 1025, 2047, 2048, 2049, 4095, 6145, 16383, 16384, 16385, 16388, 40001})
    n.push_back(i);
  return n;
}

TEST_P(adamw, every_dtype_and_size_in_one_list) {
  for (const kind& k : all_kinds()) {
    SCOPED_TRACE(k.name());
    parameter_list list;
    uint64_t seed = 1;
    for (const int64_t n : sizes()) {
      list.push_back(std::make_unique<parameter>(device(), k, n, seed += 10));
      list.back()->weight_decay = n % 3 == 0 ? 0 : 0.1;
      list.back()->lr_scale = n % 4 == 0 ? 0 : 0.5 + static_cast<double>(n % 5);
    }
    check_step(list, spec_of_options(), options(), device());
    if (HasFailure()) return;
  }
}

// All tensors off by the same elements, so that vectors can be aligned, and by unlike ones.
TEST_P(adamw, misaligned_bases) {
  for (const kind& k : all_kinds())
    for (const int64_t offset : {1, 2, 3, 5})
      for (const int64_t grad_offset : {int64_t{0}, offset, offset + 1}) {
        SCOPED_TRACE(k.name() + " off by " + std::to_string(offset) + " and " +
                     std::to_string(grad_offset));
        parameter_list list;
        for (const int64_t n : {1, 2, 3, 4, 7, 100, 2047, 2048, 5001})
          list.push_back(std::make_unique<parameter>(
              device(), k, n, 3 * n, layout{.shape = {}, .offset = offset}, grad_offset));
        check_step(list, spec_of_options(), options(), device());
        if (HasFailure()) return;
      }
}

TEST_P(adamw, kinds_mixed_in_one_list) {
  parameter_list list;
  uint64_t seed = 1;
  for (int round = 0; round < 2; ++round)
    for (const kind& k : all_kinds())
      list.push_back(std::make_unique<parameter>(device(), k, 777 + round, seed += 10));
  check_step(list, spec_of_options(), options(), device());
}

// Longer than what one launch takes.
TEST_P(adamw, long_lists) {
  for (const int64_t count : {159, 160, 161, 500}) {
    SCOPED_TRACE(count);
    parameter_list list;
    for (int64_t i = 0; i < count; ++i)
      list.push_back(std::make_unique<parameter>(device(), kind{}, i * 37 % 311, 10 * i));
    nf_adamw_args args = options();
    args.max_grad_norm = 3;
    adamw_spec spec = spec_of_options();
    spec.grad_scale *= reference::adamw_clip(norm_of(list, 0.25), 3);
    check_step(list, spec, args, device());
  }
}

TEST_P(adamw, shapes_of_every_rank) {
  parameter_list list;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1}, {3, 5}, {2, 1, 7}, {1, 2, 1, 3, 1, 1, 2, 5}, {4, 0, 3}})
    list.push_back(std::make_unique<parameter>(device(), kind{}, verify::count_of(shape), 5,
                                               layout{.shape = shape}));
  check_step(list, spec_of_options(), options(), device());
  tensor p(f32, {{}}, device()), g(f32, {{}}, device()), m(f32, {{}}, device()),
      v(f32, {{}}, device());
  for (tensor* each : {&p, &g, &m, &v}) each->store(std::vector{1.0});
  const nf_adamw_tensor scalar{p, g, m, v, nullptr, 0, 0};
  nf_adamw_args args{.tensors = &scalar, .count = 1};
  EXPECT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
}

// One at a time, so that none leans on another; and what zero means.
TEST_P(adamw, each_option_alone) {
  const auto with = [&](const char* name, const std::function<void(nf_adamw_args&)>& ask,
                        const std::function<void(adamw_spec&)>& expect) {
    SCOPED_TRACE(name);
    parameter_list list;
    list.push_back(std::make_unique<parameter>(device(), kind{}, 1001, 5));
    nf_adamw_args args{};
    args.lr.value = 1e-3;
    adamw_spec spec{};
    ask(args);
    expect(spec);
    check_step(list, spec, args, device());
  };
  const auto nothing = [](auto&) {};
  with("defaults", nothing, nothing);
  with(
      "lr 0", [](nf_adamw_args& a) { a.lr.value = 0; }, [](adamw_spec& s) { s.lr = 0; });
  with(
      "lr below 0", [](nf_adamw_args& a) { a.lr.value = -1; }, [](adamw_spec& s) { s.lr = -1; });
  with(
      "beta1", [](nf_adamw_args& a) { a.beta1 = 0.5; }, [](adamw_spec& s) { s.beta1 = 0.5; });
  with(
      "beta1 of 0", [](nf_adamw_args& a) { a.beta1 = 1e-300; }, [](adamw_spec& s) { s.beta1 = 0; });
  with(
      "beta2", [](nf_adamw_args& a) { a.beta2 = 0.5; }, [](adamw_spec& s) { s.beta2 = 0.5; });
  with(
      "beta2 of 0", [](nf_adamw_args& a) { a.beta2 = 1e-300; }, [](adamw_spec& s) { s.beta2 = 0; });
  with(
      "beta2 near 1", [](nf_adamw_args& a) { a.beta2 = 0.999999; },
      [](adamw_spec& s) { s.beta2 = 0.999999; });
  with(
      "eps", [](nf_adamw_args& a) { a.eps = 0.1; }, [](adamw_spec& s) { s.eps = 0.1; });
  with(
      "grad_scale", [](nf_adamw_args& a) { a.grad_scale.value = 1.0 / 1024; },
      [](adamw_spec& s) { s.grad_scale = 1.0 / 1024; });
  with(
      "step", [](nf_adamw_args& a) { a.step.value = 41; }, [](adamw_spec& s) { s.step = 42; });
  with(
      "step 1,000,000", [](nf_adamw_args& a) { a.step.value = 999'999; },
      [](adamw_spec& s) { s.step = 1'000'000; });
  with(
      "the last step of all", [](nf_adamw_args& a) { a.step.value = INT64_MAX; },
      [](adamw_spec& s) { s.step = INT64_MAX; });
  with(
      "clipping that does not clip", [](nf_adamw_args& a) { a.max_grad_norm = 1e9; }, nothing);
  with(
      "clipping to infinity", [](nf_adamw_args& a) { a.max_grad_norm = verify::infinity; },
      nothing);
}

TEST_P(adamw, numbers_on_the_device_are_those_given_by_value) {
  for (const std::string& rung : rungs(device())) {
    SCOPED_TRACE(rung);
    tensor lr(f32, {{}}, device()), scale(f32, {{1}}, device()), found(f32, {{1, 1}}, device());
    tensor step(i64, {{}}, device()), seed(i64, {{1}}, device()), offset(i64, {{}}, device());
    lr.store(std::vector{0.0125});
    scale.store(std::vector{0.25});
    found.store(std::vector{0.0});
    step.store(std::vector{6.0});
    seed.store(std::vector{77.0});
    offset.store(std::vector{88.0});
    const auto make = [&] {
      parameter_list list;
      for (const kind& k : all_kinds())
        list.push_back(std::make_unique<parameter>(device(), k, 3001, 5));
      return list;
    };
    nf_adamw_args by_value = options();
    by_value.lr.value = static_cast<float>(0.0125);
    by_value.seed.value = 77;
    by_value.offset.value = 88;
    by_value.rung = rung.c_str();
    nf_adamw_args by_address = by_value;
    by_address.lr = {lr, 0};
    by_address.grad_scale = {scale, 0};
    by_address.found_inf = found;
    by_address.step = {step, 0};
    by_address.seed = {seed, 0};
    by_address.offset = {offset, 0};
    const parameter_list a = make(), b = make();
    for (const double done : {7.0, 8.0}) {
      ASSERT_EQ(run(a, by_value, device()), NF_OK) << nf_last_error();
      ASSERT_EQ(run(b, by_address, device()), NF_OK) << nf_last_error();
      EXPECT_TRUE(states(a) == states(b)) << "after step " << done;
      EXPECT_EQ(step.load()[0], done);
      ++by_value.step.value;
    }
    EXPECT_EQ(verify::last_rung(), rung);
    // The step may be the offset too.
    by_value.offset.value = by_value.step.value;
    by_address.offset = {step, 0};
    ASSERT_EQ(run(a, by_value, device()), NF_OK) << nf_last_error();
    ASSERT_EQ(run(b, by_address, device()), NF_OK) << nf_last_error();
    EXPECT_TRUE(states(a) == states(b));
  }
}

// With a little of everything, by each rung; without a norm they agree bit for bit.
TEST_P(adamw, every_rung_by_name) {
  const auto names = rungs(device());
  EXPECT_GE(names.size(), 2u);
  std::vector<std::vector<std::byte>> first;
  for (const std::string& rung : names) {
    SCOPED_TRACE(rung);
    parameter_list list;
    for (const kind& k : all_kinds()) {
      list.push_back(std::make_unique<parameter>(device(), k, 2500, 9));
      list.back()->weight_decay = 0.1;
    }
    nf_adamw_args args = options();
    args.rung = rung.c_str();
    check_step(list, spec_of_options(), args, device());
    EXPECT_EQ(verify::last_rung(), rung);
    if (first.empty()) first = states(list);
    EXPECT_TRUE(states(list) == first) << "the rungs differ";
    args.max_grad_norm = 2;
    adamw_spec spec = spec_of_options();
    spec.grad_scale *= reference::adamw_clip(norm_of(list, 0.25), 2);
    check_step(list, spec, args, device());
  }
}

TEST(adamw_environment, every_instruction_set_is_right) {
  for (const char* isa : {"SSE4", "AVX2", "AVX3", "SSE2"}) {
    const std::string environment = std::string("NF_CPU_ISA=") + isa;
    const auto probe = verify::run_again(environment, "devices/adamw.shapes_of_every_rank/cpu");
    if (probe.output.find("NF_CPU_ISA") != std::string::npos) continue;  // this CPU lacks it
    const auto result = verify::run_again(
        environment, "devices/adamw.every_rung*/cpu:devices/adamw_faults.a_tensor_cut*/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

TEST(adamw_environment, a_rung_from_the_environment_is_taken) {
  const auto result =
      verify::run_again("NF_RUNG=adamw:scalar", "adamw_environment.DISABLED_tells_its_rung");
  EXPECT_NE(result.output.find("adamw step cpu rung=scalar"), std::string::npos) << result.output;
}

TEST(adamw_environment, DISABLED_tells_its_rung) {
  parameter_list list;
  list.push_back(std::make_unique<parameter>(cpu_device, kind{}, 8, 1));
  ASSERT_EQ(run(list, {}, cpu_device), NF_OK);
  std::printf("%s\n", nf_last_launch());
}

}  // namespace
}  // namespace ninefold::adamw_test
