#include "lab/workbench.hpp"

#include <algorithm>
#include <cstring>
#include <ninefold/ninefold.hpp>

namespace ninefold::lab {

namespace {

// A CPU without what the kernels need, or a wrong NF_CPU_ISA, is found out before any work.
void require_cpu_kernels() {
  float x = 1, y = 1, z = 0;
  const view vx(&x, {1}), vy(&y, {1}), vz(&z, {1});
  nf_vector_add_args args{};
  args.x = vx;
  args.y = vy;
  args.z = vz;
  const nf_status status = nf_vector_add_forward(&args, nullptr);
  if (status == NF_UNAVAILABLE) throw error(status, nf_last_error());
}

}  // namespace

std::unique_ptr<workbench> make_workbench(DLDevice device) {
  if (device.device_type == kDLCPU) {
    require_cpu_kernels();
    return make_cpu_workbench();
  }
#ifdef NF_WITH_CUDA
  return make_cuda_workbench(device.device_id);
#else
  throw error(NF_UNAVAILABLE, "no CUDA device can be used: this build has no CUDA backend");
#endif
}

line_sample lines_of(const buffer& b) {
  constexpr int64_t most = 4096;
  const int64_t all = b.bytes / 64;
  const int64_t lines = std::min(all, most);
  return {lines, lines > 1 ? (all - 1) / (lines - 1) * 64 : 64};
}

std::string constant_input(workbench& bench, const std::vector<buffer>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const buffer& b = buffers[i];
    if (b.output || b.bytes < 64) continue;
    std::vector<char> data(static_cast<size_t>(std::min<int64_t>(b.bytes, 1 << 16)));
    bench.read(data.data(), b.data, static_cast<int64_t>(data.size()));
    // Compared four bytes apart: one element of fp32, two of the narrower types.
    if (std::memcmp(data.data(), data.data() + 4, data.size() - 4) == 0)
      return "input " + std::to_string(i) + " is constant: such data flatters power and caches";
  }
  return {};
}

}  // namespace ninefold::lab
