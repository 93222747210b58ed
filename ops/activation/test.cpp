// The activations against the float64 reference: every kind, gating, dtype, length and layout.
#include "ops/activation/test.hpp"

#include <omp.h>

namespace ninefold::activation_test {
namespace {

class activation : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, activation, testing::ValuesIn(verify::devices()),
                         verify::device_name);

template <class Body>
void for_each_form(const Body& body) {
  for (const nf_activation_kind kind : kinds)
    for (const nf_activation_gating gating : gatings)
      if (exists(kind, gating)) body(kind, gating);
}

// Central differences, in double, away from the corners of the ReLUs and the clamps.
TEST(activation_reference, gradients_are_finite_differences) {
  constexpr double h = 1e-5;
  for (const nf_activation_kind kind : kinds)
    for (const bool gated : {false, true}) {
      if (!gated && kind == NF_ACTIVATION_SWIGLU_CLAMP) continue;
      const activation_spec s{.kind = kind, .gated = gated};
      for (double gate = -9.03; gate < 9.1; gate += 0.31)
        for (const double up : {-8.2, -1.7, 0.4, 7.9}) {
          if (std::abs(gate) < 2 * h || std::abs(gate - s.limit) < 2 * h) continue;
          const double dy = 0.7;
          const auto y = [&](double g, double u) {
            return dy * reference::activation_forward(s, g, gated ? u : 1).value;
          };
          const auto got = reference::activation_backward(s, gate, gated ? up : 1, dy);
          EXPECT_NEAR(got.dgate.value, (y(gate + h, up) - y(gate - h, up)) / (2 * h), 1e-7)
              << kind_names[kind] << " " << gate << " " << up;
          if (!gated) continue;
          EXPECT_NEAR(got.dup.value, (y(gate, up + h) - y(gate, up - h)) / (2 * h), 1e-7)
              << kind_names[kind] << " " << gate << " " << up;
        }
    }
}

// Every tail of a vector loop, alone and with rows that then begin anywhere.
TEST_P(activation, every_length) {
  for_each_form([&](nf_activation_kind kind, nf_activation_gating gating) {
    for (const DLDataType type : float_types)
      for (int64_t n = 1; n <= 70; n += verify::sanitized && n > 18 ? 7 : 1) {
        const bool some = gating == NF_ACTIVATION_UNGATED && n % 2 == 0;
        call{.device = device(),
             .kind = kind,
             .gating = gating,
             .shape = {3, n},
             .type = type,
             .bias = some,
             .dbias = some}
            .run();
      }
  });
}

// Longer than a block, a strip and a piece of a row.
TEST_P(activation, long_rows) {
  for_each_form([&](nf_activation_kind kind, nf_activation_gating gating) {
    const bool ungated = gating == NF_ACTIVATION_UNGATED;
    for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 2048}, {3, 2, 997}, {66'001}})
      if (shape.size() > 1 || kind == NF_ACTIVATION_SILU)
        call{.device = device(),
             .kind = kind,
             .gating = gating,
             .shape = shape,
             .type = bf16,
             .bias = ungated,
             .dbias = ungated}
            .run();
  });
}

TEST_P(activation, every_layout) {
  for (const nf_activation_gating gating : gatings)
    for (const DLDataType type : float_types)
      for (const lie x : lies)
        for (const lie y : lies)
          for (const lie dx : {lie::contiguous, x, lie::padded_rows}) {
            const bool ungated = gating == NF_ACTIVATION_UNGATED;
            SCOPED_TRACE(testing::Message()
                         << "x " << int(x) << " y " << int(y) << " dx " << int(dx));
            call{.device = device(),
                 .kind = NF_ACTIVATION_SILU,
                 .gating = gating,
                 .shape = {2, 3, 37},
                 .type = type,
                 .x = x,
                 .up = y,
                 .y = y,
                 .dx = dx,
                 .bias = ungated && x == y,
                 .dbias = ungated && x != dx}
                .run();
          }
}

// Stores past the caches, of rows that begin anywhere in a line, have the bits of those in place,
// which go through them.
TEST_P(activation, larger_than_the_caches) {
  for (const DLDataType type : {f32, bf16}) {
    const std::vector<int64_t> shape{type.bits == 32 ? 515 : 1'030, 4'099};
    tensor x(type, {shape, {}, 1}, device()), up(type, {shape, {}, 1}, device()),
        dy(type, {shape}, device()), y(type, {shape, {}, 1}, device()),
        dx(type, {shape, {}, 1}, device()), dup(type, {shape, {}, 1}, device());
    x.fill_normal(1);
    up.fill_normal(2);
    dy.fill_normal(3);
    nf_activation_args args{.kind = NF_ACTIVATION_SILU,
                            .gating = NF_ACTIVATION_TWO_TENSORS,
                            .x = x,
                            .up = up,
                            .y = y,
                            .dy = dy,
                            .dx = dx,
                            .dup = dup};
    ninefold::activation(args);
    ninefold::activation_backward(args);
    EXPECT_TRUE(y.canaries_intact() && dx.canaries_intact() && dup.canaries_intact());
    args.dx = x;
    args.dup = up;
    ninefold::activation_backward(args);
    EXPECT_TRUE(x.snapshot() == dx.snapshot() && up.snapshot() == dup.snapshot());
    x.fill_normal(1);
    up.fill_normal(2);
    args.y = x;
    ninefold::activation(args);
    EXPECT_TRUE(x.snapshot() == y.snapshot());
  }
}

TEST_P(activation, inputs_with_stride_0) {
  const int64_t rows = 5, n = 40;
  for (const int64_t row_stride : {0, 1})
    for (const int64_t col_stride : {0, 1}) {
      const layout where{{rows, n}, {row_stride, col_stride}};
      tensor x(f32, where, device()), dy(f32, where, device()), bias(f32, {{n}, {0}}, device());
      x.store(verify::normal(rows * n, 1));
      dy.store(verify::normal(rows * n, 2));
      bias.store(std::vector<double>(static_cast<size_t>(n), 0.25));
      tensor y(f32, {{rows, n}}, device()), dx(f32, {{rows, n}}, device());
      ninefold::activation({.x = x, .bias = bias, .y = y});
      ninefold::activation_backward({.x = x, .bias = bias, .dy = dy, .dx = dx});
      const activation_spec s;
      EXPECT_TRUE(verify::matches(y, reference::activation_forward(s, x.load(), {}, bias.load())));
      EXPECT_TRUE(verify::matches(
          dx, reference::activation_backward(s, n, x.load(), {}, bias.load(), dy.load()).dgate));
    }
}

TEST_P(activation, y_over_up) {
  tensor x(bf16, {{7, 33}}, device()), up(bf16, {{7, 33}}, device()), y(bf16, {{7, 33}}, device());
  x.fill_normal(1);
  up.fill_normal(2);
  nf_activation_args args{
      .kind = NF_ACTIVATION_SILU, .gating = NF_ACTIVATION_TWO_TENSORS, .x = x, .up = up, .y = y};
  ninefold::activation(args);
  args.y = up;
  ninefold::activation(args);
  EXPECT_EQ(up.load(), y.load());
}

TEST_P(activation, empty_tensors_do_nothing) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{0}, {0, 7}, {7, 0}, {2, 0, 3}})
    for_each_form([&](nf_activation_kind kind, nf_activation_gating gating) {
      call{.device = device(), .kind = kind, .gating = gating, .shape = shape}.run();
      EXPECT_EQ(verify::last_rung(), "none");
    });
}

// The sum over no rows is 0, or what was there.
TEST_P(activation, dbias_of_no_rows) {
  for (const bool accumulate : {false, true})
    call{.device = device(), .shape = {0, 7}, .dbias = true, .accumulate = accumulate}.run();
}

TEST_P(activation, dbias_dtypes_and_accumulation) {
  for (const DLDataType type : float_types)
    for (const DLDataType dbias_type : {f32, type})
      for (const bool accumulate : {false, true})
        for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 5}, {300, 37}, {4, 17, 64}})
          call{.device = device(),
               .shape = shape,
               .type = type,
               .bias = true,
               .dbias = true,
               .accumulate = accumulate,
               .dbias_type = dbias_type}
              .run();
}

// gpt-oss's form, by hand: both limits, both signs, another alpha.
TEST_P(activation, clamped_swiglu) {
  for (const auto& [alpha, limit] :
       std::vector<std::pair<double, double>>{{0, 0}, {1.5, 0.5}, {1, infinity}})
    for (const DLDataType type : float_types)
      call{.device = device(),
           .kind = NF_ACTIVATION_SWIGLU_CLAMP,
           .gating = NF_ACTIVATION_INTERLEAVED,
           .shape = {9, 50},
           .type = type,
           .alpha = alpha,
           .limit = limit,
           .scale = 8}
          .run();
  const std::vector<double> gate{9, 7, -20, 1}, up{9, -9, 7, 0.5};
  const auto out = call{
      .device = device(),
      .kind = NF_ACTIVATION_SWIGLU_CLAMP,
      .gating = NF_ACTIVATION_TWO_TENSORS,
      .shape = {4},
      .gate_values = gate,
      .up_values = up,
      .dy_values = {1, 1, 1,
                    1}}.run();
  EXPECT_NEAR(out.y[0], 7 / (1 + std::exp(-1.702 * 7)) * 8, 1e-5);
  EXPECT_NEAR(out.y[1], 7 / (1 + std::exp(-1.702 * 7)) * -6, 1e-5);
  EXPECT_NEAR(out.y[3], 1 / (1 + std::exp(-1.702)) * 1.5, 1e-6);
  EXPECT_EQ(out.dgate[0], 0);  // beyond the limit
  EXPECT_NE(out.dgate[1], 0);  // on it
  EXPECT_EQ(out.dup[0], 0);
  EXPECT_EQ(out.dup[1], 0);
  EXPECT_NE(out.dup[2], 0);
}

// The same bits on any number of threads, and every time.
TEST_P(activation, is_deterministic) {
  const int before = omp_get_max_threads();
  std::vector<std::vector<std::byte>> bits;
  for (const int threads : {1, 2, 7, 7}) {
    omp_set_num_threads(threads);
    bits.push_back(
        call{.device = device(), .shape = {700, 111}, .bias = true, .dbias = true}.run().bits);
    EXPECT_TRUE(bits.back() == bits.front());
  }
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace ninefold::activation_test
