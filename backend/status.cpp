#include "backend/status.hpp"

#include <cstdarg>
#include <cstdio>

namespace ninefold {
namespace {
thread_local char last_error[512] = "";
}

void fail(nf_status status, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw failure{status, text};
}

nf_status report(nf_status status, const char* text) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", text);
  return status;
}

}  // namespace ninefold

const char* nf_last_error(void) { return ninefold::last_error; }
