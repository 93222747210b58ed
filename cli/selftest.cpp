#include "lab/selftest.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/progress.hpp"

namespace ninefold::cli {

int selftest(const selftest_options& options) {
  std::vector<lab::selftest_result> results;
  bool fine = true;
  {
    progress shown;
    for (const DLDevice device : devices_named(options.device)) {
      shown.show("planting cheats");
      std::vector<lab::selftest_result> some = lab::selftest(device);
      fine = fine && lab::fine(some);
      for (lab::selftest_result& r : some) results.push_back(std::move(r));
    }
  }
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const lab::selftest_result& r : results) {
    const bool honest = r.cheat == lab::honest_name;
    const char* word = r.caught ? "caught" : honest ? "accepted" : "MISSED";
    if (options.json) {
      nlohmann::ordered_json row;
      row["device"] = r.device;
      row["cheat"] = honest ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(r.cheat);
      row["caught"] = r.caught;
      row["how"] = r.how;
      out.push_back(std::move(row));
    } else {
      fmt::print("{:5} {:31} {:9} {}\n", r.device, r.cheat, honest && r.caught ? "REJECTED" : word,
                 r.how);
    }
  }
  if (options.json) fmt::print("{}\n", out.dump(1));
  if (fine) return 0;
  fmt::print(stderr, "ninefold: the lab misjudged a kernel; nothing may be published from here\n");
  return 1;
}

}  // namespace ninefold::cli
