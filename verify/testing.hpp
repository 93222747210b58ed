// What the tests of every op share: which devices there are, how a result is judged, and how a test
// runs itself again under another environment.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <vector>

#include "verify/error.hpp"
#include "verify/tensor.hpp"

namespace ninefold::verify {

inline constexpr DLDevice cuda_device{kDLCUDA, 0};

inline std::vector<DLDevice> devices() {
  if (cuda_present()) return {cpu_device, cuda_device};
  return {cpu_device};
}

inline std::string device_name(const testing::TestParamInfo<DLDevice>& info) {
  return info.param.device_type == kDLCPU ? "cpu" : "cuda";
}

// The base of a suite whose every test runs on each device that is there.
class on_each_device : public testing::TestWithParam<DLDevice> {
 protected:
  DLDevice device() const { return GetParam(); }
  bool on_cuda() const { return device().device_type == kDLCUDA; }
};

// Sanitizers make code many times slower: what is only large, and not different, is smaller there.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

inline std::string name_of(DLDataType type) {
  if (type.code == kDLBfloat) return "bf16";
  return type.bits == 16 ? "fp16" : "fp32";
}

// Like `shape`, contiguous.
inline int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// Values of a tensor of shape `from`, broadcast from the right to shape `to`.
inline std::vector<double> broadcast(const std::vector<double>& values,
                                     const std::vector<int64_t>& from,
                                     const std::vector<int64_t>& to) {
  std::vector<double> out(static_cast<size_t>(count_of(to)));
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), index = 0, step = 1;
    for (size_t d = 0; d < to.size(); ++d) {
      const int64_t at = rest % to[to.size() - 1 - d];
      rest /= to[to.size() - 1 - d];
      if (d >= from.size()) continue;
      const int64_t size = from[from.size() - 1 - d];
      index += (size == 1 ? 0 : at) * step;
      step *= size;
    }
    out[i] = values[static_cast<size_t>(index)];
  }
  return out;
}

// `out` against the reference, every element written, nothing around it touched.
template <class Expectation>
testing::AssertionResult matches(const tensor& out, const Expectation& expected) {
  error_report report = compare(out.load(), expected.values, expected.allowed);
  report.unwritten = out.count_poison();
  if (!out.canaries_intact())
    return testing::AssertionFailure() << "memory around the output was written";
  if (report.passed()) return testing::AssertionSuccess();
  const std::vector<double> values = out.load();
  const auto at = static_cast<size_t>(report.worst_index);
  return testing::AssertionFailure() << report.text() << ": got " << values[at] << ", expected "
                                     << expected.values[at] << " +- " << expected.allowed[at];
}

// A call that must fail: this status, and a text that holds every one of `words`.
inline testing::AssertionResult fails(nf_status got, nf_status expected,
                                      std::initializer_list<const char*> words) {
  const std::string text = nf_last_error();
  if (got != expected)
    return testing::AssertionFailure()
           << "status " << got << " where " << expected << " is right; the text is: " << text;
  for (const char* word : words)
    if (text.find(word) == std::string::npos)
      return testing::AssertionFailure() << "\"" << word << "\" is not in: " << text;
  return testing::AssertionSuccess();
}

// A DLTensor to be spoilt: starts as a copy of a good one and owns its shape and strides.
struct spoilt {
  int64_t shape[9] = {}, strides[9] = {};
  DLTensor view;
  explicit spoilt(const DLTensor* good) : view(*good) {
    std::copy_n(good->shape, good->ndim, shape);
    std::copy_n(good->strides, good->ndim, strides);
    view.shape = shape;
    view.strides = strides;
  }
  spoilt(const spoilt&) = delete;
};

// Ways to spoil an argument that none can bear, whatever its name.
inline bool without_data(const std::string&, spoilt& bad) {
  bad.view.data = nullptr;
  return true;
}
inline bool of_rank_9(const std::string&, spoilt& bad) {
  bad.view.ndim = 9;
  std::fill(bad.shape, bad.shape + 9, 1);
  bad.view.strides = nullptr;
  return true;
}
inline bool of_negative_size(const std::string&, spoilt& bad) {
  bad.shape[0] = -1;
  return true;
}
inline bool on_vulkan(const std::string&, spoilt& bad) {
  bad.view.device = {kDLVulkan, 0};
  return true;
}
inline bool on_a_missing_device(const std::string&, spoilt& bad) {
  bad.view.device = {kDLCUDA, 4096};
  return true;
}

// Which rung ran last, as nf_last_launch() tells.
inline std::string last_rung() {
  const std::string text = nf_last_launch();
  const size_t at = text.find("rung=");
  if (at == std::string::npos) return "";
  return text.substr(at + 5, text.find(' ', at) - at - 5);
}

// Runs one test of this very program in a process of its own, where `environment` ("NF_RUNG=...")
// holds from the start, and returns what it printed. The library reads its settings once.
struct child_result {
  int exit_status;
  std::string output;
};
inline child_result run_again(const std::string& environment, const std::string& test) {
  std::array<char, 4096> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) < 0)
    return {-1, "no /proc/self/exe"};
  const std::string command = environment + " '" + path.data() + "' --gtest_filter='" + test +
                              "' --gtest_also_run_disabled_tests 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return {-1, "popen failed"};
  child_result result{0, ""};
  std::array<char, 4096> chunk;
  while (const size_t n = fread(chunk.data(), 1, chunk.size(), pipe))
    result.output.append(chunk.data(), n);
  result.exit_status = pclose(pipe);
  return result;
}

}  // namespace ninefold::verify
