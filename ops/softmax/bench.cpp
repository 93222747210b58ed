// Softmax and log-softmax over (M, N), forward and backward: one read and one write of memory is
// the least that the forward can do, two reads and one write the backward. With dropout the forward
// writes two tensors, or one where its caller would rather have y made again.
#include "lab/bench.hpp"

#include <limits>
#include <ninefold/ninefold.hpp>
#include <span>

#include "lab/baselines/baselines.hpp"
#include "lab/sampling.hpp"
#include "ops/softmax/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct softmax_case {
  int64_t rows, cols;
  int64_t queries;  // S of a causal mask, 0 without one
  int64_t offset;   // elements that the data is misaligned by
  bool backward, log;
  int64_t dropout;  // of a hundred
  bool keeps_y;
  DLDataType in, out;
  DLDevice device;

  verify::layout where() const {
    if (queries > 0) return {{rows / queries, queries, cols}, {}, offset};
    return {{rows, cols}, {}, offset};
  }
  reference::softmax_spec spec() const {
    return {.cols = cols,
            .queries = std::max<int64_t>(1, queries),
            .scale = dropout > 0 ? 0.125 : 1.0,  // dropout is for attention, whose scores have one
            .causal = queries > 0 ? NF_CAUSAL_BOTTOM_RIGHT : NF_CAUSAL_NONE,
            .log = log,
            .in = in,
            .out = out,
            .dropout = {.p = static_cast<double>(dropout) / 100, .seed = 1, .offset = 2}};
  }
};

// What the two directions share: who runs, and how a result is held against the reference.
class normalisation : public problem {
 public:
  explicit normalisation(const softmax_case& c) : case_(c), rows_(sampled_rows(c.rows, c.cols)) {}

  verify::error_report check() override {
    if (expected_.values.empty()) expected_ = expect(rows_);
    return judge(output(), output().load_rows(rows_), expected_);
  }

  void poison() override { output().poison(); }

  std::vector<contender> contenders() override {
    const bool cuda = case_.device.device_type == kDLCUDA;
    std::vector<contender> out = own_contenders([this](const char* rung) { return ours(rung); },
                                                "three_pass", cuda ? cuda_rungs : cpu_rungs);
    contender rival = cuda ? cudnn_softmax(rival_call()) : onednn_softmax(rival_call());
    // A rival without causal masks would have to read a mask or write other numbers.
    if (case_.queries > 0) rival.absent = "has no causal softmax";
    if (case_.dropout > 0) rival.absent = "has no softmax with dropout";
    out.push_back(std::move(rival));
    return out;
  }

 protected:
  virtual tensor& output() = 0;
  virtual reference::expectation expect(std::span<const int64_t> rows) = 0;
  virtual void run(const char* rung, nf_stream stream) = 0;
  virtual softmax_call rival_call() = 0;

  void forget_expected() { expected_.values.clear(); }
  nf_softmax_args common(const char* rung) const {
    nf_softmax_args args{};
    args.scale = case_.spec().scale;
    args.causal = case_.spec().causal;
    args.log = case_.log;
    args.dropout_p = case_.spec().dropout.p;
    args.dropout_seed.value = static_cast<int64_t>(case_.spec().dropout.seed);
    args.dropout_offset.value = static_cast<int64_t>(case_.spec().dropout.offset);
    args.rung = rung;
    return args;
  }
  softmax_call call_without_pointers() const {
    softmax_call c{};
    c.rows = case_.rows;
    c.cols = case_.cols;
    c.in = case_.in;
    c.out = case_.out;
    c.backward = case_.backward;
    c.log = case_.log;
    return c;
  }
  static void* data_of(const DLTensor* view) {
    return static_cast<char*>(view->data) + view->byte_offset;
  }

  softmax_case case_;
  std::vector<int64_t> rows_;

 private:
  inline static const std::vector<const char*> cpu_rungs{"stream"};
  inline static const std::vector<const char*> cuda_rungs{"row_per_warp", "row_per_block",
                                                          "row_per_cluster"};

  contender ours(const char* rung) {
    return {.provider = "ninefold",
            .rung = rung ? rung : "",
            .call = [this, rung](nf_stream stream) { run(rung, stream); }};
  }

  reference::expectation expected_;
};

class forward_softmax : public normalisation {
 public:
  explicit forward_softmax(const softmax_case& c)
      : normalisation(c), x_(c.in, c.where(), c.device), y_(c.out, c.where(), c.device) {}

  void fill(uint64_t seed) override {
    x_.fill_normal(seed);
    forget_expected();
  }
  std::vector<buffer> buffers() override {
    return {buffer_of(x_, x_.bytes(), false), buffer_of(y_, y_.bytes(), true)};
  }

 protected:
  tensor& output() override { return y_; }
  reference::expectation expect(std::span<const int64_t> rows) override {
    return reference::softmax(case_.spec(), x_.load_rows(rows), {}, rows);
  }
  void run(const char* rung, nf_stream stream) override {
    nf_softmax_args args = common(rung);
    args.x = x_;
    args.y = y_;
    softmax(args, stream);
  }
  softmax_call rival_call() override {
    softmax_call c = call_without_pointers();
    c.x = data_of(x_);
    c.y = data_of(y_);
    return c;
  }

 private:
  tensor x_, y_;
};

class backward_softmax : public normalisation {
 public:
  explicit backward_softmax(const softmax_case& c)
      : normalisation(c),
        y_(c.out, c.where(), c.device),
        dy_(c.out, c.where(), c.device),
        dx_(c.in, c.where(), c.device) {}

  void fill(uint64_t seed) override {
    y_.fill_normal(seed);  // logits, made probabilities in place
    softmax({.x = y_, .y = y_, .causal = case_.spec().causal, .log = case_.log});
    dy_.fill_normal(seed + 1);
    forget_expected();
  }
  std::vector<buffer> buffers() override {
    return {buffer_of(y_, y_.bytes(), false), buffer_of(dy_, dy_.bytes(), false),
            buffer_of(dx_, dx_.bytes(), true)};
  }

 protected:
  tensor& output() override { return dx_; }
  reference::expectation expect(std::span<const int64_t> rows) override {
    return reference::softmax_backward(case_.spec(), y_.load_rows(rows), dy_.load_rows(rows), rows);
  }
  void run(const char* rung, nf_stream stream) override {
    nf_softmax_args args = common(rung);
    args.y = y_;
    args.dy = dy_;
    args.dx = dx_;
    softmax_backward(args, stream);
  }
  softmax_call rival_call() override {
    softmax_call c = call_without_pointers();
    c.y = data_of(y_);
    c.dy = data_of(dy_);
    c.dx = data_of(dx_);
    return c;
  }

 private:
  tensor y_, dy_, dx_;
};

class forward_dropout : public normalisation {
 public:
  explicit forward_dropout(const softmax_case& c)
      : normalisation(c),
        x_(c.in, c.where(), c.device),
        y_(c.out, c.keeps_y ? c.where() : verify::layout{{0}}, c.device),
        dropped_(c.out, c.where(), c.device) {}

  void fill(uint64_t seed) override {
    x_.fill_normal(seed);
    forget_expected();
  }
  void poison() override {
    y_.poison();
    dropped_.poison();
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> all{buffer_of(x_, x_.bytes(), false),
                            buffer_of(dropped_, dropped_.bytes(), true)};
    if (case_.keeps_y) all.push_back(buffer_of(y_, y_.bytes(), true));
    return all;
  }
  verify::error_report check() override {
    verify::error_report report = normalisation::check();
    if (case_.keeps_y) report.add(judge(y_, y_.load_rows(rows_), expected_y_));
    return report;
  }

 protected:
  tensor& output() override { return dropped_; }
  reference::expectation expect(std::span<const int64_t> rows) override {
    expected_y_ = reference::softmax(case_.spec(), x_.load_rows(rows), {}, rows);
    return reference::softmax_dropped(case_.spec(), expected_y_, rows);
  }
  void run(const char* rung, nf_stream stream) override {
    nf_softmax_args args = common(rung);
    args.x = x_;
    if (case_.keeps_y) args.y = y_;
    args.dropped = dropped_;
    softmax(args, stream);
  }
  softmax_call rival_call() override { return call_without_pointers(); }

 private:
  tensor x_, y_, dropped_;
  reference::expectation expected_y_;
};

// Elements that a causal mask leaves to be read.
int64_t visible_elements(const softmax_case& c) {
  int64_t in_one = 0;
  for (int64_t query = 0; query < c.queries; ++query)
    in_one += reference::visible_columns(c.spec(), query);
  return in_one * (c.rows / c.queries);
}

}  // namespace

bench_case cases_softmax(const shape_entry& shape, const std::string& direction,
                         const std::string& dtype, DLDevice device) {
  // "bf16-fp32" has x and dx in bf16, y and dy in fp32.
  const size_t dash = dtype.find('-');
  softmax_case c{};
  c.rows = size_named(shape.sizes, "M");
  c.cols = size_named(shape.sizes, "N");
  c.queries = size_named(shape.options, "causal", 0);
  c.offset = size_named(shape.options, "offset", 0);
  c.log = size_named(shape.options, "log", 0) != 0;
  c.dropout = size_named(shape.options, "dropout", 0);
  c.keeps_y = size_named(shape.options, "recompute", 0) == 0;
  c.backward = direction == "backward";
  c.in = dtype_named(dtype.substr(0, dash));
  c.out = dash == std::string::npos ? c.in : dtype_named(dtype.substr(dash + 1));
  c.device = device;

  const int64_t in = c.in.bits / 8, out = c.out.bits / 8, all = c.rows * c.cols;
  const int64_t seen = c.queries > 0 ? visible_elements(c) : all;
  bench_case b{.op = "softmax",
               .direction = direction,
               .device = device,
               .dtype = dtype,
               .name = shape.name,
               .shape = shape.sizes,
               .options = shape.options,
               .kept_bytes = all * out};  // y, and x is not needed any more; or x instead
  // Hidden positions are written (0), not read.
  b.bytes_read = c.backward ? 2 * seen * out : seen * in;
  const int64_t outputs = c.dropout > 0 && c.keeps_y ? 2 : 1;
  b.bytes_written = c.backward ? all * in : outputs * all * out;
  // Forward: subtract, exponential, add, multiply. Backward: multiply, add, subtract, multiply.
  b.flops = 4 * seen;
  const double mix = static_cast<double>(b.bytes_read) / static_cast<double>(b.bytes_written);
  b.ceiling = mix > 1.5 ? "2:1" : mix < 0.75 ? "1:2" : "copy";
  if (c.backward) {
    b.make = [c] { return std::make_unique<backward_softmax>(c); };
  } else if (c.dropout > 0) {
    b.make = [c] { return std::make_unique<forward_dropout>(c); };
  } else {
    b.make = [c] { return std::make_unique<forward_softmax>(c); };
  }
  return b;
}

}  // namespace ninefold::lab
