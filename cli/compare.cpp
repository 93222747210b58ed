#include "lab/compare.hpp"

#include <fmt/format.h>

#include "cli/commands.hpp"
#include "cli/table.hpp"
#include "lab/result_file.hpp"

namespace ninefold::cli {
namespace {

void print(const lab::comparison& c) {
  using enum table::align;
  table t({{"verdict", left},
           {"op", left},
           {"case", left},
           {"dtype", left},
           {"who", left},
           {"A ms"},
           {"B ms"},
           {"A/B", left}});
  for (const lab::compared_row& r : c.rows)
    t.add({r.verdict, r.op + ' ' + r.direction, r.name, r.dtype,
           r.rung.empty() ? r.provider : r.provider + ' ' + r.rung, fmt::format("{:.4g}", r.ms_a),
           fmt::format("{:.4g}", r.ms_b),
           fmt::format("{:.3f} [{:.3f} {:.3f}]", r.ratio.middle, r.ratio.low, r.ratio.high)});
  fmt::print("{}", t.text());
  for (const std::string& key : c.only_a) fmt::print("only in A: {}\n", key);
  for (const std::string& key : c.only_b) fmt::print("only in B: {}\n", key);
}

}  // namespace

int compare(const compare_options& options) {
  const lab::comparison c = lab::compare_rows(lab::read_rows(options.a), lab::read_rows(options.b));
  if (options.json) {
    fmt::print("{}\n", lab::as_json(c).dump(1));
  } else {
    for (const std::string& d : c.differences) fmt::print("{}\n", d);
    if (c.differences.empty()) print(c);
  }
  if (!c.differences.empty()) {
    fmt::print(stderr, "ninefold: not compared: the machines or builds differ in {} thing{}\n",
               c.differences.size(), c.differences.size() == 1 ? "" : "s");
    return 2;
  }
  for (const lab::compared_row& r : c.rows)
    if (options.fail_on_loss && r.verdict == "LOSS") return 1;
  return 0;
}

}  // namespace ninefold::cli
