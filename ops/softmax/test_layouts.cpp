// Memory: strides of every kind, aliases, empty tensors, offsets past 2^31, determinism.
#include <omp.h>
#include <sys/mman.h>

#include "ops/softmax/test.hpp"

namespace ninefold::softmax_test {
namespace {

class softmax_layouts : public verify::on_each_device {};
INSTANTIATE_TEST_SUITE_P(devices, softmax_layouts, testing::ValuesIn(verify::devices()),
                         verify::device_name);

struct named_layout {
  const char* why;
  layout where;
  bool output;  // its elements are distinct
};

// B06, B16, B23: (B=4, S=6, N=40) seen through every layout that frameworks produce.
const named_layout layouts[] = {
    {"contiguous", {{4, 6, 40}}, true},
    {"[S, B, V] seen as [B, S, V]", {{4, 6, 40}, {40, 160, 1}}, true},
    {"a third of a fused buffer [B, S, 3 V]", {{4, 6, 40}, {720, 120, 1}, 40}, true},
    {"padded rows, odd stride: each row aligned otherwise", {{4, 6, 40}, {246, 41, 1}}, true},
    {"every other column", {{4, 6, 40}, {480, 80, 2}}, true},
    {"columns outermost", {{4, 6, 40}, {6, 1, 24}}, true},
    {"base one element off", {{4, 6, 40}, {}, 1}, true},
    {"rows backwards", {{4, 6, 40}, {-240, -40, 1}}, true},
    {"columns backwards", {{4, 6, 40}, {240, 40, -1}}, true},
    {"all backwards with gaps", {{4, 6, 40}, {-600, -97, -2}, 3}, true},
    {"one batch expanded", {{4, 6, 40}, {0, 40, 1}}, false},
    {"one row expanded", {{4, 6, 40}, {0, 0, 1}}, false},
    {"one column expanded", {{4, 6, 40}, {6, 1, 0}}, false},
    {"one number expanded", {{4, 6, 40}, {0, 0, 0}}, false},
    {"sliding windows", {{4, 6, 40}, {7, 1, 1}}, false},
};

TEST_P(softmax_layouts, forward_reads_and_writes_any_strides) {
  for (const dtype_pair& pair : {dtype_pair{f32, f32}, {bf16, bf16}, {f16, f32}})
    for (const named_layout& x : layouts)
      for (const named_layout& y : layouts) {
        if (!y.output) continue;
        SCOPED_TRACE(name_of(pair) + " x: " + x.why + ", y: " + y.why);
        for (const nf_causal causal : {NF_CAUSAL_NONE, NF_CAUSAL_BOTTOM_RIGHT})
          forward_call{.device = device(),
                       .spec = {.causal = causal, .in = pair.in, .out = pair.out},
                       .x = x.where,
                       .y = y.where}
              .run();
        if (HasFailure()) return;
      }
}

TEST_P(softmax_layouts, backward_reads_and_writes_any_strides) {
  for (const dtype_pair& pair : {dtype_pair{f32, f32}, {bf16, bf16}, {f16, f32}})
    for (const bool log : {false, true})
      for (const named_layout& y : layouts)
        for (const named_layout& dy : layouts) {
          SCOPED_TRACE(name_of(pair) + " y: " + y.why + ", dy: " + dy.why);
          const layout& dx = y.output ? y.where : layouts[3].where;
          backward_call{.device = device(),
                        .spec = {.log = log, .in = pair.in, .out = pair.out},
                        .y = y.where,
                        .dy = dy.where,
                        .dx = dx}
              .run();
          if (HasFailure()) return;
        }
}

TEST_P(softmax_layouts, rank_one_to_eight_with_dimensions_of_one) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{9},
                                                             {1},
                                                             {1, 1, 1, 1, 1, 1, 1, 1},
                                                             {2, 1, 3, 1, 2, 1, 2, 33},
                                                             {2, 2, 2, 2, 2, 2, 2, 5},
                                                             {1, 5, 1, 7},
                                                             {7, 1}}) {
    SCOPED_TRACE(testing::PrintToString(shape));
    forward_call{.device = device(), .spec = {}, .x = {shape}}.run();
    backward_call{.device = device(), .spec = {}, .y = {shape}}.run();
  }
  // Eight dimensions, none of which joins its neighbour.
  const layout scattered{{2, 2, 2, 2, 2, 2, 2, 5}, {5, 1280, 10, 640, 20, 320, 40, 1}};
  forward_call{.device = device(), .spec = {}, .x = scattered, .y = scattered}.run();
  backward_call{.device = device(), .spec = {}, .y = scattered, .dx = scattered}.run();
}

TEST_P(softmax_layouts, byte_offset_is_honoured) {
  tensor x(bf16, {{3, 50}}, device()), y(bf16, {{2, 50}}, device());
  x.fill_normal(3);
  DLTensor rows = *static_cast<const DLTensor*>(x);
  int64_t shape[] = {2, 50};
  rows.shape = shape;
  rows.strides = nullptr;
  rows.byte_offset = 50 * 2;  // skips the first row
  ninefold::softmax({.x = &rows, .y = y});
  const std::vector<double> all = x.load();
  const softmax_spec spec{.cols = 50, .in = bf16, .out = bf16};
  EXPECT_TRUE(matches(y, reference::softmax(spec, std::span(all).subspan(50))));
}

TEST_P(softmax_layouts, forward_in_place_equals_out_of_place_bit_for_bit) {
  for (const DLDataType type : {f32, f16, bf16})
    for (const int64_t n : {1, 17, 256, 1000, 4099, 70000})
      for (const bool log : {false, true}) {
        SCOPED_TRACE(verify::name_of(type) + " N=" + std::to_string(n));
        tensor x(type, {{3, n}}, device()), y(type, {{3, n}}, device());
        x.fill_normal(11);
        ninefold::softmax({.x = x, .y = y, .log = log});
        ninefold::softmax({.x = x, .y = x, .log = log});
        EXPECT_EQ(x.snapshot(), y.snapshot());
        EXPECT_TRUE(x.canaries_intact());
      }
}

TEST_P(softmax_layouts, backward_over_dy_or_y_equals_out_of_place_bit_for_bit) {
  for (const DLDataType type : {f32, f16, bf16})
    for (const int64_t n : {1, 17, 256, 1000, 4099, 70000})
      for (const bool log : {false, true}) {
        SCOPED_TRACE(verify::name_of(type) + " N=" + std::to_string(n));
        const softmax_spec spec{.cols = n, .log = log, .in = type, .out = type};
        tensor y(type, {{3, n}}, device()), dy(type, {{3, n}}, device()),
            dx(type, {{3, n}}, device());
        const auto saved = reference::softmax(spec, verify::normal(3 * n, 1)).values;
        y.store(saved);
        dy.fill_normal(12);
        ninefold::softmax_backward({.y = y, .dy = dy, .dx = dx, .log = log});
        ninefold::softmax_backward({.y = y, .dy = dy, .dx = dy, .log = log});
        EXPECT_EQ(dy.snapshot(), dx.snapshot()) << "over dy";
        dy.fill_normal(12);
        ninefold::softmax_backward({.y = y, .dy = dy, .dx = y, .log = log});
        EXPECT_EQ(y.snapshot(), dx.snapshot()) << "over y";
        // dy may even be y: both are inputs.
        y.store(saved);
        dy.store(saved);
        ninefold::softmax_backward({.y = y, .dy = dy, .dx = dx, .log = log});
        ninefold::softmax_backward({.y = y, .dy = y, .dx = dy, .log = log});
        EXPECT_EQ(dy.snapshot(), dx.snapshot()) << "dy is y";
      }
}

// B21: any dimension may be 0; nothing is read, written or launched.
TEST_P(softmax_layouts, empty_tensors_are_a_success_that_does_nothing) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{0}, {0, 7}, {7, 0}, {3, 0, 5}, {0, 0}, {2, 3, 0}}) {
    SCOPED_TRACE(testing::PrintToString(shape));
    for (const nf_causal causal : {NF_CAUSAL_NONE, NF_CAUSAL_BOTTOM_RIGHT}) {
      if (causal != NF_CAUSAL_NONE && shape.size() < 2) continue;
      forward_call{.device = device(), .spec = {.causal = causal}, .x = {shape}}.run();
      EXPECT_EQ(verify::last_rung(), "none");
      backward_call{.device = device(), .spec = {.causal = causal}, .y = {shape}}.run();
      EXPECT_EQ(verify::last_rung(), "none");
    }
  }
  // An empty tensor needs no memory.
  tensor x(f32, {{0, 4}}, device());
  DLTensor nothing = *static_cast<const DLTensor*>(x);
  nothing.data = nullptr;
  ninefold::softmax({.x = &nothing, .y = &nothing});
}

// B22: a batch beyond CUDA's limit of 65,535 in grid.y and grid.z, as rows and as leading
// dimensions that do not collapse.
TEST_P(softmax_layouts, more_than_65535_batches) {
  forward_call{.device = device(), .spec = {}, .x = {{70001, 1, 3}}}.run();
  const layout transposed{{70001, 2, 3}, {3, 3 * 70001, 1}};
  forward_call{.device = device(), .spec = {}, .x = transposed}.run();
  backward_call{.device = device(), .spec = {}, .y = transposed, .dx = transposed}.run();
  forward_call{.device = device(), .spec = {.causal = NF_CAUSAL_BOTTOM_RIGHT}, .x = {{70001, 2, 2}}}
      .run();
  forward_call{.device = device(), .spec = {}, .x = {{66000, 40}}}.run();
}

// B18: a stride past 2^31 needs few elements. Sparse memory: only what is touched takes room.
TEST(softmax_layouts_cpu, strides_past_2_to_the_31_elements) {
  constexpr int64_t stride = (int64_t{1} << 31) + 5, n = 37, rows = 3;
  constexpr size_t bytes = (stride * (rows - 1) + n) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "this system gives no sparse 17 GB mapping";
  float* x = static_cast<float*>(memory);
  const std::vector<double> data = verify::normal(rows * n, 3);
  std::vector<double> stored(data.size());
  for (int64_t i = 0; i < rows * n; ++i) {
    x[i / n * stride + i % n] = static_cast<float>(data[static_cast<size_t>(i)]);
    stored[static_cast<size_t>(i)] = static_cast<float>(data[static_cast<size_t>(i)]);
  }
  tensor y(f32, {{rows, n}}), dx(f32, {{rows, n}});
  const ninefold::view far(x, f32, {rows, n}, {stride, 1});
  ninefold::softmax({.x = far, .y = y});
  EXPECT_TRUE(matches(y, reference::softmax({.cols = n}, stored)));
  ninefold::softmax_backward({.y = y, .dy = far, .dx = dx});
  EXPECT_TRUE(matches(dx, reference::softmax_backward({.cols = n}, y.load(), stored)));
  ninefold::softmax({.x = far, .y = far});  // and writes there
  for (int64_t i = 0; i < rows * n; ++i)
    ASSERT_EQ(x[i / n * stride + i % n], y.load()[static_cast<size_t>(i)]);
  munmap(memory, bytes);
}

// B02, the reported size: 42,731 rows of GPT-2's vocabulary are 2^31 + 48,219 elements. On the CPU
// all of them would take minutes, and the stride test above covers the offsets; a GPU with room
// does them all.
TEST(softmax_layouts_cuda, more_than_2_to_the_31_elements) {
  if (!verify::cuda_present()) GTEST_SKIP() << "no CUDA device here";
  constexpr int64_t n = 50257;
  for (const int64_t rows : {42730, 42731}) {
    std::unique_ptr<tensor> x, y;
    try {
      x = std::make_unique<tensor>(bf16, layout{{rows, n}}, verify::cuda_device);
      y = std::make_unique<tensor>(bf16, layout{{rows, n}}, verify::cuda_device);
    } catch (const std::exception& e) {
      GTEST_SKIP() << "needs 9 GB of device memory: " << e.what();
    }
    x->fill_normal(1);
    ninefold::softmax({.x = *x, .y = *y});
    EXPECT_EQ(y->count_poison(), 0);
    std::vector<int64_t> last = {0, rows / 2};
    for (int64_t r = rows - 8; r < rows; ++r) last.push_back(r);
    const softmax_spec spec{.cols = n, .in = bf16, .out = bf16};
    const auto in = x->load_rows(last), out = y->load_rows(last);
    const auto expected = reference::softmax(spec, in, {}, last);
    auto report = verify::compare(out, expected.values, expected.allowed);
    EXPECT_TRUE(report.passed()) << report.text();
    ninefold::softmax_backward({.y = *y, .dy = *x, .dx = *x});
    const auto gradient = reference::softmax_backward(spec, out, in, last);
    report = verify::compare(x->load_rows(last), gradient.values, gradient.allowed);
    EXPECT_TRUE(report.passed()) << report.text();
  }
}

// Outputs of more than 32 MB, which a kernel may write past the caches by aligned stores only: odd
// rows, rows shorter than a vector, a base that is off.
TEST_P(softmax_layouts, outputs_larger_than_the_caches) {
  struct large {
    DLDataType type;
    int64_t rows, cols, offset;
  };
  for (const auto& [type, rows, cols, offset] : {large{f32, 200, 50257, 0},
                                                 {bf16, 400, 50257, 1},
                                                 {f32, 3'000'000, 3, 1},
                                                 {f16, 600'001, 31, 0}}) {
    SCOPED_TRACE(verify::name_of(type) + " N=" + std::to_string(cols));
    const layout where{{rows, cols}, {}, offset};
    tensor x(type, where, device()), y(type, where, device()), dx(type, where, device());
    x.fill_normal(1);
    ninefold::softmax({.x = x, .y = y});
    ninefold::softmax_backward({.y = y, .dy = x, .dx = dx});
    for (const tensor* out : {&y, &dx}) {
      EXPECT_EQ(out->count_poison(), 0);
      EXPECT_TRUE(out->canaries_intact());
    }
    std::vector<int64_t> sample;
    for (int64_t i = 0; i < 50; ++i) sample.push_back(i * (rows - 1) / 49);
    const softmax_spec spec{.cols = cols, .in = type, .out = type};
    const auto in = x.load_rows(sample), out = y.load_rows(sample);
    const auto forward = reference::softmax(spec, in, {}, sample);
    EXPECT_TRUE(verify::compare(out, forward.values, forward.allowed).passed());
    const auto backward = reference::softmax_backward(spec, out, in, sample);
    EXPECT_TRUE(verify::compare(dx.load_rows(sample), backward.values, backward.allowed).passed());
  }
}

// A row's result depends on that row alone: not on the batch, the run or the number of threads.
TEST_P(softmax_layouts, results_are_the_same_bits_in_every_run) {
  for (const DLDataType type : {f32, bf16})
    for (const int64_t n : {40, 1000, 50257}) {
      SCOPED_TRACE(verify::name_of(type) + " N=" + std::to_string(n));
      tensor x(type, {{9, n}}, device()), y(type, {{9, n}}, device()), dx(type, {{9, n}}, device());
      x.fill_normal(4);
      ninefold::softmax({.x = x, .y = y});
      ninefold::softmax_backward({.y = y, .dy = x, .dx = dx});
      const auto forward = y.snapshot(), backward = dx.snapshot();
      for (const int threads : {1, 2, 3, 7}) {
        const int before = omp_get_max_threads();
        omp_set_num_threads(threads);
        y.poison();
        dx.poison();
        ninefold::softmax({.x = x, .y = y});
        ninefold::softmax_backward({.y = y, .dy = x, .dx = dx});
        omp_set_num_threads(before);
        EXPECT_EQ(y.snapshot(), forward) << threads << " threads";
        EXPECT_EQ(dx.snapshot(), backward) << threads << " threads";
      }
      // What the other rows hold is of no matter to this one.
      std::vector<double> others = x.load();
      const auto row = static_cast<size_t>(7 * n), size = static_cast<size_t>(n);
      const std::vector<double> before = y.load();
      for (size_t i = 0; i < others.size(); ++i)
        if (i < row || i >= row + size) others[i] = -3 * others[i];
      x.store(others);
      ninefold::softmax({.x = x, .y = y});
      const std::vector<double> after = y.load();
      EXPECT_TRUE(std::equal(&before[row], &before[row] + size, &after[row]));
    }
}

}  // namespace
}  // namespace ninefold::softmax_test
