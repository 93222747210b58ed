// Forward values: every dtype, length, special value, mask and scale against the float64 reference.
#include "ops/softmax/test.hpp"

#include <cmath>
#include <numeric>

namespace ninefold::softmax_test {
namespace {

class softmax_forward : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, softmax_forward, testing::ValuesIn(verify::devices()),
                         verify::device_name);

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(softmax_on_cuda, is_tested_or_the_reason_is_told) {
  if (!verify::cuda_present())
    GTEST_SKIP() << "no CUDA in this build, or no device here: only the CPU tests have run";
}

// Each length with a base that is one element off, so that no row is aligned when N is even either.
TEST_P(softmax_forward, every_length_and_dtype_aligned_or_not) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const int64_t n : lengths())
      for (const bool log : {false, true}) {
        if (n > 600 && log) continue;
        SCOPED_TRACE(name_of(pair) + " N=" + std::to_string(n));
        forward_call{.device = device(),
                     .spec = {.log = log, .in = pair.in, .out = pair.out},
                     .x = {{3, n}, {}, n % 3 == 0},
                     .y = {{3, n}, {}, n % 5 == 0}}
            .run();
        if (HasFailure()) return;
      }
}

TEST_P(softmax_forward, realistic_inputs_not_only_gaussian_ones) {
  for (const verify::pattern p : verify::all_patterns)
    for (const int64_t n : {64, 1000, 8192, 50257}) {
      const auto data = verify::patterned(p, 3, n, 3);
      for (const dtype_pair& pair : dtype_pairs)
        for (const bool log : {false, true}) {
          if (n > 10000 && (log || pair.in.bits != pair.out.bits)) continue;
          SCOPED_TRACE(name_of(pair) + " " + verify::name_of(p) + " N=" + std::to_string(n));
          forward_call{.device = device(),
                       .spec = {.log = log, .in = pair.in, .out = pair.out},
                       .x = {{3, n}},
                       .data = data}
              .run();
        }
    }
}

TEST_P(softmax_forward, ten_million_columns) {
  constexpr int64_t n = verify::sanitized ? 1'000'003 : 10'000'000;
  forward_call{.device = device(), .spec = {}, .x = {{1, n}}}.run();
  forward_call{.device = device(), .spec = {.log = true}, .x = {{n}}}.run();
}

// A correct rounding errs by half a unit at most and by 0.3 to 0.42 of it on average (uniform
// within a binade), so 0.7 epsilon in relative L2 leaves no room for a factor of 1.01 or 1.005.
TEST_P(softmax_forward, rounds_without_bias) {
  for (const DLDataType type : {f32, bf16}) {
    softmax_spec spec{.cols = 512, .in = type, .out = type};
    tensor x(type, {{256, 512}}, device()), y(type, {{256, 512}}, device());
    x.fill_normal(5);
    ninefold::softmax({.x = x, .y = y});
    const auto report =
        verify::compare(y.load(), reference::softmax(spec, x.load()).values, {1, 0});
    const double room = type.code == kDLBfloat ? 0.7 : 6;  // fp32: the arithmetic's own error
    EXPECT_LT(report.rel_l2, room * verify::epsilon(type)) << verify::name_of(type);
  }
}

// B01: max and log-sum added before subtracting lose the answer on shifted logits.
TEST_P(softmax_forward, log_of_shifted_logits_keeps_its_digits) {
  const auto y = forward_call{
      .device = device(),
      .spec = {.log = true},
      .x = {{3}},
      .data = {-1e7, -1e7 - 1,
               -1e7}}.run();
  EXPECT_NEAR(y[0], -0.8620, 1e-4);
  EXPECT_NEAR(y[1], -1.8620, 1e-4);
  const auto pair =
      forward_call{.device = device(), .spec = {.log = true}, .x = {{2}}, .data = {1e8, 1e8}}.run();
  EXPECT_NEAR(pair[1], -0.693147, 1e-6);
}

// Multiples of 1/8 below 2^7 stay exact in fp32 when 2^20 is added.
TEST_P(softmax_forward, an_exact_shift_changes_nothing_at_all) {
  std::vector<double> x = verify::normal(4 * 333, 7), shifted(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::round(x[i] * 8) / 8;
    shifted[i] = x[i] + 0x1p20;
  }
  for (const bool log : {false, true}) {
    const softmax_spec spec{.log = log};
    const auto a = forward_call{.device = device(), .spec = spec, .x = {{4, 333}}, .data = x}.run();
    const auto b =
        forward_call{.device = device(), .spec = spec, .x = {{4, 333}}, .data = shifted}.run();
    EXPECT_EQ(a, b);
  }
}

TEST_P(softmax_forward, log_softmax_is_the_log_of_softmax_and_rows_sum_to_one) {
  const std::vector<double> x = verify::normal(8 * 777, 9);
  const auto y = forward_call{.device = device(), .spec = {}, .x = {{8, 777}}, .data = x}.run();
  const auto l =
      forward_call{.device = device(), .spec = {.log = true}, .x = {{8, 777}}, .data = x}.run();
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(std::log(y[i]), l[i], 1e-5);
  for (size_t row = 0; row < 8; ++row)
    EXPECT_NEAR(std::accumulate(&y[row * 777], &y[row * 777] + 777, 0.0), 1, 1e-5);
}

// B19: a running maximum that starts at a finite "minus infinity" loses rows below it.
TEST_P(softmax_forward, very_negative_rows_are_ordinary_rows) {
  for (const double base : {-3.6e6, -1e30, -3e38}) {
    const auto y =
        forward_call{
            .device = device(), .spec = {}, .x = {{8}}, .data = std::vector<double>(8, base)}
            .run();
    for (const double v : y) EXPECT_EQ(v, 0.125);
  }
  std::vector<double> one(40, -3.6e6);
  one[37] = -3.5e6;
  EXPECT_EQ((forward_call{.device = device(), .spec = {}, .x = {{40}}, .data = one}.run()[37]), 1);
  // The lowest finite numbers of the narrow dtypes, where a stand-in for -inf would sit.
  for (const DLDataType type : {f16, bf16}) {
    const double low = type.code == kDLBfloat ? -0x1.fep127 : -65504;
    const auto y = forward_call{.device = device(),
                                .spec = {.in = type, .out = type},
                                .x = {{70}},
                                .data = std::vector<double>(70, low)}
                       .run();
    EXPECT_EQ(y[69], verify::rounded(type, 1.0 / 70));
  }
}

// However many columns of nothing come first: a block's, a chunk's, a whole tile's.
TEST_P(softmax_forward, hidden_columns_before_very_negative_ones) {
  for (const int64_t n : {8, 300, 5000, 8192, 12288, 40000})
    for (const double low : {-200.0, -3e38})
      for (const bool log : {false, true}) {
        SCOPED_TRACE("N=" + std::to_string(n) + " low " + std::to_string(low));
        std::vector<double> x(static_cast<size_t>(n), -infinity);
        std::fill(x.end() - n / 4, x.end(), low);
        forward_call{.device = device(), .spec = {.log = log}, .x = {{n}}, .data = x}.run();
      }
}

TEST_P(softmax_forward, special_values_follow_the_header) {
  // One special value in a row of each size class: in the vector part, in the tail, alone.
  for (const dtype_pair& pair : dtype_pairs)
    for (const int64_t n : {1, 5, 64, 131, 4099})
      for (const double special : {nan, infinity, -infinity, -0.0})
        for (const int64_t where : {int64_t{0}, n / 2, n - 1})
          for (const bool log : {false, true}) {
            SCOPED_TRACE(name_of(pair) + " N=" + std::to_string(n) + " special " +
                         std::to_string(special) + " at " + std::to_string(where));
            std::vector<double> x = verify::normal(3 * n, 4);
            x[static_cast<size_t>(n + where)] = special;  // the rows before and after stay finite
            if (n > 4) x[static_cast<size_t>(n + (where + 2) % n)] = -infinity;
            forward_call{.device = device(),
                         .spec = {.log = log, .in = pair.in, .out = pair.out},
                         .x = {{3, n}},
                         .data = x}
                .run();
            if (HasFailure()) return;
          }
}

// B13.
TEST_P(softmax_forward, rows_with_nothing_allowed_are_zero_and_log_minus_infinity) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const int64_t n : {1, 7, 32, 1000, 9001})
      for (const bool log : {false, true}) {
        std::vector<double> x = verify::normal(3 * n, 4);
        std::fill(x.begin() + n, x.begin() + 2 * n, -infinity);
        const auto y = forward_call{.device = device(),
                                    .spec = {.log = log, .in = pair.in, .out = pair.out},
                                    .x = {{3, n}},
                                    .data = x}
                           .run();
        for (int64_t j = n; j < 2 * n; ++j)
          ASSERT_EQ(y[static_cast<size_t>(j)], log ? -infinity : 0) << name_of(pair) << " N=" << n;
      }
}

TEST_P(softmax_forward, scale_of_either_sign_and_zero_meaning_one) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const double scale : {0.08838834764831845, -2.5, 1.0, 40.0, 1e-30})
      for (const bool log : {false, true}) {
        SCOPED_TRACE(name_of(pair) + " scale " + std::to_string(scale));
        forward_call{.device = device(),
                     .spec = {.scale = scale, .log = log, .in = pair.in, .out = pair.out},
                     .x = {{4, 515}}}
            .run();
      }
  tensor x(f32, {{2, 9}}, device()), one(f32, {{2, 9}}, device()), none(f32, {{2, 9}}, device());
  x.fill_normal(2);
  ninefold::softmax({.x = x, .y = one, .scale = 1});
  ninefold::softmax({.x = x, .y = none});
  EXPECT_EQ(one.snapshot(), none.snapshot());
}

// x = -inf is masked whatever the sign of scale or the mask makes of it; x = +inf under a negative
// scale is v = -inf, a position that gets nothing.
TEST_P(softmax_forward, infinities_under_a_negative_scale_and_in_additive_masks) {
  for (const int64_t n : {4, 37, 1000}) {
    std::vector<double> x = verify::normal(5 * n, 4), mask(static_cast<size_t>(5 * n), 0.0);
    for (int64_t row = 0; row < 4; ++row) x[static_cast<size_t>(row * n + n / 2)] = -infinity;
    x[static_cast<size_t>(n)] = infinity;
    mask[static_cast<size_t>(2 * n + n / 2)] = infinity;  // on a masked position: still masked
    mask[static_cast<size_t>(3 * n)] = infinity;          // on an allowed one: NaN
    mask[static_cast<size_t>(4 * n + 1)] = nan;
    mask[static_cast<size_t>(4 * n)] = -infinity;
    for (const double scale : {1.0, -0.5})
      for (const bool log : {false, true})
        for (const softmax_mask kind : {softmax_mask::none, softmax_mask::additive}) {
          SCOPED_TRACE("N=" + std::to_string(n) + " scale " + std::to_string(scale));
          forward_call{.device = device(),
                       .spec = {.scale = scale, .log = log, .mask = kind},
                       .x = {{5, n}},
                       .data = x,
                       .mask_shape = {5, n},
                       .mask = mask,
                       .mask_type = f32}
              .run();
        }
  }
}

// A product that overflows fp32 is the infinity it becomes there.
TEST_P(softmax_forward, overflowing_logits_are_infinite) {
  const auto high =
      forward_call{.device = device(), .spec = {.scale = 4}, .x = {{3}}, .data = {3e38, 1, 2}}
          .run();
  EXPECT_TRUE(std::isnan(high[1]));
  const auto low =
      forward_call{.device = device(), .spec = {.scale = 4}, .x = {{3}}, .data = {-3e38, 1, 1}}
          .run();
  EXPECT_EQ(low, (std::vector<double>{0, 0.5, 0.5}));
}

// (B, H, S, N) attention scores and each dimension broadcast in turn; (N), (S, 1) and one number.
const std::vector<std::vector<int64_t>> mask_shapes = {
    {2, 3, 5, 37}, {2, 1, 5, 37}, {1, 3, 5, 37}, {2, 3, 1, 37}, {2, 3, 5, 1},
    {1, 1, 1, 37}, {5, 37},       {37},          {5, 1},        {1}};

TEST_P(softmax_forward, boolean_masks_broadcast_in_every_dimension) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const auto& shape : mask_shapes)
      for (const DLDataType type : {boolean, DLDataType{kDLUInt, 8, 1}}) {
        SCOPED_TRACE(name_of(pair) + " mask " + testing::PrintToString(shape));
        std::vector<double> mask = verify::normal(verify::count_of(shape), 21);
        // Any byte but 0 is true; a bool holds 0 or 1.
        for (double& m : mask) m = m < 0.3 ? 0 : type.code == kDLUInt ? 254 : 1;
        forward_call{.device = device(),
                     .spec = {.mask = softmax_mask::boolean, .in = pair.in, .out = pair.out},
                     .x = {{2, 3, 5, 37}},
                     .mask_shape = shape,
                     .mask = mask,
                     .mask_type = type}
            .run();
      }
}

TEST_P(softmax_forward, additive_masks_broadcast_and_hide_with_minus_infinity) {
  for (const dtype_pair& pair : dtype_pairs)
    for (const auto& shape : mask_shapes)
      for (const DLDataType type : {f32, pair.in})
        for (const bool log : {false, true}) {
          SCOPED_TRACE(name_of(pair) + " mask " + verify::name_of(type) + " " +
                       testing::PrintToString(shape));
          std::vector<double> mask = verify::normal(verify::count_of(shape), 22);
          for (double& m : mask) m = m < -0.7 ? -infinity : 3 * m;
          forward_call{.device = device(),
                       .spec = {.scale = 0.5,
                                .log = log,
                                .mask = softmax_mask::additive,
                                .in = pair.in,
                                .out = pair.out},
                       .x = {{2, 3, 5, 37}},
                       .mask_shape = shape,
                       .mask = mask,
                       .mask_type = type}
              .run();
        }
}

// A mask may be a strided view too: transposed, every other element, one row for all.
TEST_P(softmax_forward, masks_with_strides) {
  const std::vector<double> mask = [] {
    std::vector<double> m = verify::normal(6 * 50, 23);
    for (double& v : m) v = v < 0 ? 0 : 1;
    return m;
  }();
  for (const std::vector<int64_t>& strides :
       {std::vector<int64_t>{1, 6}, {100, 2}, {-50, -1}, {57, 1}})
    forward_call{.device = device(),
                 .spec = {.mask = softmax_mask::boolean},
                 .x = {{6, 50}},
                 .mask_shape = {6, 50},
                 .mask_strides = strides,
                 .mask = mask}
        .run();
}

TEST_P(softmax_forward, what_lies_at_masked_positions_does_not_matter) {
  for (const int64_t n : {6, 33, 700, 5000}) {
    std::vector<double> clean = verify::normal(4 * n, 31), mask = verify::normal(4 * n, 32);
    for (double& m : mask) m = m < 0 ? 0 : 1;
    for (const double junk : {nan, infinity, 3e38}) {
      std::vector<double> dirty = clean, hide(mask.size());
      for (size_t i = 0; i < dirty.size(); ++i) {
        if (mask[i] == 0) dirty[i] = junk;
        hide[i] = mask[i] == 0 ? -infinity : 0;
      }
      const auto run = [&](const std::vector<double>& x, bool additive) {
        return forward_call{
            .device = device(),
            .spec = {.mask = additive ? softmax_mask::additive : softmax_mask::boolean},
            .x = {{4, n}},
            .data = x,
            .mask_shape = {4, n},
            .mask = additive ? hide : mask,
            .mask_type = additive ? f32 : boolean}
            .run();
      };
      for (const bool additive : {false, true})
        EXPECT_EQ(run(dirty, additive), run(clean, additive));
    }
  }
}

TEST_P(softmax_forward, a_mask_that_hides_a_whole_row_gives_zeros) {
  std::vector<double> mask(3 * 40, 1);
  std::fill(mask.begin() + 40, mask.begin() + 80, 0);
  const auto y = forward_call{.device = device(),
                              .spec = {.mask = softmax_mask::boolean},
                              .x = {{3, 40}},
                              .mask_shape = {3, 40},
                              .mask = mask}
                     .run();
  for (size_t j = 40; j < 80; ++j) EXPECT_EQ(y[j], 0);
}

// B14, the picture of types.h.
TEST_P(softmax_forward, causal_masks_are_the_picture_in_the_header) {
  const auto pattern = [&](int64_t s, int64_t n, nf_causal causal) {
    const auto y =
        forward_call{.device = device(), .spec = {.causal = causal}, .x = {{s, n}}}.run();
    std::string rows;
    for (size_t i = 0; i < y.size(); ++i) {
      rows += y[i] > 0 ? 'x' : '.';
      if ((i + 1) % static_cast<size_t>(n) == 0) rows += '/';
    }
    return rows;
  };
  EXPECT_EQ(pattern(2, 5, NF_CAUSAL_BOTTOM_RIGHT), "xxxx./xxxxx/");
  EXPECT_EQ(pattern(2, 5, NF_CAUSAL_TOP_LEFT), "x..../xx.../");
  EXPECT_EQ(pattern(5, 2, NF_CAUSAL_BOTTOM_RIGHT), "../../../x./xx/");
  EXPECT_EQ(pattern(5, 2, NF_CAUSAL_TOP_LEFT), "x./xx/xx/xx/xx/");
}

// The query index is the last-but-one dimension's, whatever leads it and however rows collapse.
TEST_P(softmax_forward, causal_in_batches_of_every_kind) {
  for (const nf_causal causal : {NF_CAUSAL_BOTTOM_RIGHT, NF_CAUSAL_TOP_LEFT})
    for (const auto& shape : std::vector<std::vector<int64_t>>{
             {2, 3, 7, 7}, {3, 1, 40}, {2, 64, 300}, {4, 300, 64}, {2, 1, 1}, {2, 130, 4100}})
      for (const bool log : {false, true}) {
        SCOPED_TRACE(testing::PrintToString(shape));
        forward_call{.device = device(), .spec = {.causal = causal, .log = log}, .x = {shape}}
            .run();
      }
  // NaN in the future must not reach the past; a boolean mask applies on top.
  std::vector<double> x = verify::normal(2 * 9 * 9, 6), mask(9, 1);
  for (size_t i = 0; i < x.size(); ++i)
    if (i % 9 > i / 9 % 9) x[i] = nan;
  mask[4] = 0;
  forward_call{.device = device(),
               .spec = {.causal = NF_CAUSAL_BOTTOM_RIGHT, .mask = softmax_mask::boolean},
               .x = {{2, 9, 9}},
               .data = x,
               .mask_shape = {9},
               .mask = mask}
      .run();
}

// Property of the bottom-right rule: the last rows of a full run are a run of only those queries.
TEST_P(softmax_forward, the_last_causal_rows_stand_alone) {
  const std::vector<double> x = verify::normal(20 * 20, 8);
  const auto all = forward_call{.device = device(),
                                .spec = {.causal = NF_CAUSAL_BOTTOM_RIGHT},
                                .x = {{20, 20}},
                                .data = x}
                       .run();
  const auto last = forward_call{
      .device = device(),
      .spec = {.causal = NF_CAUSAL_BOTTOM_RIGHT},
      .x = {{3, 20}},
      .data = {x.end() - 60,
               x.end()}}.run();
  EXPECT_EQ(last, std::vector<double>(all.end() - 60, all.end()));
}

}  // namespace
}  // namespace ninefold::softmax_test
