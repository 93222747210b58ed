#include "backend/launch.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "backend/status.hpp"

namespace ninefold {
namespace {

thread_local launch_choice last;
thread_local bool any = false;

// NF_RUNG is read once: "op:rung" entries separated by commas.
std::string rung_from_environment(std::string_view op) {
  static const std::string setting = [] {
    const char* value = std::getenv("NF_RUNG");
    return std::string(value ? value : "");
  }();
  std::string_view rest = setting;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos)
      fail(NF_INVALID_ARGUMENT, "NF_RUNG: expected <op>:<rung>, got \"%.*s\"",
           static_cast<int>(entry.size()), entry.data());
    if (entry.substr(0, colon) == op) return std::string(entry.substr(colon + 1));
  }
  return {};
}

}  // namespace

void record(const launch_choice& choice) noexcept {
  last = choice;
  any = true;
}

const char* asked_rung(const char* op, const char* from_args) {
  if (from_args) return from_args;
  thread_local std::string kept;
  kept = rung_from_environment(op);
  return kept.empty() ? nullptr : kept.c_str();
}

int find_rung(const char* op, const char* asked, const char* const* names, int count) {
  for (int i = 0; i < count; ++i)
    if (std::strcmp(asked, names[i]) == 0) return i;
  std::string known;
  for (int i = 0; i < count; ++i) known += (i ? ", " : "") + std::string(names[i]);
  fail(NF_UNSUPPORTED, "%s: no rung \"%s\" here; there are %s", op, asked, known.c_str());
}

}  // namespace ninefold

const char* nf_last_launch(void) {
  thread_local char text[256];
  using namespace ninefold;
  if (!any) return "";
  int n = std::snprintf(text, sizeof text, "%s %s %s rung=%s", last.op, last.direction, last.device,
                        last.rung);
  const auto append = [&](const char* format, auto value) {
    if (n < static_cast<int>(sizeof text))
      n += std::snprintf(text + n, sizeof text - static_cast<size_t>(n), format, value);
  };
  if (*last.isa) append(" isa=%s", last.isa);
  if (last.threads) append(" threads=%d", last.threads);
  if (last.lanes) append(" lanes=%d", last.lanes);
  if (last.vectors) append(" vectors=%d", last.vectors);
  if (last.cluster) append(" cluster=%d", last.cluster);
  return text;
}
