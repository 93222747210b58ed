// What users of other libraries met (each named by its row in the list of faults), and properties
// that any norm and any dropout must have.
#include <omp.h>
#include <sys/mman.h>

#include "ops/norm/test.hpp"

namespace ninefold::norm_test {
namespace {

class norm_faults : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, norm_faults, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// B24, the reported numbers.
TEST_P(norm_faults, a_large_mean_costs_no_digits) {
  const auto out = call{
      .device = device(),
      .spec = {.layer = true},
      .x = {{1, 4}},
      .with_weight = false,
      .with_bias = false,
      .data = {40000, 40001, 40002,
               40003}}.run();
  const double expected[] = {-1.34164, -.44721, .44721, 1.34164};
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(out.y[j], expected[j], 1e-5);
}

TEST_P(norm_faults, rows_far_from_zero_against_two_passes_in_float64) {
  for (const int64_t n : {4, 768, 5000, 32768, 70001})
    for (const auto& [mean, deviation] :
         {std::pair{2000.0, 1.0}, {100.0, 0.01}, {1e4, 0.01}, {1e4, 1e-3}, {-1e6, 1.0}}) {
      SCOPED_TRACE("N=" + std::to_string(n) + " mean " + std::to_string(mean));
      std::vector<double> x = verify::normal(4 * n, 5);
      for (double& v : x) v = mean + deviation * v;
      call{.device = device(), .spec = {.layer = true}, .x = {{4, n}}, .data = x}.run();
      if (mean == 2000)
        call{.device = device(),
             .spec = {.layer = true, .x = bf16, .y = bf16},
             .x = {{4, n}},
             .data = x}
            .run();
    }
}

// B24: nothing is left of a constant row but the bias.
TEST_P(norm_faults, a_constant_row_is_the_bias) {
  for (const DLDataType type : float_types)
    for (const int64_t n : {1, 7, 768, 5000, 40001}) {
      const auto out = call{.device = device(),
                            .spec = {.layer = true, .x = type, .y = type},
                            .x = {{2, n}},
                            .weight_type = type,
                            .data = std::vector<double>(static_cast<size_t>(2 * n), 1234)}
                           .run();
      EXPECT_EQ(std::vector(out.y.begin(), out.y.begin() + n), parameter(type, n, 12));
    }
}

// B25: with the norm's own part of the gradient taken away (weight 0), dh is what arrives; with
// nothing arriving it is the norm's. Both at once are checked by every call with a residual.
TEST_P(norm_faults, the_residuals_gradient_is_added_after_the_norms) {
  constexpr int64_t n = 300;
  tensor h(f32, {{4, n}}, device()), dy(f32, {{4, n}}, device()), dh(f32, {{4, n}}, device());
  tensor arriving(f32, {{4, n}}, device()), rstd(f32, {{4}}, device()), w(f32, {{n}}, device());
  h.fill_normal(1);
  dy.fill_normal(2);
  arriving.fill_normal(3);
  w.store(std::vector<double>(n, 0));
  rstd.store(std::vector<double>(4, 2));
  nf_norm_args args{};
  args.residual_out = h;
  args.dy = dy;
  args.d_residual_out = arriving;
  args.d_residual = dh;
  args.weight = w;
  args.rstd = rstd;
  ninefold::rms_norm_backward(args);
  EXPECT_EQ(dh.load(), arriving.load());
}

// The reference's own sums would be as wrong as the kernel's if both lost digits alike: here the
// sums are known. Every row is the same, and so is dy, so that roundings have one sign, and a
// single fp32 sum of a million rows would be off by a percent.
TEST_P(norm_faults, the_error_of_dweight_does_not_grow_with_the_rows) {
  constexpr int64_t n = 8;
  const std::vector<double> row = verify::normal(n, 3);
  for (const int64_t rows : {100, 10'000, 1'000'000}) {
    if (verify::sanitized && rows > 10'000) continue;
    const tensor dy(f32, {{rows, n}, {0, 0}}, device());
    tensor one(f32, {{1, n}}, device()), rstd(f32, {{1}}, device());
    const auto view_of = [&](const tensor& t, std::initializer_list<int64_t> shape,
                             std::initializer_list<int64_t> strides) {
      const DLTensor* const v = t;
      return view(static_cast<char*>(v->data) + v->byte_offset, f32, shape, strides, device());
    };
    one.store(row);
    rstd.store(std::vector<double>{1.1});
    tensor slope(f32, {{1}}, device()), w(f32, {{n}}, device()), dw(f32, {{n}}, device()),
        db(f32, {{n}}, device());
    slope.store(std::vector<double>{0.3});
    w.store(std::vector<double>(n, 1));
    nf_norm_args args{};
    const view h = view_of(one, {rows, n}, {0, 1}), up = view_of(slope, {rows, n}, {0, 0}),
               r = view_of(rstd, {rows}, {0});
    args.x = h;
    args.dy = up;
    args.rstd = r;
    args.weight = w;
    args.dweight = dw;
    args.dbias = db;
    const tensor work(u8, {{rms_norm_workspace_size(args)}}, device());
    args.workspace = work;
    ninefold::rms_norm_backward(args);
    const double scale = rstd.load()[0], g = slope.load()[0], m = static_cast<double>(rows);
    const auto x = one.load(), sums = dw.load(), biases = db.load();
    for (size_t j = 0; j < n; ++j) {
      const double exact = m * g * x[j] * scale;
      EXPECT_NEAR(sums[j], exact, 64 * verify::unit * std::abs(exact)) << rows;
      EXPECT_NEAR(biases[j], m * g, 64 * verify::unit * m * g) << rows;
    }
  }
}

// Two halves, the second added to the first, are the whole; in fp32 but for one more rounding.
TEST_P(norm_faults, accumulated_gradients_are_those_of_all_rows) {
  constexpr int64_t n = 100, rows = 64;
  const std::vector<double> x = verify::normal(rows * n, 3), dy = verify::normal(rows * n, 4);
  const norm_spec spec{.weight = parameter(f32, n, 5)};
  tensor w(f32, {{n}}, device()), dw(f32, {{n}}, device());
  w.store(spec.weight);
  const auto expected = reference::norm_backward(spec, x, dy, {}, n, rows).dweight;
  for (int half = 0; half < 2; ++half) {
    const size_t from = static_cast<size_t>(half) * rows * n / 2, size = rows * n / 2;
    const auto part = std::span(x).subspan(from, size);
    tensor h(f32, {{rows / 2, n}}, device()), up(f32, {{rows / 2, n}}, device()),
        rstd(f32, {{rows / 2}}, device());
    h.store(part);
    up.store(std::span(dy).subspan(from, size));
    rstd.store(reference::norm_forward(spec, part, n, rows / 2).rstd.values);
    nf_norm_args args{};
    args.x = h;
    args.dy = up;
    args.rstd = rstd;
    args.weight = w;
    args.dweight = dw;
    args.accumulate = half;
    const tensor work(u8, {{rms_norm_workspace_size(args)}}, device());
    args.workspace = work;
    ninefold::rms_norm_backward(args);
  }
  EXPECT_TRUE(verify::matches(dw, reference::weight_gradient(spec, expected, {})));
}

// The mask alone: dropout of ones, of any layout and dtype.
std::vector<double> mask(DLDevice device, double p, uint64_t seed, uint64_t offset, layout where,
                         DLDataType type = f32) {
  tensor x(type, where, device), h(type, {where.shape}, device), y(type, {where.shape}, device);
  x.store(std::vector<double>(static_cast<size_t>(x.count()), 1));
  nf_norm_args args{};
  args.x = x;
  args.y = y;
  args.residual_out = h;
  args.dropout_p = p;
  args.dropout_seed.value = static_cast<int64_t>(seed);
  args.dropout_offset.value = static_cast<int64_t>(offset);
  ninefold::rms_norm(args);
  std::vector<double> kept = h.load();
  for (double& k : kept) k = k != 0;
  return kept;
}

TEST_P(norm_faults, as_many_are_dropped_as_asked_for_and_none_depends_on_another) {
  constexpr int64_t rows = 64, n = 4096;
  const double count = rows * n;
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto a = mask(device(), p, 1, 0, {{rows, n}}), b = mask(device(), p, 1, 1, {{rows, n}}),
               c = mask(device(), p, 2, 0, {{rows, n}});
    const double q = 1 - p, deviation = std::sqrt(p * q / count);
    // Means, and correlations with the next element, the element below, another offset and seed.
    const auto mean = [&](auto value) {
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += value(i);
      return sum / count;
    };
    EXPECT_NEAR(mean([&](size_t i) { return a[i]; }), q, 5 * deviation);
    const auto together = [&](const std::vector<double>& other, size_t shift) {
      EXPECT_NEAR(mean([&](size_t i) { return (a[i] - q) * (other[(i + shift) % a.size()] - q); }),
                  0, 5 * p * q / std::sqrt(count))
          << p << " " << shift;
    };
    for (const size_t shift : {1, 2, 3, 4, 4096}) together(a, shift);
    together(b, 0);
    together(c, 0);
    // No place is favoured: the share of each column of all rows.
    for (size_t column = 0; column < n; column += 97) {
      double sum = 0;
      for (size_t row = 0; row < rows; ++row) sum += a[row * n + column];
      EXPECT_NEAR(sum / rows, q, 6 * std::sqrt(p * q / rows));
    }
  }
}

// The mask is a function of seed, offset and logical index: bit for bit that of the definition,
// whatever the shape, the strides, the dtype or the alignment.
TEST_P(norm_faults, the_mask_does_not_depend_on_the_layout) {
  norm_spec s{.dropout_p = 0.37, .seed = 0xfedcba9876543210, .offset = (uint64_t{1} << 40) + 3};
  std::vector<double> expected(7 * 45);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = s.mask().keeps(i);
  for (const DLDataType type : float_types)
    for (const layout& where : {layout{{7, 45}},
                                {{7, 45}, {}, 1},
                                {{7, 45}, {100, 2}},
                                {{7, 45}, {1, 7}},
                                {{45, 7}},
                                {{315}},
                                {{315, 1}},
                                {{7, 5, 9}, {45, 1, 5}}})
      EXPECT_EQ(mask(device(), s.dropout_p, s.seed, s.offset, where, type), expected);
}

// B29's property, without a graph: the backward drops what the forward dropped, and a seed or an
// offset on the device means what its value means.
TEST_P(norm_faults, the_backward_makes_the_same_mask) {
  for (const bool scalars : {false, true}) {
    const auto out = call{.device = device(),
                          .spec = {.dropout_p = 0.5, .seed = 99, .offset = 4},
                          .x = {{20, 333}},
                          .device_scalars = scalars}
                         .run();
    for (size_t i = 0; i < out.h.size(); ++i) ASSERT_EQ(out.h[i] == 0, out.dx[i] == 0) << i;
  }
}

// B30: dropped is 0 whatever it was, kept is what it was.
TEST_P(norm_faults, what_is_dropped_is_selected_not_multiplied) {
  constexpr int64_t n = 101;
  norm_spec s{.dropout_p = 0.5, .seed = 3};
  for (const double value : {infinity, nan}) {
    tensor x(f32, {{3, n}}, device()), h(f32, {{3, n}}, device()), y(f32, {{3, n}}, device());
    x.store(std::vector<double>(3 * n, value));
    nf_norm_args args{};
    args.x = x;
    args.y = y;
    args.residual_out = h;
    args.dropout_p = 0.5;
    args.dropout_seed.value = 3;
    ninefold::rms_norm(args);
    const auto out = h.load();
    for (size_t i = 0; i < out.size(); ++i)
      if (s.mask().keeps(i))
        EXPECT_TRUE(value == infinity ? out[i] == infinity : std::isnan(out[i]));
      else
        EXPECT_EQ(out[i], 0);
    // p = 1: zeros, and no 1 / 0.
    args.dropout_p = 1;
    ninefold::rms_norm(args);
    for (const double v : h.load()) EXPECT_EQ(v, 0);
    for (const double v : y.load()) EXPECT_EQ(v, 0);
    // p = 0: the bits of x, also of its negative zeros.
    args.dropout_p = 0;
    x.store(std::vector<double>(3 * n, value == infinity ? -0.0 : value));
    ninefold::rms_norm(args);
    EXPECT_EQ(h.snapshot(), x.snapshot());
  }
}

// p to the nearest 2^-16: so near to an end it is the end, also in what is copied bit for bit.
TEST_P(norm_faults, probabilities_next_to_the_ends_are_the_ends) {
  for (const bool layer : {false, true})
    for (const auto& [near, end] : {std::pair{0x1p-18, 0.0}, {1 - 0x1p-18, 1.0}}) {
      tensor x(bf16, {{3, 250}}, device()), h(bf16, {{3, 250}}, device()),
          y(bf16, {{3, 250}}, device());
      x.fill_normal(1);
      std::vector<std::vector<std::byte>> results;
      for (const double p : {near, end}) {
        nf_norm_args args{};
        args.x = x;
        args.residual_out = h;
        args.y = y;
        args.dropout_p = p;
        ASSERT_EQ(forward(layer, args), NF_OK) << nf_last_error();
        results.push_back(h.snapshot());
        results.push_back(y.snapshot());
      }
      EXPECT_EQ(results[0], results[2]);
      EXPECT_EQ(results[1], results[3]);
    }
}

// B30: everything dropped has no gradient, even where the gradient that arrives is no number.
TEST_P(norm_faults, everything_dropped_has_no_gradient) {
  tensor h(f32, {{2, 50}}, device()), dy(f32, {{2, 50}}, device()), dx(f32, {{2, 50}}, device()),
      rstd(f32, {{2}}, device());
  h.fill_normal(1);
  dy.store(std::vector<double>(100, infinity));
  rstd.store(std::vector<double>(2, 1));
  nf_norm_args args{};
  args.residual_out = h;
  args.dy = dy;
  args.dx = dx;
  args.rstd = rstd;
  args.dropout_p = 1;
  ninefold::rms_norm_backward(args);
  for (const double v : dx.load()) EXPECT_EQ(v, 0);
}

// The fused call is dropout and addition, then the norm: bit for bit.
TEST_P(norm_faults, fused_is_one_after_the_other) {
  for (const bool layer : {false, true})
    for (const DLDataType type : float_types) {
      tensor x(type, {{6, 999}}, device()), r(type, {{6, 999}}, device()),
          h(type, {{6, 999}}, device()), y(type, {{6, 999}}, device()),
          again(type, {{6, 999}}, device());
      x.fill_normal(1);
      r.fill_normal(2);
      nf_norm_args args{};
      args.x = x;
      args.residual = r;
      args.residual_out = h;
      args.y = y;
      args.dropout_p = 0.1;
      ASSERT_EQ(forward(layer, args), NF_OK) << nf_last_error();
      args = {};
      args.x = h;
      args.y = again;
      ASSERT_EQ(forward(layer, args), NF_OK) << nf_last_error();
      EXPECT_EQ(y.snapshot(), again.snapshot());
    }
}

TEST_P(norm_faults, runs_are_alike_bit_for_bit) {
  for (const bool layer : {false, true}) {
    call c{.device = device(),
           .spec = {.layer = layer, .dropout_p = 0.1, .x = bf16, .y = bf16, .stream = bf16},
           .x = {{501, 1000}},
           .with_residual = true};
    const auto first = c.run(), second = c.run();
    EXPECT_EQ(first.y_bits, second.y_bits);
    EXPECT_EQ(first.dx_bits, second.dx_bits);
    EXPECT_EQ(first.dweight_bits, second.dweight_bits);
    EXPECT_EQ(first.dbias_bits, second.dbias_bits);
  }
}

TEST(norm_faults_cpu, the_number_of_threads_changes_no_bit) {
  const int before = omp_get_max_threads();
  for (const bool layer : {false, true}) {
    std::vector<std::vector<std::byte>> bits;
    for (const int threads : {1, 2, 3, 7}) {
      omp_set_num_threads(threads);
      const auto out =
          call{.device = cpu_device, .spec = {.layer = layer}, .x = {{700, 1030}}}.run();
      for (const auto* b : {&out.y_bits, &out.dx_bits, &out.dweight_bits, &out.dbias_bits})
        bits.push_back(*b);
    }
    for (size_t i = 4; i < bits.size(); ++i) EXPECT_TRUE(bits[i] == bits[i % 4]) << i;
  }
  omp_set_num_threads(before);
}

// B02: two rows that lie further apart than 32 bits count, in a sparse mapping.
TEST(norm_faults_cpu, rows_further_apart_than_32_bits_count) {
  constexpr int64_t stride = (int64_t{1} << 31) + 48'219, n = 100;
  const size_t bytes = static_cast<size_t>(stride + n) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  float* const x = static_cast<float*>(memory);
  const std::vector<double> data = verify::normal(2 * n, 3);
  const view far(x, f32, {2, n}, {stride, 1});
  const norm_spec spec{.layer = true};
  const auto expected = reference::norm_forward(spec, data, n, 2).y;
  for (const char* rung : {"three_pass", "stream"}) {
    for (int64_t i = 0; i < 2 * n; ++i)
      x[i / n * stride + i % n] = static_cast<float>(data[static_cast<size_t>(i)]);
    nf_norm_args args{};
    args.x = args.y = far;
    args.rung = rung;
    ninefold::layer_norm(args);
    for (int64_t i = 0; i < 2 * n; ++i)
      ASSERT_NEAR(x[i / n * stride + i % n], expected.values[static_cast<size_t>(i)],
                  expected.allowed[static_cast<size_t>(i)]);
  }
  munmap(memory, bytes);
}

}  // namespace
}  // namespace ninefold::norm_test
