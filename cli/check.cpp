#include "lab/check.hpp"

#include <fmt/format.h>

#include <map>

#include "cli/commands.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"

namespace ninefold::cli {
namespace {

struct tally {
  int passed = 0, failed = 0, absent = 0;
  double error = 0, worst = 0;
};

std::string sizes(const lab::named_sizes& shape) {
  std::string out;
  for (const auto& [name, size] : shape)
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, size);
  return out;
}

void print(const std::vector<lab::check_row>& rows) {
  std::map<std::vector<std::string>, tally> tallies;
  for (const lab::check_row& r : rows) {
    tally& t =
        tallies[{r.op, r.direction, r.device, r.dtype, r.rung.empty() ? "(chosen)" : r.rung}];
    ++(r.check == "passed" ? t.passed : r.check == "failed" ? t.failed : t.absent);
    if (r.check == "absent") continue;
    t.error = std::max(t.error, r.error);
    t.worst = std::max(t.worst, r.worst);
  }
  using enum table::align;
  table t({{"op", left},
           {"direction", left},
           {"device", left},
           {"dtype", left},
           {"rung", left},
           {"passed"},
           {"failed"},
           {"cannot"},
           {"largest error"},
           {"of allowed"}});
  for (const auto& [key, n] : tallies)
    t.add({key[0], key[1], key[2], key[3], key[4], std::to_string(n.passed),
           std::to_string(n.failed), std::to_string(n.absent), fmt::format("{:.1e}", n.error),
           fmt::format("{:.2f}", n.worst)});
  fmt::print("{}", t.text());
  for (const lab::check_row& r : rows)
    if (r.check == "failed")
      fmt::print("FAILED {} {} {} {} {} {} ({}): {}\n", r.op, r.direction, r.device, r.dtype,
                 r.rung, r.name, sizes(r.shape), r.reason);
}

}  // namespace

int check(const check_options& options) {
  std::vector<lab::check_row> rows;
  progress shown;
  std::string last;
  for (const DLDevice device : devices_named(options.device))
    for (lab::check_row& r : lab::check_ops(options.op, device, [&](const std::string& text) {
           // One line per op, direction and dtype is enough.
           const std::string head = text.substr(0, text.find(' ', text.find(' ') + 1));
           if (head != last) shown.show("checking " + head);
           last = head;
         }))
      rows.push_back(std::move(r));
  shown.clear();

  int failed = 0;
  for (const lab::check_row& r : rows) failed += r.check == "failed";
  if (options.json) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const lab::check_row& r : rows) out.push_back(lab::as_json(r));
    fmt::print("{}\n", out.dump(1));
  } else {
    print(rows);
    fmt::print("{} checks, {} failed\n", rows.size(), failed);
  }
  return failed > 0 ? 1 : 0;
}

}  // namespace ninefold::cli
