// What users of other libraries met (each named by its row in the list of faults), and properties
// that any cross-entropy must have.
#include <omp.h>
#include <sys/mman.h>

#include <cmath>

#include "ops/cross_entropy/test.hpp"

namespace ninefold::cross_entropy_test {
namespace {

class cross_entropy_faults : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, cross_entropy_faults, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// B01: the loss of shifted logits.
TEST_P(cross_entropy_faults, shifted_logits_keep_their_digits) {
  const auto out =
      call{.device = device(), .spec = {}, .logits = {{1, 2}}, .data = {1e8, 1e8}, .targets = {1}}
          .run();
  EXPECT_NEAR(out.loss, 0.6931471805599453, 1e-7);
}

// B01: adding a constant that fp32 holds exactly changes no bit of loss or gradient, for everything
// is taken relative to the maximum.
TEST_P(cross_entropy_faults, an_exact_shift_changes_nothing_beyond_rounding) {
  for (const int64_t v : {10, 1000, 50257}) {
    std::vector<double> x = verify::normal(3 * v, 4);
    for (double& value : x) value = std::round(value * 64) / 64;
    std::vector<double> shifted = x;
    for (double& value : shifted) value += 8192;
    for (const double smoothing : {0.0, 0.1}) {
      const auto run = [&](const std::vector<double>& data) {
        return call{.device = device(),
                    .spec = {.label_smoothing = smoothing},
                    .logits = {{3, v}},
                    .data = data,
                    .entropy = false}
            .run();
      };
      const auto a = run(x), b = run(shifted);
      // Where smoothing cancels a probability, what is left is off by roundings of the two.
      const verify::tolerance few_roundings{
          0x1p-126 + 16 * verify::unit * smoothing / static_cast<double>(v), 16 * verify::unit};
      const auto gradient = verify::compare(b.dlogits, a.dlogits, few_roundings);
      EXPECT_TRUE(gradient.passed()) << gradient.text();
      if (smoothing == 0) {
        const auto loss = verify::compare(b.token_loss, a.token_loss, few_roundings);
        EXPECT_TRUE(loss.passed()) << loss.text();
      }
    }
  }
}

// B03, the reported numbers.
TEST_P(cross_entropy_faults, smoothing_and_weights_leave_ignored_rows_out) {
  const auto smoothed = call{
      .device = device(),
      .spec = {.label_smoothing = 0.2},
      .logits = {{2, 3}},
      .data = {1, 2, 3, 3, 1, .5},
      .targets = {0, -100}}.run();
  EXPECT_NEAR(smoothed.loss, 2.207606, 1e-6);
  const auto weighted = call{
      .device = device(),
      .spec = {.label_smoothing = 0.1, .class_weights = {.2, .3}},
      .logits = {{2, 2}},
      .data = {1, 2, 3, .4},
      .targets = {-100, 1}}.run();
  EXPECT_NEAR(weighted.loss, 2.540451, 1e-6);
}

// B03's property: the rows that are left give the same bits.
TEST_P(cross_entropy_faults, removing_ignored_rows_changes_nothing) {
  constexpr int64_t v = 300;
  const std::vector<double> x = verify::normal(6 * v, 4);
  const std::vector<int64_t> targets = {5, -100, 299, -100, 0, -100};
  std::vector<double> kept;
  for (const size_t row : {0, 2, 4}) kept.insert(kept.end(), &x[row * v], &x[row * v] + v);
  for (const bool options : {false, true}) {
    cross_entropy_spec spec = options ? all_options(v, f32) : cross_entropy_spec{};
    const auto all =
        call{.device = device(), .spec = spec, .logits = {{6, v}}, .data = x, .targets = targets}
            .run();
    const auto some = call{
        .device = device(),
        .spec = spec,
        .logits = {{3, v}},
        .data = kept,
        .targets = {5, 299,
                    0}}.run();
    EXPECT_EQ(all.loss, some.loss);
    EXPECT_EQ(all.accuracy, some.accuracy);
    for (size_t i = 0; i < 3; ++i)
      for (size_t c = 0; c < v; ++c) ASSERT_EQ(all.dlogits[2 * i * v + c], some.dlogits[i * v + c]);
  }
}

// B04: nothing to average over; a chunk without targets beside one that has some.
TEST_P(cross_entropy_faults, no_valid_target_is_no_loss_and_no_gradient) {
  for (const DLDataType type : float_types) {
    const auto out = call{.device = device(),
                          .spec = {.z_loss = 0.1, .type = type},
                          .logits = {{8, 33}},
                          .targets = std::vector<int64_t>(8, -100)}
                         .run();
    EXPECT_EQ(out.loss, 0);
    for (const double g : out.dlogits) EXPECT_EQ(g, 0);
  }
  const std::vector<double> x = verify::normal(8 * 33, 1);
  const std::vector<double> first(x.begin(), x.begin() + 4 * 33),
      second(x.begin() + 4 * 33, x.end());
  const auto part = [&](const std::vector<double>& data, std::vector<int64_t> targets) {
    return call{.device = device(),
                .spec = {.denominator = 4},
                .logits = {{4, 33}},
                .data = data,
                .targets = std::move(targets)}
        .run();
  };
  const auto whole = call{
      .device = device(),
      .spec = {},
      .logits = {{8, 33}},
      .data = x,
      .targets = {-100, -100, -100, -100, 1, 2, 3,
                  4}}.run();
  EXPECT_EQ(part(first, {-100, -100, -100, -100}).loss, 0);
  EXPECT_EQ(part(second, {1, 2, 3, 4}).loss, whole.loss);
}

// B05: a second backward gives what the first gave (that logits and lse stay as they are is checked
// by every call).
TEST_P(cross_entropy_faults, backward_twice_is_the_same) {
  call c{.device = device(), .spec = {.type = bf16}, .logits = {{5, 500}}};
  EXPECT_EQ(c.run().gradient_bits, c.run().gradient_bits);
}

// B06: the [S, B, V] logits as the [B, S, V] view, labels of every second column, an expanded row.
TEST_P(cross_entropy_faults, strides_are_read_as_they_are) {
  const std::vector<double> x = verify::normal(8 * 8, 6);
  const std::vector<int64_t> targets = {0, 3, -100, 7, 5, 1, 2, 6};
  const auto dense =
      call{.device = device(), .spec = {}, .logits = {{2, 4, 8}}, .data = x, .targets = targets}
          .run();
  const auto transposed = call{
      .device = device(),
      .spec = {},
      .logits = {{2, 4, 8}, {8, 16, 1}},
      .data = x,
      .targets = targets,
      .token_layout = {
          {2, 4}, {8, 2}}}.run();
  EXPECT_EQ(dense.loss, transposed.loss);
  EXPECT_EQ(dense.dlogits, transposed.dlogits);
  const std::vector<double> row(x.begin(), x.begin() + 8);
  std::vector<double> repeated;
  for (int i = 0; i < 4; ++i) repeated.insert(repeated.end(), row.begin(), row.end());
  const auto expanded = call{
      .device = device(),
      .spec = {},
      .logits = {{4, 8}, {0, 1}},
      .data = repeated,
      .targets = {1, 2, 3,
                  4}}.run();
  const auto copied = call{
      .device = device(),
      .spec = {},
      .logits = {{4, 8}},
      .data = repeated,
      .targets = {1, 2, 3,
                  4}}.run();
  EXPECT_EQ(expanded.dlogits, copied.dlogits);
}

// B07: the row is poisoned, the flag is raised, the other rows stay as they were; alike for every
// reduction.
TEST_P(cross_entropy_faults, targets_out_of_range_poison_their_row_and_raise_the_flag) {
  for (const nf_reduction r : {NF_REDUCTION_MEAN, NF_REDUCTION_SUM, NF_REDUCTION_NONE})
    for (const int64_t bad :
         {int64_t{1000}, int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN, int64_t{1} << 32})
      for (const bool options : {false, true}) {
        SCOPED_TRACE(std::to_string(r) + " " + std::to_string(bad));
        cross_entropy_spec spec = options ? all_options(3, f32) : cross_entropy_spec{};
        spec.reduction = r;
        const auto out = call{
            .device = device(),
            .spec = spec,
            .logits = {{3, 3}},
            .data = {1, 2, 3, 3, 1, .5, 2, 1, 0},
            .targets = {0, bad,
                        2}}.run();
        EXPECT_EQ(out.bad_target, 1);
        EXPECT_TRUE(std::isnan(out.token_loss[1]));
        for (size_t c = 0; c < 3; ++c) {
          EXPECT_TRUE(std::isfinite(out.dlogits[c]));
          EXPECT_TRUE(std::isnan(out.dlogits[3 + c]));
          EXPECT_TRUE(std::isfinite(out.dlogits[6 + c]));
        }
      }
}

// The flag stays up until the caller takes it down, so that one look covers many calls.
TEST_P(cross_entropy_faults, the_flag_is_left_alone_by_good_targets) {
  tensor x(f32, {{2, 3}}, device()), t(i64, {{2}}, device()), loss(f32, {{2}}, device()),
      flag(i32, {{}}, device());
  x.fill_normal(1);
  t.store(std::vector<double>{0, 2});
  flag.store(std::vector<double>{5});
  nf_cross_entropy_args args{};
  args.logits = x;
  args.targets = t;
  args.token_loss = loss;
  args.bad_target = flag;
  args.reduction = NF_REDUCTION_NONE;
  ninefold::cross_entropy(args);
  EXPECT_EQ(flag.load()[0], 5);
}

// B08: with weights per token each row has its own, also where token 0 is ignored.
TEST_P(cross_entropy_faults, every_token_has_its_own_weight) {
  call{.device = device(),
       .spec = {.reduction = NF_REDUCTION_NONE},
       .logits = {{8, 15}},
       .targets = {-100, 1, 2, 3, 4, 5, 6, 7},
       .token_weights = {1, 2, 3, 4, 5, 6, 7, 8}}
      .run();
}

// B36: micro-batches of unlike length, each with the whole batch's denominator.
TEST_P(cross_entropy_faults, micro_batches_equal_one_batch) {
  constexpr size_t v = 200;
  const std::vector<double> x = verify::normal(4 * v, 6);
  const std::vector<int64_t> targets = {7, 8, -100, 9};
  const auto whole =
      call{.device = device(), .spec = {}, .logits = {{4, v}}, .data = x, .targets = targets}.run();
  double sum = 0;
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 1}, {1, 4}}) {
    const auto part = call{.device = device(),
                           .spec = {.denominator = 3},
                           .logits = {{static_cast<int64_t>(end - begin), v}},
                           .data = {x.begin() + static_cast<int64_t>(begin * v),
                                    x.begin() + static_cast<int64_t>(end * v)},
                           .targets = {targets.begin() + static_cast<int64_t>(begin),
                                       targets.begin() + static_cast<int64_t>(end)},
                           .device_scalars = true}
                          .run();
    sum += part.loss;
    for (size_t i = 0; i < part.dlogits.size(); ++i)
      ASSERT_EQ(part.dlogits[i], whole.dlogits[begin * v + i]);
  }
  EXPECT_NEAR(sum, whole.loss, 1e-6);
}

// The share of the gradient that is not zero and becomes zero in the buffer.
double share_lost(const std::vector<double>& exact, const std::vector<double>& stored) {
  int64_t lost = 0, all = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    all += exact[i] != 0;
    lost += exact[i] != 0 && stored[i] == 0;
  }
  return static_cast<double>(lost) / static_cast<double>(all);
}

// Vocabulary 32k, 256 rows, fp16: most of (softmax - one-hot) / n is below half of fp16's smallest
// number. A loss scale given up front, or the scale handed on, loses nothing.
TEST_P(cross_entropy_faults, no_gradient_is_lost_on_the_way_into_fp16) {
  constexpr int64_t rows = verify::sanitized ? 16 : 256, v = 32768;
  call c{.device = device(),
         .spec = {.denominator = 256, .type = f16},
         .logits = {{rows, v}},
         .entropy = false};
  tensor x(f16, {{rows, v}});
  x.fill_normal(c.seed);
  const auto lost = [&] {
    const auto exact = reference::cross_entropy(c.spec, x.load(), some_targets(rows, v));
    return share_lost(exact.dlogits.values, c.run().dlogits);
  };
  const double as_is = lost();
  c.spec.loss_scale = 65536;
  const double scaled = lost();
  c.spec.loss_scale = 1;
  c.spec.defer_scale = true;
  const double deferred = lost();
  RecordProperty("lost_as_is", std::to_string(as_is));
  EXPECT_GT(as_is, 0.1);
  EXPECT_EQ(scaled, 0);
  EXPECT_EQ(deferred, 0);
}

// B02: the reported size is 2^31 + 48,219 elements. On the CPU a sparse mapping stands in for it:
// two rows that lie further apart than 32 bits count.
TEST(cross_entropy_faults_cpu, rows_further_apart_than_32_bits_count) {
  constexpr int64_t stride = (int64_t{1} << 31) + 48'219, v = 100;
  const size_t bytes = static_cast<size_t>(stride + v) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  float* const x = static_cast<float*>(memory);
  const std::vector<double> data = verify::normal(2 * v, 3);
  for (int64_t i = 0; i < 2 * v; ++i)
    x[i / v * stride + i % v] = static_cast<float>(data[static_cast<size_t>(i)]);
  const view far(x, f32, {2, v}, {stride, 1});
  const std::vector<int64_t> targets = {99, 0};
  tensor t(i64, {{2}}), token_loss(f32, {{2}});
  t.store(std::vector<double>(targets.begin(), targets.end()));
  const auto expected =
      reference::cross_entropy({.classes = v, .reduction = NF_REDUCTION_SUM}, data, targets);
  for (const char* rung : {"three_pass", "stream"}) {
    for (int64_t i = 0; i < 2 * v; ++i)
      x[i / v * stride + i % v] = static_cast<float>(data[static_cast<size_t>(i)]);
    nf_cross_entropy_args args{};
    args.logits = args.dlogits = far;
    args.targets = t;
    args.token_loss = token_loss;
    args.reduction = NF_REDUCTION_NONE;
    args.rung = rung;
    ninefold::cross_entropy_forward_backward(args);
    EXPECT_TRUE(matches(token_loss, expected.token_loss));
    for (int64_t i = 0; i < 2 * v; ++i)
      ASSERT_NEAR(x[i / v * stride + i % v], expected.dlogits.values[static_cast<size_t>(i)],
                  expected.dlogits.allowed[static_cast<size_t>(i)]);
  }
  munmap(memory, bytes);
}

// The same on a GPU with room for all of it.
TEST(cross_entropy_faults_cuda, more_than_2_to_the_31_elements) {
  if (!verify::cuda_present()) GTEST_SKIP() << "no CUDA device here";
  constexpr int64_t v = 50257;
  for (const int64_t rows : {42730, 42731}) {
    std::unique_ptr<tensor> x;
    try {
      x = std::make_unique<tensor>(bf16, layout{{rows, v}}, verify::cuda_device);
    } catch (const std::exception& e) {
      GTEST_SKIP() << "needs 4.3 GB of device memory: " << e.what();
    }
    x->fill_normal(1);
    std::vector<int64_t> last = {0, rows / 2}, last_targets;
    for (int64_t r = rows - 8; r < rows; ++r) last.push_back(r);
    const std::vector<int64_t> targets = some_targets(rows, v);
    for (const int64_t r : last) last_targets.push_back(targets[static_cast<size_t>(r)]);
    const cross_entropy_spec spec{
        .classes = v, .reduction = NF_REDUCTION_SUM, .loss_scale = 3, .type = bf16};
    const auto expected = reference::cross_entropy(spec, x->load_rows(last), last_targets, {}, 1);
    tensor t(i64, {{rows}}, verify::cuda_device), token_loss(f32, {{rows, 1}}, verify::cuda_device);
    t.store(std::vector<double>(targets.begin(), targets.end()));
    const view losses(static_cast<const DLTensor*>(token_loss)->data, f32, {rows}, {},
                      verify::cuda_device);
    nf_cross_entropy_args args{};
    args.logits = args.dlogits = *x;
    args.targets = t;
    args.token_loss = losses;
    args.loss_scale.value = 3;
    args.reduction = NF_REDUCTION_NONE;
    ninefold::cross_entropy_forward_backward(args);
    EXPECT_EQ(token_loss.count_poison(), 0);
    auto report = verify::compare(token_loss.load_rows(last), expected.token_loss.values,
                                  expected.token_loss.allowed);
    EXPECT_TRUE(report.passed()) << report.text();
    report = verify::compare(x->load_rows(last), expected.dlogits.values, expected.dlogits.allowed);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

// Each row's gradient sums to its factor times 2 z_loss lse: to zero without z-loss.
TEST_P(cross_entropy_faults, each_row_of_the_gradient_sums_to_zero) {
  for (const int64_t v : {3, 500, 50257}) {
    const auto out = call{
        .device = device(),
        .spec = {.reduction = NF_REDUCTION_SUM, .label_smoothing = 0.1},
        .logits = {
            {4, v}}}.run();
    for (size_t r = 0; r < 4; ++r) {
      double sum = 0;
      for (size_t c = 0; c < static_cast<size_t>(v); ++c)
        sum += out.dlogits[r * static_cast<size_t>(v) + c];
      EXPECT_NEAR(sum, 0, 2e-6);
    }
  }
}

TEST_P(cross_entropy_faults, results_are_the_same_bits_in_every_run) {
  for (const DLDataType type : {f32, bf16}) {
    call c{.device = device(), .spec = {.type = type}, .logits = {{40, 5000}}};
    const auto first = c.run();
    for (const int threads : {1, 2, 3, 7}) {
      const int before = omp_get_max_threads();
      omp_set_num_threads(threads);
      const auto again = c.run();
      omp_set_num_threads(before);
      EXPECT_EQ(again.gradient_bits, first.gradient_bits) << threads << " threads";
      EXPECT_EQ(again.token_loss, first.token_loss);
      EXPECT_EQ(again.loss, first.loss);
    }
  }
}

// More than 32 MB of gradient, which a kernel may write past the caches by aligned stores only.
TEST_P(cross_entropy_faults, outputs_larger_than_the_caches) {
  struct large {
    DLDataType type;
    int64_t rows, v, offset;
  };
  for (const auto& [type, rows, v, offset] : {large{f32, 200, 50257, 0},
                                              {bf16, 400, 50257, 1},
                                              {f32, 3'000'000, 3, 1},
                                              {f16, 600'001, 31, 0}}) {
    SCOPED_TRACE(verify::name_of(type) + " V=" + std::to_string(v));
    const layout where{{rows, v}, {}, offset};
    tensor x(type, where, device()), dx(type, where, device()), t(i32, {{rows}}, device());
    x.fill_normal(1);
    const std::vector<int64_t> targets = some_targets(rows, v);
    t.store(std::vector<double>(targets.begin(), targets.end()));
    nf_cross_entropy_args args{};
    args.logits = x;
    args.dlogits = dx;
    args.targets = t;
    args.reduction = NF_REDUCTION_NONE;
    ninefold::cross_entropy_forward_backward(args);
    EXPECT_EQ(dx.count_poison(), 0);
    EXPECT_TRUE(dx.canaries_intact());
    std::vector<int64_t> sample, sample_targets;
    for (int64_t i = 0; i < 50; ++i) sample.push_back(i * (rows - 1) / 49);
    for (const int64_t r : sample) sample_targets.push_back(targets[static_cast<size_t>(r)]);
    const auto expected =
        reference::cross_entropy({.classes = v, .reduction = NF_REDUCTION_SUM, .type = type},
                                 x.load_rows(sample), sample_targets);
    const auto report =
        verify::compare(dx.load_rows(sample), expected.dlogits.values, expected.dlogits.allowed);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

}  // namespace
}  // namespace ninefold::cross_entropy_test
