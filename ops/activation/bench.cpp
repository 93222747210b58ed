// The activations over (M, N). Forward: x and, where there is a gate, up are read, y is written;
// the backward reads them again with dy, and writes a gradient of each. A bias and its gradient are
// little beside that, and counted.
#include "lab/bench.hpp"

#include <ninefold/ninefold.hpp>
#include <span>

#include "lab/sampling.hpp"
#include "ops/activation/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct activation_case {
  int64_t rows, cols;
  nf_activation_kind kind;
  bool gated, bias, forward, backward;
  DLDataType type;
  DLDevice device;

  verify::layout where(bool wanted = true) const { return {{wanted ? rows : 0, cols}}; }
  int64_t bytes() const { return rows * cols * type.bits / 8; }
};

class activated : public problem {
 public:
  explicit activated(const activation_case& c)
      : case_(c),
        x_(c.type, c.where(), c.device),
        up_(c.type, c.where(c.gated), c.device),
        dy_(c.type, c.where(c.backward), c.device),
        y_(c.type, c.where(c.forward), c.device),
        dx_(c.type, c.where(c.backward), c.device),
        dup_(c.type, c.where(c.gated && c.backward), c.device),
        bias_(c.type, {{c.cols}}, c.device),
        dbias_(c.type, {{c.cols}}, c.device),
        rows_(sampled_rows(c.rows, c.cols)) {
    bias_.fill_normal(11);
    if (!c.backward || !c.bias) return;
    workspace_bytes_ = activation_workspace_size(backward_args(nullptr));
    workspace_ = std::make_unique<tensor>(u8, verify::layout{{workspace_bytes_}}, c.device);
  }

  void fill(uint64_t seed) override {
    x_.fill_normal(seed);
    up_.fill_normal(seed + 1);
    dy_.fill_normal(seed + 2);
    known_ = false;
  }
  void poison() override {
    for (tensor* t : {&y_, &dx_, &dup_, &dbias_}) t->poison();
  }
  verify::error_report check() override {
    if (!known_) expect();
    verify::error_report report;
    if (case_.forward) report.add(judge(y_, y_.load_rows(rows_), expected_y_));
    if (!case_.backward) return report;
    report.add(judge(dx_, dx_.load_rows(rows_), expected_dx_));
    if (case_.gated) report.add(judge(dup_, dup_.load_rows(rows_), expected_dup_));
    if (case_.bias) report.add(judge(dbias_, dbias_.load(), expected_dbias_));
    return report;
  }
  std::vector<contender> contenders() override {
    return own_contenders([this](const char* rung) { return ours(rung); }, "scalar", {});
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(x_, x_.bytes(), false)};
    if (case_.forward) out.push_back(buffer_of(y_, y_.bytes(), true));
    if (case_.gated) out.push_back(buffer_of(up_, up_.bytes(), false));
    if (!case_.backward) return out;
    out.push_back(buffer_of(dy_, dy_.bytes(), false));
    out.push_back(buffer_of(dx_, dx_.bytes(), true));
    if (case_.gated) out.push_back(buffer_of(dup_, dup_.bytes(), true));
    return out;
  }

 private:
  nf_activation_args inputs(const char* rung) const {
    nf_activation_args a{};
    a.kind = case_.kind;
    a.gating = case_.gated ? NF_ACTIVATION_TWO_TENSORS : NF_ACTIVATION_UNGATED;
    a.x = x_;
    if (case_.gated) a.up = up_;
    if (case_.bias) a.bias = bias_;
    a.rung = rung;
    return a;
  }
  nf_activation_args forward_args(const char* rung) const {
    nf_activation_args a = inputs(rung);
    a.y = y_;
    return a;
  }
  nf_activation_args backward_args(const char* rung) const {
    nf_activation_args a = inputs(rung);
    a.dy = dy_;
    a.dx = dx_;
    if (case_.gated) a.dup = dup_;
    if (case_.bias) a.dbias = dbias_;
    if (workspace_) a.workspace = *workspace_;
    return a;
  }
  contender ours(const char* rung) {
    return {.provider = "ninefold",
            .rung = rung ? rung : "",
            .call =
                [this, rung](nf_stream stream) {
                  if (case_.forward) activation(forward_args(rung), stream);
                  if (case_.backward) activation_backward(backward_args(rung), stream);
                },
            .workspace_bytes = workspace_bytes_};
  }

  reference::activation_spec spec() const {
    return {.kind = case_.kind, .gated = case_.gated, .type = case_.type};
  }
  std::vector<double> bias() const { return case_.bias ? bias_.load() : std::vector<double>{}; }
  std::vector<double> up_of(std::span<const int64_t> rows) const {
    return case_.gated ? up_.load_rows(rows) : std::vector<double>{};
  }
  reference::activation_result gradients_of(std::span<const int64_t> rows) const {
    return reference::activation_backward(spec(), case_.cols, x_.load_rows(rows), up_of(rows),
                                          bias(), dy_.load_rows(rows));
  }

  void expect() {
    known_ = true;
    if (case_.forward)
      expected_y_ =
          reference::activation_forward(spec(), x_.load_rows(rows_), up_of(rows_), bias());
    if (!case_.backward) return;
    reference::activation_result r = gradients_of(rows_);
    expected_dx_ = r.dgate;
    expected_dup_ = r.dup;
    if (case_.bias) expect_dbias();
  }
  // A sum over all rows, taken a few at a time.
  void expect_dbias() {
    std::vector<reference::estimate> sums(static_cast<size_t>(case_.cols));
    constexpr int64_t few = 256;
    const int64_t chunks = (case_.rows + few - 1) / few;
#pragma omp parallel for schedule(dynamic)
    for (int64_t c = 0; c < chunks; ++c) {
      std::vector<int64_t> rows;
      for (int64_t r = c * few; r < std::min(case_.rows, (c + 1) * few); ++r) rows.push_back(r);
      const auto part = gradients_of(rows).sums;
#pragma omp critical
      for (size_t j = 0; j < sums.size(); ++j) {
        sums[j].value += part[j].value;
        sums[j].error += part[j].error;
      }
    }
    expected_dbias_ = reference::bias_gradient(case_.type, sums, {});
  }

  activation_case case_;
  tensor x_, up_, dy_, y_, dx_, dup_, bias_, dbias_;
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<tensor> workspace_;
  std::vector<int64_t> rows_;
  bool known_ = false;  // what is expected of these inputs
  verify::expectation expected_y_, expected_dx_, expected_dup_, expected_dbias_;
};

}  // namespace

bench_case cases_activation(const shape_entry& shape, const std::string& direction,
                            const std::string& dtype, DLDevice device) {
  activation_case c{};
  c.rows = size_named(shape.sizes, "M");
  c.cols = size_named(shape.sizes, "N");
  c.kind = static_cast<nf_activation_kind>(size_named(shape.options, "kind"));
  c.gated = size_named(shape.options, "gated", 0) != 0;
  c.bias = size_named(shape.options, "bias", 0) != 0;
  c.forward = direction != "backward";
  c.backward = direction != "forward";
  c.type = dtype_named(dtype);
  c.device = device;

  const int64_t inputs = (c.gated ? 2 : 1) * c.bytes(),
                parameter = c.bias ? c.cols * c.type.bits / 8 : 0;
  bench_case b{.op = "activation",
               .direction = direction,
               .device = device,
               .dtype = dtype,
               .name = shape.name,
               .shape = shape.sizes,
               .options = shape.options};
  b.kept_bytes = 0;  // the backward starts from the inputs, which the matrix products kept
  // An exponential and a division count as one each.
  if (c.forward) {
    b.bytes_read = inputs + parameter;
    b.bytes_written = c.bytes();
    b.flops = 10 * c.rows * c.cols;
    b.ceiling = c.gated ? "2:1" : "copy";
  }
  if (c.backward) {
    b.bytes_read += inputs + parameter + c.bytes();
    b.bytes_written += inputs + parameter;
    b.flops += 20 * c.rows * c.cols;
    b.ceiling = c.gated || c.forward ? "3:2" : "2:1";
  }
  b.make = [c] { return std::make_unique<activated>(c); };
  return b;
}

}  // namespace ninefold::lab
