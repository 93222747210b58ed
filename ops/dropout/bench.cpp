// Dropout over (M, N): one tensor is read and one written, and with a residual one more is read.
#include "lab/bench.hpp"

#include <ninefold/ninefold.hpp>

#include "lab/sampling.hpp"
#include "ops/dropout/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct dropout_case {
  int64_t rows, cols;
  bool residual, backward;
  DLDataType type;
  DLDevice device;

  verify::layout where(bool wanted = true) const { return {{wanted ? rows : 0, cols}}; }
  int64_t bytes() const { return rows * cols * type.bits / 8; }
};

class dropped : public problem {
 public:
  static constexpr double p = 0.1;

  explicit dropped(const dropout_case& c)
      : case_(c),
        in_(c.type, c.where(), c.device),
        residual_(c.type, c.where(c.residual), c.device),
        out_(c.type, c.where(), c.device),
        seed_(i64, {{}}, c.device),
        offset_(i64, {{}}, c.device),
        rows_(sampled_rows(c.rows, c.cols)) {
    offset_.store(std::vector<double>{3});
  }

  void fill(uint64_t seed) override {
    number_ = seed;
    in_.fill_normal(seed);
    residual_.fill_normal(seed + 1);
    seed_.store(std::vector<double>{static_cast<double>(seed)});
    expected_.values.clear();
  }
  void poison() override { out_.poison(); }
  verify::error_report check() override {
    if (expected_.values.empty()) expect();
    return judge(out_, out_.load_rows(rows_), expected_);
  }
  std::vector<contender> contenders() override {
    const bool cuda = case_.device.device_type != kDLCPU;
    return own_contenders(
        [this](const char* rung) { return ours(rung); }, "scalar",
        cuda ? std::vector<const char*>{"vector16", "vector64"} : std::vector<const char*>{});
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(in_, in_.bytes(), false),
                            buffer_of(out_, out_.bytes(), true)};
    if (case_.residual) out.push_back(buffer_of(residual_, residual_.bytes(), false));
    return out;
  }

 private:
  // As a captured training step has it: seed and offset lie on the device.
  nf_dropout_args args(const char* rung) const {
    nf_dropout_args a{};
    a.x = a.dy = in_;
    a.y = a.dx = out_;
    if (case_.residual) a.residual = residual_;
    a.p = p;
    a.seed = {seed_, 0};
    a.offset = {offset_, 0};
    a.rung = rung;
    return a;
  }
  contender ours(const char* rung) {
    return {
        .provider = "ninefold", .rung = rung ? rung : "", .call = [this, rung](nf_stream stream) {
          case_.backward ? dropout_backward(args(rung), stream) : dropout(args(rung), stream);
        }};
  }

  void expect() {
    const reference::dropout_spec s{.p = p, .seed = number_, .offset = 3, .type = case_.type};
    const std::vector<double> in = in_.load_rows(rows_);
    const std::vector<double> residual =
        case_.residual ? residual_.load_rows(rows_) : std::vector<double>{};
    const auto n = static_cast<size_t>(case_.cols);
    expected_ = {};
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto row = [&](const std::vector<double>& v) {
        return v.empty() ? std::span<const double>() : std::span(v).subspan(i * n, n);
      };
      const auto part = reference::dropout(s, row(in), row(residual),
                                           static_cast<uint64_t>(rows_[i] * case_.cols));
      expected_.values.insert(expected_.values.end(), part.values.begin(), part.values.end());
      expected_.allowed.insert(expected_.allowed.end(), part.allowed.begin(), part.allowed.end());
    }
  }

  dropout_case case_;
  tensor in_, residual_, out_, seed_, offset_;  // x and y, or dy and dx
  uint64_t number_ = 0;
  std::vector<int64_t> rows_;
  verify::expectation expected_;
};

}  // namespace

bench_case cases_dropout(const shape_entry& shape, const std::string& direction,
                         const std::string& dtype, DLDevice device) {
  dropout_case c{};
  c.rows = size_named(shape.sizes, "M");
  c.cols = size_named(shape.sizes, "N");
  c.backward = direction == "backward";
  // The residual's gradient is dy itself: the backward has nothing to do with it.
  c.residual = !c.backward && size_named(shape.options, "residual", 0) != 0;
  c.type = dtype_named(dtype);
  c.device = device;

  bench_case b{.op = "dropout",
               .direction = direction,
               .device = device,
               .dtype = dtype,
               .name = shape.name,
               .shape = shape.sizes,
               .options = shape.options};
  b.kept_bytes = 0;  // the mask is made again
  b.bytes_read = (c.residual ? 2 : 1) * c.bytes();
  b.bytes_written = c.bytes();
  b.flops = (c.residual ? 2 : 1) * c.rows * c.cols;  // the generator's integers are none
  b.ceiling = c.residual ? "2:1" : "copy";
  b.make = [c] { return std::make_unique<dropped>(c); };
  return b;
}

}  // namespace ninefold::lab
