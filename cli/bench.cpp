#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "cli/commands.hpp"
#include "cli/progress.hpp"
#include "cli/table.hpp"
#include "lab/result_file.hpp"
#include "lab/selftest.hpp"
#include "lab/suite.hpp"

namespace ninefold::cli {
namespace {

using row = nlohmann::ordered_json;
using rows = std::vector<row>;

std::string text(const row& r, const char* key) {
  return r.at(key).is_string() ? r.at(key).get<std::string>() : "";
}

std::string number(const row& r, const char* key, const char* format) {
  if (!r.at(key).is_number()) return "-";
  return fmt::format(fmt::runtime(format), r.at(key).get<double>());
}

std::string who(const row& r) {
  const std::string rung = text(r, "rung");
  return rung.empty() || text(r, "provider") == "lab" ? text(r, "provider")
                                                      : text(r, "provider") + ' ' + rung;
}

// How many times as long as ours; ours shows its verdict instead.
std::string against(const row& r, const row* ours) {
  if (r.at("ratio").is_array()) {
    const auto& ratio = r.at("ratio");
    return fmt::format("{:7} {:.2f} [{:.2f} {:.2f}]", text(r, "verdict"), ratio[1].get<double>(),
                       ratio[0].get<double>(), ratio[2].get<double>());
  }
  if (!ours || &r == ours || !r.at("ms").is_number() || !ours->at("ms").is_number()) return "";
  return fmt::format("        {:.2f}", r.at("ms").get<double>() / ours->at("ms").get<double>());
}

// The rows of one case, ours first.
struct group {
  rows members;
  int rank = 5;
  double ratio = 0;
  const row* ours() const {
    for (const row& r : members)
      if (text(r, "provider") == "ninefold" && text(r, "rung").empty()) return &r;
    return nullptr;
  }
};

int rank_of(const row& r) {
  if (text(r, "check") == "failed") return 0;
  static const std::map<std::string, int> ranks{
      {"LOSS", 1}, {"UNCLEAR", 2}, {"TIE", 4}, {"WIN", 5}};
  const auto found = ranks.find(text(r, "verdict"));
  return found == ranks.end() ? 3 : found->second;
}

// Rows come case by case; the ceiling's row closes its case.
std::vector<group> grouped(const rows& all) {
  std::vector<group> out;
  std::string last;
  for (const row& r : all) {
    const bool stream = text(r, "provider") == "lab";
    const std::string key = text(r, "op") + text(r, "direction") + text(r, "device") +
                            text(r, "dtype") + text(r, "case");
    if (!stream && key != last) {
      out.emplace_back();
      last = key;
    }
    if (!out.empty()) out.back().members.push_back(r);
  }
  for (group& g : out) {
    if (const row* ours = g.ours()) {
      g.rank = rank_of(*ours);
      if (ours->at("ratio").is_array()) g.ratio = ours->at("ratio")[1].get<double>();
    }
  }
  return out;
}

void print_group(const group& g, table& to) {
  const row* ours = g.ours();
  bool first = true;
  for (const row& r : g.members) {
    const bool stream = text(r, "provider") == "lab";
    std::string name = stream ? text(r, "case") + " ceiling" : who(r);
    std::string note = against(r, ours);
    if (text(r, "check") != "passed") note = text(r, "check");
    to.add({first ? text(r, "case") : "", first ? text(r, "dtype") : "", name.substr(0, 26),
            number(r, "ms", "{:.4g}"), number(r, "gbps", "{:.1f}"),
            r.at("share").is_number() ? fmt::format("{:.0f}%", 100 * r.at("share").get<double>())
                                      : "-",
            note, number(r, "error", "{:.1e}")});
    first = false;
  }
}

void print_reasons(const rows& all) {
  std::map<std::string, int> counts;
  for (const row& r : all)
    if (!text(r, "reason").empty())
      ++counts[fmt::format("{} {}: {}: {}", text(r, "op"), who(r), text(r, "check"),
                           text(r, "reason"))];
  if (counts.empty()) return;
  fmt::print("\nReasons\n");
  for (const auto& [reason, count] : counts)
    fmt::print("  {}{}\n", reason, count > 1 ? fmt::format(" ({} rows)", count) : "");
}

void print_tables(const rows& all) {
  std::vector<group> groups = grouped(all);
  std::vector<std::string> order;
  std::map<std::string, std::vector<const group*>> by_title;
  for (const group& g : groups) {
    const row& r = g.members.front();
    const std::string title = fmt::format("{} {} on {}: {}", text(r, "op"), text(r, "direction"),
                                          text(r, "device"), text(r, "device_name"));
    if (by_title[title].empty()) order.push_back(title);
    by_title[title].push_back(&g);
  }
  std::map<std::string, int> verdicts;
  for (const std::string& title : order) {
    auto& list = by_title[title];
    std::stable_sort(list.begin(), list.end(), [](const group* a, const group* b) {
      return a->rank != b->rank ? a->rank < b->rank : a->ratio < b->ratio;
    });
    table t({{"case", table::align::left},
             {"dtype", table::align::left},
             {"who", table::align::left},
             {"ms"},
             {"GB/s"},
             {"of max"},
             {"rival/ours", table::align::left},
             {"error"}});
    for (const group* g : list) {
      print_group(*g, t);
      if (const row* ours = g->ours()) ++verdicts[text(*ours, "verdict")];
    }
    fmt::print("\n{}\n{}", title, t.text());
  }
  fmt::print("\nAgainst the fastest rival: {} LOSS, {} UNCLEAR, {} TIE, {} WIN, {} without one\n",
             verdicts["LOSS"], verdicts["UNCLEAR"], verdicts["TIE"], verdicts["WIN"], verdicts[""]);
  print_reasons(all);
}

bool selftest_passed(const std::vector<DLDevice>& devices, progress& shown) {
  for (const DLDevice device : devices) {
    shown.show("self-test: planting cheats");
    if (!lab::fine(lab::selftest(device))) return false;
  }
  return true;
}

}  // namespace

int bench(const bench_options& options) {
  if (!options.out.empty()) lab::require_writable(options.out);
  if (!options.publish.empty()) lab::require_writable(options.publish);
  const std::vector<DLDevice> devices = devices_named(options.device);
  progress shown;
  if (!options.publish.empty() && !selftest_passed(devices, shown)) {
    shown.clear();
    fmt::print(stderr, "ninefold: not published: the self-test missed a cheat, see selftest\n");
    return 1;
  }

  rows all;
  bool any = false;
  for (const DLDevice device : devices) {
    lab::suite_settings settings{.chosen = {options.op, options.suite, options.shape, device},
                                 .each = lab::settings_of(options.suite, device)};
    settings.each.seed = options.seed;
    settings.each.hot = options.hot;
    settings.on_case = [&](const lab::suite_progress& p) {
      shown.show(fmt::format("[{}/{}] {}", p.done + 1, p.total, p.text));
    };
    // A shape may exist for one device only.
    if (lab::select_cases(settings.chosen).empty()) continue;
    any = true;
    for (row& r : lab::run_suite(settings)) all.push_back(std::move(r));
  }
  shown.clear();
  if (!any) throw std::invalid_argument("no case matches what was asked for");

  std::string lines;
  for (const row& r : all) lines += r.dump() + '\n';
  if (options.json) {
    fmt::print("{}", lines);
  } else {
    print_tables(all);
  }
  if (!options.out.empty()) lab::write_text(options.out, lines);
  bool failed = false;
  for (const row& r : all)
    failed = failed || (text(r, "provider") == "ninefold" && text(r, "check") == "failed");
  if (!options.publish.empty()) {
    const std::vector<std::string> against_it = lab::reasons_against(all);
    for (const std::string& reason : against_it)
      fmt::print(stderr, "ninefold: not published: {}\n", reason);
    if (!against_it.empty()) return 1;
    lab::write_text(options.publish, lines);
  }
  return failed ? 1 : 0;
}

}  // namespace ninefold::cli
