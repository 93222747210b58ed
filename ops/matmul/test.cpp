// matmul against the float64 reference: sizes, layouts, dtypes, epilogues and what they compose to.
#include "ops/matmul/test.hpp"

#include <omp.h>

#include "verify/finite_difference.hpp"

namespace ninefold::matmul_test {
namespace {

class matmul : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, matmul, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// The gradient of act(Z), weighted by a product, is what a BACKWARD epilogue makes of that product.
TEST(matmul_reference, backward_epilogues_are_finite_differences) {
  constexpr int64_t m = 5, n = 7, k = 3;
  const auto a = verify::normal(m * k, 1), b = verify::normal(k * n, 2);
  std::vector<double> z = verify::normal(m * n, 3);
  for (double& x : z) x *= 3;
  for (const auto& [forward, backward] :
       {std::pair{NF_MATMUL_GELU_TANH, NF_MATMUL_GELU_TANH_BACKWARD},
        std::pair{NF_MATMUL_GELU_ERF, NF_MATMUL_GELU_ERF_BACKWARD}}) {
    const matmul_spec s{.m = m, .n = n, .k = k};
    matmul_spec back = s;
    back.epilogue = backward;
    const auto got = reference::matmul(back, {.a = a, .b = b, .saved = z}).d.values;
    const auto upstream = reference::matmul(s, {.a = a, .b = b}).d.values;
    // act itself, as the forward of a product with the unit matrix makes it.
    matmul_spec act{.m = m, .n = n, .k = n, .epilogue = forward};
    std::vector<double> one(n * n);
    for (int64_t i = 0; i < n; ++i) one[static_cast<size_t>(i * n + i)] = 1;
    const auto expected = verify::finite_difference(
        [&](std::span<const double> x) {
          return reference::matmul(act, {.a = x, .b = one}).d.values;
        },
        z, upstream);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-7);
  }
}

constexpr int64_t sizes[] = {1,  2,  3,  5,  7,  8,  9,   15,  16,  17,  23,  31,  33, 47,
                             48, 63, 64, 65, 96, 97, 127, 129, 191, 193, 255, 257, 299};
constexpr int64_t size_count = std::size(sizes);

// Each size as each of M, N and K, with others that change from one to the next, in all four
// layouts of A and B.
TEST_P(matmul, every_size) {
  for (int64_t i = 0; i < size_count; i += verify::sanitized ? 4 : 1)
    for (const DLDataType type : float_types)
      for (int layouts = 0; layouts < 4; ++layouts) {
        const int64_t shift = 5 + layouts + 4 * type.bits + type.code;
        call{.device = device(),
             .m = sizes[i],
             .n = sizes[(i * 7 + shift) % size_count],
             .k = sizes[(i * 11 + 2 * shift) % size_count],
             .type = type,
             .a = layouts & 1 ? lie::transposed : lie::contiguous,
             .b = layouts & 2 ? lie::transposed : lie::contiguous}
            .run();
      }
}

// Longer than a block in each direction, and than what is packed at once.
TEST_P(matmul, longer_than_a_block) {
  for (const DLDataType type : float_types) {
    call{.device = device(),
         .m = 401,
         .n = 1037,
         .k = 67,
         .type = type,
         .row_sums = true,
         .column_sums = true}
        .run();
    call{.device = device(), .m = 37, .n = 141, .k = 1501, .type = type}.run();
    call{.device = device(), .m = 1, .n = 1037, .k = 301, .type = type, .bias = true}.run();
    call{.device = device(), .m = 1037, .n = 1, .k = 301, .type = type, .column_sums = true}.run();
  }
}

TEST_P(matmul, every_layout) {
  for (const DLDataType type : {f32, bf16})
    for (const lie a : lies)
      for (const lie b : lies)
        for (const lie d : lies) {
          if (d == lie::repeated) continue;
          const bool some = (int(a) + int(b) + int(d)) % 3 == 0;
          call{.device = device(),
               .m = 21,
               .n = 34,
               .k = 19,
               .type = type,
               .a = a,
               .b = b,
               .d = d,
               .others = a,
               .c = !some,
               .bias = true,
               .bias_by_row = some,
               .residual = some,
               .row_sums = some,
               .column_sums = some}
              .run();
        }
}

TEST_P(matmul, every_layout_of_a_gated_or_activated_call) {
  for (const nf_matmul_epilogue epilogue : epilogues)
    for (const lie d : lies)
      for (const lie others : lies) {
        if (d == lie::repeated || epilogue == NF_MATMUL_LINEAR) continue;
        const bool backward = matmul_spec{.epilogue = epilogue}.backward();
        call{.device = device(),
             .m = 13,
             .n = 22,
             .k = 9,
             .epilogue = epilogue,
             .type = f16,
             .b = others,
             .d = d,
             .others = others,
             .c = true,
             .residual = true,
             .preactivation = !backward}
            .run();
      }
}

// Everything that composes, with everything else.
TEST_P(matmul, every_epilogue) {
  for (const nf_matmul_epilogue epilogue : epilogues)
    for (const DLDataType type : float_types)
      for (const bool wide : {false, true})
        for (int options = 0; options < 64; ++options) {
          if (wide && type.bits == 32) continue;
          const auto has = [&](int bit) { return (options >> bit & 1) != 0; };
          const bool plain =
              epilogue == NF_MATMUL_LINEAR || matmul_spec{.epilogue = epilogue}.backward();
          call{.device = device(),
               .m = 19,
               .n = 70,
               .k = 33,
               .epilogue = epilogue,
               .type = type,
               .wide = wide,
               .c = has(0),
               .bias = has(1),
               .bias_by_row = has(1) && has(2),
               .residual = has(2),
               .preactivation = has(3) && !plain,
               .row_sums = has(4),
               .column_sums = has(5),
               .accumulate = has(3) && (has(4) || has(5)),
               .wide_vectors = has(0),
               .alpha = has(2) ? 0.75 : 0,
               .beta = has(1) ? -1.5 : 0}
              .run();
        }
}

TEST_P(matmul, in_place) {
  for (const DLDataType type : float_types)
    for (const bool wide : {false, true})
      for (const lie d : {lie::contiguous, lie::transposed, lie::padded_rows, lie::every_second})
        for (const nf_matmul_epilogue epilogue : epilogues) {
          const matmul_spec s{.epilogue = epilogue};
          const call all{.device = device(),
                         .m = 65,
                         .n = 44,
                         .k = 70,
                         .epilogue = epilogue,
                         .type = type,
                         .wide = wide,
                         .d = d,
                         .bias = true};
          call over = all;
          over.residual = over.over_residual = true;
          over.run();
          if (s.gated()) continue;
          over = all;
          over.c = over.over_c = true;
          over.run();
          over.beta = 0.25;
          over.residual = true;
          over.run();
          if (!s.backward()) continue;
          over = all;
          over.over_saved = true;
          over.run();
        }
}

// In a square nothing but the values tells a bias of the rows from one of the columns.
TEST_P(matmul, a_square_with_either_bias) {
  for (const nf_matmul_epilogue epilogue : epilogues)
    for (const bool by_row : {false, true})
      for (const lie d : {lie::contiguous, lie::transposed})
        call{.device = device(),
             .m = 40,
             .n = 40,
             .k = 24,
             .epilogue = epilogue,
             .d = d,
             .bias = true,
             .bias_by_row = by_row}
            .run();
}

// Gradients of weights: a transposed operand, into fp32 that is already there.
TEST_P(matmul, weight_gradients_accumulate) {
  for (const DLDataType type : float_types)
    call{.device = device(),
         .m = 96,
         .n = 72,
         .k = 200,
         .type = type,
         .wide = true,
         .a = lie::transposed,
         .c = true,
         .over_c = true}
        .run();
}

TEST_P(matmul, batches) {
  for (const DLDataType type : float_types)
    for (const int64_t batch : {1, 2, 5})
      for (const bool repeated : {false, true})
        for (const lie where : {lie::contiguous, lie::transposed, lie::padded_rows}) {
          call each{.device = device(),
                    .m = 33,
                    .n = 26,
                    .k = 40,
                    .batch = batch,
                    .type = type,
                    .a = where,
                    .b = where,
                    .d = where,
                    .others = where,
                    .repeated_b = repeated};
          each.run();
          each.bias = true;
          each.residual = true;
          each.run();
          each.c = true;
          each.epilogue = NF_MATMUL_SWIGLU_CONCATENATED;
          each.preactivation = true;
          each.run();
        }
  call{.device = device(), .m = 260, .n = 300, .k = 20, .batch = 3, .epilogue = NF_MATMUL_GELU_ERF}
      .run();
}

TEST_P(matmul, scalars_on_the_device_are_the_same) {
  call by_value{
      .device = device(), .m = 30, .n = 41, .k = 22, .c = true, .alpha = 0.3, .beta = 0.7};
  call by_address = by_value;
  by_address.device_scalars = true;
  EXPECT_TRUE(by_value.run().bits == by_address.run().bits);
}

TEST_P(matmul, tf32_is_only_for_cuda) {
  const call exact{.device = device(), .m = 64, .n = 96, .k = 128};
  call rounded = exact;
  rounded.tf32 = true;
  const auto first = exact.run(), second = rounded.run();
  if (!on_cuda()) {
    EXPECT_TRUE(first.bits == second.bits);
  }
}

TEST_P(matmul, empty) {
  for (const nf_matmul_epilogue epilogue : epilogues)
    for (const auto& [m, n, k] :
         std::vector<std::array<int64_t, 3>>{{0, 8, 3}, {5, 0, 3}, {0, 0, 0}}) {
      call{.device = device(), .m = m, .n = n, .k = k, .epilogue = epilogue, .c = true}.run();
      EXPECT_EQ(verify::last_rung(), "none");
      for (const bool accumulate : {false, true})
        call{.device = device(),
             .m = m,
             .n = n,
             .k = k,
             .epilogue = epilogue,
             .row_sums = true,
             .column_sums = true,
             .accumulate = accumulate}
            .run();
    }
}

// The same bits on any number of threads, and every time.
TEST_P(matmul, is_deterministic) {
  const int before = omp_get_max_threads();
  for (const DLDataType type : {f32, bf16})
    for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
             {200, 300, 64}, {3, 5, 4000}, {64, 64, 3000}, {1, 700, 900}, {700, 1, 900}})
      for (const bool fused : {false, true}) {
        std::vector<std::byte> first;
        for (const int threads : {1, 2, 7, 7}) {
          omp_set_num_threads(threads);
          const auto bits = call{.device = device(),
                                 .m = m,
                                 .n = n,
                                 .k = k,
                                 .epilogue = fused ? NF_MATMUL_GELU_TANH : NF_MATMUL_LINEAR,
                                 .type = type,
                                 .bias = true,
                                 .row_sums = fused,
                                 .column_sums = fused}
                                .run()
                                .bits;
          if (first.empty()) first = bits;
          EXPECT_TRUE(bits == first) << threads << " threads, " << m << " " << n << " " << k;
        }
      }
  omp_set_num_threads(before);
}

TEST_P(matmul, a_thousand_runs_have_the_same_bits) {
  tensor a(bf16, {{40, 50}}, device()), b(bf16, {{50, 60}}, device()),
      d(bf16, {{40, 60}}, device());
  a.fill_normal(1);
  b.fill_normal(2);
  const nf_matmul_args args{.a = a, .b = b, .d = d, .epilogue = NF_MATMUL_GELU_ERF};
  ninefold::matmul(args);
  const auto first = d.snapshot();
  for (int i = 0; i < 1000; ++i) {
    d.poison();
    ninefold::matmul(args);
    ASSERT_TRUE(d.snapshot() == first) << i;
  }
}

}  // namespace
}  // namespace ninefold::matmul_test
