// Dropout against the float64 reference: every length, dtype and layout, and the generator.
#include "ops/dropout/test.hpp"

#include <omp.h>

namespace ninefold::dropout_test {
namespace {

class dropout : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, dropout, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// The known answers of docs/numerics.md, which tests/backend holds the library's generator to; and
// groups beyond 2^32 are groups of their own.
TEST(dropout_reference, is_philox) {
  const std::array<uint32_t, 4> zero{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      ones{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  constexpr uint32_t most = ~uint32_t{0};
  EXPECT_EQ(verify::philox4x32_10({0, 0, 0, 0}, {0, 0}), zero);
  EXPECT_EQ(verify::philox4x32_10({most, most, most, most}, {most, most}), ones);
}

// dx is the derivative: dropout is linear in x, so any step will do.
TEST(dropout_reference, gradients_are_finite_differences) {
  const dropout_spec s{.p = 0.4, .seed = 3};
  const std::vector<double> x = verify::normal(50, 1), dy = verify::normal(50, 2);
  const auto dx = reference::dropout(s, dy).values, base = reference::dropout(s, x).values;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> moved = x;
    moved[i] += 0.5;
    const auto y = reference::dropout(s, moved).values;
    double slope = 0;
    for (size_t j = 0; j < y.size(); ++j) slope += dy[j] * (y[j] - base[j]) / 0.5;
    EXPECT_NEAR(dx[i], slope, 1e-12);
  }
}

// Every tail of a vector loop, alone and with rows that then begin anywhere in a group.
TEST_P(dropout, every_length) {
  for (const DLDataType type : float_types)
    for (const bool residual : {false, true})
      for (int64_t n = 1; n <= 150; n += verify::sanitized && n > 18 ? 7 : 1)
        for (const lie where : {lie::contiguous, lie::padded_rows})
          call{.device = device(),
               .shape = {3, n},
               .type = type,
               .residual = residual,
               .x = where,
               .y = where}
              .run();
}

TEST_P(dropout, every_alignment) {
  for (const DLDataType type : float_types)
    for (int64_t off = 0; off < 9; ++off)
      for (const int64_t n : {1, 8, 67, 300}) {
        tensor x(type, {{n}, {}, off}, device()), y(type, {{n}, {}, off * 3 % 8}, device());
        x.fill_normal(4);
        ninefold::dropout({.x = x, .y = y, .p = 0.5, .seed = {nullptr, 2}});
        EXPECT_TRUE(
            verify::matches(y, reference::dropout({.p = 0.5, .seed = 2, .type = type}, x.load())));
      }
}

// The mask is of logical indices: the values do not depend on how a tensor lies.
TEST_P(dropout, every_layout_has_the_same_mask) {
  for (const DLDataType type : float_types)
    for (const auto& shape : std::vector<std::vector<int64_t>>{{37}, {5, 37}, {2, 3, 37}}) {
      const auto expected =
          call{.device = device(), .shape = shape, .type = type, .residual = true}.run();
      for (const lie x : lies)
        for (const lie y : lies)
          for (const lie r : {lie::contiguous, y}) {
            const auto got = call{.device = device(),
                                  .shape = shape,
                                  .type = type,
                                  .residual = true,
                                  .x = x,
                                  .y = y,
                                  .r = r}
                                 .run();
            EXPECT_TRUE(same_values(got.y, expected.y) && same_values(got.dx, expected.dx));
          }
    }
}

TEST_P(dropout, inputs_with_stride_0) {
  const int64_t rows = 5, n = 40;
  for (const int64_t row_stride : {0, 1})
    for (const int64_t col_stride : {0, 1}) {
      const layout where{{rows, n}, {row_stride, col_stride}};
      tensor x(f32, where, device()), r(f32, where, device()), y(f32, {{rows, n}}, device());
      x.store(std::vector<double>(static_cast<size_t>(rows * n), 2.0));
      r.store(std::vector<double>(static_cast<size_t>(rows * n), -0.75));
      ninefold::dropout({.x = x, .residual = r, .y = y, .p = 0.5, .seed = {nullptr, 2}});
      EXPECT_TRUE(
          verify::matches(y, reference::dropout({.p = 0.5, .seed = 2}, x.load(), r.load())));
    }
}

// More than a block, a piece of a row, and what passes the caches. On CUDA enough for "vector64".
TEST_P(dropout, large_tensors) {
  for (const DLDataType type : {f32, bf16})
    for (const bool residual : {false, true}) {
      const int64_t n = on_cuda() ? (1 << 25) + 13 : (1 << 23) / (type.bits / 8) * 4 + 13,
                    some = verify::sanitized ? 70'001 : n;
      const layout where{{some}};
      tensor x(type, where, device()), r(type, where, device()), y(type, where, device());
      x.fill_normal(1);
      r.fill_normal(2);
      nf_dropout_args args{.x = x, .y = y, .p = 0.1, .seed = {nullptr, -3}, .offset = {nullptr, 9}};
      if (residual) args.residual = r;
      ninefold::dropout(args);
      const dropout_spec s{.p = 0.1, .seed = ~uint64_t{0} - 2, .offset = 9, .type = type};
      const auto in = x.load(), added = r.load(), out = y.load();
      for (size_t from = 0; from < in.size(); from += 131'072) {
        const size_t count = std::min<size_t>(in.size() - from, 5'000);
        const auto part = [&](const std::vector<double>& v) {
          return std::span<const double>(v).subspan(from, count);
        };
        const auto expected = reference::dropout(
            s, part(in), residual ? part(added) : std::span<const double>(), from);
        EXPECT_TRUE(verify::compare(part(out), expected.values, expected.allowed).passed()) << from;
      }
      EXPECT_TRUE(y.canaries_intact());
      EXPECT_EQ(y.count_poison(), 0);
      // In place nothing passes the caches.
      args.y = x;
      ninefold::dropout(args);
      EXPECT_TRUE(x.snapshot() == y.snapshot());
    }
}

TEST_P(dropout, empty_tensors_do_nothing) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{0}, {0, 7}, {7, 0}, {2, 0, 3}}) {
    call{.device = device(), .shape = shape, .residual = true}.run();
    EXPECT_EQ(verify::last_rung(), "none");
  }
}

TEST_P(dropout, is_deterministic) {
  const int before = omp_get_max_threads();
  std::vector<std::vector<double>> all;
  for (const int threads : {1, 2, 7, 7}) {
    omp_set_num_threads(threads);
    all.push_back(call{.device = device(), .shape = {300, 1111}, .residual = true}.run().y);
    EXPECT_TRUE(all.back() == all.front());
  }
  omp_set_num_threads(before);
}

// The same bits on CPU and CUDA.
TEST(dropout_devices, agree_bit_for_bit) {
  for (const DLDataType type : float_types)
    for (const bool residual : {false, true})
      for (const lie where : {lie::contiguous, lie::off_by_one, lie::padded_rows}) {
        std::vector<std::vector<double>> all;
        for (const DLDevice on : verify::devices()) {
          all.push_back(call{.device = on,
                             .shape = {9, 1001},
                             .type = type,
                             .residual = residual,
                             .x = where,
                             .y = where}
                            .run()
                            .y);
          EXPECT_TRUE(all.back() == all.front());
        }
      }
}

}  // namespace
}  // namespace ninefold::dropout_test
