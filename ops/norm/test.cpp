// Values: every width, dtype and option against the float64 reference, forward and backward.
#include "ops/norm/test.hpp"

#include "verify/finite_difference.hpp"

namespace ninefold::norm_test {
namespace {

class norm : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, norm, testing::ValuesIn(verify::devices()), verify::device_name);

TEST(norm_on_cuda, is_tested_or_the_reason_is_told) {
  if (!verify::cuda_present())
    GTEST_SKIP() << "no CUDA in this build, or no device here: only the CPU tests have run";
}

// B25: the reference's gradients are the derivatives of its forward, with a gradient into y and
// another into h at once, by x, residual, weight and bias, with dropout and without.
TEST(norm_reference, gradients_are_the_derivatives_with_both_outputs_in_use) {
  constexpr int64_t rows = 3, cols = 7;
  const auto x = verify::normal(rows * cols, 1), r = verify::normal(rows * cols, 2),
             dy = verify::normal(rows * cols, 3), dh = verify::normal(rows * cols, 4);
  for (const bool layer : {false, true})
    for (const double p : {0.0, 0.4}) {
      norm_spec s{.layer = layer,
                  .eps = 1e-3,
                  .weight_offset = 0.5,
                  .dropout_p = p,
                  .seed = 7,
                  .weight = verify::normal(cols, 5),
                  .bias = verify::normal(cols, 6),
                  .exact = true};
      // y, then h.
      const auto outputs = [&](std::span<const double> at_x, std::span<const double> at_r) {
        const auto h = reference::norm_input(s, at_x, at_r);
        std::vector<double> both = reference::norm_forward(s, h, cols, rows).y.values;
        both.insert(both.end(), h.begin(), h.end());
        return both;
      };
      std::vector<double> upstream = dy;
      upstream.insert(upstream.end(), dh.begin(), dh.end());
      const auto exact =
          reference::norm_backward(s, reference::norm_input(s, x, r), dy, dh, cols, rows);
      const auto near = [](const std::vector<double>& numeric, const std::vector<double>& value) {
        for (size_t i = 0; i < value.size(); ++i)
          EXPECT_NEAR(numeric[i], value[i], 1e-7 + 1e-7 * std::abs(value[i])) << i;
      };
      near(verify::finite_difference([&](auto at) { return outputs(at, r); }, x, upstream),
           exact.dx.values);
      near(verify::finite_difference([&](auto at) { return outputs(x, at); }, r, upstream),
           exact.dh.values);
      const auto by_parameter = [&](std::vector<double>& parameter) {
        const auto held = parameter;
        const auto slope = verify::finite_difference(
            [&](auto at) {
              parameter.assign(at.begin(), at.end());
              return outputs(x, r);
            },
            held, upstream);
        parameter = held;
        return slope;
      };
      near(by_parameter(s.weight), exact.dweight.values);
      near(by_parameter(s.bias), exact.dbias.values);
    }
}

// With a base that may be one element off, so that no row is aligned when N is even either.
TEST_P(norm, every_width_and_dtype_aligned_or_not) {
  for (const bool layer : {false, true})
    for (const DLDataType type : float_types)
      for (const int64_t n : widths()) {
        SCOPED_TRACE((layer ? "layer " : "rms ") + verify::name_of(type) +
                     " N=" + std::to_string(n));
        call{.device = device(),
             .spec = {.layer = layer, .x = type, .y = type},
             .x = {{3, n}, {}, n % 3 == 0},
             .y = {{3, n}, {}, n % 3 == 0},
             .with_bias = n % 2 == 0,
             .weight_type = n % 5 == 0 ? f32 : type}
            .run();
        if (HasFailure()) return;
      }
}

TEST_P(norm, residual_and_a_stream_of_its_own_dtype) {
  for (const bool layer : {false, true})
    for (const DLDataType type : float_types)
      for (const DLDataType stream : {type, f32})
        for (const int64_t n : {1, 5, 64, 257, 768, 4099, 20000}) {
          SCOPED_TRACE((layer ? "layer " : "rms ") + verify::name_of(type) + " in " +
                       verify::name_of(stream) + " N=" + std::to_string(n));
          call{.device = device(),
               .spec = {.layer = layer, .x = type, .y = type, .stream = stream},
               .x = {{5, n}},
               .residual = {{5, n}, {}, n % 2},
               .with_residual = true}
              .run();
        }
}

TEST_P(norm, all_options_together) {
  for (const bool layer : {false, true})
    for (const DLDataType type : float_types)
      for (const DLDataType stream : {type, f32})
        for (const int64_t n : {1, 2, 5, 31, 33, 257, 1000, 4099, 33001}) {
          SCOPED_TRACE((layer ? "layer " : "rms ") + verify::name_of(type) + " in " +
                       verify::name_of(stream) + " N=" + std::to_string(n));
          all_options(device(), layer, type, stream, {{9, n}, {}, n % 3 == 0}).run();
        }
}

// One at a time, so that none leans on another.
TEST_P(norm, each_option_alone) {
  for (const bool layer : {false, true})
    for (const DLDataType type : float_types)
      for (const int64_t n : {7, 1000, 8192}) {
        const call plain{.device = device(),
                         .spec = {.layer = layer, .x = type, .y = type, .stream = type},
                         .x = {{8, n}}};
        const auto with = [&](const char* name, const std::function<void(call&)>& change) {
          SCOPED_TRACE((layer ? "layer " : "rms ") + verify::name_of(type) +
                       " N=" + std::to_string(n) + " " + name);
          call c = plain;
          change(c);
          c.run();
        };
        with("no weight", [](call& c) { c.with_weight = false; });
        with("no weight, but an offset", [](call& c) {
          c.with_weight = false;
          c.spec.weight_offset = 1;
        });
        with("no bias", [](call& c) { c.with_bias = false; });
        with("neither", [](call& c) { c.with_weight = c.with_bias = false; });
        with("eps", [](call& c) { c.spec.eps = 0.1; });
        with("Gemma's weight", [](call& c) { c.spec.weight_offset = 1; });
        with("Llama's rounding", [](call& c) { c.spec.rounding = NF_NORM_ROUND_LLAMA; });
        with("a bf16 weight", [](call& c) { c.weight_type = bf16; });
        with("an fp16 weight", [](call& c) { c.weight_type = f16; });
        with("a copy of h", [](call& c) { c.keep_h = true; });
        with("an fp32 copy of h", [](call& c) {
          c.keep_h = true;
          c.spec.stream = f32;
        });
        with("fp32 x", [](call& c) { c.spec.x = f32; });
        with("dropout", [](call& c) { c.spec.dropout_p = 0.1; });
        with("dropout before a residual", [](call& c) {
          c.with_residual = true;
          c.spec.dropout_p = 0.5;
        });
        with("everything dropped", [](call& c) { c.spec.dropout_p = 1; });
        with("accumulated", [](call& c) { c.accumulate = true; });
      }
}

TEST_P(norm, realistic_inputs_not_only_gaussian_ones) {
  for (const bool layer : {false, true})
    for (const verify::pattern p : verify::all_patterns)
      for (const int64_t n : {64, 1000, 5120})
        for (const DLDataType type : float_types) {
          SCOPED_TRACE((layer ? "layer " : "rms ") + verify::name_of(type) + " " +
                       verify::name_of(p) + " N=" + std::to_string(n));
          call{.device = device(),
               .spec = {.layer = layer, .x = type, .y = type},
               .x = {{4, n}},
               .data = verify::patterned(p, 4, n, 3)}
              .run();
        }
}

TEST_P(norm, layouts_of_every_kind) {
  for (const bool layer : {false, true})
    for (const DLDataType type : float_types) {
      SCOPED_TRACE((layer ? "layer " : "rms ") + verify::name_of(type));
      const norm_spec spec{.layer = layer, .dropout_p = 0.2, .x = type, .y = type, .stream = type};
      const auto with = [&](layout x, layout y = {}, layout residual = {}) {
        call{.device = device(),
             .spec = spec,
             .x = std::move(x),
             .y = std::move(y),
             .residual = std::move(residual),
             .with_residual = true}
            .run();
      };
      with({{33}});                       // rank one: per row is a scalar
      with({{1, 2, 1, 3, 1, 1, 2, 65}});  // rank eight, with dimensions of one
      // QK-norm: heads of one fused buffer of queries, keys and values.
      with({{2, 5, 3, 64}, {5 * 9 * 64, 9 * 64, 64, 1}}, {{2, 5, 3, 64}, {960, 64, 320, 1}});
      with({{5, 130}, {137, 1}}, {{5, 130}, {131, 1}}, {{5, 130}, {150, 1}});  // rows apart
      with({{5, 130}, {300, 2}});                                              // columns apart
      with({{5, 130}}, {{5, 130}, {1, 5}});                                    // transposed
      with({{4, 50}, {-50, -1}}, {{4, 50}, {50, -1}});                         // backwards
      with({{7, 300}, {0, 1}});                                                // one row for all
    }
}

TEST_P(norm, nothing_at_all) {
  for (const bool layer : {false, true})
    for (const bool accumulate : {false, true}) {
      call{.device = device(), .spec = {.layer = layer}, .x = {{0, 10}}, .accumulate = accumulate}
          .run();
      call{.device = device(), .spec = {.layer = layer}, .x = {{3, 0}}, .accumulate = accumulate}
          .run();
    }
}

// The two rounding rules differ where they should, and are each bit for bit what they say.
TEST_P(norm, rounding_rules_are_what_they_say) {
  constexpr int64_t n = 4096;
  const std::vector<double> weight = parameter(bf16, n, 11);
  for (const nf_norm_rounding rule : {NF_NORM_ROUND_ONCE, NF_NORM_ROUND_LLAMA}) {
    call c{.device = device(),
           .spec = {.rounding = rule, .x = bf16, .y = bf16},
           .x = {{1, n}},
           .with_bias = false,
           .weight_type = bf16};
    const auto out = c.run();
    tensor x(bf16, {{1, n}});
    x.fill_normal(c.seed);
    const reference::norm_row row(c.spec, x.load());
    int once = 0, llama = 0;
    for (size_t j = 0; j < n; ++j) {
      const double w = weight[j];
      once += out.y[j] == verify::rounded(bf16, row.xhat[j] * w);
      llama += out.y[j] == verify::rounded(bf16, verify::rounded(bf16, row.xhat[j]) * w);
    }
    const bool is_once = rule == NF_NORM_ROUND_ONCE;
    EXPECT_GT(is_once ? once : llama, n * 99 / 100);
    EXPECT_LT(is_once ? llama : once, n * 90 / 100);
  }
}

TEST_P(norm, special_values_follow_the_header) {
  for (const DLDataType type : float_types)
    for (const int64_t n : {5, 64, 1003, 5000}) {
      SCOPED_TRACE(verify::name_of(type) + " N=" + std::to_string(n));
      std::vector<double> x = verify::normal(4 * n, 8);
      x[static_cast<size_t>(n) + 2] = nan;
      x[static_cast<size_t>(2 * n)] = infinity;
      x[static_cast<size_t>(4 * n) - 1] = -infinity;
      for (const bool layer : {false, true}) {
        tensor in(type, {{4, n}}, device()), y(type, {{4, n}}, device());
        tensor rstd(f32, {{4}}, device()), mean(f32, {{4}}, device());
        in.store(x);
        nf_norm_args args{};
        args.x = in;
        args.y = y;
        args.rstd = rstd;
        if (layer) args.mean = mean;
        ASSERT_EQ(forward(layer, args), NF_OK) << nf_last_error();
        const auto out = y.load(), r = rstd.load(), m = mean.load();
        for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
          const auto at = [&](size_t row) { return out[row * static_cast<size_t>(n) + j]; };
          EXPECT_TRUE(std::isfinite(at(0)));
          EXPECT_TRUE(std::isnan(at(1)));
          for (const size_t row : {2, 3}) {
            const bool infinite = j == (row == 2 ? 0 : static_cast<size_t>(n) - 1);
            if (layer || infinite)
              EXPECT_TRUE(std::isnan(at(row))) << row << " " << j;
            else
              EXPECT_EQ(at(row), 0) << row << " " << j;
          }
        }
        EXPECT_TRUE(std::isnan(r[1]));
        for (const size_t row : {2, 3})
          if (layer) {
            EXPECT_TRUE(std::isnan(m[row]) && std::isnan(r[row]));
          } else {
            EXPECT_EQ(r[row], 0);
          }
      }
    }
}

}  // namespace
}  // namespace ninefold::norm_test
