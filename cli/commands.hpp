// The subcommands: each prints, and returns the exit code. 0 fine, 1 a check, a comparison or a
// self-test went against us, 2 the command could not do what was asked.
#pragma once

#include <ninefold/types.h>

#include <string>
#include <vector>

namespace ninefold::cli {

struct bench_options {
  std::string op, device, shape, suite = "quick", out, publish;
  uint64_t seed = 1;
  bool json = false, hot = false;
};
int bench(const bench_options& options);

struct check_options {
  std::string op, device;
  bool json = false;
};
int check(const check_options& options);

struct compare_options {
  std::string a, b;
  bool json = false, fail_on_loss = false;
};
int compare(const compare_options& options);

struct report_options {
  std::vector<std::string> files;
  std::string out, fill;
  bool markdown = false;
};
int report(const report_options& options);

struct info_options {
  std::string device;
  bool json = false;
};
int info(const info_options& options);

struct selftest_options {
  std::string device;
  bool json = false;
};
int selftest(const selftest_options& options);

// "cpu", "cuda", or "" for every device that can be used here.
std::vector<DLDevice> devices_named(const std::string& name);

}  // namespace ninefold::cli
