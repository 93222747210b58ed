// Matrix products of transformers: (M, K) by (K, N), forward, by input and by weight, plain and
// with what follows them. Two flops for each of M N K; each operand and result counts once in
// bytes.
#include "lab/bench.hpp"

#include <algorithm>
#include <ninefold/ninefold.hpp>
#include <optional>
#include <span>

#include "lab/baselines/matmul.hpp"
#include "lab/ceilings.hpp"
#include "lab/sampling.hpp"
#include "ops/matmul/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct matmul_case {
  int64_t m, n, k;
  nf_matmul_epilogue epilogue;
  bool a_transposed, b_transposed;  // how they lie
  bool bias, residual, preactivation, column_sums, accumulate;
  DLDataType type, d_type;
  DLDevice device;

  reference::matmul_spec spec() const {
    return {.m = m,
            .n = n,
            .k = k,
            .epilogue = epilogue,
            .type = type,
            .d_type = d_type,
            .sums_type = type};
  }
  int64_t columns() const { return spec().columns(); }
  bool gelu() const { return epilogue == NF_MATMUL_GELU_TANH; }
};

verify::layout lie(int64_t rows, int64_t columns, bool transposed) {
  if (!transposed) return {{rows, columns}};
  return {{rows, columns}, {1, rows}};
}

// Some of the numbers of a row-major matrix.
std::vector<double> columns_of(const std::vector<double>& x, int64_t width,
                               std::span<const int64_t> columns) {
  std::vector<double> out;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width))
    for (const int64_t j : columns) out.push_back(x[row + static_cast<size_t>(j)]);
  return out;
}

class multiplied : public problem {
 public:
  explicit multiplied(const matmul_case& c)
      : case_(c),
        a_(c.type, lie(c.m, c.k, c.a_transposed), c.device),
        b_(c.type, lie(c.k, c.n, c.b_transposed), c.device),
        d_(c.d_type, {{c.m, c.columns()}}, c.device),
        old_(c.d_type, {{c.accumulate ? c.m : 0, c.columns()}}, c.device),
        residual_(c.d_type, {{c.residual ? c.m : 0, c.columns()}}, c.device),
        saved_(c.d_type, {{c.spec().backward() ? c.m : 0, c.n}}, c.device),
        z_(c.d_type, {{c.preactivation ? c.m : 0, c.n}}, c.device),
        bias_(c.type, {{c.n}}, c.device),
        sums_(c.type, {{c.columns()}}, c.device) {
    // As many rows as a second or two of plain loops can check.
    constexpr int64_t most = int64_t{1} << 31;
    const int64_t count = std::clamp<int64_t>(most / std::max<int64_t>(1, c.n * c.k), 2, c.m);
    const std::vector<int64_t> by_size = sampled_rows(c.m, c.n);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at =
          count == 1 ? 0 : i * (static_cast<int64_t>(by_size.size()) - 1) / (count - 1);
      const int64_t row = by_size[static_cast<size_t>(at)];
      if (rows_.empty() || rows_.back() != row) rows_.push_back(row);
    }
    if (c.column_sums) some_columns_ = {0, c.columns() / 2, c.columns() - 1};
    workspace_bytes_ = matmul_workspace_size(args(nullptr));
    workspace_.emplace(u8, verify::layout{{workspace_bytes_}}, c.device);
  }

  void fill(uint64_t seed) override {
    for (tensor* t : {&a_, &b_, &old_, &residual_, &saved_, &bias_}) t->fill_normal(seed++);
    known_ = false;
    poison();
  }
  void poison() override {
    if (case_.accumulate) {
      d_.store(old_.load());
    } else {
      d_.poison();
    }
    z_.poison();
    sums_.poison();
  }
  verify::error_report check() override {
    if (!known_) expect();
    verify::error_report report = judge(d_, d_.load_rows(rows_), expected_.d);
    if (case_.preactivation) report.add(judge(z_, z_.load_rows(rows_), expected_.preactivation));
    if (case_.column_sums)
      report.add(
          judge(sums_, columns_of(sums_.load(), case_.columns(), some_columns_), expected_sums_));
    return report;
  }
  std::vector<contender> contenders() override {
    const bool cuda = case_.device.device_type == kDLCUDA;
    const std::vector<const char*> ladder =
        cuda ? std::vector<const char*>{"shared_tile", "register_tile", "mma", "wgmma"}
             : std::vector<const char*>{"tiled", "onednn"};
    std::vector<contender> out =
        own_contenders([this](const char* rung) { return ours(rung); }, "naive", ladder);
    // A rung of a thousandth of the others' speed says enough by the small shapes.
    constexpr double most_naive = 1e11;
    const double flops = 2.0 * double(case_.m) * double(case_.n) * double(case_.k);
    if (flops > most_naive * (cuda ? 10 : 0.1)) out[1].absent = "too slow for this size";
    for (contender& rival : rivals(cuda)) out.push_back(std::move(rival));
    return out;
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(a_, a_.bytes(), false), buffer_of(b_, b_.bytes(), false),
                            buffer_of(d_, d_.bytes(), true)};
    for (const tensor* t : {&residual_, &saved_})
      if (t->count() > 0) out.push_back(buffer_of(*t, t->bytes(), false));
    if (z_.count() > 0) out.push_back(buffer_of(z_, z_.bytes(), true));
    return out;
  }

 private:
  nf_matmul_args args(const char* rung) const {
    nf_matmul_args x{};
    x.a = a_;
    x.b = b_;
    x.d = d_;
    if (case_.accumulate) x.c = d_;
    x.epilogue = case_.epilogue;
    if (case_.bias) x.bias = bias_;
    if (case_.residual) x.residual = residual_;
    if (case_.spec().backward()) x.saved = saved_;
    if (case_.preactivation) x.preactivation = z_;
    if (case_.column_sums) x.column_sums = sums_;
    if (workspace_) x.workspace = *workspace_;
    x.rung = rung;
    return x;
  }
  contender ours(const char* rung) {
    return {.provider = "ninefold",
            .rung = rung ? rung : "",
            .call = [this, rung](nf_stream stream) { matmul(args(rung), stream); },
            .workspace_bytes = workspace_bytes_};
  }

  static void* data_of(const DLTensor* t) { return static_cast<char*>(t->data) + t->byte_offset; }

  std::vector<contender> rivals(bool cuda) const {
    const bool tanh_form =
        case_.epilogue == NF_MATMUL_GELU_TANH || case_.epilogue == NF_MATMUL_GELU_TANH_BACKWARD;
    if ((case_.epilogue != NF_MATMUL_LINEAR && !tanh_form) || case_.residual)
      return {{.provider = cuda ? "cuBLASLt" : "oneDNN", .absent = "has no such epilogue"}};
    matmul_call c{.m = case_.m,
                  .n = case_.n,
                  .k = case_.k,
                  .type = case_.type,
                  .d_type = case_.d_type,
                  .a_transposed = case_.a_transposed,
                  .b_transposed = case_.b_transposed,
                  .accumulate = case_.accumulate,
                  .gelu = case_.gelu(),
                  .gelu_backward = case_.spec().backward(),
                  .a = data_of(a_),
                  .b = data_of(b_),
                  .d = data_of(d_),
                  .device = case_.device};
    if (case_.bias) c.bias = data_of(bias_);
    if (c.gelu_backward) c.saved = data_of(saved_);
    if (case_.preactivation) c.preactivation = data_of(z_);
    if (case_.column_sums) c.column_sums = data_of(sums_);
    if (cuda) return {cublaslt_matmul(c)};
    std::vector<contender> out{onednn_matmul(c)};
    if (case_.bias || case_.gelu()) out.push_back(onednn_fused_matmul(c));
    return out;
  }

  void expect() {
    known_ = true;
    const std::vector<double> b = b_.load();
    const std::vector<double> bias = case_.bias ? bias_.load() : std::vector<double>{};
    const auto few = [](const tensor& t, std::span<const int64_t> rows) {
      return t.count() > 0 ? t.load_rows(rows) : std::vector<double>{};
    };
    std::vector<reference::matmul_result> each(rows_.size());
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::span<const int64_t> row(&rows_[i], 1);
      reference::matmul_spec s = case_.spec();
      s.m = 1;
      const auto a = a_.load_rows(row), c = few(old_, row), residual = few(residual_, row),
                 saved = few(saved_, row);
      each[i] = reference::matmul(
          s, {.a = a, .b = b, .c = c, .bias = bias, .residual = residual, .saved = saved});
    }
    expected_ = {};
    for (const reference::matmul_result& r : each) {
      append(expected_.d, r.d);
      append(expected_.preactivation, r.preactivation);
    }
    if (!case_.column_sums) return;
    // Whole columns, of which a few will do: gates and ups have no sums here.
    reference::matmul_spec s = case_.spec();
    s.n = static_cast<int64_t>(some_columns_.size());
    const auto a = a_.load(), part = columns_of(b, case_.n, some_columns_),
               few_bias = columns_of(bias, case_.n, some_columns_),
               saved = columns_of(saved_.load(), case_.n, some_columns_);
    expected_sums_ =
        reference::matmul(s, {.a = a, .b = part, .bias = few_bias, .saved = saved}).column_sums;
  }
  static void append(verify::expectation& to, const verify::expectation& from) {
    to.values.insert(to.values.end(), from.values.begin(), from.values.end());
    to.allowed.insert(to.allowed.end(), from.allowed.begin(), from.allowed.end());
  }

  matmul_case case_;
  tensor a_, b_, d_, old_, residual_, saved_, z_, bias_, sums_;
  int64_t workspace_bytes_ = 0;
  std::optional<tensor> workspace_;
  std::vector<int64_t> rows_, some_columns_;
  bool known_ = false;  // what is expected of these inputs
  reference::matmul_result expected_;
  verify::expectation expected_sums_;
};

}  // namespace

bench_case cases_matmul(const shape_entry& shape, const std::string& direction,
                        const std::string& dtype, DLDevice device) {
  const auto option = [&](const char* name) { return size_named(shape.options, name, 0); };
  matmul_case c{};
  c.m = size_named(shape.sizes, "M");
  c.n = size_named(shape.sizes, "N");
  c.k = size_named(shape.sizes, "K", 33);
  c.epilogue = static_cast<nf_matmul_epilogue>(option("epilogue"));
  const auto spec = c.spec();
  c.a_transposed = option("a_transposed") != 0;
  c.b_transposed = option("b_transposed") != 0;
  c.bias = option("bias") != 0;
  c.residual = option("residual") != 0;
  c.preactivation =
      option("preactivation") != 0 && c.epilogue != NF_MATMUL_LINEAR && !spec.backward();
  c.column_sums = option("column_sums") != 0 && !spec.gated();
  c.accumulate = option("accumulate") != 0;
  c.type = dtype_named(dtype.substr(0, dtype.find('-')));
  c.d_type = dtype.ends_with("-fp32") || c.accumulate ? f32 : c.type;
  c.device = device;

  bench_case b{.op = "matmul",
               .direction = direction,
               .device = device,
               .dtype = dtype,
               .name = shape.name,
               .shape = shape.sizes,
               .options = shape.options};
  const int64_t in = c.type.bits / 8, out = c.d_type.bits / 8, of_d = c.m * c.columns() * out,
                of_z = c.m * c.n * out;
  b.bytes_read = (c.m * c.k + c.k * c.n + (c.bias ? c.n : 0)) * in +
                 (c.accumulate + c.residual) * of_d + (spec.backward() ? of_z : 0);
  b.bytes_written = of_d + (c.preactivation ? of_z : 0) + (c.column_sums ? c.columns() * in : 0);
  b.flops = 2 * c.m * c.n * c.k;
  b.kept_bytes = c.preactivation ? of_z : 0;
  b.ceiling = product_ceiling(c.type, device);
  b.make = [c] { return std::make_unique<multiplied>(c); };
  return b;
}

}  // namespace ninefold::lab
