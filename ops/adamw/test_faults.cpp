// The cases of other libraries' bug reports, and what AdamW promises beyond one step's values:
// trajectories, skipped steps, clipping, stochastic rounding, lists cut in other ways.
#include <cstring>
#include <fstream>

#include "ops/adamw/test.hpp"

#ifdef NF_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace ninefold::adamw_test {
namespace {

class adamw_faults : public verify::on_each_device {
 protected:
  // Elements that are all alike, before the first step.
  parameter_list like(double p, double grad, int64_t n = 37, const kind& k = {}) const {
    parameter_list list = one_parameter(device(), k, n);
    list[0]->param.store(std::vector<double>(static_cast<size_t>(n), p));
    if (k.master) list[0]->master.store(std::vector<double>(static_cast<size_t>(n), p));
    list[0]->grad.store(std::vector<double>(static_cast<size_t>(n), grad));
    list[0]->clear_moments();
    return list;
  }
};
INSTANTIATE_TEST_SUITE_P(devices, adamw_faults, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// Bytes that a test may take.
double free_memory(DLDevice device) {
#ifdef NF_WITH_CUDA
  if (device.device_type == kDLCUDA) {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    return static_cast<double>(available);
  }
#endif
  (void)device;
  std::ifstream info("/proc/meminfo");
  std::string name, unit;
  for (double kilobytes; info >> name >> kilobytes >> unit;)
    if (name == "MemAvailable:") return kilobytes * 1024;
  return 0;
}

void clear(const tensor& t) {
  const DLTensor* const view = t;
  char* const at = static_cast<char*>(view->data) + view->byte_offset;
#ifdef NF_WITH_CUDA
  if (view->device.device_type == kDLCUDA) {
    cudaMemset(at, 0, static_cast<size_t>(t.bytes()));
    return;
  }
#endif
  std::memset(at, 0, static_cast<size_t>(t.bytes()));
}

// B31: a size kept in an int is negative here, and the loop over it never runs.
TEST_P(adamw_faults, b31_a_tensor_of_more_than_two_to_the_31_elements) {
  constexpr int64_t cols = 8, rows = (int64_t{1} << 28) + 1;
  // Parameter, gradient and moments, and as much again to spare.
  if (free_memory(device()) < 1.5 * 12 * static_cast<double>(rows * cols))
    GTEST_SKIP() << "needs 38 GiB of free memory";
  const layout where{{rows, cols}};
  tensor p(f32, where, device()), g(bf16, where, device()), m(bf16, where, device()),
      v(bf16, where, device());
  p.fill_normal(1);
  g.fill_normal(2);
  clear(m);
  clear(v);
  const std::vector<int64_t> looked_at{0, rows / 2, rows - 1};
  const std::vector<double> before = p.load_rows(looked_at), grad = g.load_rows(looked_at);
  const std::vector<double> zeros(before.size());
  const auto expected = reference::adamw_step({.moments = bf16}, before, grad, zeros, zeros);
  const nf_adamw_tensor all{p, g, m, v, nullptr, 0, 0};
  const nf_adamw_args args{.tensors = &all, .count = 1, .lr = {nullptr, 1e-3}};
  ASSERT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
  for (const auto& [out, right] :
       {std::pair{&p, &expected.p}, {&m, &expected.m}, {&v, &expected.v}}) {
    const auto got = out->load_rows(looked_at);
    EXPECT_TRUE(verify::compare(got, right->values, right->allowed).passed());
  }
  for (const double each : m.load_rows(looked_at)) EXPECT_NE(each, 0);
}

// The same arithmetic without the memory: sizes are asked for by addresses that nobody reads.
TEST_P(adamw_faults, b31_workspaces_of_large_tensors) {
  for (const int64_t n :
       {(int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{1} << 31) + 8, int64_t{3} << 33}) {
    const auto at = [&](uintptr_t place) {
      return ninefold::view(reinterpret_cast<void*>(place << 42), f32, {n}, {}, device());
    };
    const ninefold::view p = at(1), g = at(2), m = at(3), v = at(4);
    const nf_adamw_tensor two[] = {{p, g, m, v, nullptr, 0, 0}, {p, g, m, v, nullptr, 0, 0}};
    const nf_adamw_args args{.tensors = two, .count = 2, .max_grad_norm = 1};
    EXPECT_EQ(adamw_workspace_size(args), 128 + 2 * 8 * ((n + 3 + 16383) / 16384)) << n;
  }
}

// B32: a counter in bf16 stops at 256, and the correction stays wrong for ever.
TEST_P(adamw_faults, b32_a_thousand_steps_count_to_a_thousand) {
  tensor step(i64, {{}}, device());
  step.store(std::vector{0.0});
  for (const bool on_device : {false, true}) {
    const parameter_list list = like(1, 0.1);
    nf_adamw_args args{};
    args.lr.value = 1e-3;
    if (on_device) args.step.tensor = step;
    for (int64_t i = 0; i < 1000; ++i) {
      if (!on_device) args.step.value = i;
      ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
    }
    for (const double p : list[0]->param.load()) EXPECT_LT(std::abs(p), 1e-4);
  }
  EXPECT_EQ(step.load()[0], 1000);
}

// B33: eps added before the correction moves p by .0307.
TEST_P(adamw_faults, b33_eps_is_outside_the_corrected_root_and_decay_outside_the_gradient) {
  const parameter_list small = like(1, 1e-8);
  nf_adamw_args args{};
  args.lr.value = 1;
  ASSERT_EQ(run(small, args, device()), NF_OK) << nf_last_error();
  for (const double p : small[0]->param.load()) EXPECT_NEAR(p, 0.5, 1e-6);

  const parameter_list still = like(1, 0);
  still[0]->weight_decay = 0.1;
  args.lr.value = 0.1;
  ASSERT_EQ(run(still, args, device()), NF_OK) << nf_last_error();
  for (const double p : still[0]->param.load()) EXPECT_NEAR(p, 0.99, 1e-7);
  for (const double m : still[0]->m.load()) EXPECT_EQ(m, 0);
  for (const double v : still[0]->v.load()) EXPECT_EQ(v, 0);
}

// p is rounded once a step, so it may be off by steps * 2^-24 of its size and is by less; m and v
// forget their errors as they forget gradients.
TEST_P(adamw_faults, a_thousand_steps_track_float64) {
  constexpr int64_t n = 301;
  constexpr int steps = 1000;
  const parameter_list list = one_parameter(device(), {}, n);
  parameter& at = *list[0];
  at.clear_moments();
  at.weight_decay = 0.1;
  std::vector<double> p = at.param.load(), m(n), v(n);
  nf_adamw_args args{};
  args.lr.value = 1e-3;
  double largest = 1;
  for (int i = 0; i < steps; ++i) {
    at.grad.fill_normal(static_cast<uint64_t>(i) + 100);
    args.step.value = i;
    const auto next = reference::adamw_step({.lr = 1e-3, .step = i + 1, .weight_decay = 0.1}, p,
                                            at.grad.load(), m, v);
    p = next.p.values;
    m = next.m.values;
    v = next.v.values;
    for (const double each : p) largest = std::max(largest, std::abs(each));
    ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
  }
  const std::vector<double> got_p = at.param.load(), got_m = at.m.load(), got_v = at.v.load();
  double worst_p = 0, worst_m = 0, worst_v = 0;
  for (size_t i = 0; i < n; ++i) {
    worst_p = std::max(worst_p, std::abs(got_p[i] - p[i]));
    worst_m = std::max(worst_m, std::abs(got_m[i] - m[i]));
    worst_v = std::max(worst_v, std::abs(got_v[i] - v[i]) / v[i]);
  }
  RecordProperty("worst_p_over_bound", std::to_string(worst_p / (steps * verify::unit * largest)));
  EXPECT_LT(worst_p, steps * verify::unit * largest / 8);
  EXPECT_LT(worst_m, 8 * verify::unit);
  EXPECT_LT(worst_v, 64 * verify::unit);
}

// The start and the gradients of torch_trajectory.py, to the bit.
double torch_start(int64_t k, int64_t i) {
  return static_cast<double>((i * 7919 + k * 4801) % 2003 - 1001) / 1024;
}
double torch_gradient(int64_t k, int64_t i, int64_t step) {
  return static_cast<double>((i * 7919 + step * 10473 + k * 12997) % 2003 - 1001) / 16384;
}

TEST_P(adamw_faults, fifty_steps_are_pytorchs) {
  const std::vector<recorded> right = torch_trajectory();
  constexpr int64_t sizes[] = {7, 64, 33};
  constexpr double decays[] = {0.125, 0, 0.5}, scales[] = {1, 0.5, 2};
  parameter_list list;
  for (size_t k = 0; k < 3; ++k) {
    list.push_back(std::make_unique<parameter>(device(), kind{}, sizes[k], 1));
    list[k]->clear_moments();
    list[k]->weight_decay = decays[k];
    list[k]->lr_scale = scales[k];
    std::vector<double> p;
    for (int64_t i = 0; i < sizes[k]; ++i) p.push_back(torch_start(static_cast<int64_t>(k), i));
    list[k]->param.store(p);
  }
  nf_adamw_args args{};
  args.lr.value = 0.0078125;
  size_t compared = 0;
  for (int64_t step = 1; step <= 50; ++step) {
    for (size_t k = 0; k < 3; ++k) {
      std::vector<double> g;
      for (int64_t i = 0; i < sizes[k]; ++i)
        g.push_back(torch_gradient(static_cast<int64_t>(k), i, step));
      list[k]->grad.store(g);
    }
    args.step.value = step - 1;
    ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
    for (const recorded& r : right) {
      if (r.step != step) continue;
      SCOPED_TRACE("step " + std::to_string(step) + " tensor " + std::to_string(r.tensor));
      const auto p = list[r.tensor]->param.load(), m = list[r.tensor]->m.load(),
                 v = list[r.tensor]->v.load();
      ASSERT_EQ(p.size(), r.p.size());
      for (size_t i = 0; i < p.size(); ++i) {
        EXPECT_NEAR(p[i], r.p[i], 1e-6);
        EXPECT_NEAR(m[i], r.m[i], 1e-8);
        EXPECT_NEAR(v[i], r.v[i], 1e-6 * r.v[i]);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 4u * (7 + 64 + 33));
}

// What a step makes of a parameter does not depend on how it is cut, stochastic rounding included.
TEST_P(adamw_faults, a_tensor_cut_in_many_gives_the_same_bits) {
  constexpr int64_t n = 5003;
  for (const kind& k : all_kinds()) {
    SCOPED_TRACE(k.name());
    nf_adamw_args args{};
    args.lr.value = 0.01;
    args.stochastic_rounding = 1;
    args.seed.value = 3;
    const parameter_list whole = one_parameter(device(), k, n), cut = one_parameter(device(), k, n);
    ASSERT_EQ(run(whole, args, device()), NF_OK) << nf_last_error();

    // Views of one list of tensors, at places that no vector begins at.
    std::vector<std::unique_ptr<verify::spoilt>> parts;
    std::vector<nf_adamw_tensor> tensors;
    const auto part = [&](const DLTensor* of, int64_t from, int64_t to) -> const DLTensor* {
      if (!of) return nullptr;
      parts.push_back(std::make_unique<verify::spoilt>(of));
      DLTensor& view = parts.back()->view;
      view.shape[0] = to - from;
      view.byte_offset += static_cast<uint64_t>(from * (view.dtype.bits / 8));
      return &view;
    };
    const nf_adamw_tensor of = cut[0]->view();
    int64_t from = 0;
    for (const int64_t to : {1, 4, 9, 11, 11, 1030, 1031, 3333, 5000, 5003}) {
      tensors.push_back({part(of.param, from, to), part(of.grad, from, to), part(of.m, from, to),
                         part(of.v, from, to), part(of.master, from, to), 0, 0});
      from = to;
    }
    args.tensors = tensors.data();
    args.count = static_cast<int64_t>(tensors.size());
    ASSERT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
    EXPECT_TRUE(states(whole) == states(cut));
  }
}

TEST_P(adamw_faults, a_skipped_step_changes_nothing) {
  tensor found(f32, {{}}, device()), step(i64, {{}}, device()), norm(f32, {{}}, device());
  for (const std::string& rung : rungs(device()))
    for (const double flag : {1.0, -0.5, nan, verify::infinity, 0.0, -0.0}) {
      SCOPED_TRACE(rung + " " + std::to_string(flag));
      parameter_list list;
      for (const kind& k : all_kinds())
        list.push_back(std::make_unique<parameter>(device(), k, 2100, 4));
      const auto before = states(list);
      found.store(std::vector{flag});
      step.store(std::vector{41.0});
      norm.poison();
      nf_adamw_args args{};
      args.lr.value = 0.1;
      args.found_inf = found;
      args.step.tensor = step;
      args.grad_norm = norm;
      args.stochastic_rounding = 1;
      args.rung = rung.c_str();
      ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
      const bool skipped = flag != 0;
      EXPECT_EQ(states(list) == before, skipped);
      EXPECT_EQ(step.load()[0], skipped ? 41 : 42);
      EXPECT_NEAR(norm.load()[0], norm_of(list), 1e-5 * norm_of(list));
    }
}

// The mean over many elements is the exact value, where rounding to nearest would never move; each
// lands on one of the two neighbours; seed and offset make other draws.
TEST_P(adamw_faults, stochastic_rounding_is_unbiased_and_within_one_step) {
  constexpr int64_t n = 1 << 16;
  const kind k{.param = bf16};
  nf_adamw_args args{};
  args.stochastic_rounding = 1;
  args.lr.value = 0x1p-10;  // an eighth of a step of bf16 at 1
  const double exact = 1 - 0x1p-10, below = 1 - 0x1p-8;
  std::vector<std::vector<std::byte>> draws;
  for (const auto& [seed, offset] : {std::pair<int64_t, int64_t>{0, 0}, {1, 0}, {0, 1}, {-1, 5}}) {
    args.seed.value = seed;
    args.offset.value = offset;
    const parameter_list list = like(1, 0.5, n, k);
    ASSERT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
    double sum = 0;
    for (const double p : list[0]->param.load()) {
      ASSERT_TRUE(p == 1 || p == below) << p;
      sum += p;
    }
    // Of n draws with probability 1/4: five standard deviations.
    EXPECT_NEAR(sum / n, exact, 5 * (1 - below) * std::sqrt(0.25 * 0.75 / n));
    for (const auto& earlier : draws) EXPECT_FALSE(list[0]->param.snapshot() == earlier);
    draws.push_back(list[0]->param.snapshot());
  }
  // What bf16 holds stays: no gradient, no decay.
  const parameter_list still = like(1.25, 0, 1000, k);
  ASSERT_EQ(run(still, args, device()), NF_OK) << nf_last_error();
  for (const double p : still[0]->param.load()) EXPECT_EQ(p, 1.25);
}

TEST_P(adamw_faults, nothing_at_all) {
  nf_adamw_args args{};
  EXPECT_EQ(nf_adamw_step(&args, nullptr), NF_OK) << nf_last_error();
  EXPECT_EQ(verify::last_rung(), "none");
  parameter_list list;
  for (int i = 0; i < 3; ++i) list.push_back(std::make_unique<parameter>(device(), kind{}, 0, 1));
  EXPECT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
  EXPECT_EQ(verify::last_rung(), "none");
  // It is still a step, and nothing has the norm 0.
  tensor step(i64, {{}}, device()), norm(f32, {{}}, device());
  step.store(std::vector{8.0});
  args.step.tensor = step;
  args.grad_norm = norm;
  args.max_grad_norm = 1;
  EXPECT_EQ(run(list, args, device()), NF_OK) << nf_last_error();
  EXPECT_EQ(run({}, args, device()), NF_OK) << nf_last_error();
  EXPECT_EQ(step.load()[0], 10);
  EXPECT_EQ(norm.load()[0], 0);
}

}  // namespace
}  // namespace ninefold::adamw_test
