#include <fmt/format.h>

#include <cmath>
#include <ninefold/ninefold.hpp>
#include <stdexcept>

#include "lab/baselines/baselines.hpp"
#include "lab/baselines/matmul.hpp"
#include "lab/ceilings.hpp"
#include "lab/sampling.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

constexpr std::string_view prefix = "product ";

// B lies as (N, K), as weights do.
class large_product : public ceiling {
 public:
  large_product(const std::string& name, DLDevice device)
      : name_(name),
        n_(product_ceiling_size(device)),
        type_(dtype_named(name.substr(prefix.size()))),
        a_(type_, {{n_, n_}}, device),
        b_(type_, {{n_, n_}}, device),
        d_(type_, {{n_, n_}}, device) {
    a_.fill_normal(1);
    b_.fill_normal(2);
    for (const tensor* t : {&a_, &b_, &d_}) touched_.push_back({data_of(*t), t->bytes()});
    const matmul_call c{.m = n_,
                        .n = n_,
                        .k = n_,
                        .type = type_,
                        .d_type = type_,
                        .a_transposed = false,
                        .b_transposed = true,
                        .a = data_of(a_),
                        .b = data_of(b_),
                        .d = data_of(d_),
                        .device = device};
    by_ = device.device_type == kDLCUDA ? cublaslt_matmul(c) : onednn_matmul(c);
    if (!by_.absent.empty()) throw error(NF_UNAVAILABLE, by_.absent.c_str());
  }
  const std::string& mix() const override { return name_; }
  const std::string& kernel() const override { return by_.provider; }
  int64_t bytes() const override { return a_.bytes() + b_.bytes() + d_.bytes(); }
  int64_t flops() const override { return 2 * n_ * n_ * n_; }
  const std::vector<nf_lab_range>& touched() const override { return touched_; }
  void call(nf_stream stream) override { by_.call(stream); }
  // One row in float64: sums of n random terms of size 1, held to a hundredth of their deviation.
  std::string check(workbench& bench) override {
    d_.poison();
    call(bench.stream());
    bench.finish();
    const int64_t row = n_ / 2 + 1;
    const std::vector<int64_t> some{0, n_ / 3, n_ - 1};
    const auto a = a_.load_rows(std::span(&row, 1)), d = d_.load_rows(std::span(&row, 1)),
               b = b_.load_rows(some);
    for (size_t j = 0; j < some.size(); ++j) {
      double sum = 0;
      for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[j * a.size() + k];
      const double off = std::abs(d[static_cast<size_t>(some[j])] - sum);
      if (!(off <= 0.02 * std::sqrt(static_cast<double>(n_)) + 0.01 * std::abs(sum)))
        return fmt::format("the product by {} is wrong: off by {}", by_.provider, off);
    }
    return {};
  }

 private:
  static void* data_of(const DLTensor* t) { return static_cast<char*>(t->data) + t->byte_offset; }

  std::string name_;
  int64_t n_;
  DLDataType type_;
  tensor a_, b_, d_;
  contender by_;
  std::vector<nf_lab_range> touched_;
};

}  // namespace

int64_t product_ceiling_size(DLDevice device) {
  return device.device_type == kDLCUDA ? 8192 : 1536;
}

bool is_product_ceiling(const std::string& name) { return name.starts_with(prefix); }

std::string product_ceiling(DLDataType type, DLDevice device) {
  const bool cuda = device.device_type == kDLCUDA, half = type.bits == 16 && type.code == kDLFloat;
  // No release of oneDNN that Debian has multiplies fp16 on a CPU.
  if (cuda ? cublaslt_version().empty() : onednn_version().empty() || half) return "2:1";
  const char* const of = half ? "fp16" : type.bits == 32 ? "fp32" : "bf16";
  return std::string(prefix) + of;
}

std::unique_ptr<ceiling> make_product_ceiling(const std::string& name, DLDevice device) {
  return std::make_unique<large_product>(name, device);
}

}  // namespace ninefold::lab
