// Faults that users of other libraries reported, and what a rotation is known to keep.
#include <sys/mman.h>

#include <array>

#include "ops/rope/test.hpp"
#include "verify/finite_difference.hpp"

namespace ninefold::rope_test {
namespace {

class rope_faults : public verify::on_each_device {
 protected:
  // q alone, turned at `offset`, as (1, S, H, D).
  std::vector<double> turned(const std::vector<double>& x, std::array<int64_t, 3> shape,
                             bool interleaved, int64_t offset, bool backward = false,
                             DLDataType type = f32) const {
    const layout where{{1, shape[0], shape[1], shape[2]}};
    tensor q(type, where, device()), out(type, where, device());
    q.store(x);
    const nf_rope_args args{.q = q,
                            .q_out = out,
                            .offset = offset,
                            .layout = interleaved ? NF_ROPE_INTERLEAVED : NF_ROPE_HALF};
    const nf_status status =
        backward ? nf_rope_backward(&args, nullptr) : nf_rope_forward(&args, nullptr);
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    return out.load();
  }
  static void near(const std::vector<double>& a, const std::vector<double>& b, double allowed) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], allowed) << i;
  }
};

// B11: a size-1 dimension fooled a test for transposed strides, and k came back as it was. Every
// combination, with a head size for each rung.
TEST_P(rope_faults, dimensions_of_size_1) {
  for (int which = 0; which < 32; ++which)
    for (const int64_t d : {128, 6})
      for (const order o : {order::bshd, order::bhsd, order::packed_qkv})
        for (const bool interleaved : {false, true}) {
          SCOPED_TRACE("combination " + std::to_string(which) + " D=" + std::to_string(d));
          call{.device = device(),
               .spec = {.interleaved = interleaved},
               .batch = which & 1 ? 1 : 2,
               .length = which & 2 ? 1 : 3,
               .q_heads = which & 4 ? 1 : 4,
               .k_heads = which & 8 ? 1 : 2,
               .head_size = d,
               .in = o,
               .out = which & 16 ? o : order::bshd,
               .offset = 1}
              .run();
        }
}

// The stride of a dimension of size 1 may be anything.
TEST_P(rope_faults, strides_of_size_1_are_not_looked_at) {
  for (const char* rung : {static_cast<const char*>(nullptr), "scalar"}) {
    tensor x(f32, {{1, 1, 1, 64}}, device()), y(f32, {{1, 1, 1, 64}}, device());
    x.fill_normal(1);
    verify::spoilt odd(x), odd_out(y);
    for (int d = 0; d < 3; ++d) odd.strides[d] = odd_out.strides[d] = (int64_t{1} << 40) + 1;
    ninefold::rope({.q = &odd.view, .q_out = &odd_out.view, .offset = 9, .rung = rung});
    EXPECT_TRUE(verify::matches(y, reference::rope({}, x.load(), 1, 64, {9})));
  }
}

// B12: the two layouts, by the numbers of the report.
TEST_P(rope_faults, layouts_by_name) {
  const double c = 0.54030230586813977, s = 0.84147098480789651;
  near(turned({1, 0, 0, 0}, {1, 1, 4}, false, 1), {c, 0, s, 0}, 1e-7);
  near(turned({1, 0, 0, 0}, {1, 1, 4}, true, 1), {c, s, 0, 0}, 1e-7);
  // Half is the default.
  tensor q(f32, {{1, 1, 1, 4}}, device()), out(f32, {{1, 1, 1, 4}}, device());
  q.store(std::vector<double>{1, 0, 0, 0});
  ninefold::rope({.q = q, .q_out = out, .offset = 1});
  near(out.load(), {c, 0, s, 0}, 1e-7);
}

TEST_P(rope_faults, position_0_is_the_identity) {
  const std::vector<double> x = verify::normal(5 * 34, 1);
  for (const bool interleaved : {false, true})
    for (const DLDataType type : float_types)
      for (const bool backward : {false, true}) {
        std::vector<double> stored = x;
        for (double& v : stored) v = verify::rounded(type, v);
        EXPECT_EQ(turned(stored, {1, 5, 34}, interleaved, 0, backward, type), stored);
      }
}

TEST_P(rope_faults, the_norm_of_each_pair_is_kept) {
  const int64_t d = 64;
  const std::vector<double> x = verify::patterned(verify::pattern::spiky_channels, 7, d, 1);
  for (const bool interleaved : {false, true}) {
    const std::vector<double> y = turned(x, {7, 1, d}, interleaved, 1000);
    for (size_t row = 0; row < 7; ++row)
      for (size_t i = 0; i < d / 2; ++i) {
        const size_t first = row * d + (interleaved ? 2 * i : i);
        const size_t second = first + (interleaved ? 1 : d / 2);
        const double before = std::hypot(x[first], x[second]);
        EXPECT_NEAR(std::hypot(y[first], y[second]), before, 5e-7 * before);
      }
  }
}

TEST_P(rope_faults, turns_add_up) {
  const std::vector<double> x = verify::normal(3 * 2 * 32, 1);
  for (const bool interleaved : {false, true}) {
    const std::array<int64_t, 3> shape{3, 2, 32};
    // Of three tokens at p, p + 1 and p + 2, each is turned on by 0, 1 and 2 more.
    const auto twice = turned(turned(x, shape, interleaved, 1234), shape, interleaved, 77);
    std::vector<double> expected = turned(x, shape, interleaved, 1234 + 77);
    for (size_t token = 1; token < 3; ++token) {
      const std::vector<double> one(x.begin() + static_cast<long>(token * 64),
                                    x.begin() + static_cast<long>(token * 64 + 64));
      const auto at = turned(one, {1, 2, 32}, interleaved, static_cast<int64_t>(1311 + 2 * token));
      std::copy(at.begin(), at.end(), expected.begin() + static_cast<long>(token * 64));
    }
    near(twice, expected, 3e-6);
  }
}

TEST_P(rope_faults, backward_takes_the_forward_back) {
  const std::vector<double> x = verify::normal(9 * 3 * 48, 1);
  for (const bool interleaved : {false, true}) {
    const std::array<int64_t, 3> shape{9, 3, 48};
    near(turned(turned(x, shape, interleaved, 131072), shape, interleaved, 131072, true), x, 4e-6);
  }
}

// The reference's backward against finite differences of its forward, for all that is linear in x
// still has to have the right transpose: with an attention factor it is no inverse.
TEST_P(rope_faults, backward_is_the_gradient) {
  const int64_t heads = 2, d = 10;
  const std::vector<int64_t> at{3, 0, 17};
  const std::vector<double> x = verify::normal(3 * heads * d, 1),
                            upstream = verify::normal(3 * heads * d, 2);
  for (const nf_rope_scaling& scaling : all_scalings())
    for (const bool interleaved : {false, true}) {
      rope_spec spec{.interleaved = interleaved, .rotary_dim = 6, .scaling = scaling};
      const auto slope = verify::finite_difference(
          [&](auto moved) {
            return reference::rope(spec, {moved.begin(), moved.end()}, heads, d, at).values;
          },
          x, upstream);
      tensor dq(f32, {{1, 3, heads, d}}, device()), out(f32, {{1, 3, heads, d}}, device());
      tensor positions(i64, {{1, 3}}, device());
      positions.store(std::vector<double>{3, 0, 17});
      dq.store(upstream);
      ninefold::rope_backward({.q = dq,
                               .q_out = out,
                               .positions = positions,
                               .layout = interleaved ? NF_ROPE_INTERLEAVED : NF_ROPE_HALF,
                               .rotary_dim = 6,
                               .scaling = scaling});
      near(out.load(), slope, 3e-6);
    }
}

// The scores of attention depend on the distance of two tokens alone, which is what it is all for.
TEST_P(rope_faults, scores_depend_on_the_distance) {
  const std::vector<double> q = verify::normal(64, 1), k = verify::normal(64, 2);
  for (const bool interleaved : {false, true}) {
    const auto score = [&](int64_t at_q, int64_t at_k) {
      const auto a = turned(q, {1, 1, 64}, interleaved, at_q),
                 b = turned(k, {1, 1, 64}, interleaved, at_k);
      double sum = 0;
      for (size_t i = 0; i < 64; ++i) sum += a[i] * b[i];
      return sum;
    };
    EXPECT_NEAR(score(5, 2), score(131075, 131072), 2e-5);
    EXPECT_GT(std::abs(score(5, 2) - score(2, 5)), 1e-2) << "the direction counts";
  }
}

// Infinities and NaN stay in their pair, and an infinity in the part that passes is no NaN.
TEST_P(rope_faults, special_values) {
  const double inf = verify::infinity;
  for (const char* rung : {static_cast<const char*>(nullptr), "scalar"})
    for (const DLDataType type : float_types) {
      tensor q(type, {{1, 1, 1, 64}}, device()), out(type, {{1, 1, 1, 64}}, device());
      std::vector<double> x(64, 1.0);
      x[3] = nan;
      x[5] = inf;
      x[40] = -inf;
      x[41] = -0.0;
      x[42] = nan;
      q.store(x);
      ninefold::rope({.q = q, .q_out = out, .offset = 1, .rotary_dim = 32, .rung = rung});
      const std::vector<double> y = out.load();
      for (size_t i = 0; i < 64; ++i) {
        const bool of_nan = i == 3 || i == 19, of_inf = i == 5 || i == 21;
        if (of_nan || i == 42) {
          EXPECT_TRUE(std::isnan(y[i])) << i;
        } else if (of_inf) {
          EXPECT_EQ(y[i], inf) << i;  // both cos and sin are positive there
        } else if (i >= 32) {
          EXPECT_TRUE(y[i] == x[i] && std::signbit(y[i]) == std::signbit(x[i])) << i;
        } else {
          EXPECT_TRUE(std::isfinite(y[i])) << i;
        }
      }
    }
}

// In place the part that passes is not touched, not even written with what it holds: a NaN keeps
// its payload, here the poison's.
TEST_P(rope_faults, in_place_the_rest_is_not_touched) {
  for (const DLDataType type : float_types)
    for (const int64_t rotary : {32, 6}) {
      tensor q(type, {{2, 3, 2, 64}}, device());
      q.poison();
      ninefold::rope({.q = q, .q_out = q, .offset = 1, .rotary_dim = rotary});
      EXPECT_GE(q.count_poison(), 2 * 3 * 2 * (64 - rotary));
      EXPECT_TRUE(q.canaries_intact());
    }
}

// What the header promises of cos and sin, which x = (1, 0) shows as they are.
TEST_P(rope_faults, cos_and_sin_are_right_to_fp32) {
  const int64_t tokens = 20'000, d = 32;
  std::vector<double> x(static_cast<size_t>(tokens * d));
  for (size_t i = 0; i < x.size(); i += 2) x[i] = 1;
  for (const int64_t from : {int64_t{0}, int64_t{131072}, int64_t{-1'000'000}, int64_t{1} << 30}) {
    const std::vector<double> y = turned(x, {tokens, 1, d}, true, from);
    const std::vector<double> f = reference::rope_frequencies({}, d);
    double worst = 0;
    for (size_t i = 0; i < x.size(); i += 2) {
      const long double angle = static_cast<long double>(from + static_cast<int64_t>(i / d)) *
                                static_cast<long double>(f[i % d / 2]);
      worst = std::fmax(worst, std::abs(y[i] - static_cast<double>(std::cos(angle))));
      worst = std::fmax(worst, std::abs(y[i + 1] - static_cast<double>(std::sin(angle))));
    }
    EXPECT_LT(worst, 1.2e-7) << "from " << from;
  }
}

TEST_P(rope_faults, positions_beyond_2_31) {
  for (const char* rung : {static_cast<const char*>(nullptr), "scalar"}) {
    const int64_t position = (int64_t{1} << 31) + 5;
    tensor q(f32, {{1, 1, 1, 16}}, device()), out(f32, {{1, 1, 1, 16}}, device());
    q.fill_normal(1);
    ninefold::rope({.q = q, .q_out = out, .offset = position, .rung = rung});
    expectation expected = reference::rope({}, q.load(), 1, 16, {position});
    for (double& allowed : expected.allowed) allowed += 2e-6;  // the reference's angle, in double
    EXPECT_TRUE(verify::matches(out, expected));
  }
}

// Kind 1: an index times a stride passes 2^31 with 64 elements. The memory is never there but for
// two pages.
TEST(rope_strides, beyond_2_31_elements) {
  const int64_t stride = (int64_t{1} << 31) + 32;
  const size_t bytes = static_cast<size_t>(stride + 64) * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  float* const data = static_cast<float*>(memory);
  const std::vector<double> x = verify::normal(64, 1);
  for (const char* rung : {"row_per_token", "scalar"})
    for (int d = 0; d < 3; ++d) {
      const auto at = [&](size_t i) {
        return data + (i < 32 ? 0 : stride) + static_cast<int64_t>(i % 32);
      };
      for (size_t i = 0; i < 64; ++i) *at(i) = static_cast<float>(x[i]);
      verify::spoilt q(view(data, f32, {d == 0 ? 2 : 1, d == 1 ? 2 : 1, d == 2 ? 2 : 1, 32},
                            {d == 0 ? stride : 32, d == 1 ? stride : 32, d == 2 ? stride : 32, 1}));
      ninefold::rope({.q = &q.view, .q_out = &q.view, .offset = 3, .rung = rung});
      const std::vector<int64_t> positions = d == 0   ? std::vector<int64_t>{3, 3}
                                             : d == 1 ? std::vector<int64_t>{3, 4}
                                                      : std::vector<int64_t>{3};
      const expectation expected = reference::rope({}, x, d == 2 ? 2 : 1, 32, positions);
      for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(*at(i), expected.values[i], expected.allowed[i]);
    }
  munmap(memory, bytes);
}

INSTANTIATE_TEST_SUITE_P(devices, rope_faults, testing::ValuesIn(verify::devices()),
                         verify::device_name);

}  // namespace
}  // namespace ninefold::rope_test
