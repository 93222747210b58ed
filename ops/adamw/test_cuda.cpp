// What only CUDA has: graphs, streams, several devices; and that it gives the CPU's bits.
#ifdef NF_WITH_CUDA
#include "ops/adamw/test.hpp"
#include "verify/cuda_testing.hpp"

namespace ninefold::adamw_test {
namespace {

class adamw_cuda : public verify::on_cuda_stream {};

// A list that stays, with everything on the device, and its clipped step.
struct step {
  parameter_list list;
  std::vector<nf_adamw_tensor> tensors;
  tensor lr, count, norm, work;
  nf_adamw_args args{};

  explicit step(DLDevice device = verify::cuda_device)
      : lr(f32, {{}}, device),
        count(i64, {{}}, device),
        norm(f32, {{}}, device),
        work(u8, {{1 << 16}}, device) {
    for (const int64_t n : {5, 2048, 70'001})
      for (const kind& k : all_kinds())
        list.push_back(std::make_unique<parameter>(device, k, n, static_cast<uint64_t>(n)));
    tensors = views(list);
    args.tensors = tensors.data();
    args.count = static_cast<int64_t>(tensors.size());
    args.lr.tensor = lr;
    args.step.tensor = count;
    args.offset.tensor = count;
    args.stochastic_rounding = 1;
    args.max_grad_norm = 1;
    args.grad_norm = norm;
    args.workspace = work;
    refill(1);
  }

  void refill(uint64_t seed) {
    for (const auto& p : list) {
      p->param.fill_normal(seed);
      p->master.fill_normal(seed);
      p->grad.fill_normal(seed + 1);
      p->clear_moments();
    }
    lr.store(std::vector{0.01 * static_cast<double>(seed)});
    count.store(std::vector{static_cast<double>(seed)});
    norm.poison();
  }
  void run(nf_stream stream) const { adamw_step(args, stream); }
  void check(uint64_t seed) const {
    EXPECT_EQ(count.load()[0], static_cast<double>(seed + 1));
    const double right = norm_of(list);
    EXPECT_NEAR(norm.load()[0], right, 1e-6 * right);
    for (const auto& p : list) {
      tensor old(p->of.master ? f32 : p->of.param, {{p->param.count()}});
      old.fill_normal(seed);
      const std::vector<double> zeros(static_cast<size_t>(old.count()));
      const adamw_spec spec{.lr = static_cast<float>(0.01 * static_cast<double>(seed)),
                            .step = static_cast<int64_t>(seed) + 1,
                            .grad_scale = reference::adamw_clip(right, 1),
                            .param = p->of.param,
                            .moments = p->of.moments,
                            .stochastic = p->of.stochastic()};
      const auto expected = reference::adamw_step(spec, old.load(), p->grad.load(), zeros, zeros);
      EXPECT_TRUE(verify::matches(p->m, expected.m)) << p->of.name();
      EXPECT_TRUE(verify::matches(p->v, expected.v)) << p->of.name();
      EXPECT_TRUE(verify::matches(p->param, expected.param)) << p->of.name();
    }
  }
};

// Each replay reads the learning rate and the count of its own time.
TEST_F(adamw_cuda, captured_steps_replay_with_new_numbers) {
  step s;
  replay([&] { s.run(stream_); }, s.norm, [&](uint64_t seed) { s.refill(seed); },
         [&](uint64_t seed) { s.check(seed); });
}

// B35: the gradients arrive on a side stream behind a long fill.
TEST_F(adamw_cuda, works_on_the_callers_stream) {
  step s;
  std::vector<tensor> fresh;
  for (const auto& p : s.list) {
    fresh.emplace_back(p->of.grad, layout{{p->grad.count()}}, verify::cuda_device);
    fresh.back().fill_normal(5);
  }
  for (int run = 0; run < 5 && !HasFailure(); ++run) {
    s.refill(4);
    std::vector<std::pair<const tensor*, const tensor*>> late;
    for (size_t i = 0; i < fresh.size(); ++i) late.emplace_back(&s.list[i]->grad, &fresh[i]);
    run_behind_arrival(late, [&] { s.run(stream_); });
    s.check(4);
  }
}

TEST_F(adamw_cuda, allocates_nothing) {
  const step s;
  expect_no_allocation([&] { s.run(stream_); });
}

// Every rounding is in one place, so without a norm the two backends agree to the bit.
TEST_F(adamw_cuda, gives_the_bits_of_the_cpu) {
  const auto after = [](DLDevice device) {
    parameter_list list;
    for (const kind& k : all_kinds()) {
      list.push_back(std::make_unique<parameter>(device, k, 10'001, 1));
      list.back()->weight_decay = 0.1;
      list.back()->lr_scale = 0.3;
    }
    nf_adamw_args args{};
    args.lr.value = 0.01;
    args.grad_scale.value = 0.37;
    args.stochastic_rounding = 1;
    args.seed.value = 11;
    for (const int64_t before : {0, 1, 2, 1000, 999'999}) {
      args.step.value = args.offset.value = before;
      EXPECT_EQ(run(list, args, device), NF_OK) << nf_last_error();
    }
    return states(list);
  };
  EXPECT_TRUE(after(cpu_device) == after(verify::cuda_device));
}

TEST_F(adamw_cuda, follows_the_tensors_device_not_the_current_one) {
  run_beside_the_current_device([](DLDevice second) {
    const step s(second);
    s.run(nullptr);
    s.check(1);
  });
}

}  // namespace
}  // namespace ninefold::adamw_test
#endif
