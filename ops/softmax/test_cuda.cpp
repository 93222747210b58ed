// What only CUDA has: graphs, streams, several devices.
#ifdef NF_WITH_CUDA
#include "ops/softmax/test.hpp"
#include "verify/cuda_testing.hpp"

namespace ninefold::softmax_test {
namespace {

class softmax_cuda : public verify::on_cuda_stream {};

// Lengths that take each of the rungs by the library's own choice.
constexpr int64_t rung_lengths[] = {64, 2048, 16384, 131072, 400'000};

TEST_F(softmax_cuda, captured_calls_replay_on_new_data) {
  for (const int64_t n : rung_lengths) {
    SCOPED_TRACE(n);
    const softmax_spec spec{.cols = n, .in = bf16, .out = bf16};
    const layout where{{5, n}};
    tensor x(bf16, where, verify::cuda_device), y(bf16, where, verify::cuda_device),
        dx(bf16, where, verify::cuda_device);
    x.fill_normal(1);
    replay(
        [&] {
          ninefold::softmax({.x = x, .y = y}, stream_);
          ninefold::softmax_backward({.y = y, .dy = x, .dx = dx}, stream_);
        },
        y,
        [&](uint64_t seed) {
          x.fill_normal(seed);
          y.poison();
          dx.poison();
        },
        [&](uint64_t) {
          EXPECT_TRUE(matches(y, reference::softmax(spec, x.load())));
          EXPECT_TRUE(matches(dx, reference::softmax_backward(spec, y.load(), x.load())));
        });
  }
}

// B35: the input arrives on a side stream behind a long fill; whoever runs elsewhere reads old
// data.
TEST_F(softmax_cuda, works_on_the_callers_stream) {
  for (const int64_t n : rung_lengths) {
    SCOPED_TRACE(n);
    const layout where{{5, n}};
    tensor fresh(f32, where, verify::cuda_device), x(f32, where, verify::cuda_device),
        y(f32, where, verify::cuda_device);
    fresh.fill_normal(7);
    const auto expected = reference::softmax({.cols = n}, fresh.load());
    std::vector<float> result(static_cast<size_t>(fresh.count()));
    for (int run = 0; run < 20; ++run) {
      x.fill_normal(8);
      y.poison();
      run_behind_arrival({{&x, &fresh}}, [&] {
        ninefold::softmax({.x = x, .y = y}, stream_);
        cudaMemcpyAsync(result.data(), static_cast<const DLTensor*>(y)->data,
                        static_cast<size_t>(y.bytes()), cudaMemcpyDeviceToHost, stream_);
      });
      const std::vector<double> values(result.begin(), result.end());
      ASSERT_TRUE(verify::compare(values, expected.values, expected.allowed).passed());
    }
  }
}

TEST_F(softmax_cuda, allocates_nothing) {
  const layout where{{64, 131072}};
  tensor x(f32, where, verify::cuda_device), y(f32, where, verify::cuda_device);
  x.fill_normal(1);
  expect_no_allocation([&] {
    ninefold::softmax({.x = x, .y = y}, stream_);
    ninefold::softmax_backward({.y = y, .dy = x, .dx = x}, stream_);
  });
}

TEST_F(softmax_cuda, follows_the_tensors_device_not_the_current_one) {
  run_beside_the_current_device([](DLDevice second) {
    for (const int64_t n : rung_lengths) {
      tensor x(f32, {{4, n}}, second), y(f32, {{4, n}}, second);
      x.fill_normal(1);
      ninefold::softmax({.x = x, .y = y});
      EXPECT_TRUE(matches(y, reference::softmax({.cols = n}, x.load())));
    }
    tensor here(f32, {{4, 8}}, verify::cuda_device), there(f32, {{4, 8}}, second);
    const nf_softmax_args args{.x = here, .y = there};
    EXPECT_TRUE(
        verify::fails(nf_softmax_forward(&args, nullptr), NF_INVALID_ARGUMENT, {"y", "device"}));
  });
}

// A call after a failed one works: an error that CUDA keeps must not be taken for this call's.
TEST_F(softmax_cuda, is_not_confused_by_an_older_error) {
  void* much = nullptr;
  EXPECT_NE(cudaMalloc(&much, size_t{1} << 60), cudaSuccess);  // leaves a last error behind
  forward_call{.device = verify::cuda_device, .spec = {}, .x = {{4, 100}}}.run();
  cudaGetLastError();
}

}  // namespace
}  // namespace ninefold::softmax_test
#endif
