// What only CUDA has: graphs, streams, several devices.
#ifdef NF_WITH_CUDA
#include "ops/cross_entropy/test.hpp"
#include "verify/cuda_testing.hpp"

namespace ninefold::cross_entropy_test {
namespace {

class cross_entropy_cuda : public verify::on_cuda_stream {};

// Vocabularies that take each of the rungs by the library's own choice.
constexpr int64_t rung_vocabularies[] = {64, 2048, 16384, 131072, 700'000};

// A one-pass call with a mean that is counted, on tensors that stay.
struct mean_call {
  static constexpr int64_t rows = 5;
  tensor x, t, loss, work, d;
  std::vector<int64_t> targets;
  nf_cross_entropy_args args{};

  explicit mean_call(int64_t v, DLDevice device = verify::cuda_device)
      : x(bf16, {{rows, v}}, device),
        t(i64, {{rows}}, device),
        loss(f32, {{}}, device),
        work(u8, {{256}}, device),
        d(bf16, {{rows, v}}, device) {
    args.logits = x;
    args.targets = t;
    args.loss = loss;
    args.workspace = work;
    args.dlogits = d;
    refill(1);
  }
  void refill(uint64_t seed) {
    x.fill_normal(seed);
    targets = some_targets(rows, x.shape().back());
    targets[seed % rows] = -100;
    t.store(std::vector<double>(targets.begin(), targets.end()));
    loss.poison();
    d.poison();
  }
  void check() const {
    const auto expected =
        reference::cross_entropy({.classes = x.shape().back(), .type = bf16}, x.load(), targets);
    EXPECT_TRUE(verify::matches(loss, expected.loss));
    EXPECT_TRUE(verify::matches(d, expected.dlogits));
  }
};

TEST_F(cross_entropy_cuda, captured_calls_replay_on_new_data) {
  for (const int64_t v : rung_vocabularies) {
    SCOPED_TRACE(v);
    mean_call call(v);
    replay([&] { ninefold::cross_entropy_forward_backward(call.args, stream_); }, call.d,
           [&](uint64_t seed) { call.refill(seed); }, [&](uint64_t) { call.check(); });
  }
}

// B35: the targets arrive on a side stream behind a long fill; whoever runs elsewhere reads old
// ones.
TEST_F(cross_entropy_cuda, works_on_the_callers_stream) {
  for (const int64_t v : rung_vocabularies) {
    SCOPED_TRACE(v);
    mean_call call(v);
    tensor fresh(i64, {{mean_call::rows}}, verify::cuda_device);
    fresh.store(std::vector<double>(call.targets.begin(), call.targets.end()));
    for (int run = 0; run < 10; ++run) {
      call.t.store(std::vector<double>(mean_call::rows, 1));
      call.d.poison();
      run_behind_arrival({{&call.t, &fresh}},
                         [&] { ninefold::cross_entropy_forward_backward(call.args, stream_); });
      call.check();
      if (HasFailure()) break;
    }
  }
}

TEST_F(cross_entropy_cuda, allocates_nothing) {
  mean_call call(131072);
  expect_no_allocation([&] { ninefold::cross_entropy_forward_backward(call.args, stream_); });
}

TEST_F(cross_entropy_cuda, follows_the_tensors_device_not_the_current_one) {
  run_beside_the_current_device([](DLDevice second) {
    for (const int64_t v : rung_vocabularies) {
      const mean_call call(v, second);
      ninefold::cross_entropy_forward_backward(call.args);
      call.check();
    }
  });
}

}  // namespace
}  // namespace ninefold::cross_entropy_test
#endif
