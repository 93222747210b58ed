// Faults that others had (B29, B30), special values, and whether the mask is random.
#include <cstring>

#include "ops/dropout/test.hpp"

namespace ninefold::dropout_test {
namespace {

class dropout_faults : public verify::on_each_device {
 protected:
  nf_dropout_args with(double p) const { return {.p = p, .seed = {nullptr, 11}}; }
};
INSTANTIATE_TEST_SUITE_P(devices, dropout_faults, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// B30: dropped is 0 and not inf * 0, and kept is inf or NaN.
TEST_P(dropout_faults, dropped_is_selected_and_not_multiplied) {
  const int64_t n = 203;
  for (const DLDataType type : float_types)
    for (const double value : {infinity, -infinity, nan})
      for (const double p : {0.1, 0.9, 1.0}) {
        tensor x(type, {{n}}, device()), r(type, {{n}}, device()), y(type, {{n}}, device());
        x.store(std::vector<double>(n, value));
        r.store(std::vector<double>(n, 2.5));
        nf_dropout_args args = with(p);
        args.x = args.dy = x;
        args.y = args.dx = y;
        for (const bool residual : {false, true}) {
          args.residual = residual ? static_cast<const DLTensor*>(r) : nullptr;
          ninefold::dropout(args);
          const auto got = y.load();
          for (size_t i = 0; i < n; ++i) {
            const bool kept =
                verify::dropout_spec{.p = p, .seed = 11}.keeps(static_cast<uint64_t>(i));
            const double expected = kept ? value : residual ? 2.5 : 0.0;
            EXPECT_TRUE(same_values({got[i]}, {expected})) << i << " is " << got[i];
          }
        }
      }
}

// Every bit pattern of a NaN, both zeros, subnormals: p = 0 is the identity, and p = 1 the
// residual.
TEST_P(dropout_faults, nothing_and_everything_dropped_are_exact) {
  for (const DLDataType type : float_types)
    for (const lie where : {lie::contiguous, lie::off_by_one, lie::every_second}) {
      const int64_t n = 77;
      const auto size = static_cast<size_t>(type.bits / 8);
      // Bits as such cannot be stored as doubles: raw memory is made on the CPU, and on CUDA the
      // values that survive are all there is.
      tensor x(type, lay({n}, where), device()), y(type, lay({n}, where), device());
      std::vector<double> special{0.0, -0.0, infinity, -infinity, nan, 1e-7, -1e-7, 65504};
      std::vector<double> values;
      for (size_t i = 0; i < n; ++i) values.push_back(special[i % special.size()]);
      x.store(values);
      if (!on_cuda()) {
        const DLTensor* view = x;
        auto* bytes = static_cast<unsigned char*>(view->data) + view->byte_offset;
        const uint32_t quiet_and_signalling[2][2] = {{0x7fc12345, 0xff812345}, {0x7fc1, 0xff81}};
        const int64_t stride = view->strides ? view->strides[0] : 1;
        for (int64_t i = 4; i < n; i += 8) {
          uint32_t bits = quiet_and_signalling[size == 2][i / 8 % 2];
          if (type.code == kDLFloat && size == 2) bits = bits == 0x7fc1 ? 0x7e05 : 0xfc05;
          std::memcpy(bytes + i * stride * static_cast<int64_t>(size), &bits, size);
        }
      }
      nf_dropout_args args = with(0);
      args.x = args.dy = x;
      args.y = args.dx = y;
      ninefold::dropout(args);
      EXPECT_TRUE(y.snapshot() == x.snapshot()) << "p = 0";
      y.poison();
      ninefold::dropout_backward(args);
      EXPECT_TRUE(y.snapshot() == x.snapshot()) << "p = 0, backward";
      tensor other(type, lay({n}, where), device());
      other.fill_normal(1);
      y.poison();
      args = with(1);
      args.x = other;
      args.residual = x;
      args.y = y;
      ninefold::dropout(args);
      EXPECT_TRUE(y.snapshot() == x.snapshot()) << "p = 1";
      args.residual = nullptr;
      args.x = args.dy = x;
      args.dx = y;
      const auto zeros = [&] {
        for (const double v : y.load()) EXPECT_TRUE(v == 0 && !std::signbit(v)) << v;
        EXPECT_TRUE(y.canaries_intact());
        y.poison();
      };
      ninefold::dropout(args);
      zeros();
      ninefold::dropout_backward(args);
      zeros();
    }
}

TEST_P(dropout_faults, nothing_dropped_with_a_residual_is_a_sum) {
  for (const DLDataType type : float_types)
    for (const lie where : lies)
      call{.device = device(),
           .shape = {3, 41},
           .type = type,
           .p = 0,
           .residual = true,
           .x = where,
           .y = where}
          .run();
}

// The neighbours of 0 and 1, whose thresholds round to keeping all and dropping all.
TEST_P(dropout_faults, probabilities_next_to_the_ends) {
  for (const double p :
       {1e-300, 0x1p-18, 0x1p-17, 0x1p-10, 1 - 0x1p-10, 1 - 0x1p-16, 1 - 0x1p-18, 1 - 0x1p-53})
    for (const bool residual : {false, true})
      call{.device = device(), .shape = {100'000}, .p = p, .residual = residual}.run();
}

TEST_P(dropout_faults, minus_zero_keeps_its_sign) {
  tensor x(bf16, {{64}}, device()), y(bf16, {{64}}, device());
  x.store(std::vector<double>(64, -0.0));
  nf_dropout_args args = with(0.5);
  args.x = x;
  args.y = y;
  ninefold::dropout(args);
  const auto got = y.load();
  for (size_t i = 0; i < 64; ++i)
    EXPECT_EQ(std::signbit(got[i]), (verify::dropout_spec{.p = 0.5, .seed = 11}.keeps(i)));
}

TEST_P(dropout_faults, large_values_overflow_as_their_dtype_does) {
  for (const DLDataType type : float_types) {
    const double large = type.bits == 32 || type.code == kDLBfloat ? 3e38 : 60000;
    call{.device = device(), .shape = {3}, .type = type, .values = {large, -large, 1}}.run();
  }
}

// B29: the backward's mask is the forward's, by value and by address.
TEST_P(dropout_faults, backward_has_the_forwards_mask) {
  for (const bool by_address : {false, true})
    for (const double p : {0.1, 0.5, 0.9}) {
      const auto got = call{.device = device(),
                            .shape = {5, 200},
                            .p = p,
                            .seed = -4'000'000'000,
                            .offset = 3'000'000'000'000,
                            .by_address = by_address,
                            .values = std::vector<double>(1000, 1.0)}
                           .run();
      EXPECT_EQ(got.y, got.dx);
      int64_t dropped = 0;
      for (const double v : got.y) dropped += v == 0;
      EXPECT_NEAR(static_cast<double>(dropped), 1000 * p, 5 * std::sqrt(1000 * p * (1 - p)));
    }
}

// All 64 bits of seed and offset matter: each alone makes another mask.
TEST_P(dropout_faults, every_bit_of_seed_and_offset_counts) {
  const auto plain = mask_of(device(), 256, 0.5, 0, 0);
  for (int bit = 0; bit < 64; ++bit) {
    const auto number = static_cast<int64_t>(uint64_t{1} << bit);
    EXPECT_NE(mask_of(device(), 256, 0.5, number, 0), plain) << bit;
    EXPECT_NE(mask_of(device(), 256, 0.5, 0, number), plain) << bit;
  }
}

// The share that is kept, and how often two masks agree: within 5 deviations of independence.
TEST_P(dropout_faults, masks_are_random) {
  const int64_t n = 1 << 18;
  const auto agree = [&](const std::vector<bool>& a, const std::vector<bool>& b, int64_t lag,
                         double p, const char* what) {
    int64_t same = 0;
    for (int64_t i = lag; i < n; ++i)
      same += a[static_cast<size_t>(i)] == b[static_cast<size_t>(i - lag)];
    const double share = p * p + (1 - p) * (1 - p), count = static_cast<double>(n - lag);
    // Neighbouring pairs share an element: their sum varies by up to three times as much.
    EXPECT_NEAR(static_cast<double>(same), count * share,
                5 * std::sqrt(3 * count * share * (1 - share)))
        << what << " " << lag << " p " << p;
  };
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto mask = mask_of(device(), n, p, 42, 0);
    int64_t kept = 0, by_place[8] = {};
    for (int64_t i = 0; i < n; ++i) {
      kept += mask[static_cast<size_t>(i)];
      by_place[i % 8] += mask[static_cast<size_t>(i)];
    }
    const double deviation = std::sqrt(static_cast<double>(n) * p * (1 - p));
    EXPECT_NEAR(static_cast<double>(kept), static_cast<double>(n) * (1 - p), 5 * deviation);
    for (const int64_t place : by_place)
      EXPECT_NEAR(static_cast<double>(place), static_cast<double>(n) / 8 * (1 - p),
                  5 * deviation / std::sqrt(8));
    for (const int64_t lag : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 1024})
      agree(mask, mask, lag, p, "neighbours");
    agree(mask, mask_of(device(), n, p, 43, 0), 0, p, "seeds");
    agree(mask, mask_of(device(), n, p, 42, 1), 0, p, "offsets");
    agree(mask, mask_of(device(), n, p, 0, 42), 0, p, "seed and offset exchanged");
  }
}

}  // namespace
}  // namespace ninefold::dropout_test
