#include "lab/sampling.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace ninefold::lab {

DLDataType dtype_named(const std::string& name) {
  if (name == "fp32") return f32;
  if (name == "fp16") return f16;
  if (name == "bf16") return bf16;
  throw std::invalid_argument("lab: no dtype \"" + name + "\"");
}

int64_t size_named(const named_sizes& sizes, const std::string& name) {
  for (const auto& [key, value] : sizes)
    if (key == name) return value;
  throw std::invalid_argument("lab: a shape without \"" + name + "\"");
}

int64_t size_named(const named_sizes& sizes, const std::string& name, int64_t otherwise) {
  for (const auto& [key, value] : sizes)
    if (key == name) return value;
  return otherwise;
}

std::vector<int64_t> sampled_rows(int64_t rows, int64_t cols) {
  constexpr int64_t most = int64_t{1} << 21;
  const int64_t wanted = std::max<int64_t>(2, most / std::max<int64_t>(1, cols));
  std::vector<int64_t> out(static_cast<size_t>(std::min(rows, wanted)));
  std::iota(out.begin(), out.end(), int64_t{0});
  if (rows <= wanted) return out;
  for (int64_t& row : out) row = row * (rows - 1) / (wanted - 1);
  return out;
}

verify::error_report judge(const verify::tensor& out, std::span<const double> values,
                           const verify::expectation& expected) {
  verify::error_report report = verify::compare(values, expected.values, expected.allowed);
  report.unwritten = out.count_poison();
  if (!out.canaries_intact()) report.worst = verify::infinity;
  return report;
}

buffer buffer_of(const DLTensor* view, int64_t bytes, bool output) {
  return {static_cast<char*>(view->data) + view->byte_offset, bytes, output};
}

}  // namespace ninefold::lab
