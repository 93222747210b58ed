// The judge is tested too: conversions, canaries, poison, inputs and the comparison itself.
#include <omp.h>

#include <bit>
#include <cmath>
#include <limits>

#include "verify/inputs.hpp"
#include "verify/number.hpp"
#include "verify/testing.hpp"

namespace ninefold::verify {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// All 65,536 patterns: decoding and encoding again gives the pattern (NaNs: a NaN of that sign);
// every number between two neighbours goes to the nearer one, a tie to the even one.
template <class Format>
void check_every_pattern() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double value = Format::decode(bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Format::decode(Format::encode(value))));
      ASSERT_GT(bits & (Format::sign_bit - 1), Format::infinity);
      continue;
    }
    ASSERT_EQ(Format::encode(value), bits);
    if ((bits & (Format::sign_bit - 1)) >= Format::infinity) continue;
    const double next = Format::decode(bits + 1);
    if (std::isinf(next)) continue;
    const double middle = (value + next) / 2;  // exact: doubles have bits to spare
    ASSERT_EQ(Format::encode(middle), bits % 2 ? bits + 1 : bits);
    ASSERT_EQ(Format::encode(std::nextafter(middle, value)), bits);
    ASSERT_EQ(Format::encode(std::nextafter(middle, next)), bits + 1);
  }
}

TEST(number, half_is_exact_for_all_patterns_and_rounds_to_nearest_even) {
  check_every_pattern<half_format>();
  EXPECT_EQ(half_format::encode(1), 0x3C00u);
  EXPECT_EQ(half_format::encode(-2), 0xC000u);
  EXPECT_EQ(half_format::encode(65504), 0x7BFFu);
  EXPECT_EQ(half_format::encode(65519.99), 0x7BFFu);
  EXPECT_EQ(half_format::encode(65520), half_format::infinity);
  EXPECT_EQ(half_format::encode(0x1p-24), 1u);
  EXPECT_EQ(half_format::encode(0x1p-25), 0u);
  EXPECT_EQ(half_format::encode(0x1.01p-25), 1u);
  EXPECT_EQ(half_format::encode(-0.0), 0x8000u);
  EXPECT_EQ(half_format::encode(-5e-324), 0x8000u);
  EXPECT_EQ(half_format::encode(-infinity), 0xFC00u);
}

TEST(number, bfloat_is_exact_for_all_patterns_and_rounds_to_nearest_even) {
  check_every_pattern<bfloat_format>();
  EXPECT_EQ(bfloat_format::encode(1), 0x3F80u);
  EXPECT_EQ(bfloat_format::encode(1e300), bfloat_format::infinity);
  EXPECT_EQ(bfloat_format::encode(0x1p-133), 1u);
  // A bf16 is the upper half of a float.
  for (uint32_t bits = 0; bits < 0x7F80; ++bits)
    ASSERT_EQ(bfloat_format::decode(bits), std::bit_cast<float>(bits << 16));
}

TEST(tensor, strides_offsets_and_dtypes_come_back_as_stored) {
  const std::vector<double> values = normal(24, 1);
  for (const DLDataType type : {f32, f16, bf16})
    for (const layout& where : {layout{{4, 6}},
                                {{4, 6}, {}, 3},
                                {{4, 6}, {1, 4}},
                                {{4, 6}, {20, 3}},
                                {{4, 6}, {-6, -1}, 2}}) {
      tensor t(type, where);
      EXPECT_EQ(t.count_poison(), 24);
      t.store(values);
      EXPECT_EQ(t.count_poison(), 0);
      EXPECT_TRUE(t.canaries_intact());
      const std::vector<double> back = t.load();
      for (size_t i = 0; i < 24; ++i) EXPECT_EQ(back[i], rounded(type, values[i]));
      const int64_t rows[] = {3, 1};
      const std::vector<double> two = t.load_rows(rows);
      for (size_t j = 0; j < 6; ++j) {
        EXPECT_EQ(two[j], back[18 + j]);
        EXPECT_EQ(two[6 + j], back[6 + j]);
      }
    }
  tensor expanded(f32, {{4, 6}, {0, 1}});
  expanded.store(values);
  EXPECT_EQ(expanded.load()[0], expanded.load()[18]);
}

TEST(tensor, canaries_see_a_write_on_either_side_and_in_a_gap) {
  const auto hit = [](layout where, int64_t element) {
    tensor t(f32, std::move(where));
    static_cast<float*>(static_cast<const DLTensor*>(t)->data)[element] = 1;
    return !t.canaries_intact();
  };
  EXPECT_TRUE(hit({{2, 5}}, -1));
  EXPECT_TRUE(hit({{2, 5}}, -64));
  EXPECT_TRUE(hit({{2, 5}}, 10));
  EXPECT_TRUE(hit({{2, 5}}, 73));
  EXPECT_FALSE(hit({{2, 5}}, 9));
  EXPECT_TRUE(hit({{2, 5}, {6, 1}}, 5));
  EXPECT_FALSE(hit({{2, 5}, {6, 1}}, 6));
  EXPECT_TRUE(hit({{2, 5}, {}, 3}, -2));
  EXPECT_TRUE(hit({{2, 0}}, 0));
}

TEST(tensor, normal_inputs_do_not_depend_on_layout_dtype_or_threads) {
  constexpr int64_t rows = 700, cols = 1001;
  tensor plain(f32, {{rows, cols}}), turned(f32, {{rows, cols}, {1, rows}}),
      flat(f32, {{rows * cols}}), narrow(bf16, {{rows, cols}}), single(f32, {{rows, cols}});
  const int threads = omp_get_max_threads();
  for (tensor* t : {&plain, &turned, &flat, &narrow}) t->fill_normal(5);
  omp_set_num_threads(1);
  single.fill_normal(5);
  omp_set_num_threads(threads);
  const std::vector<double> a = plain.load();
  EXPECT_EQ(a, turned.load());
  EXPECT_EQ(a, flat.load());
  EXPECT_EQ(a, single.load());
  const std::vector<double> b = narrow.load();
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(b[i], rounded(bf16, a[i]));
    sum += a[i];
    squares += a[i] * a[i];
    fourth += a[i] * a[i] * a[i] * a[i];
    if (i) neighbours += a[i] * a[i - 1];
  }
  const double n = rows * cols;  // five standard errors each
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 / std::sqrt(n));
  single.fill_normal(6);
  EXPECT_NE(a, single.load());
}

TEST(compare, fails_what_must_fail) {
  const std::vector<double> reference = {1, 2, nan, infinity, -infinity, 0};
  const tolerance tight{0, 1e-3};
  const auto with = [&](size_t at, double value) {
    std::vector<double> out = reference;
    out[at] = value;
    return compare(out, reference, tight);
  };
  EXPECT_TRUE(compare(reference, reference, tight).passed());
  EXPECT_TRUE(with(1, 2.0019).passed());
  EXPECT_FALSE(with(1, 2.0021).passed());
  EXPECT_EQ(with(1, 2.0021).worst_index, 1);
  EXPECT_NEAR(with(1, 2.02).rel_l2, 0.02 / std::sqrt(5.0), 1e-12);
  for (const double wrong : {nan, infinity, -infinity}) EXPECT_FALSE(with(0, wrong).passed());
  EXPECT_FALSE(with(2, 1).passed());
  EXPECT_FALSE(with(3, -infinity).passed());
  EXPECT_FALSE(with(4, nan).passed());
  EXPECT_FALSE(with(5, 1e-300).passed());
  error_report report = compare(reference, reference, tight);
  report.unwritten = 1;
  EXPECT_FALSE(report.passed());
  EXPECT_THROW(compare(std::vector<double>(5), reference, tight), std::invalid_argument);
}

TEST(broadcast, follows_numpy_from_the_right) {
  EXPECT_EQ(broadcast({1, 2, 3}, {3}, {2, 3}), (std::vector<double>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(broadcast({1, 2}, {2, 1}, {2, 3}), (std::vector<double>{1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(broadcast({1, 2}, {2, 1, 1}, {2, 1, 2}), (std::vector<double>{1, 1, 2, 2}));
}

}  // namespace
}  // namespace ninefold::verify
