#include "lab/fingerprint.hpp"

#include <ninefold/types.h>

#include <algorithm>
#include <string_view>

#include "lab/baselines/baselines.hpp"
#include "lab/baselines/matmul.hpp"
#include "lab/provenance.hpp"

extern char** environ;

namespace ninefold::lab {
namespace {

// Variables that change what the kernels, the thread pools or the drivers do.
nlohmann::json environment() {
  nlohmann::json out = nlohmann::json::object();
  for (char** e = environ; *e; ++e) {
    const std::string_view line = *e;
    const std::string_view name = line.substr(0, line.find('='));
    for (const char* prefix : {"OMP_", "GOMP_", "KMP_", "NF_RUNG", "NF_CPU_ISA", "CUDA_", "DNNL_",
                               "ONEDNN_", "CUDNN_", "MALLOC_", "GLIBC_TUNABLES"})
      if (name.rfind(prefix, 0) == 0 && name.size() < line.size())
        out[std::string(name)] = line.substr(name.size() + 1);
  }
  return out;
}

std::string shown(const nlohmann::json& object, const std::string& key) {
  if (!object.contains(key)) return "(none)";
  return object[key].is_string() ? object[key].get<std::string>() : object[key].dump();
}

}  // namespace

nlohmann::json machine_fingerprint(const workbench& bench, const workbench& host) {
  nlohmann::json out = host.fingerprint();
  const bool cuda = bench.device().device_type == kDLCUDA;
  if (cuda) out.update(bench.fingerprint());
  out["compiler"] = compiler();
  out["flags"] = compiler_flags();
  if (cuda) {
    out["cuda_compiler"] = cuda_compiler();
    out["cuda_flags"] = cuda_flags();
  }
  out["build"] = nf_build_info();
  out["baselines"] =
      cuda ? nlohmann::json{{"cuBLASLt", cublaslt_version()}, {"cuDNN", cudnn_version()}}
           : nlohmann::json{{"oneDNN", onednn_version()}};
  out["environment"] = environment();
  return out;
}

std::vector<std::string> differences(const nlohmann::json& a, const nlohmann::json& b) {
  std::vector<std::string> keys, out;
  if (a.is_object())
    for (const auto& item : a.items()) keys.push_back(item.key());
  if (b.is_object())
    for (const auto& item : b.items()) keys.push_back(item.key());
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  for (const std::string& key : keys) {
    const std::string in_a = shown(a, key), in_b = shown(b, key);
    if (in_a != in_b) out.push_back(key + ": " + in_a + " | " + in_b);
  }
  return out;
}

}  // namespace ninefold::lab
