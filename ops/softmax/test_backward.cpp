// Backward values: the reference's own gradient against finite differences, then every dtype,
// length and special value of the op against the reference.
#include "ops/softmax/test.hpp"
#include "verify/finite_difference.hpp"

namespace ninefold::softmax_test {
namespace {

class softmax_backward : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, softmax_backward, testing::ValuesIn(verify::devices()),
                         verify::device_name);

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// A random upstream gradient, masked positions and a causal mask: then the formulas of the header
// are the derivative of the forward and not just a pair of formulas.
TEST(softmax_reference, backward_is_the_derivative_of_forward) {
  for (const nf_causal causal : {NF_CAUSAL_NONE, NF_CAUSAL_BOTTOM_RIGHT, NF_CAUSAL_TOP_LEFT})
    for (const double scale : {1.0, -0.7})
      for (const bool log : {false, true}) {
        const softmax_spec spec{
            .cols = 6, .queries = 4, .scale = scale, .causal = causal, .log = log};
        std::vector<double> x = verify::normal(24, 2), upstream = verify::normal(24, 3);
        x[8] = x[17] = -infinity;
        const auto f = [&](std::span<const double> at) {
          return reference::softmax(spec, at).values;
        };
        const auto measured = verify::finite_difference(f, x, upstream);
        const auto derived = reference::softmax_backward(spec, f(x), upstream).values;
        for (size_t i = 0; i < x.size(); ++i)
          EXPECT_NEAR(derived[i], measured[i], 1e-8) << "element " << i << " log " << log;
      }
}

TEST(softmax_reference, additive_mask_gradient_is_dx_over_scale) {
  const softmax_spec spec{.cols = 5, .scale = 3, .mask = softmax_mask::additive};
  const std::vector<double> x = verify::normal(5, 2), mask = verify::normal(5, 4),
                            upstream = verify::normal(5, 3);
  const auto f = [&](std::span<const double> at) { return reference::softmax(spec, x, at).values; };
  const auto measured = verify::finite_difference(f, mask, upstream);
  const auto dx = reference::softmax_backward(spec, f(mask), upstream).values;
  for (size_t i = 0; i < 5; ++i)
    EXPECT_NEAR(dx[i] / static_cast<float>(spec.scale), measured[i], 1e-8);
}

TEST_P(softmax_backward, every_length_and_dtype_aligned_or_not) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const int64_t n : lengths())
      for (const bool log : {false, true}) {
        if (n > 600 && log) continue;
        SCOPED_TRACE(name_of(pair) + " N=" + std::to_string(n));
        backward_call{.device = device(),
                      .spec = {.log = log, .in = pair.in, .out = pair.out},
                      .y = {{3, n}, {}, n % 2 == 0},
                      .dy = {{3, n}, {}, n % 3 == 0},
                      .dx = {{3, n}, {}, n % 5 == 0}}
            .run();
        if (HasFailure()) return;
      }
}

TEST_P(softmax_backward, realistic_inputs_not_only_gaussian_ones) {
  for (const verify::pattern p : verify::all_patterns)
    for (const int64_t n : {64, 8192, 50257}) {
      const auto x = verify::patterned(p, 3, n, 3);
      std::vector<double> dy = verify::normal(3 * n, 5);
      for (size_t i = 0; i < dy.size(); i += 31) dy[i] *= 50;
      for (const bool log : {false, true}) {
        const auto y = reference::softmax({.cols = n, .log = log}, x).values;
        for (const dtype_pair& pair : dtype_pairs) {
          if (n > 10000 && (log || pair.in.bits != pair.out.bits)) continue;
          SCOPED_TRACE(name_of(pair) + " " + verify::name_of(p) + " N=" + std::to_string(n));
          backward_call{.device = device(),
                        .spec = {.log = log, .in = pair.in, .out = pair.out},
                        .y = {{3, n}},
                        .y_data = y,
                        .dy_data = dy}
              .run();
        }
      }
    }
}

TEST_P(softmax_backward, ten_million_columns) {
  constexpr int64_t n = verify::sanitized ? 1'000'003 : 10'000'000;
  backward_call{.device = device(), .spec = {}, .y = {{1, n}}}.run();
}

TEST_P(softmax_backward, scale_of_either_sign) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const double scale : {0.08838834764831845, -2.5, 300.0})
      for (const bool log : {false, true}) {
        SCOPED_TRACE(name_of(pair) + " scale " + std::to_string(scale));
        backward_call{.device = device(),
                      .spec = {.scale = scale, .log = log, .in = pair.in, .out = pair.out},
                      .y = {{4, 515}}}
            .run();
      }
}

// A softmax does not change when a row is shifted, so a row's gradient sums to nothing.
TEST_P(softmax_backward, each_row_of_the_gradient_sums_to_zero) {
  for (const bool log : {false, true}) {
    const auto dx =
        backward_call{.device = device(), .spec = {.log = log}, .y = {{16, 3000}}}.run();
    for (size_t row = 0; row < 16; ++row) {
      double sum = 0, magnitude = 0;
      for (size_t j = row * 3000; j < (row + 1) * 3000; ++j) {
        sum += dx[j];
        magnitude += std::abs(dx[j]);
      }
      EXPECT_LT(std::abs(sum), 3e-6 * magnitude);
    }
  }
}

// B13: nothing allowed, nothing to learn; and dy there may hold anything.
TEST_P(softmax_backward, positions_without_probability_get_exactly_zero) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const int64_t n : {1, 7, 32, 1000, 9001})
      for (const bool log : {false, true})
        for (const double junk : {0.0, nan, infinity}) {
          SCOPED_TRACE(name_of(pair) + " N=" + std::to_string(n));
          const softmax_spec spec{.cols = n, .log = log, .in = pair.in, .out = pair.out};
          std::vector<double> x = verify::normal(3 * n, 4), dy = verify::normal(3 * n, 5);
          for (int64_t j = 0; j < 3 * n; ++j) {
            const auto at = static_cast<size_t>(j);
            if (j / n == 1 || j % 3 == 0) {
              x[at] = -infinity;
              dy[at] = junk;
            }
          }
          const auto dx = backward_call{.device = device(),
                                        .spec = spec,
                                        .y = {{3, n}},
                                        .y_data = reference::softmax(spec, x).values,
                                        .dy_data = dy}
                              .run();
          for (size_t i = 0; i < dx.size(); ++i) {
            ASSERT_TRUE(x[i] != -infinity || dx[i] == 0);
          }
        }
}

TEST_P(softmax_backward, causal_positions_are_hidden_even_if_y_is_not_zero_there) {
  for (const nf_causal causal : {NF_CAUSAL_BOTTOM_RIGHT, NF_CAUSAL_TOP_LEFT})
    for (const auto& shape : std::vector<std::vector<int64_t>>{
             {2, 5}, {5, 2}, {2, 3, 7, 7}, {2, 64, 300}, {4, 300, 64}, {2, 130, 4100}})
      for (const bool log : {false, true}) {
        SCOPED_TRACE(testing::PrintToString(shape));
        std::vector<double> y = verify::normal(verify::count_of(shape), 6);
        for (double& v : y) v = log ? -std::abs(v) : std::abs(v) / 100;
        backward_call{
            .device = device(), .spec = {.causal = causal, .log = log}, .y = {shape}, .y_data = y}
            .run();
        backward_call{.device = device(), .spec = {.causal = causal, .log = log}, .y = {shape}}
            .run();
      }
}

TEST_P(softmax_backward, a_poisoned_row_stays_poisoned_and_alone) {
  for (const bool log : {false, true}) {
    const softmax_spec spec{.cols = 70, .log = log};
    std::vector<double> x = verify::normal(3 * 70, 4);
    x[100] = nan;
    x[101] = -infinity;
    const auto dx = backward_call{.device = device(),
                                  .spec = spec,
                                  .y = {{3, 70}},
                                  .y_data = reference::softmax(spec, x).values}
                        .run();
    EXPECT_TRUE(std::isnan(dx[99]));
    EXPECT_EQ(dx[101], 0);
    EXPECT_FALSE(std::isnan(dx[0]));
  }
}

// Kind 10: the gradient that arrives multiplies element by element. With ones it is zero.
TEST_P(softmax_backward, is_linear_in_the_upstream_gradient) {
  const std::vector<double> ones(2 * 600, 1.0);
  const auto dx =
      backward_call{.device = device(), .spec = {}, .y = {{2, 600}}, .dy_data = ones}.run();
  for (const double v : dx) EXPECT_NEAR(v, 0, 1e-8);
  std::vector<double> first(2 * 600, 0.0);
  first[0] = 1;
  const auto column =
      backward_call{.device = device(), .spec = {}, .y = {{2, 600}}, .dy_data = first}.run();
  EXPECT_GT(column[0], 0);
  EXPECT_LT(column[1], 0);
  for (size_t j = 600; j < 1200; ++j) EXPECT_EQ(column[j], 0);
}

}  // namespace
}  // namespace ninefold::softmax_test
