// Values: every vocabulary, dtype and option against the float64 reference, in all directions.
#include "ops/cross_entropy/test.hpp"

#include "verify/finite_difference.hpp"

namespace ninefold::cross_entropy_test {
namespace {

class cross_entropy : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, cross_entropy, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST(cross_entropy_on_cuda, is_tested_or_the_reason_is_told) {
  if (!verify::cuda_present())
    GTEST_SKIP() << "no CUDA in this build, or no device here: only the CPU tests have run";
}

// The reference's gradient is the derivative of the reference's loss, whatever the options.
TEST(cross_entropy_reference, gradient_is_the_derivative_of_the_loss) {
  constexpr int64_t rows = 5, classes = 7;
  const std::vector<int64_t> targets = {6, 0, -100, 3, 3};
  const std::vector<double> x = verify::normal(rows * classes, 3), u = verify::normal(rows, 4);
  std::vector<cross_entropy_spec> specs(5);
  for (cross_entropy_spec& s : specs) s.classes = classes;
  specs[1] = all_options(classes, f32);
  specs[1].classes = classes;
  specs[1].loss_scale = 1;
  specs[2].reduction = NF_REDUCTION_SUM;
  specs[2].z_loss = 0.3;
  specs[3].denominator = 11;
  specs[3].label_smoothing = 1;
  specs[4].soft_cap = 0.8;
  specs[4].scale = 3;
  for (const cross_entropy_spec& s : specs) {
    const auto loss = [&](std::span<const double> at) {
      return std::vector<double>{reference::cross_entropy(s, at, targets, u).loss.values[0]};
    };
    const std::vector<double> one{1};
    const auto numeric = verify::finite_difference(loss, x, one);
    const auto exact = reference::cross_entropy(s, x, targets, u).dlogits.values;
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(numeric[i], exact[i], 1e-8 + 1e-7 * std::abs(exact[i])) << i;
  }
}

// Each vocabulary with a base that may be one element off, so that no row is aligned when V is even
// either.
TEST_P(cross_entropy, every_vocabulary_and_dtype_aligned_or_not) {
  for (const DLDataType type : float_types)
    for (const int64_t v : vocabularies()) {
      SCOPED_TRACE(verify::name_of(type) + " V=" + std::to_string(v));
      call{.device = device(),
           .spec = {.type = type},
           .logits = {{3, v}, {}, v % 3 == 0},
           .dlogits = {{3, v}, {}, v % 5 == 0},
           .target_type = v % 2 ? i32 : i64,
           .entropy = false}
          .run();
      if (HasFailure()) return;
    }
}

TEST_P(cross_entropy, all_options_together) {
  for (const DLDataType type : float_types)
    for (const int64_t v : {1, 2, 5, 31, 32, 33, 257, 1000, 4099, 50257}) {
      SCOPED_TRACE(verify::name_of(type) + " V=" + std::to_string(v));
      for (const bool defer : {false, true}) {
        call c{.device = device(),
               .spec = all_options(v, type),
               .logits = {{9, v}, {}, v % 3 == 0},
               .token_weights = verify::normal(9, 5)};
        c.spec.defer_scale = defer;
        c.run();
      }
    }
}

// One at a time, so that none leans on another.
TEST_P(cross_entropy, each_option_alone) {
  for (const DLDataType type : float_types)
    for (const int64_t v : {7, 1000, 8192}) {
      std::vector<double> classes(static_cast<size_t>(v));
      for (size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<double>(i % 5) / 2;
      const std::vector<std::pair<const char*, cross_entropy_spec>> specs = {
          {"smoothing", {.label_smoothing = 0.1}},
          {"all smoothing", {.label_smoothing = 1}},
          {"z-loss", {.z_loss = 1e-2}},
          {"soft cap", {.soft_cap = 2}},
          {"temperature", {.scale = 1 / 0.7}},
          {"loss scale", {.loss_scale = 1024}},
          {"denominator", {.denominator = 77}},
          {"sum", {.reduction = NF_REDUCTION_SUM}},
          {"none", {.reduction = NF_REDUCTION_NONE}},
          {"ignored class", {.ignore_index = 3}},
          {"class weights", {.class_weights = classes}},
          {"smoothing and class weights", {.label_smoothing = 0.1, .class_weights = classes}},
          {"deferred", {.loss_scale = 8, .defer_scale = true}},
      };
      for (auto [name, spec] : specs) {
        SCOPED_TRACE(verify::name_of(type) + " V=" + std::to_string(v) + " " + name);
        spec.type = type;
        for (const bool entropy : {false, true})
          call{.device = device(),
               .spec = spec,
               .logits = {{8, v}},
               .token_weights = entropy ? std::vector<double>{} : verify::normal(8, 9),
               .entropy = entropy}
              .run();
      }
    }
}

TEST_P(cross_entropy, realistic_inputs_not_only_gaussian_ones) {
  for (const verify::pattern p : verify::all_patterns)
    for (const int64_t v : {64, 1000, 50257})
      for (const DLDataType type : float_types) {
        SCOPED_TRACE(verify::name_of(type) + " " + verify::name_of(p) + " V=" + std::to_string(v));
        const auto data = verify::patterned(p, 4, v, 3);
        call{.device = device(),
             .spec = {.type = type},
             .logits = {{4, v}},
             .data = data,
             .entropy = false}
            .run();
        call{.device = device(),
             .spec = {.label_smoothing = 0.1, .soft_cap = 30, .type = type},
             .logits = {{4, v}},
             .data = data}
            .run();
      }
}

// Numbers where a scalar may be: on the device they give the same bits.
TEST_P(cross_entropy, scalars_on_the_device_are_the_same) {
  call c{.device = device(),
         .spec = {.loss_scale = 512, .denominator = 12, .type = bf16},
         .logits = {{9, 1000}},
         .token_weights = verify::normal(9, 5)};
  const auto by_value = c.run();
  c.device_scalars = true;
  const auto by_address = c.run();
  EXPECT_EQ(by_value.gradient_bits, by_address.gradient_bits);
  EXPECT_EQ(by_value.loss, by_address.loss);
}

TEST_P(cross_entropy, layouts_of_every_kind) {
  for (const DLDataType type : float_types) {
    SCOPED_TRACE(verify::name_of(type));
    // Rank one, with a target of rank 0; rank eight with dimensions of one.
    call{.device = device(), .spec = {.type = type}, .logits = {{33}}, .targets = {32}}.run();
    call{.device = device(), .spec = {.type = type}, .logits = {{1, 2, 1, 3, 1, 1, 2, 65}}}.run();
    // Rows apart from each other; columns apart; backwards; one row for all.
    call{.device = device(), .spec = {.type = type}, .logits = {{5, 130}, {137, 1}}}.run();
    call{.device = device(), .spec = {.type = type}, .logits = {{5, 130}, {300, 2}}}.run();
    call{.device = device(),
         .spec = {.type = type},
         .logits = {{5, 130}},
         .dlogits = {{5, 130}, {1, 5}}}
        .run();
    call{.device = device(), .spec = {.type = type}, .logits = {{4, 50}, {-50, -1}}}.run();
    call{.device = device(), .spec = {.type = type}, .logits = {{7, 300}, {0, 1}}}.run();
    // Tokens of the transposed view and every second of a row of labels.
    call{.device = device(),
         .spec = {.type = type},
         .logits = {{2, 4, 8}, {8, 16, 1}},
         .token_weights = verify::normal(8, 2),
         .token_layout = {{2, 4}, {1, 2}}}
        .run();
    call{.device = device(),
         .spec = {.type = type},
         .logits = {{3, 4, 100}},
         .token_weights = verify::normal(12, 2),
         .token_layout = {{3, 4}, {16, 2}},
         .target_type = i32}
        .run();
  }
}

TEST_P(cross_entropy, one_class_costs_nothing) {
  for (const DLDataType type : float_types) {
    const auto out = call{
        .device = device(),
        .spec = {.type = type},
        .logits = {{6, 1}},
        .targets = {0, 0, 0, -100, 0,
                    0}}.run();
    EXPECT_EQ(out.loss, 0);
    for (const double g : out.dlogits) EXPECT_EQ(g, 0);
    EXPECT_EQ(out.accuracy, 1);
  }
}

TEST_P(cross_entropy, nothing_at_all) {
  // No tokens: every total is that of nothing.
  for (const nf_reduction r : {NF_REDUCTION_MEAN, NF_REDUCTION_SUM, NF_REDUCTION_NONE}) {
    const auto out = call{.device = device(), .spec = {.reduction = r}, .logits = {{0, 10}}}.run();
    EXPECT_EQ(out.accuracy, 0);
    if (r != NF_REDUCTION_NONE) {
      EXPECT_EQ(out.loss, 0);
    }
  }
  // No classes: no target can be right.
  call{.device = device(), .spec = {}, .logits = {{3, 0}}, .targets = {0, -100, 5}}.run();
  call{.device = device(),
       .spec = {.label_smoothing = 0.1},
       .logits = {{3, 0}},
       .targets = {0, -100, 5}}
      .run();
}

// Special values as the header has them.
TEST_P(cross_entropy, special_values_follow_the_header) {
  for (const DLDataType type : float_types)
    for (const int64_t v : {5, 64, 1003}) {
      SCOPED_TRACE(verify::name_of(type) + " V=" + std::to_string(v));
      constexpr int64_t rows = 9;
      std::vector<double> x = verify::normal(rows * v, 8);
      const auto at = [&](int64_t r, int64_t c) -> double& {
        return x[static_cast<size_t>(r * v + c)];
      };
      at(1, v - 1) = nan;
      at(2, 0) = infinity;
      for (int64_t c = 0; c < v; ++c) at(3, c) = -infinity;
      at(4, 1) = -infinity;                                  // hidden, and not the target
      at(5, 2) = -infinity;                                  // the target
      for (int64_t c = 1; c < v; ++c) at(6, c) = -infinity;  // all but the target
      at(7, 0) = at(7, 1) = -infinity;
      at(7, 2) = nan;  // a NaN behind what is hidden
      const std::vector<int64_t> targets = {0, 1, 2, 0, 2, 2, 0, 1, -100};
      at(8, 0) = nan;  // ignored
      for (const double smoothing : {0.0, 0.2})
        for (const double cap : {0.0, 3.0})
          for (const bool entropy : {false, true})
            call{.device = device(),
                 .spec = {.reduction = NF_REDUCTION_SUM,
                          .label_smoothing = smoothing,
                          .soft_cap = cap,
                          .type = type},
                 .logits = {{rows, v}},
                 .data = x,
                 .targets = targets,
                 .entropy = entropy}
                .run();
      const auto out = call{.device = device(),
                            .spec = {.reduction = NF_REDUCTION_SUM, .type = type},
                            .logits = {{rows, v}},
                            .data = x,
                            .targets = targets}
                           .run();
      for (const size_t row : {1, 2, 3, 7}) {
        EXPECT_TRUE(std::isnan(out.token_loss[row])) << row;
        EXPECT_TRUE(std::isnan(out.lse[row])) << row;
        for (int64_t c = 0; c < v; ++c)
          EXPECT_TRUE(
              std::isnan(out.dlogits[row * static_cast<size_t>(v) + static_cast<size_t>(c)]));
      }
      EXPECT_EQ(out.token_loss[5], infinity);
      EXPECT_EQ(out.token_loss[6], 0);
      EXPECT_EQ(out.dlogits[static_cast<size_t>(4 * v + 1)], 0);
    }
}

// Blocks of nothing but -inf, then logits far below 0: whatever stands for the maximum of the
// former must not count in the end; and a maximum that comes late, far above all before.
TEST_P(cross_entropy, hidden_columns_before_very_negative_ones) {
  constexpr int64_t v = 12'000;
  std::vector<double> x = verify::normal(2 * v, 8);
  for (int64_t c = 0; c < v; ++c) {
    double& first = x[static_cast<size_t>(c)];
    first = c < 5000 ? -infinity : first - 300;
    double& second = x[static_cast<size_t>(v + c)];
    second += c < 9000 ? -170 : 0;
  }
  for (const DLDataType type : float_types)
    for (const bool entropy : {false, true})
      for (const int64_t target : {int64_t{3}, int64_t{6000}, v - 1})
        call{.device = device(),
             .spec = {.loss_scale = 1000, .type = type},
             .logits = {{2, v}},
             .data = x,
             .targets = {target, target},
             .entropy = entropy}
            .run();
}

// A weight of 0 hides a poisoned row; a weight at all spreads it.
TEST_P(cross_entropy, a_weight_of_zero_hides_its_row) {
  std::vector<double> x = verify::normal(3 * 40, 8);
  x[40 + 7] = nan;
  call c{.device = device(),
         .spec = {},
         .logits = {{3, 40}},
         .data = x,
         .targets = {1, 2, 3},
         .token_weights = {1, 0, 2}};
  for (const bool defer : {false, true}) {
    c.spec.defer_scale = defer;
    const auto out = c.run();
    EXPECT_TRUE(std::isfinite(out.loss));
    for (size_t i = 40; i < 80; ++i) EXPECT_EQ(out.dlogits[i], 0);
  }
}

}  // namespace
}  // namespace ninefold::cross_entropy_test
