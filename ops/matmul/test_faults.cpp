// What users of other libraries have reported (B21 to B23 and B28 of our list), special values,
// sizes beyond 32 bits, and how the error grows.
#include <sys/mman.h>

#include "ops/matmul/test.hpp"
#include "verify/error.hpp"

namespace ninefold::matmul_test {
namespace {

class matmul_faults : public verify::on_each_device {
 protected:
  std::vector<const char*> rungs() const {
    if (on_cuda()) return {nullptr, "naive", "register_tile", "mma"};
    return {nullptr, "naive", "tiled"};
  }
};
INSTANTIATE_TEST_SUITE_P(devices, matmul_faults, testing::ValuesIn(verify::devices()),
                         verify::device_name);

// B21: an inner size of 0 left the output as it was, or dropped the addend.
TEST_P(matmul_faults, no_inner_size) {
  for (const char* rung : rungs())
    for (const DLDataType type : float_types) {
      const auto zeros = call{.device = device(),
                              .m = 2,
                              .n = 3,
                              .k = 0,
                              .batch = 3,
                              .type = type,
                              .rung = rung,
                              .may_refuse = true}
                             .run();
      if (zeros.refused) continue;
      EXPECT_EQ(zeros.d, std::vector<double>(18));
      tensor a(type, {{3, 0}}, device()), b(type, {{0, 4}}, device()), c(type, {{3, 4}}, device()),
          d(type, {{3, 4}}, device());
      c.store(std::vector<double>(12, 1));
      nf_matmul_args args{.a = a, .b = b, .c = c, .d = d, .rung = rung};
      ninefold::matmul(args);
      EXPECT_EQ(d.load(), std::vector<double>(12, 1));
      args.beta.value = -2;
      ninefold::matmul(args);
      EXPECT_EQ(d.load(), std::vector<double>(12, -2));
      args.d = c;
      ninefold::matmul(args);
      EXPECT_EQ(c.load(), std::vector<double>(12, -2));
    }
  for (const nf_matmul_epilogue epilogue : epilogues)
    call{.device = device(),
         .m = 40,
         .n = 30,
         .k = 0,
         .epilogue = epilogue,
         .c = true,
         .bias = true,
         .row_sums = true,
         .column_sums = true}
        .run();
}

// B22: so many batches that they did not fit in a grid's third dimension.
TEST_P(matmul_faults, many_batches) {
  call{.device = device(),
       .m = 16,
       .n = 16,
       .k = 8,
       .batch = verify::sanitized ? 6'553 : 65'536,
       .type = bf16,
       .bias = true}
      .run();
}

// B22: a batch's stride of 49,152 x 65,536 is beyond 32 bits; on sparse memory.
TEST(matmul_faults_cpu, batches_further_apart_than_32_bits_count) {
  constexpr int64_t stride = int64_t{49'152} * 65'536, n = 20;
  static_assert(stride == 3'221'225'472);
  const size_t bytes = static_cast<size_t>(stride + n * n) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "this system gives no sparse 13 GB mapping";
  float* const x = static_cast<float*>(memory);
  const std::vector<double> data = verify::normal(2 * n * n, 3);
  const auto place = [&](int64_t i) { return i / (n * n) * stride + i % (n * n); };
  for (int64_t i = 0; i < 2 * n * n; ++i)
    x[place(i)] = static_cast<float>(data[static_cast<size_t>(i)]);
  const view far(x, f32, {2, n, n}, {stride, n, 1});
  const auto expected =
      reference::matmul({.batch = 2, .m = n, .n = n, .k = n}, {.a = data, .b = data}).d;
  for (const char* rung : {"naive", "tiled", "onednn"}) {
    tensor d(f32, {{2, n, n}});
    const nf_matmul_args args{.a = far, .b = far, .d = d, .rung = rung};
    if (nf_matmul_forward(&args, nullptr) == NF_UNSUPPORTED) continue;
    EXPECT_TRUE(verify::matches(d, expected)) << rung;
  }
  // Rows as far apart, as input, addend and output.
  constexpr int64_t apart = (int64_t{1} << 31) + 11;
  const view rows(x, f32, {2, n}, {apart, 1});
  for (int64_t i = 0; i < 2 * n; ++i)
    x[i / n * apart + i % n] = static_cast<float>(data[static_cast<size_t>(i)]);
  tensor one(f32, {{2, 2}});
  one.store(std::vector<double>{0, 2, 1, 0});
  for (const char* rung : {"naive", "tiled"}) {
    tensor d(f32, {{2, n}});
    ninefold::matmul({.a = one, .b = rows, .c = rows, .d = d, .rung = rung});
    const std::vector<double> got = d.load();
    for (size_t j = 0; j < n; ++j) {
      EXPECT_FLOAT_EQ(float(got[j]), x[j] + 2 * x[apart + int64_t(j)]);
      EXPECT_FLOAT_EQ(float(got[n + j]), x[apart + int64_t(j)] + x[j]);
    }
  }
  ninefold::matmul({.a = one, .b = one, .d = view(x, f32, {2, 2}, {apart, 1})});
  EXPECT_EQ(x[0], 2);
  EXPECT_EQ(x[apart + 1], 2);
  munmap(memory, bytes);
}

// B23: sizes that are multiples of 4 and no more, tails, and data one element off a boundary.
TEST_P(matmul_faults, vector_loads_that_do_not_fit) {
  for (const char* rung : rungs())
    for (const DLDataType type : float_types)
      for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
               {36, 36, 64}, {36, 36, 33}, {64, 40, 72}, {128, 104, 96}})
        for (const lie a : {lie::contiguous, lie::off_by_one, lie::padded_rows})
          for (const lie b : {lie::contiguous, lie::off_by_one, lie::transposed})
            call{.device = device(),
                 .m = m,
                 .n = n,
                 .k = k,
                 .type = type,
                 .a = a,
                 .b = b,
                 .d = a,
                 .others = a,
                 .c = a != b,
                 .rung = rung,
                 .may_refuse = true}
                .run();
}

// A NaN or an infinity reaches its row and column of d, and nothing else, whatever is beside it.
TEST_P(matmul_faults, special_values_stay_in_their_rows) {
  for (const char* rung : rungs())
    for (const DLDataType type : float_types) {
      constexpr int64_t m = 37, n = 29, k = 70;
      std::vector<double> x = verify::normal(m * k, 1), y = verify::normal(k * n, 2);
      x[5 * k + 69] = nan;
      x[36 * k] = infinity;
      y[0 * n + 28] = 0;  // times the infinity: NaN
      y[33 * n + 3] = -infinity;
      x[7 * k + 33] = 0;
      tensor a(type, {{m, k}}, device()), b(type, {{k, n}}, device()), d(type, {{m, n}}, device());
      a.store(x);
      b.store(y);
      const nf_matmul_args args{.a = a, .b = b, .d = d, .rung = rung};
      const nf_status status = nf_matmul_forward(&args, nullptr);
      if (status == NF_UNSUPPORTED) continue;
      ASSERT_EQ(status, NF_OK) << nf_last_error();
      const auto stored_a = a.load(), stored_b = b.load();
      const auto expected =
          reference::matmul({.m = m, .n = n, .k = k, .type = type, .d_type = type},
                            {.a = stored_a, .b = stored_b})
              .d;
      EXPECT_TRUE(verify::matches(d, expected)) << verify::name_of(type) << (rung ? rung : "");
    }
}

// A factor of 0 selects: what it leaves out may hold anything.
TEST_P(matmul_faults, factors_of_0) {
  for (const char* rung : rungs())
    for (const DLDataType type : float_types) {
      tensor a(type, {{20, 30}}, device()), b(type, {{30, 40}}, device()),
          c(type, {{20, 40}}, device()), d(type, {{20, 40}}, device()), zero(f32, {{1}}, device());
      zero.store(std::vector<double>{0});
      a.store(std::vector<double>(600, nan));
      b.store(std::vector<double>(1200, infinity));
      c.store(verify::normal(800, 1));
      nf_matmul_args args{.a = a, .b = b, .c = c, .d = d, .rung = rung};
      args.alpha.tensor = zero;
      nf_status status = nf_matmul_forward(&args, nullptr);
      if (status == NF_UNSUPPORTED) continue;
      EXPECT_EQ(status, NF_OK) << nf_last_error();
      EXPECT_EQ(d.load(), c.load());
      args.beta.tensor = zero;
      c.store(std::vector<double>(800, nan));
      EXPECT_EQ(nf_matmul_forward(&args, nullptr), NF_OK) << nf_last_error();
      EXPECT_EQ(d.load(), std::vector<double>(800));
    }
}

// B28: where a fast tanh or a cube overflows; z = x comes from a product with 1.
TEST_P(matmul_faults, gelu_of_large_inputs) {
  std::vector<double> x{13.24, -13.24, 41, -41, 200, -200, 6, -14};
  for (double v = 8; v <= 16; v += 0.5) x.push_back(v);
  const auto count = static_cast<int64_t>(x.size());
  for (const nf_matmul_epilogue epilogue : {NF_MATMUL_GELU_TANH, NF_MATMUL_GELU_ERF})
    for (const DLDataType type : float_types) {
      tensor a(type, {{count, 1}}, device()), one(type, {{1, 1}}, device()),
          d(type, {{count, 1}}, device()), dy(type, {{count, 1}}, device());
      a.store(x);
      one.store(std::vector<double>{1});
      dy.store(std::vector<double>(x.size(), 1));
      ninefold::matmul({.a = a, .b = one, .d = d, .epilogue = epilogue});
      const auto stored = a.load(), y = d.load();
      ninefold::matmul({.a = dy,
                        .b = one,
                        .d = d,
                        .epilogue = epilogue == NF_MATMUL_GELU_TANH ? NF_MATMUL_GELU_TANH_BACKWARD
                                                                    : NF_MATMUL_GELU_ERF_BACKWARD,
                        .saved = a});
      const auto slope = d.load();
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] >= 6) {
          EXPECT_EQ(y[i], stored[i]);
          EXPECT_EQ(slope[i], 1);
        } else {
          EXPECT_LE(std::abs(y[i]), 1e-30);
          EXPECT_LE(std::abs(slope[i]), 1e-30);
        }
      }
    }
}

// The relative error grows like the square root of K, and no faster: each addition is off by a unit
// of a running sum that itself grows so. Every size below is a K of a real model.
TEST_P(matmul_faults, the_error_grows_with_the_root_of_k) {
  for (const char* rung : rungs())
    for (const int64_t k : {16, 256, 768, 4096, 14'336, 50'304}) {
      constexpr int64_t m = 8, n = 24;
      tensor a(f32, {{m, k}}, device()), b(f32, {{k, n}}, device()), d(f32, {{m, n}}, device());
      a.fill_normal(1);
      b.fill_normal(2);
      const nf_matmul_args args{.a = a, .b = b, .d = d, .rung = rung};
      if (nf_matmul_forward(&args, nullptr) != NF_OK) continue;
      const auto x = a.load(), y = b.load();
      const auto expected = reference::matmul({.m = m, .n = n, .k = k}, {.a = x, .b = y}).d;
      EXPECT_TRUE(verify::matches(d, expected));
      const auto report = verify::compare(d.load(), expected.values, expected.allowed);
      EXPECT_LT(report.rel_l2, verify::unit * (4 + std::sqrt(static_cast<double>(k)) / 2)) << k;
    }
}

// 16-bit outputs are rounded once: an honest rounding loses 0.3 to 0.42 of a unit on random data.
TEST_P(matmul_faults, one_rounding) {
  for (const DLDataType type : {f16, bf16}) {
    constexpr int64_t m = 96, n = 128, k = 512;
    tensor a(type, {{m, k}}, device()), b(type, {{k, n}}, device()), r(type, {{m, n}}, device()),
        d(type, {{m, n}}, device());
    a.fill_normal(1);
    b.fill_normal(2);
    r.fill_normal(3);
    ninefold::matmul({.a = a, .b = b, .d = d, .residual = r});
    const auto x = a.load(), y = b.load(), z = r.load();
    const auto expected = reference::matmul({.m = m, .n = n, .k = k, .type = type, .d_type = type},
                                            {.a = x, .b = y, .residual = z})
                              .d;
    EXPECT_LT(verify::compare(d.load(), expected.values, expected.allowed).rel_l2,
              0.5 * verify::epsilon(type));
  }
}

// A running sum in fp32 loses a digit in the tens of thousands; two stages do not.
TEST_P(matmul_faults, the_error_of_sums_does_not_grow_with_the_rows) {
  for (const int64_t rows : {100, 10'000, 100'000}) {
    tensor a(f32, {{rows, 1}}, device()), b(f32, {{1, 2}}, device()), d(f32, {{rows, 2}}, device()),
        sums(f32, {{2}}, device());
    a.store(std::vector<double>(static_cast<size_t>(rows), 0.1));
    b.store(std::vector<double>{1, 1});
    nf_matmul_args args{.a = a, .b = b, .d = d, .column_sums = sums};
    tensor work(u8, {{ninefold::matmul_workspace_size(args)}}, device());
    args.workspace = work;
    ninefold::matmul(args);
    for (const double sum : sums.load())
      EXPECT_NEAR(sum / (static_cast<double>(0.1f) * static_cast<double>(rows)), 1, 2e-6) << rows;
  }
}

}  // namespace
}  // namespace ninefold::matmul_test
