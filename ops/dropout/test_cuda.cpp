// What only CUDA has: graphs, streams, several devices.
#ifdef NF_WITH_CUDA
#include "ops/dropout/test.hpp"
#include "verify/cuda_testing.hpp"

namespace ninefold::dropout_test {
namespace {

class dropout_cuda : public verify::on_cuda_stream {};

// Each with the rung that it is called by.
constexpr std::pair<const char*, int64_t> rung_sizes[] = {
    {"scalar", 3'001}, {"vector16", 100'003}, {"vector64", 1'000'003}};

// Forward with a residual, and backward, on tensors that stay. Seed and offset lie on the device.
struct step {
  tensor x, residual, y, dx, seed, offset;
  nf_dropout_args args{};

  explicit step(const char* rung, int64_t n, DLDevice device = verify::cuda_device)
      : x(bf16, {{n}}, device),
        residual(bf16, {{n}}, device),
        y(bf16, {{n}}, device),
        dx(bf16, {{n}}, device),
        seed(i64, {{}}, device),
        offset(i64, {{}}, device) {
    args.x = args.dy = x;
    args.residual = residual;
    args.y = y;
    args.dx = dx;
    args.p = 0.25;
    args.seed = {seed, 0};
    args.offset = {offset, 0};
    args.rung = rung;
    refill(1);
  }

  void run(nf_stream stream) const {
    ninefold::dropout(args, stream);
    ninefold::dropout_backward(args, stream);
  }
  void refill(uint64_t with) {
    x.fill_normal(with);
    residual.fill_normal(with + 10);
    seed.store(std::vector<double>{static_cast<double>(with)});
    offset.store(std::vector<double>{static_cast<double>(3 * with)});
    for (tensor* t : {&y, &dx}) t->poison();
  }
  void check(uint64_t with) const {
    const dropout_spec s{.p = 0.25, .seed = with, .offset = 3 * with, .type = bf16};
    EXPECT_TRUE(verify::matches(y, reference::dropout(s, x.load(), residual.load()))) << "y";
    EXPECT_TRUE(verify::matches(dx, reference::dropout(s, x.load()))) << "dx";
  }
};

// B29: a fresh mask with each replay, and the backward's is the forward's.
TEST_F(dropout_cuda, captured_calls_replay_with_new_data_and_new_masks) {
  for (const auto& [rung, n] : rung_sizes) {
    SCOPED_TRACE(rung);
    step s(rung, n);
    replay([&] { s.run(stream_); }, s.y, [&](uint64_t seed) { s.refill(seed); },
           [&](uint64_t seed) { s.check(seed); });
  }
}

// Only seed and offset change between the replays, and coming back to a seed repeats its mask.
TEST_F(dropout_cuda, a_replay_reads_the_seed_of_its_time) {
  for (const auto& [rung, n] : rung_sizes) {
    SCOPED_TRACE(rung);
    step s(rung, n);
    s.x.store(std::vector<double>(static_cast<size_t>(n), 1.0));
    s.residual.store(std::vector<double>(static_cast<size_t>(n), 0.0));
    std::vector<std::vector<double>> masks;
    const auto numbers = [&](uint64_t seed) {
      s.seed.store(std::vector<double>{static_cast<double>(seed)});
      s.offset.store(std::vector<double>{0.0});
      s.y.poison();
      s.dx.poison();
    };
    s.y.poison();
    for (int twice = 0; twice < 2; ++twice)
      replay([&] { s.run(stream_); }, s.y, numbers,
             [&](uint64_t) {
               masks.push_back(s.y.load());
               EXPECT_EQ(s.dx.load(), masks.back()) << "the backward's mask";
               s.y.poison();
             });
    ASSERT_EQ(masks.size(), 4u);
    EXPECT_NE(masks[0], masks[1]);
    EXPECT_EQ(masks[0], masks[2]);
    EXPECT_EQ(masks[1], masks[3]);
  }
}

// B35: the input arrives on a side stream behind a long fill; whoever runs elsewhere reads old
// data.
TEST_F(dropout_cuda, works_on_the_callers_stream) {
  for (const auto& [rung, n] : rung_sizes) {
    SCOPED_TRACE(rung);
    step s(rung, n);
    tensor fresh(bf16, {{n}}, verify::cuda_device);
    fresh.fill_normal(4);
    for (int run = 0; run < 5 && !HasFailure(); ++run) {
      s.refill(4);
      s.x.fill_normal(5);
      run_behind_arrival({{&s.x, &fresh}}, [&] { s.run(stream_); });
      s.check(4);
    }
  }
}

TEST_F(dropout_cuda, allocates_nothing) {
  for (const auto& [rung, n] : rung_sizes) {
    const step s(rung, n);
    expect_no_allocation([&] { s.run(stream_); });
  }
}

TEST_F(dropout_cuda, follows_the_tensors_device_not_the_current_one) {
  run_beside_the_current_device([](DLDevice second) {
    for (const auto& [rung, n] : rung_sizes) {
      const step s(rung, n, second);
      s.run(nullptr);
      s.check(1);
    }
  });
}

}  // namespace
}  // namespace ninefold::dropout_test
#endif
