// rope of q and k in one call, (B, S, H, D): each read once and written once. Positions are those
// of the tokens and angles are computed, so nothing else is read; with option `table` cos and sin
// are.
#include "lab/bench.hpp"

#include <ninefold/ninefold.hpp>

#include "lab/sampling.hpp"
#include "ops/rope/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct rope_case {
  int64_t batch, length, q_heads, k_heads, head_size;
  reference::rope_spec spec;
  bool table;
  DLDevice device;

  verify::layout where(int64_t heads) const { return {{batch, length, heads, head_size}}; }
  verify::layout table_where() const { return {{table ? length : 0, head_size / 2}}; }
  int64_t elements() const { return batch * length * (q_heads + k_heads) * head_size; }
};

class turning : public problem {
 public:
  explicit turning(const rope_case& c)
      : case_(c),
        q_(c.spec.type, c.where(c.q_heads), c.device),
        k_(c.spec.type, c.where(c.k_heads), c.device),
        q_out_(c.spec.type, c.where(c.q_heads), c.device),
        k_out_(c.spec.type, c.where(c.k_heads), c.device),
        cos_(f32, c.table_where(), c.device),
        sin_(f32, c.table_where(), c.device) {
    if (c.table) fill_table();
  }

  void fill(uint64_t seed) override {
    q_.fill_normal(seed);
    k_.fill_normal(seed + 1);
    expected_q_.values.clear();
  }
  void poison() override {
    q_out_.poison();
    k_out_.poison();
  }
  verify::error_report check() override {
    if (expected_q_.values.empty()) {
      expected_q_ = expected(q_, case_.q_heads);
      expected_k_ = expected(k_, case_.k_heads);
    }
    verify::error_report report = judge(q_out_, q_out_.load_rows(rows(case_.q_heads)), expected_q_);
    report.add(judge(k_out_, k_out_.load_rows(rows(case_.k_heads)), expected_k_));
    return report;
  }
  std::vector<contender> contenders() override {
    std::vector<contender> out = own_contenders(
        [this](const char* rung) {
          return contender{.provider = "ninefold",
                           .rung = rung ? rung : "",
                           .call = [this, rung](nf_stream stream) { run(rung, stream); }};
        },
        "scalar", {});
    out.push_back({.provider = case_.device.device_type == kDLCUDA ? "Liger-Kernel" : "PyTorch",
                   .absent = "no library that the lab links has a rotary embedding"});
    return out;
  }
  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(q_, q_.bytes(), false), buffer_of(k_, k_.bytes(), false),
                            buffer_of(q_out_, q_out_.bytes(), true),
                            buffer_of(k_out_, k_out_.bytes(), true)};
    if (case_.table) {
      out.push_back(buffer_of(cos_, cos_.bytes(), false));
      out.push_back(buffer_of(sin_, sin_.bytes(), false));
    }
    return out;
  }

 private:
  void run(const char* rung, nf_stream stream) const {
    nf_rope_args args{};
    args.q = q_;
    args.k = k_;
    args.q_out = q_out_;
    args.k_out = k_out_;
    args.layout = case_.spec.interleaved ? NF_ROPE_INTERLEAVED : NF_ROPE_HALF;
    if (case_.table) {
      args.cos = cos_;
      args.sin = sin_;
    }
    args.rung = rung;
    case_.spec.backward ? rope_backward(args, stream) : rope(args, stream);
  }
  // Of a sample of heads: rows of the last dimension, each a token of one head to the reference.
  std::vector<int64_t> rows(int64_t heads) const {
    return sampled_rows(case_.batch * case_.length * heads, case_.head_size);
  }
  verify::expectation expected(const tensor& x, int64_t heads) const {
    const std::vector<int64_t> at = rows(heads);
    std::vector<int64_t> positions;
    for (const int64_t row : at) positions.push_back(row / heads % case_.length);
    return reference::rope(case_.spec, x.load_rows(at), 1, case_.head_size, positions);
  }
  void fill_table() {
    const std::vector<double> f = reference::rope_frequencies(case_.spec, case_.head_size);
    std::vector<double> c, s;
    for (int64_t p = 0; p < case_.length; ++p)
      for (const double each : f) {
        c.push_back(std::cos(static_cast<double>(p) * each));
        s.push_back(std::sin(static_cast<double>(p) * each));
      }
    cos_.store(c);
    sin_.store(s);
    case_.spec.cos = cos_.load();
    case_.spec.sin = sin_.load();
  }

  rope_case case_;
  tensor q_, k_, q_out_, k_out_, cos_, sin_;
  verify::expectation expected_q_, expected_k_;
};

}  // namespace

bench_case cases_rope(const shape_entry& shape, const std::string& direction,
                      const std::string& dtype, DLDevice device) {
  const rope_case c{.batch = size_named(shape.sizes, "B"),
                    .length = size_named(shape.sizes, "S"),
                    .q_heads = size_named(shape.sizes, "Hq"),
                    .k_heads = size_named(shape.sizes, "Hk"),
                    .head_size = size_named(shape.sizes, "D"),
                    .spec = {.type = dtype_named(dtype),
                             .interleaved = size_named(shape.options, "interleaved", 0) != 0,
                             .backward = direction == "backward"},
                    .table = size_named(shape.options, "table", 0) != 0,
                    .device = device};
  const int64_t bytes = c.elements() * c.spec.type.bits / 8;
  const int64_t table_bytes = c.table ? 4 * c.length * c.head_size : 0;
  return {.op = "rope",
          .direction = direction,
          .device = device,
          .dtype = dtype,
          .name = shape.name,
          .shape = shape.sizes,
          .options = shape.options,
          .bytes_read = bytes + table_bytes,
          .bytes_written = bytes,
          .flops = 3 * c.elements(),  // two products and a sum
          .kept_bytes = 0,            // the backward needs the positions alone
          .ceiling = "copy",
          .make = [c] { return std::make_unique<turning>(c); }};
}

}  // namespace ninefold::lab
