// vector_add against the stream of its own mix: two reads, one write, nothing to compute.
#include "lab/bench.hpp"

#include <algorithm>
#include <limits>
#include <ninefold/ninefold.hpp>

#include "lab/sampling.hpp"
#include "ops/vector_add/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

class addition : public problem {
 public:
  addition(int64_t rows, int64_t cols, int64_t offset, DLDataType type, DLDevice device)
      : rows_(rows),
        cols_(cols),
        type_(type),
        device_(device),
        x_(type, {{rows, cols}, {}, offset}, device),
        y_(type, {{rows, cols}, {}, offset}, device),
        z_(type, {{rows, cols}, {}, offset}, device) {}

  void fill(uint64_t seed) override {
    x_.fill_normal(seed);
    y_.fill_normal(seed + 1);
    expected_.clear();
  }

  void poison() override { z_.poison(); }

  verify::error_report check() override {
    const std::vector<int64_t> rows = sampled_rows(rows_, cols_);
    if (expected_.empty())
      expected_ = reference::vector_add(type_, x_.load_rows(rows), y_.load_rows(rows));
    // A correctly rounded sum leaves nothing to tolerate.
    verify::error_report report =
        verify::compare(z_.load_rows(rows), expected_, verify::tolerance{});
    report.unwritten = z_.count_poison();
    if (!z_.canaries_intact()) report.worst = std::numeric_limits<double>::infinity();
    return report;
  }

  std::vector<contender> contenders() override {
    std::vector<contender> out;
    out.push_back(ours(nullptr));
    contender scalar = ours("scalar");
    scalar.naive = true;
    out.push_back(std::move(scalar));
    for (const char* rung :
         device_.device_type == kDLCUDA ? std::vector{"vector16"} : std::vector{"stream"}) {
      contender c = ours(rung);
      c.headline = false;
      c.ladder = true;
      out.push_back(std::move(c));
    }
    return out;
  }

  std::vector<buffer> buffers() override {
    return {buffer_of(x_, x_.bytes(), false), buffer_of(y_, y_.bytes(), false),
            buffer_of(z_, z_.bytes(), true)};
  }

 private:
  contender ours(const char* rung) {
    return {
        .provider = "ninefold", .rung = rung ? rung : "", .call = [this, rung](nf_stream stream) {
          vector_add({.x = x_, .y = y_, .z = z_, .rung = rung}, stream);
        }};
  }

  int64_t rows_, cols_;
  DLDataType type_;
  DLDevice device_;
  tensor x_, y_, z_;
  std::vector<double> expected_;
};

}  // namespace

bench_case cases_vector_add(const shape_entry& shape, const std::string& direction,
                            const std::string& dtype, DLDevice device) {
  const DLDataType type = dtype_named(dtype);
  const int64_t rows = size_named(shape.sizes, "M"), cols = size_named(shape.sizes, "N");
  const int64_t offset = size_named(shape.options, "offset", 0),
                bytes = rows * cols * type.bits / 8;
  return {.op = "vector_add",
          .direction = direction,
          .device = device,
          .dtype = dtype,
          .name = shape.name,
          .shape = shape.sizes,
          .options = shape.options,
          .bytes_read = 2 * bytes,
          .bytes_written = bytes,
          .flops = rows * cols,
          .kept_bytes = 0,  // the gradient of a sum needs nothing of the sum
          .ceiling = "2:1",
          .ceiling_is_rival = true,
          .make = [=] { return std::make_unique<addition>(rows, cols, offset, type, device); }};
}

}  // namespace ninefold::lab
