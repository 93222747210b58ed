// Failures inside the library: thrown as `failure`, turned into a status and a text at the C line.
#pragma once

#include <ninefold/types.h>

#include <string>

namespace ninefold {

struct failure {
  nf_status status;
  std::string text;
};

[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(nf_status status, const char* format,
                                                             ...);

// Stores `text` for nf_last_error() and returns `status`.
nf_status report(nf_status status, const char* text) noexcept;

// Runs the body of a C entry point; no exception leaves it.
template <class Body>
nf_status guarded(Body&& body) noexcept {
  try {
    body();
    return NF_OK;
  } catch (const failure& f) {
    return report(f.status, f.text.c_str());
  } catch (...) {
    return report(NF_RUNTIME_ERROR, "ninefold: out of memory while checking the call");
  }
}

}  // namespace ninefold
