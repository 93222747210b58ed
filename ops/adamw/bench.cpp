// One step of AdamW over P parameters. It reads p, g, m and v and writes p, m and v, and that is
// all it can be measured by: 28 bytes a parameter in fp32. "bf16" has bf16 parameters and gradients
// with an fp32 master and fp32 moments, also 28. Clipping has to read the gradients once more,
// which is not credited: what a step needs is each input once.
#include "lab/bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ninefold/ninefold.hpp>
#include <numeric>
#include <span>

#ifdef NF_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "lab/sampling.hpp"
#include "ops/adamw/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct adamw_case {
  std::vector<int64_t> sizes;  // of the tensors, in elements
  int64_t elements;
  bool clip;
  DLDataType type;
  DLDevice device;

  bool master() const { return type.bits == 16; }
};

// The tensors of GPT-2 with its vocabulary of 50,257 and 1,024 positions.
std::vector<int64_t> gpt2_sizes(int64_t layers, int64_t c) {
  std::vector<int64_t> out{50257 * c, 1024 * c};
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const int64_t each :
         {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c})
      out.push_back(each);
  out.push_back(c);
  out.push_back(c);
  return out;
}

class adamw_problem_of_case : public problem {
 public:
  // The tensors lie one behind the other in a few large ones, as rows that the lab can sample.
  // Every size is a multiple of a row.
  static constexpr int64_t cols = 256;

  explicit adamw_problem_of_case(const adamw_case& c)
      : case_(c),
        param_(c.type, where(true), c.device),
        grad_(c.type, where(true), c.device),
        m_(f32, where(true), c.device),
        v_(f32, where(true), c.device),
        master_(f32, where(c.master()), c.device),
        old_p_(f32, where(true), c.device),
        old_m_(f32, where(true), c.device),
        old_v_(f32, where(true), c.device),
        rows_(sampled_rows(c.elements / cols, cols)) {
    make_list();
    const nf_adamw_args sized = args(nullptr);
    workspace_bytes_ = adamw_workspace_size(sized);
    workspace_ = std::make_unique<tensor>(u8, verify::layout{{workspace_bytes_}}, c.device);
  }

  void fill(uint64_t seed) override {
    grad_.fill_normal(seed + 1);
    make_second_moment(seed + 3);
    exact().fill_normal(seed);
    m_.fill_normal(seed + 2);
    copy(exact(), old_p_, nullptr);
    copy(m_, old_m_, nullptr);
    copy(v_, old_v_, nullptr);
    expected_.p.values.clear();
  }

  void poison() override {
    restore(nullptr);
    if (case_.master()) param_.poison();
  }

  verify::error_report check() override {
    if (expected_.p.values.empty()) expect();
    verify::error_report report;
    report.add(compared(exact(), expected_.p));
    report.add(compared(m_, expected_.m));
    report.add(compared(v_, expected_.v));
    if (!case_.master()) return report;
    report.add(compared(param_, expected_.param));
    report.unwritten = param_.count_poison();
    return report;
  }

  std::vector<contender> contenders() override {
    const bool cuda = case_.device.device_type == kDLCUDA;
    std::vector<contender> out =
        own_contenders([this](const char* rung) { return ours(rung); },
                       cuda ? "launch_per_tensor" : "scalar", std::vector<const char*>{});
    out.push_back({.provider = cuda ? "cuDNN" : "oneDNN",
                   .absent = "has no optimiser; PyTorch's fused one is timed from Python"});
    return out;
  }

  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(grad_, grad_.bytes(), false),
                            buffer_of(exact(), exact().bytes(), true),
                            buffer_of(m_, m_.bytes(), true), buffer_of(v_, v_.bytes(), true)};
    if (case_.master()) out.push_back(buffer_of(param_, param_.bytes(), true));
    return out;
  }

 private:
  static constexpr double lr = 1e-3, decay = 0.1, max_norm = 1;
  static constexpr int64_t steps_before = 9;

  verify::layout where(bool wanted) const { return {{wanted ? case_.elements / cols : 0, cols}}; }
  tensor& exact() { return case_.master() ? master_ : param_; }

  static char* data_of(const DLTensor* t) { return static_cast<char*>(t->data) + t->byte_offset; }

  void make_list() {
    list_.reserve(case_.sizes.size());
    views_.reserve(5 * case_.sizes.size());
    int64_t from = 0;
    for (const int64_t size : case_.sizes) {
      const auto part = [&](const tensor& of) -> const DLTensor* {
        views_.emplace_back(data_of(of) + from * (of.type().bits / 8), of.type(),
                            std::initializer_list<int64_t>{size}, std::initializer_list<int64_t>{},
                            case_.device);
        return views_.back();
      };
      list_.push_back({part(param_), part(grad_), part(m_), part(v_),
                       case_.master() ? part(master_) : nullptr, decay, 0});
      from += size;
    }
  }

  nf_adamw_args args(const char* rung) const {
    nf_adamw_args a{};
    a.tensors = list_.data();
    a.count = static_cast<int64_t>(list_.size());
    a.lr.value = lr;
    a.step.value = steps_before;
    a.max_grad_norm = case_.clip ? max_norm : 0;
    if (workspace_) a.workspace = *workspace_;
    a.rung = rung;
    return a;
  }

  // v is never negative, so it comes out of a first step with gradients of another seed.
  void make_second_moment(uint64_t seed) {
    tensor other(case_.type, where(true), case_.device);
    other.fill_normal(seed);
    zero(v_);
    const nf_adamw_tensor whole{
        param_, other, m_, v_, case_.master() ? static_cast<const DLTensor*>(master_) : nullptr,
        0,      0};
    nf_adamw_args a{};
    a.tensors = &whole;
    a.count = 1;
    a.beta2 = 0.5;
    adamw_step(a);
  }

  void zero(const tensor& t) const {
    const size_t bytes = static_cast<size_t>(t.bytes());
#ifdef NF_WITH_CUDA
    if (case_.device.device_type == kDLCUDA) {
      cudaMemset(data_of(t), 0, bytes);
      return;
    }
#endif
    std::memset(data_of(t), 0, bytes);
  }

  void restore(nf_stream stream) {
    copy(old_p_, exact(), stream);
    copy(old_m_, m_, stream);
    copy(old_v_, v_, stream);
  }

  void copy(const tensor& from, const tensor& to, nf_stream stream) const {
    const size_t bytes = static_cast<size_t>(from.bytes());
#ifdef NF_WITH_CUDA
    if (case_.device.device_type == kDLCUDA) {
      cudaMemcpyAsync(data_of(to), data_of(from), bytes, cudaMemcpyDeviceToDevice,
                      static_cast<cudaStream_t>(stream));
      return;
    }
#endif
    (void)stream;
    std::memcpy(data_of(to), data_of(from), bytes);
  }

  double norm() const {
    double sum = 0;
    constexpr int64_t few = 4096;
    const int64_t rows = case_.elements / cols, parts = (rows + few - 1) / few;
#pragma omp parallel for schedule(dynamic) reduction(+ : sum)
    for (int64_t part = 0; part < parts; ++part) {
      std::vector<int64_t> some(static_cast<size_t>(std::min(few, rows - part * few)));
      std::iota(some.begin(), some.end(), part * few);
      for (const double g : grad_.load_rows(some)) sum += g * g;
    }
    return std::sqrt(sum);
  }

  void expect() {
    const double clip = case_.clip ? reference::adamw_clip(norm(), max_norm) : 1;
    expected_ = reference::adamw_step({.lr = lr,
                                       .step = steps_before + 1,
                                       .weight_decay = decay,
                                       .grad_scale = clip,
                                       .param = case_.type},
                                      old_p_.load_rows(rows_), grad_.load_rows(rows_),
                                      old_m_.load_rows(rows_), old_v_.load_rows(rows_));
  }

  // No poison is counted here: what is updated lies over an input. check() does for a param that
  // does not.
  verify::error_report compared(const tensor& out, const verify::expectation& right) const {
    verify::error_report report =
        verify::compare(out.load_rows(rows_), right.values, right.allowed);
    if (!out.canaries_intact()) report.worst = verify::infinity;
    return report;
  }

  contender ours(const char* rung) {
    return {.provider = "ninefold",
            .rung = rung ? rung : "",
            .call = [this, rung](nf_stream stream) { adamw_step(args(rung), stream); },
            .restore = [this](nf_stream stream) { restore(stream); },
            .workspace_bytes = workspace_bytes_};
  }

  adamw_case case_;
  tensor param_, grad_, m_, v_, master_, old_p_, old_m_, old_v_;
  std::vector<int64_t> rows_;
  std::vector<view> views_;
  std::vector<nf_adamw_tensor> list_;
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<tensor> workspace_;
  reference::adamw_result expected_;
};

}  // namespace

bench_case cases_adamw(const shape_entry& shape, const std::string& direction,
                       const std::string& dtype, DLDevice device) {
  adamw_case c{};
  c.elements = size_named(shape.sizes, "P");
  if (const int64_t layers = size_named(shape.options, "gpt2_layers", 0)) {
    c.sizes = gpt2_sizes(layers, 768);
  } else {
    const int64_t tensors = size_named(shape.options, "tensors");
    c.sizes.assign(static_cast<size_t>(tensors), c.elements / tensors);
  }
  if (std::accumulate(c.sizes.begin(), c.sizes.end(), int64_t{0}) != c.elements)
    throw std::invalid_argument("lab: adamw's tensors have not P elements");
  c.clip = size_named(shape.options, "clip", 0) != 0;
  c.type = dtype_named(dtype);
  c.device = device;

  bench_case b{.op = "adamw",
               .direction = direction,
               .device = device,
               .dtype = dtype,
               .name = shape.name,
               .shape = shape.sizes,
               .options = shape.options};
  // Gradient, moments and what is updated; written, the parameter beside its master.
  b.bytes_read = c.elements * (c.type.bits / 8 + 12);
  b.bytes_written = c.elements * (c.master() ? 14 : 12);
  b.flops = 16 * c.elements;
  b.ceiling = c.master() ? "copy" : "4:3";
  b.make = [c] { return std::make_unique<adamw_problem_of_case>(c); };
  return b;
}

}  // namespace ninefold::lab
