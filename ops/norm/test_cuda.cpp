// What only CUDA has: graphs, streams, several devices.
#ifdef NF_WITH_CUDA
#include "ops/norm/test.hpp"
#include "verify/cuda_testing.hpp"

namespace ninefold::norm_test {
namespace {

class norm_cuda : public verify::on_cuda_stream {};

// Widths that take each of the rungs by the library's own choice.
constexpr int64_t rung_widths[] = {64, 768, 8192, 32768, 200'001};

// LayerNorm of residual + dropout(x), forward and backward, on tensors that stay. Seed and offset
// lie on the device.
struct step {
  static constexpr int64_t rows = 5;
  layout where;
  tensor x, residual, h, y, mean, rstd, dx, weight, dweight, seed, offset, work;
  nf_norm_args forward{}, backward{};

  explicit step(int64_t n, DLDevice device = verify::cuda_device)
      : where{{rows, n}},
        x(bf16, where, device),
        residual(bf16, where, device),
        h(bf16, where, device),
        y(bf16, where, device),
        mean(f32, {{rows}}, device),
        rstd(f32, {{rows}}, device),
        dx(bf16, where, device),
        weight(bf16, {{n}}, device),
        dweight(bf16, {{n}}, device),
        seed(i64, {{}}, device),
        offset(i64, {{}}, device),
        work(sized(n, device)) {
    weight.fill_normal(1);
    forward.x = x;
    forward.residual = residual;
    forward.residual_out = h;
    forward.weight = weight;
    forward.y = y;
    forward.mean = mean;
    forward.rstd = rstd;
    forward.dropout_p = 0.25;
    forward.dropout_seed = {seed, 0};
    forward.dropout_offset = {offset, 0};
    backward = forward;
    backward.x = backward.residual = backward.y = nullptr;
    backward.dy = x;
    backward.dx = dx;
    backward.dweight = dweight;
    backward.workspace = work;
    refill(1);
  }

  void run(nf_stream stream) const {
    layer_norm(forward, stream);
    layer_norm_backward(backward, stream);
  }
  void refill(uint64_t with) {
    x.fill_normal(with);
    residual.fill_normal(with + 10);
    seed.store(std::vector<double>{static_cast<double>(with)});
    offset.store(std::vector<double>{static_cast<double>(3 * with)});
    for (tensor* t : {&h, &y, &mean, &rstd, &dx, &dweight}) t->poison();
  }
  void check(uint64_t with) const {
    const reference::norm_spec spec{.layer = true,
                                    .dropout_p = 0.25,
                                    .seed = with,
                                    .offset = 3 * with,
                                    .x = bf16,
                                    .y = bf16,
                                    .stream = bf16,
                                    .weight_gradient = bf16,
                                    .weight = weight.load()};
    const auto in = reference::norm_input(spec, x.load(), residual.load());
    const int64_t n = where.shape.back();
    EXPECT_TRUE(verify::matches(h, expectation{in, std::vector<double>(in.size())})) << "h";
    EXPECT_TRUE(verify::matches(y, reference::norm_forward(spec, in, n, rows).y)) << "y";
    const auto gradients = reference::norm_backward(spec, in, x.load(), {}, n, rows);
    EXPECT_TRUE(verify::matches(dx, gradients.dx)) << "dx";
    EXPECT_TRUE(verify::matches(dweight, reference::weight_gradient(spec, gradients.dweight, {})))
        << "dweight";
  }

 private:
  static tensor sized(int64_t n, DLDevice device) {
    const layout where{{rows, n}};
    const tensor like(bf16, where, device), weight(bf16, {{n}}, device), sums(bf16, {{n}}, device),
        per_row(f32, {{rows}}, device);
    nf_norm_args args{};
    args.residual_out = args.dy = args.dx = like;
    args.mean = args.rstd = per_row;
    args.weight = weight;
    args.dweight = sums;
    args.dropout_p = 0.25;
    return tensor(u8, {{layer_norm_workspace_size(args)}}, device);
  }
};

// A fresh mask with each replay, and the backward's is the forward's.
TEST_F(norm_cuda, captured_calls_replay_with_new_data_and_new_masks) {
  for (const int64_t n : rung_widths) {
    SCOPED_TRACE(n);
    step s(n);
    replay([&] { s.run(stream_); }, s.y, [&](uint64_t seed) { s.refill(seed); },
           [&](uint64_t seed) { s.check(seed); });
  }
}

// B35: the input arrives on a side stream behind a long fill; whoever runs elsewhere reads old
// data. The second stage of the weights' gradients may begin early, but not before the first.
TEST_F(norm_cuda, works_on_the_callers_stream) {
  for (const int64_t n : rung_widths) {
    SCOPED_TRACE(n);
    step s(n);
    tensor fresh(bf16, s.where, verify::cuda_device);
    fresh.fill_normal(4);
    for (int run = 0; run < 10 && !HasFailure(); ++run) {
      s.refill(4);
      s.x.fill_normal(5);
      run_behind_arrival({{&s.x, &fresh}}, [&] { s.run(stream_); });
      s.check(4);
    }
  }
}

TEST_F(norm_cuda, allocates_nothing) {
  const step s(16384);
  expect_no_allocation([&] { s.run(stream_); });
}

TEST_F(norm_cuda, follows_the_tensors_device_not_the_current_one) {
  run_beside_the_current_device([](DLDevice second) {
    for (const int64_t n : rung_widths) {
      const step s(n, second);
      s.run(nullptr);
      s.check(1);
    }
  });
}

}  // namespace
}  // namespace ninefold::norm_test
#endif
