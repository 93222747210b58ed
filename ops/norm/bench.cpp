// RMSNorm and LayerNorm over (M, N). The forward is one read and one write of memory, two of each
// with the residual; the backward reads h and dy and writes dx, and with the residual reads the
// gradient that arrives there too. Parameters, their gradients and numbers per row are little
// beside that, and counted. The parameters have the rows' dtype, as in a model that was cast whole.
#include "lab/bench.hpp"

#include <ninefold/ninefold.hpp>
#include <span>

#include "lab/sampling.hpp"
#include "ops/norm/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct norm_case {
  int64_t rows, cols;
  bool layer, residual;
  bool forward, backward;
  DLDataType type;
  DLDevice device;

  verify::layout where() const { return {{rows, cols}}; }
  verify::layout where_if(bool wanted) const { return wanted ? where() : verify::layout{{0}}; }
  int64_t bytes() const { return rows * cols * type.bits / 8; }
};

// What the two directions share. h is x where no residual is added.
class normalised : public problem {
 public:
  explicit normalised(const norm_case& c)
      : case_(c),
        h_(c.type, c.where(), c.device),
        weight_(c.type, {{c.cols}}, c.device),
        bias_(c.type, {{c.layer ? c.cols : 0}}, c.device),
        mean_(f32, {{c.rows}}, c.device),
        rstd_(f32, {{c.rows}}, c.device),
        rows_(sampled_rows(c.rows, c.cols)) {
    weight_.fill_normal(11);
    bias_.fill_normal(12);
  }

  std::vector<contender> contenders() override {
    const bool cuda = case_.device.device_type == kDLCUDA;
    std::vector<contender> out =
        own_contenders([this](const char* rung) { return ours(rung); }, "three_pass", {});
    out.push_back({.provider = cuda ? "cuDNN" : "oneDNN",
                   .absent = case_.layer || cuda ? "its normalisation is not a baseline here yet"
                                                 : "has no RMSNorm"});
    return out;
  }

 protected:
  virtual void run(const char* rung, nf_stream stream) = 0;
  virtual int64_t workspace_bytes() const { return 0; }

  nf_norm_args common(const char* rung) const {
    nf_norm_args args{};
    args.weight = weight_;
    if (case_.layer) args.mean = mean_;
    args.rstd = rstd_;
    args.rung = rung;
    return args;
  }
  void forward(const nf_norm_args& args, nf_stream stream) const {
    case_.layer ? layer_norm(args, stream) : rms_norm(args, stream);
  }
  reference::norm_spec spec() const {
    reference::norm_spec s{.layer = case_.layer,
                           .x = case_.type,
                           .y = case_.type,
                           .stream = case_.type,
                           .weight_gradient = case_.type,
                           .weight = weight_.load()};
    if (case_.layer && case_.forward) s.bias = bias_.load();
    return s;
  }
  norm_case case_;
  tensor h_, weight_, bias_, mean_, rstd_;
  std::vector<int64_t> rows_;

 private:
  contender ours(const char* rung) {
    return {.provider = "ninefold",
            .rung = rung ? rung : "",
            .call = [this, rung](nf_stream stream) { run(rung, stream); },
            .workspace_bytes = workspace_bytes()};
  }
};

class forward_norm : public normalised {
 public:
  explicit forward_norm(const norm_case& c)
      : normalised(c),
        x_(c.type, c.where(), c.device),
        residual_(c.type, c.where_if(c.residual), c.device),
        y_(c.type, c.where(), c.device) {}

  void fill(uint64_t seed) override {
    x_.fill_normal(seed);
    residual_.fill_normal(seed + 1);
    expected_.y.values.clear();
  }
  void poison() override {
    for (tensor* t : {&y_, &h_, &mean_, &rstd_}) t->poison();
  }
  verify::error_report check() override {
    if (expected_.y.values.empty()) {
      expected_h_ = reference::norm_input(
          spec(), x_.load_rows(rows_),
          case_.residual ? residual_.load_rows(rows_) : std::vector<double>{});
      expected_ = reference::norm_forward(spec(), expected_h_, case_.cols,
                                          static_cast<int64_t>(rows_.size()));
    }
    verify::error_report report;
    report.add(judge(y_, y_.load_rows(rows_), expected_.y));
    if (case_.residual)
      report.add(
          judge(h_, h_.load_rows(rows_), {expected_h_, std::vector<double>(expected_h_.size())}));
    return report;
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(x_, x_.bytes(), false), buffer_of(y_, y_.bytes(), true)};
    if (!case_.residual) return out;
    out.push_back(buffer_of(residual_, residual_.bytes(), false));
    out.push_back(buffer_of(h_, h_.bytes(), true));
    return out;
  }

 protected:
  void run(const char* rung, nf_stream stream) override {
    nf_norm_args args = common(rung);
    args.x = x_;
    args.y = y_;
    if (case_.layer) args.bias = bias_;
    if (case_.residual) {
      args.residual = residual_;
      args.residual_out = h_;
    }
    forward(args, stream);
  }

 private:
  tensor x_, residual_, y_;
  std::vector<double> expected_h_;
  reference::norm_forward_result expected_;
};

class backward_norm : public normalised {
 public:
  explicit backward_norm(const norm_case& c)
      : normalised(c),
        dy_(c.type, c.where(), c.device),
        arriving_(c.type, c.where_if(c.residual), c.device),
        dx_(c.type, c.where(), c.device),
        dweight_(c.type, {{c.cols}}, c.device),
        dbias_(c.type, {{c.layer ? c.cols : 0}}, c.device) {
    const nf_norm_args sized = args(nullptr);
    workspace_bytes_ = c.layer ? layer_norm_workspace_size(sized) : rms_norm_workspace_size(sized);
    workspace_ = std::make_unique<tensor>(u8, verify::layout{{workspace_bytes_}}, c.device);
  }

  void fill(uint64_t seed) override {
    h_.fill_normal(seed);
    dy_.fill_normal(seed + 1);
    arriving_.fill_normal(seed + 2);
    nf_norm_args saved = common(nullptr);
    saved.x = h_;
    saved.y = dx_;
    forward(saved, nullptr);
    expected_.dh.values.clear();
  }
  void poison() override {
    for (tensor* t : {&dx_, &dweight_, &dbias_}) t->poison();
  }
  verify::error_report check() override {
    verify::error_report report;
    return check_gradients(report);
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(h_, h_.bytes(), false), buffer_of(dy_, dy_.bytes(), false),
                            buffer_of(dx_, dx_.bytes(), true)};
    if (case_.residual) out.push_back(buffer_of(arriving_, arriving_.bytes(), false));
    return out;
  }

 protected:
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  void run(const char* rung, nf_stream stream) override {
    nf_norm_args a = args(rung);
    a.workspace = *workspace_;
    case_.layer ? layer_norm_backward(a, stream) : rms_norm_backward(a, stream);
  }
  verify::error_report& check_gradients(verify::error_report& report) {
    if (expected_.dh.values.empty()) expect();
    report.add(judge(dx_, dx_.load_rows(rows_), expected_.dh));
    report.add(judge(dweight_, dweight_.load(), expected_.dweight));
    if (case_.layer) report.add(judge(dbias_, dbias_.load(), expected_.dbias));
    return report;
  }

 private:
  nf_norm_args args(const char* rung) const {
    nf_norm_args a = common(rung);
    a.residual_out = h_;
    a.dy = dy_;
    if (case_.residual) a.d_residual_out = arriving_;
    a.d_residual = dx_;
    a.dweight = dweight_;
    if (case_.layer) a.dbias = dbias_;
    return a;
  }

  reference::norm_gradients of_rows(std::span<const int64_t> rows) const {
    return reference::norm_backward(
        spec(), h_.load_rows(rows), dy_.load_rows(rows),
        case_.residual ? arriving_.load_rows(rows) : std::vector<double>{}, case_.cols,
        static_cast<int64_t>(rows.size()));
  }

  // dx of the sampled rows; the parameters' gradients are sums over all, taken a few at a time.
  void expect() {
    expected_ = of_rows(rows_);
    expected_.dweight = expected_.dbias = {std::vector<double>(static_cast<size_t>(case_.cols)),
                                           std::vector<double>(static_cast<size_t>(case_.cols))};
    constexpr int64_t few = 256;
    const int64_t chunks = (case_.rows + few - 1) / few;
#pragma omp parallel for schedule(dynamic)
    for (int64_t c = 0; c < chunks; ++c) {
      std::vector<int64_t> rows;
      for (int64_t r = c * few; r < std::min(case_.rows, (c + 1) * few); ++r) rows.push_back(r);
      const reference::norm_gradients part = of_rows(rows);
#pragma omp critical
      for (size_t j = 0; j < static_cast<size_t>(case_.cols); ++j) {
        expected_.dweight.values[j] += part.dweight.values[j];
        expected_.dweight.allowed[j] += part.dweight.allowed[j];
        expected_.dbias.values[j] += part.dbias.values[j];
        expected_.dbias.allowed[j] += part.dbias.allowed[j];
      }
    }
    expected_.dweight = reference::weight_gradient(spec(), expected_.dweight, {});
    expected_.dbias = reference::weight_gradient(spec(), expected_.dbias, {});
  }

  tensor dy_, arriving_, dx_, dweight_, dbias_;
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<tensor> workspace_;
  reference::norm_gradients expected_;
};

// One after the other, as a training step calls them: no residual, h is x.
class both_norm : public backward_norm {
 public:
  explicit both_norm(const norm_case& c) : backward_norm(c), y_(c.type, c.where(), c.device) {}

  void poison() override {
    backward_norm::poison();
    for (tensor* t : {&y_, &mean_, &rstd_}) t->poison();
  }
  verify::error_report check() override {
    const std::vector<double> h = h_.load_rows(rows_);
    const reference::norm_forward_result forward =
        reference::norm_forward(spec(), h, case_.cols, static_cast<int64_t>(rows_.size()));
    verify::error_report report;
    report.add(judge(y_, y_.load_rows(rows_), forward.y));
    return check_gradients(report);
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out = backward_norm::buffers();
    out.push_back(buffer_of(y_, y_.bytes(), true));
    return out;
  }

 protected:
  void run(const char* rung, nf_stream stream) override {
    nf_norm_args args = common(rung);
    args.x = h_;
    args.y = y_;
    if (case_.layer) args.bias = bias_;
    forward(args, stream);
    backward_norm::run(rung, stream);
  }

 private:
  tensor y_;
};

}  // namespace

bench_case cases_norm(const shape_entry& shape, const std::string& direction,
                      const std::string& dtype, DLDevice device) {
  norm_case c{};
  c.rows = size_named(shape.sizes, "M");
  c.cols = size_named(shape.sizes, "N");
  c.layer = size_named(shape.options, "layer", 0) != 0;
  c.residual = size_named(shape.options, "residual", 0) != 0;
  c.forward = direction != "backward";
  c.backward = direction != "forward";
  c.type = dtype_named(dtype);
  c.device = device;

  const int64_t per_row = c.rows * 4 * (1 + c.layer),
                parameters = c.cols * c.type.bits / 8 * (1 + c.layer);
  bench_case b{.op = "norm",
               .direction = direction,
               .device = device,
               .dtype = dtype,
               .name = shape.name,
               .shape = shape.sizes,
               .options = shape.options};
  // h and its numbers per row. h is also the stream that the next block reads.
  b.kept_bytes = c.bytes() + per_row;
  // Sums, squares, and the map to y.
  const int64_t forward_flops = (c.layer ? 7 : 4) * c.rows * c.cols;
  // g, two sums of products, and two products and sums each for dx and dweight.
  const int64_t backward_flops = (c.layer ? 13 : 10) * c.rows * c.cols;
  if (c.forward) {
    b.bytes_read = (1 + c.residual) * c.bytes() + parameters;
    b.bytes_written = (1 + c.residual) * c.bytes() + per_row;
    b.flops = forward_flops;
    b.ceiling = "copy";
    b.make = [c] { return std::make_unique<forward_norm>(c); };
  }
  if (c.backward) {
    b.bytes_read += (2 + c.residual) * c.bytes() + per_row + c.cols * c.type.bits / 8;
    b.bytes_written += c.bytes() + parameters;
    b.flops += backward_flops;
    b.ceiling = c.forward ? "3:2" : c.residual ? "3:1" : "2:1";
    if (c.forward) {
      b.make = [c] { return std::make_unique<both_norm>(c); };
    } else {
      b.make = [c] { return std::make_unique<backward_norm>(c); };
    }
  }
  return b;
}

}  // namespace ninefold::lab
