#include "lab/provenance.hpp"

#include "provenance_generated.hpp"

namespace ninefold::lab {

const char* commit() { return generated::commit; }
bool dirty() { return generated::dirty; }
const char* compiler() { return generated::compiler; }
const char* compiler_flags() { return generated::flags; }
const char* cuda_compiler() { return generated::cuda_compiler; }
const char* cuda_flags() { return generated::cuda_flags; }

const std::vector<std::string>& ops() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const auto& s : generated::sources)
      if (out.empty() || out.back() != s.op) out.emplace_back(s.op);
    return out;
  }();
  return names;
}

std::string sources(const std::string& op, const std::string& device) {
  for (const auto& s : generated::sources)
    if (op == s.op && device == s.device) return s.hash;
  return "";
}

}  // namespace ninefold::lab
