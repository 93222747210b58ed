#include <gnu/libc-version.h>
#include <omp.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <ninefold/ninefold.hpp>
#include <sstream>
#include <thread>

#include "lab/workbench.hpp"

namespace ninefold::lab {
namespace {

using clock = std::chrono::steady_clock;

// The value of "key : value" lines in /proc; "" if there is none.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

int64_t proc_kilobytes(const char* key) {
  const std::string text = proc_value("/proc/self/status", key);
  return text.empty() ? -1 : std::stoll(text) * 1024;
}

std::string first_line(const char* file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// The kernels say which instruction set they use: one element is added to find out.
std::string isa() {
  float x = 1, y = 1, z = 0;
  const view vx(&x, {1}), vy(&y, {1}), vz(&z, {1});
  nf_vector_add_args args{};
  args.x = vx;
  args.y = vy;
  args.z = vz;
  if (nf_vector_add_forward(&args, nullptr) != NF_OK) return nf_last_error();
  std::istringstream words(nf_last_launch());
  for (std::string word; words >> word;)
    if (word.rfind("isa=", 0) == 0) return word.substr(4);
  return "unknown";
}

class cpu_workbench : public workbench {
 public:
  DLDevice device() const override { return cpu_device; }
  nf_stream stream() const override { return nullptr; }
  void finish() override {}
  void settle() override {}
  void read(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  int64_t growth(const work& call) override {
    // Writing 5 makes the kernel forget the highest resident set; where it may not be written, the
    // old mark stands and the growth is found to be 0 or too small, never too large.
    std::ofstream("/proc/self/clear_refs") << "5";
    const int64_t before = proc_kilobytes("VmRSS");
    call(nullptr);
    const int64_t grown = proc_kilobytes("VmHWM") - before;
    // The kernel counts pages per thread and adds them up in batches: less is noise.
    return before > 0 && grown >= int64_t{1} << 20 ? grown : 0;
  }

  std::string escaped(const work& call, const std::vector<buffer>& buffers) override {
    const auto start = clock::now();
    call(nullptr);
    const auto took = clock::now() - start;
    const std::vector<char> at_return = sampled(buffers);
    // Long enough for a thread that went on by itself, short enough for every case.
    std::this_thread::sleep_for(
        std::min<clock::duration>(std::chrono::milliseconds(20) + took, std::chrono::seconds(1)));
    return sampled(buffers) == at_return
               ? ""
               : "the outputs went on changing after the call had returned";
  }

  nlohmann::json fingerprint() const override {
    utsname system{};
    uname(&system);
    return {{"cpu", name()},
            {"isa", isa()},
            {"threads", omp_get_max_threads()},
            {"processors", sysconf(_SC_NPROCESSORS_ONLN)},
            {"l3_bytes", sysconf(_SC_LEVEL3_CACHE_SIZE)},
            {"memory_bytes", sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)},
            {"kernel", std::string(system.sysname) + ' ' + system.release},
            {"libc", std::string("glibc ") + gnu_get_libc_version()},
            {"huge_pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled")},
            {"governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")}};
  }

  nlohmann::json clocks() const override {
    nlohmann::json out = nlohmann::json::object();
    const std::string mhz = proc_value("/proc/cpuinfo", "cpu MHz");
    if (!mhz.empty()) out["cpu_mhz"] = std::stod(mhz);
    const std::string load = first_line("/proc/loadavg");
    if (!load.empty()) out["load"] = std::stod(load);
    return out;
  }

  std::string name() const override {
    const std::string model = proc_value("/proc/cpuinfo", "model name");
    utsname system{};
    uname(&system);
    return model.empty() ? system.machine : model;
  }

 private:
  static std::vector<char> sampled(const std::vector<buffer>& buffers) {
    std::vector<char> out;
    for (const buffer& b : buffers) {
      if (!b.output) continue;
      const line_sample s = lines_of(b);
      const char* data = static_cast<const char*>(b.data);
      for (int64_t i = 0; i < s.lines; ++i)
        out.insert(out.end(), data + i * s.pitch, data + i * s.pitch + 64);
      const char* end = data + b.bytes;
      out.insert(out.end(), end - b.bytes % 64, end);
    }
    return out;
  }
};

}  // namespace

std::unique_ptr<workbench> make_cpu_workbench() { return std::make_unique<cpu_workbench>(); }

}  // namespace ninefold::lab
