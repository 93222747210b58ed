// vector_add against the correctly rounded sum, bit for bit, over dtypes, lengths, layouts and
// rungs.
#include <omp.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "ops/vector_add/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold {
namespace {

using verify::layout;
using verify::tensor;

class vector_add : public verify::on_each_device {
 protected:
  std::vector<const char*> rungs() const {
    if (on_cuda()) return {"scalar", "vector16"};
    return {"scalar", "stream"};
  }
};
INSTANTIATE_TEST_SUITE_P(devices, vector_add, testing::ValuesIn(verify::devices()),
                         verify::device_name);

constexpr DLDataType types[] = {f32, f16, bf16};
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct add_call {
  DLDevice device;
  DLDataType type = f32;
  layout x, y = {}, z = {};  // without a shape: contiguous, like x's
  std::vector<double> x_data = {}, y_data = {};
  const char* rung = nullptr;

  std::vector<double> run() {
    if (y.shape.empty()) y.shape = x.shape;
    if (z.shape.empty()) z.shape = x.shape;
    tensor a(type, x, device), b(type, y, device), c(type, z, device);
    a.fill_normal(1);
    b.fill_normal(2);
    if (!x_data.empty()) a.store(x_data);
    if (!y_data.empty()) b.store(y_data);
    const auto a_before = a.snapshot(), b_before = b.snapshot();
    const nf_vector_add_args args{.x = a, .y = b, .z = c, .rung = rung};
    const nf_status status = nf_vector_add_forward(&args, nullptr);
    EXPECT_EQ(status, NF_OK) << nf_last_error();
    if (status != NF_OK) return {};
    const auto report = verify::compare(c.load(), reference::vector_add(type, a.load(), b.load()),
                                        verify::tolerance{});
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_EQ(c.count_poison(), 0);
    EXPECT_TRUE(c.canaries_intact());
    EXPECT_EQ(a.snapshot(), a_before);
    EXPECT_EQ(b.snapshot(), b_before);
    return c.load();
  }
};

// Every tail of a vector loop, with each of the three bases one element off in turn (B23).
TEST_P(vector_add, every_length_aligned_or_not) {
  for (const DLDataType type : types)
    for (const char* rung : {static_cast<const char*>(nullptr), rungs()[0]})
      for (int64_t n = 1; n <= 600; ++n) {
        SCOPED_TRACE(verify::name_of(type) + " N=" + std::to_string(n));
        add_call{.device = device(),
                 .type = type,
                 .x = {{n}, {}, n % 2},
                 .y = {{n}, {}, n % 3 == 1},
                 .z = {{n}, {}, n % 5 == 1},
                 .rung = rung}
            .run();
        if (HasFailure()) return;
      }
  for (const DLDataType type : types)
    for (const int64_t n : {4095, 4096, 4097, 50257, 131071, 1'000'003})
      for (const int64_t off : {0, 1})
        add_call{.device = device(),
                 .type = type,
                 .x = {{n}, {}, off},
                 .y = {{n}, {}, off},
                 .z = {{n}, {}, off}}
            .run();
}

// More than 32 MB of output may be written past the caches, by aligned stores only.
TEST_P(vector_add, outputs_larger_than_the_caches) {
  for (const DLDataType type : {f32, bf16})
    for (const int64_t off : {0, 1}) {
      const layout where{{18'000'011}, {}, off};
      tensor x(type, where, device()), z(type, where, device());
      x.fill_normal(1);
      ninefold::vector_add({.x = x, .y = x, .z = z});
      EXPECT_EQ(z.count_poison(), 0);
      EXPECT_TRUE(z.canaries_intact());
      const std::vector<double> a = x.load();
      EXPECT_EQ(z.load(), reference::vector_add(type, a, a));
    }
}

TEST_P(vector_add, special_values_follow_ieee) {
  const std::vector<double> a = {infinity, infinity, nan, -0.0, -0.0, 0.0, 1, -infinity, 3e38};
  const std::vector<double> b = {1, -infinity, 1, -0.0, 0.0, -0.0, -1, -infinity, 3e38};
  for (const DLDataType type : types) {
    const auto c =
        add_call{.device = device(), .type = type, .x = {{9}}, .x_data = a, .y_data = b}.run();
    ASSERT_EQ(c.size(), 9u);
    EXPECT_TRUE(std::signbit(c[3])) << "-0 + -0";
    EXPECT_FALSE(std::signbit(c[4]));
    EXPECT_EQ(c[8], infinity);
  }
}

// Ties, subnormals and sums that lose the smaller operand: where a second rounding would show.
TEST_P(vector_add, rounds_once_and_to_nearest_even) {
  for (const DLDataType type : {f16, bf16}) {
    std::vector<double> a, b;
    const double eps = verify::epsilon(type);
    for (int i = 0; i < 64; ++i)
      for (const double tiny : {eps, eps / 2, eps * 1.5, eps * (1 + 2 * eps), eps * (1 - eps)})
        for (const double sign : {1.0, -1.0}) {
          a.push_back(sign * (1 + 2 * eps * i));
          b.push_back(sign * tiny);
        }
    for (int i = 0; i < 40; ++i) {
      a.push_back(0x1p-24 * i);
      b.push_back(-0x1p-25 * i * i);
    }
    const auto n = static_cast<int64_t>(a.size());
    for (const char* rung : rungs())
      add_call{.device = device(), .type = type, .x = {{n}}, .x_data = a, .y_data = b, .rung = rung}
          .run();
  }
}

// B06: each layout for each argument; the output only where its elements are distinct.
TEST_P(vector_add, any_strides) {
  const layout layouts[] = {{{3, 5, 16}},
                            {{3, 5, 16}, {16, 48, 1}},
                            {{3, 5, 16}, {240, 48, 1}, 16},
                            {{3, 5, 16}, {160, 32, 2}},
                            {{3, 5, 16}, {5, 1, 15}},
                            {{3, 5, 16}, {85, 17, 1}, 1},
                            {{3, 5, 16}, {-80, -16, -1}},
                            {{3, 5, 16}, {0, 16, 1}},
                            {{3, 5, 16}, {0, 0, 1}},
                            {{3, 5, 16}, {5, 1, 0}},
                            {{3, 5, 16}, {0, 0, 0}}};
  for (const DLDataType type : types)
    for (const layout& x : layouts)
      for (const layout& y : layouts)
        for (size_t z = 0; z < 7; ++z)
          add_call{.device = device(), .type = type, .x = x, .y = y, .z = layouts[z]}.run();
}

TEST_P(vector_add, in_place_over_either_input) {
  for (const DLDataType type : types)
    for (const int64_t n : {1, 1000, 70001}) {
      tensor x(type, {{n}}, device()), y(type, {{n}}, device()), z(type, {{n}}, device());
      x.fill_normal(1);
      y.fill_normal(2);
      ninefold::vector_add({.x = x, .y = y, .z = z});
      ninefold::vector_add({.x = x, .y = y, .z = x});
      EXPECT_EQ(x.snapshot(), z.snapshot());
      x.fill_normal(1);
      ninefold::vector_add({.x = x, .y = y, .z = y});
      EXPECT_EQ(y.snapshot(), z.snapshot());
      ninefold::vector_add({.x = x, .y = x, .z = z});
      ninefold::vector_add({.x = x, .y = x, .z = x});
      EXPECT_EQ(x.snapshot(), z.snapshot());
    }
}

TEST_P(vector_add, empty_tensors_do_nothing) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{0}, {0, 7}, {7, 0}, {2, 0, 3}}) {
    add_call{.device = device(), .x = {shape}}.run();
    EXPECT_EQ(verify::last_rung(), "none");
  }
}

TEST_P(vector_add, more_than_65535_batches) {  // B22
  const layout transposed{{70001, 2, 3}, {3, 3 * 70001, 1}};
  add_call{.device = device(), .x = {{70001, 1, 3}}, .z = {{70001, 1, 3}, {7, 3, 2}}}.run();
  add_call{.device = device(), .x = transposed, .z = transposed}.run();
}

// B18: offsets past 2^31 elements on sparse memory.
TEST(vector_add_cpu, strides_past_2_to_the_31_elements) {
  constexpr int64_t stride = (int64_t{1} << 31) + 3, n = 37;
  constexpr size_t bytes = (stride + n) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "this system gives no sparse 9 GB mapping";
  float* x = static_cast<float*>(memory);
  for (int64_t i = 0; i < n; ++i) x[stride + i] = static_cast<float>(i);
  const ninefold::view far(x, f32, {2, n}, {stride, 1});
  ninefold::vector_add({.x = far, .y = far, .z = far});
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(x[stride + i], static_cast<float>(2 * i));
  munmap(memory, bytes);
}

// B31's size: a count in 32 bits is negative here, and the loop never runs.
TEST(vector_add_cuda, more_than_2_to_the_31_elements) {
  if (!verify::cuda_present()) GTEST_SKIP() << "no CUDA device here";
  constexpr int64_t n = (int64_t{1} << 31) + 9;
  std::unique_ptr<tensor> x;
  try {
    x = std::make_unique<tensor>(bf16, layout{{n / 11, 11}}, verify::cuda_device);
  } catch (const std::exception& e) {
    GTEST_SKIP() << "needs 4.3 GB of device memory: " << e.what();
  }
  x->fill_normal(1);
  const std::vector<int64_t> rows = {0, n / 22, n / 11 - 2, n / 11 - 1};
  const auto before = x->load_rows(rows);
  ninefold::vector_add({.x = *x, .y = *x, .z = *x});
  EXPECT_EQ(x->load_rows(rows), reference::vector_add(bf16, before, before));
}

TEST_P(vector_add, each_rung_is_right_or_refuses_and_is_named) {
  for (const char* rung : rungs())
    for (const layout& where :
         {layout{{999}}, {{999}, {}, 1}, {{37, 27}, {54, 2}}, {{999}, {-1}}}) {
      tensor x(f32, where, device()), z(f32, where, device());
      x.fill_normal(1);
      const nf_vector_add_args args{.x = x, .y = x, .z = z, .rung = rung};
      const nf_status status = nf_vector_add_forward(&args, nullptr);
      if (status == NF_OK) {
        EXPECT_EQ(verify::last_rung(), rung);
        EXPECT_EQ(z.load(), reference::vector_add(f32, x.load(), x.load()));
      } else {
        EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {rung}));
        EXPECT_EQ(z.count_poison(), z.count());
      }
    }
  for (const char* rung : rungs()) {  // none may refuse the plainest call
    add_call{.device = device(), .x = {{1024}}, .rung = rung}.run();
    EXPECT_EQ(verify::last_rung(), rung);
  }
}

TEST_P(vector_add, is_the_same_on_any_number_of_threads) {
  tensor x(f32, {{300'007}}, device()), y(f32, {{300'007}}, device()),
      z(f32, {{300'007}}, device());
  x.fill_normal(1);
  y.fill_normal(2);
  ninefold::vector_add({.x = x, .y = y, .z = z});
  const auto first = z.snapshot();
  const int before = omp_get_max_threads();
  for (const int threads : {1, 3, 7}) {
    omp_set_num_threads(threads);
    z.poison();
    ninefold::vector_add({.x = x, .y = y, .z = z});
    EXPECT_EQ(z.snapshot(), first);
  }
  omp_set_num_threads(before);
}

TEST_P(vector_add, wrong_input_fails_by_name_and_writes_nothing) {
  tensor x(f32, {{4, 8}}, device()), y(f32, {{4, 8}}, device()), z(f32, {{4, 8}}, device());
  const tensor narrow(bf16, {{4, 8}}, device()), other(f32, {{8, 4}}, device()),
      flags(boolean, {{4, 8}}, device());
  const DLTensor* whole = z;
  const auto fails = [&](nf_vector_add_args args, nf_status status,
                         std::initializer_list<const char*> words) {
    EXPECT_TRUE(verify::fails(nf_vector_add_forward(&args, nullptr), status, words));
    EXPECT_EQ(z.count_poison(), 32);
  };
  EXPECT_TRUE(
      verify::fails(nf_vector_add_forward(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  fails({.y = y, .z = z}, NF_INVALID_ARGUMENT, {"x", "NULL"});
  fails({.x = x, .z = z}, NF_INVALID_ARGUMENT, {"y", "NULL"});
  fails({.x = x, .y = y}, NF_INVALID_ARGUMENT, {"z", "NULL"});
  fails({.x = x, .y = narrow, .z = z}, NF_INVALID_ARGUMENT, {"y", "fp32", "bf16"});
  fails({.x = x, .y = y, .z = narrow}, NF_INVALID_ARGUMENT, {"z"});
  fails({.x = flags, .y = flags, .z = flags}, NF_UNSUPPORTED, {"x", "bool"});
  fails({.x = x, .y = other, .z = z}, NF_INVALID_ARGUMENT, {"y", "(8, 4)", "(4, 8)"});
  fails({.x = x, .y = y, .z = other}, NF_INVALID_ARGUMENT, {"z"});
  fails({.x = x, .y = y, .z = z, .rung = "fast"}, NF_UNSUPPORTED, {"fast", "scalar"});
  float* data = static_cast<float*>(whole->data);
  const ninefold::view upper(data, f32, {3, 8}, {8, 1}, device()),
      lower(data + 8, f32, {3, 8}, {8, 1}, device()), twice(data, f32, {4, 8}, {0, 1}, device());
  fails({.x = upper, .y = upper, .z = lower}, NF_INVALID_ARGUMENT, {"z overlaps x"});
  fails({.x = x, .y = y, .z = twice}, NF_INVALID_ARGUMENT, {"z"});
  DLTensor bad = *whole;
  bad.byte_offset = 2;
  fails({.x = x, .y = y, .z = &bad}, NF_INVALID_ARGUMENT, {"z", "aligned"});
  bad = *whole;
  bad.device = {kDLCUDA, 4096};
  fails({.x = &bad, .y = y, .z = z}, NF_UNAVAILABLE, {"x", "CUDA"});
}

// ---- in a process of its own: the library reads its settings once ----

TEST(DISABLED_vector_add_child, prints_its_launch) {
  add_call{.device = cpu_device, .x = {{5000}}}.run();
  std::printf("launch [%s]\n", nf_last_launch());
}

TEST(vector_add_environment, NF_RUNG_and_NF_CPU_ISA_force_a_path) {
  const auto child = [](const std::string& environment) {
    return verify::run_again(environment, "DISABLED_vector_add_child.prints_its_launch").output;
  };
  EXPECT_NE(child("NF_RUNG=vector_add:scalar").find("rung=scalar"), std::string::npos);
  EXPECT_NE(child("NF_RUNG=softmax:three_pass").find("rung=stream"), std::string::npos);
  // Each instruction set is code of its own. A CPU may lack one, and sanitized builds leave some
  // out.
  for (const char* isa : {"SSE4", "AVX2", "AVX3"}) {
    const std::string environment = std::string("NF_CPU_ISA=") + isa, launch = child(environment);
    if (launch.find(environment + " is not ") != std::string::npos) continue;
    EXPECT_NE(launch.find(std::string("isa=") + isa + " "), std::string::npos) << launch;
    const auto result =
        verify::run_again(environment, "devices/vector_add.every*/cpu:*rounds*/cpu:*special*/cpu");
    EXPECT_EQ(result.exit_status, 0) << isa << "\n" << result.output;
  }
}

}  // namespace
}  // namespace ninefold
