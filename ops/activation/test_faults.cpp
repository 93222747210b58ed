// What users of other libraries have reported (B27 and B28 of our list), special values, sizes
// beyond 32 bits.
#include <sys/mman.h>

#include <memory>

#include "ops/activation/test.hpp"

namespace ninefold::activation_test {
namespace {

class activation_faults : public verify::on_each_device {
 protected:
  // y and dx of `data` with dy = 1.
  call::values of(nf_activation_kind kind, DLDataType type, const std::vector<double>& data) const {
    return call{.device = device(),
                .kind = kind,
                .shape = {static_cast<int64_t>(data.size())},
                .type = type,
                .gate_values = data,
                .dy_values = std::vector<double>(data.size(), 1.0)}
        .run();
  }
};
INSTANTIATE_TEST_SUITE_P(devices, activation_faults, testing::ValuesIn(verify::devices()),
                         verify::device_name);

constexpr nf_activation_kind gelus[] = {NF_ACTIVATION_GELU_TANH, NF_ACTIVATION_GELU_ERF};

// B28: NaN from a fast tanh that overflows, or from a cube that does.
TEST_P(activation_faults, gelu_of_large_inputs) {
  std::vector<double> grid;
  for (double x = 8; x <= 16; x += 0.5) grid.push_back(x);
  const std::vector<double> far{13.24, -13.24, 41, -41, 200, -200};
  const auto check = [&](nf_activation_kind kind, DLDataType type, std::vector<double> data) {
    for (double& x : data) x = verify::rounded(type, x);
    const auto out = of(kind, type, data);
    for (size_t i = 0; i < data.size(); ++i) {
      SCOPED_TRACE(std::string(kind_names[kind]) + " " + verify::name_of(type) + " " +
                   std::to_string(data[i]));
      if (data[i] >= 6) {
        EXPECT_EQ(out.y[i], data[i]);
        EXPECT_EQ(out.dgate[i], 1);
      }
      if (data[i] <= -13) {
        EXPECT_LE(std::abs(out.y[i]), 1e-30);
        EXPECT_LE(std::abs(out.dgate[i]), 1e-30);
      }
    }
  };
  for (const nf_activation_kind kind : gelus) {
    for (const DLDataType type : float_types) check(kind, type, grid);
    for (const DLDataType type : float_types) check(kind, type, far);
    check(kind, f32, {6, 6.5, 7, 1e10, 3e38, -1e10, -3e38});
  }
}

// The largest of each dtype, and everything near where exponentials end.
TEST_P(activation_faults, every_finite_input_has_a_finite_result) {
  for (const nf_activation_kind kind : kinds) {
    if (kind == NF_ACTIVATION_SWIGLU_CLAMP || kind == NF_ACTIVATION_RELU2) continue;
    for (const DLDataType type : float_types) {
      const double largest = type.bits == 32 ? 3.4e38 : type.code == kDLBfloat ? 3.38e38 : 65504;
      std::vector<double> data{largest, -largest, 1e-40, -1e-40, 0, -0.0};
      for (double x = -130; x <= 130; x += 0.37) data.push_back(x);
      const auto out = of(kind, type, data);
      for (const auto* values : {&out.y, &out.dgate})
        for (const double v : *values) EXPECT_TRUE(std::isfinite(v));
    }
  }
}

TEST_P(activation_faults, special_values) {
  for (const nf_activation_kind kind : kinds) {
    if (kind == NF_ACTIVATION_SWIGLU_CLAMP) continue;
    for (const DLDataType type : float_types)
      for (const char* rung : {static_cast<const char*>(nullptr), "scalar"}) {
        SCOPED_TRACE(std::string(kind_names[kind]) + " " + verify::name_of(type));
        std::vector<double> data(40, 0.5);
        data[0] = data[20] = infinity;
        data[1] = data[39] = -infinity;
        data[2] = data[21] = nan;
        const auto out = call{.device = device(),
                              .kind = kind,
                              .shape = {40},
                              .type = type,
                              .gate_values = data,
                              .dy_values = std::vector<double>(40, 1.0),
                              .rung = rung}
                             .run();
        for (const size_t at : {0, 20}) {
          EXPECT_EQ(out.y[at], infinity);
          EXPECT_EQ(out.dgate[at], kind == NF_ACTIVATION_RELU2 ? infinity : 1);
        }
        for (const size_t at : {1, 39}) {
          EXPECT_EQ(out.y[at], 0);
          EXPECT_EQ(out.dgate[at], 0);
        }
        for (const size_t at : {2, 21}) EXPECT_TRUE(std::isnan(out.y[at]));
      }
  }
}

// B30's kind: an infinite gradient times a flat ReLU is a choice, not a product.
TEST_P(activation_faults, an_infinite_gradient_where_a_relu_is_flat) {
  for (const nf_activation_kind kind : {NF_ACTIVATION_RELU, NF_ACTIVATION_RELU2}) {
    const auto out = call{.device = device(),
                          .kind = kind,
                          .shape = {3},
                          .gate_values = {-1, 0, 2},
                          .dy_values = {infinity, -infinity, infinity}}
                         .run();
    EXPECT_EQ(out.dgate, (std::vector<double>{0, 0, infinity}));
  }
  const auto out = call{.device = device(),
                        .kind = NF_ACTIVATION_SWIGLU_CLAMP,
                        .gating = NF_ACTIVATION_TWO_TENSORS,
                        .shape = {2},
                        .gate_values = {8, 8},
                        .up_values = {8, -8},
                        .dy_values = {infinity, -infinity}}
                       .run();
  EXPECT_EQ(out.dgate, (std::vector<double>{0, 0}));
  EXPECT_EQ(out.dup, (std::vector<double>{0, 0}));
}

TEST_P(activation_faults, gates_at_infinity) {
  for (const nf_activation_kind kind : kinds) {
    const auto out = call{
        .device = device(),
        .kind = kind,
        .gating = NF_ACTIVATION_TWO_TENSORS,
        .shape = {3},
        .gate_values = {-infinity, nan, 1},
        .up_values = {2, 2, nan},
        .dy_values = {1, 1,
                      1}}.run();
    EXPECT_EQ(out.y[0], 0);
    EXPECT_EQ(out.dgate[0], 0);
    EXPECT_EQ(out.dup[0], 0);
    EXPECT_TRUE(std::isnan(out.y[1]) && std::isnan(out.y[2]));
  }
}

// A running sum in the storage dtype stops growing, one in fp32 loses a digit in the tens of
// thousands; two stages do neither. The addends are all the same: dy where the slope is 1.
TEST_P(activation_faults, the_error_of_dbias_does_not_grow_with_the_rows) {
  for (const int64_t rows : {100, 10'000, 200'000}) {
    tensor x(f32, {{rows, 3}}, device()), dy(f32, {{rows, 3}}, device()),
        dbias(f32, {{3}}, device());
    x.store(std::vector<double>(static_cast<size_t>(3 * rows), 50));
    dy.store(std::vector<double>(static_cast<size_t>(3 * rows), 0.1));
    nf_activation_args args{.x = x, .dy = dy, .dx = x, .dbias = dbias};
    tensor work(u8, {{ninefold::activation_workspace_size(args)}}, device());
    args.workspace = work;
    ninefold::activation_backward(args);
    for (const double sum : dbias.load())
      EXPECT_NEAR(sum / (static_cast<double>(0.1f) * static_cast<double>(rows)), 1, 2e-6) << rows;
  }
}

// B27 on sparse memory: two rows further apart than 32 bits count.
TEST(activation_faults_cpu, rows_further_apart_than_32_bits_count) {
  constexpr int64_t stride = (int64_t{1} << 31) + 48'219, n = 100;
  const size_t bytes = static_cast<size_t>(stride + n) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "this system gives no sparse 9 GB mapping";
  float* const x = static_cast<float*>(memory);
  const std::vector<double> data = verify::normal(2 * n, 3);
  const view far(x, f32, {2, n}, {stride, 1});
  const auto expected = reference::activation_forward({}, data, {}, {});
  for (const char* rung : {"scalar", "stream"}) {
    for (int64_t i = 0; i < 2 * n; ++i)
      x[i / n * stride + i % n] = static_cast<float>(data[static_cast<size_t>(i)]);
    ninefold::activation({.x = far, .y = far, .rung = rung});
    for (int64_t i = 0; i < 2 * n; ++i)
      ASSERT_NEAR(x[i / n * stride + i % n], expected.values[static_cast<size_t>(i)],
                  expected.allowed[static_cast<size_t>(i)]);
  }
  munmap(memory, bytes);
}

// B27 itself: a buffer of gate and up just over 2^31 elements.
TEST(activation_faults_cuda, more_than_2_to_the_31_elements) {
  if (!verify::cuda_present()) GTEST_SKIP() << "no CUDA device here";
  constexpr int64_t rows = 65'537, n = 16'384;
  std::unique_ptr<tensor> x, y;
  try {
    x = std::make_unique<tensor>(bf16, layout{{rows, 2 * n}}, verify::cuda_device);
    y = std::make_unique<tensor>(bf16, layout{{rows, n}}, verify::cuda_device);
  } catch (const std::exception& e) {
    GTEST_SKIP() << "needs 6.5 GB of device memory: " << e.what();
  }
  const std::vector<int64_t> some = {0, rows / 2, rows - 2, rows - 1};
  const auto count = static_cast<int64_t>(some.size());
  for (const nf_activation_gating gating :
       {NF_ACTIVATION_CONCATENATED, NF_ACTIVATION_INTERLEAVED}) {
    x->fill_normal(1);
    nf_activation_args args{.kind = NF_ACTIVATION_SILU, .gating = gating, .x = *x, .y = *y};
    tensor few(bf16, {{count, 2 * n}}, verify::cuda_device),
        result(bf16, {{count, n}}, verify::cuda_device);
    few.store(x->load_rows(some));
    nf_activation_args alone = args;
    alone.x = few;
    alone.y = result;
    ninefold::activation(args);
    ninefold::activation(alone);
    EXPECT_EQ(y->load_rows(some), result.load());
    args.dy = *y;
    args.dx = *x;
    alone.dy = result;
    alone.dx = few;
    ninefold::activation_backward(args);
    ninefold::activation_backward(alone);
    EXPECT_EQ(x->load_rows(some), few.load());
  }
}

}  // namespace
}  // namespace ninefold::activation_test
