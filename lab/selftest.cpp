#include "lab/selftest.hpp"

#include <ninefold/ninefold.hpp>

#include "lab/run_case.hpp"
#include "lab/sampling.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

std::vector<double> centred(const std::vector<double>& x, int64_t cols) {
  std::vector<double> y(x.size());
  const size_t n = static_cast<size_t>(cols);
  for (size_t row = 0; row < x.size(); row += n) {
    double sum = 0;
    for (size_t j = row; j < row + n; ++j) sum += x[j];
    for (size_t j = row; j < row + n; ++j) y[j] = x[j] - sum / static_cast<double>(n);
  }
  return y;
}

class centring_problem : public problem {
 public:
  centring_problem(DLDevice device, bool zeros)
      : device_(device),
        zeros_(zeros),
        x_(f32, {{centring::rows, centring::cols}}, device),
        y_(f32, {{centring::rows, centring::cols}}, device) {}

  void fill(uint64_t seed) override {
    if (zeros_) {
      x_.store(std::vector<double>(static_cast<size_t>(x_.count())));
    } else {
      x_.fill_normal(seed);
    }
    expected_ = centred(x_.load(), centring::cols);
  }
  void poison() override { y_.poison(); }

  verify::error_report check() override {
    // Sum of 4096 terms of size 1 in fp32, divided by 4096, and one rounding of the difference.
    verify::error_report report =
        verify::compare(y_.load(), expected_, verify::tolerance{1e-6, 0x1p-23});
    report.unwritten = y_.count_poison();
    return report;
  }

  std::vector<contender> contenders() override {
    const centring work{static_cast<const float*>(buffer_of(x_, 0, false).data),
                        static_cast<float*>(buffer_of(y_, 0, true).data)};
#ifdef NF_WITH_CUDA
    if (device_.device_type == kDLCUDA) return cuda_cheats(work);
#endif
    return cpu_cheats(work);
  }

  std::vector<buffer> buffers() override {
    return {buffer_of(x_, x_.bytes(), false), buffer_of(y_, y_.bytes(), true)};
  }

 private:
  DLDevice device_;
  bool zeros_;
  tensor x_, y_;
  std::vector<double> expected_;
};

std::vector<outcome> run(DLDevice device, bool zeros, workbench& bench) {
  bench_case c;
  c.op = "centring";
  c.direction = "forward";
  c.device = device;
  c.dtype = "fp32";
  c.name = "selftest";
  c.bytes_read = c.bytes_written = centring::rows * centring::cols * 4;
  c.ceiling = "copy";
  c.make = [=] { return std::make_unique<centring_problem>(device, zeros); };
  run_settings settings;
  settings.max_seconds = 0.5;
  settings.min_samples = 3;
  return run_case(c, bench, settings);
}

}  // namespace

std::vector<selftest_result> selftest(DLDevice device) {
  const auto bench = make_workbench(device);
  const std::string name = device.device_type == kDLCUDA ? "cuda" : "cpu";
  std::vector<selftest_result> out;
  for (const outcome& o : run(device, false, *bench))
    if (o.who.provider != "lab")
      out.push_back({name, o.who.provider, o.reason, o.samples_ms.empty()});
  const outcome on_zeros = run(device, true, *bench).front();
  out.push_back({name, "all-zero input", on_zeros.reason, on_zeros.samples_ms.empty()});
  return out;
}

bool fine(const std::vector<selftest_result>& results) {
  for (const selftest_result& r : results)
    if (r.caught == (r.cheat == honest_name)) return false;
  return !results.empty();
}

}  // namespace ninefold::lab
