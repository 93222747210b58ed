// The Markdown tables, and the filling of marked places in a page.
#include "lab/report_markdown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "lab/report.hpp"
#include "lab/report_rows.hpp"
#include "lab/report_text.hpp"

namespace ninefold::lab {
namespace report {

std::string case_name(const measured_case& c) {
  std::string shape;
  for (const auto& [name, size] : c.shape) {
    shape += fmt::format("{}{} {}", shape.empty() ? "" : ", ", name, grouped(size));
  }
  const std::string title = c.title();
  if (title.empty()) return markdown(shape);
  return markdown(shape.empty() ? title : fmt::format("{} ({})", shape, title));
}

std::string source_line(const device_group& device,
                        const std::vector<const measured_case*>& cases) {
  std::set<std::string> commits, days, suites;
  for (const measured_case* c : cases) {
    for (const row* r : c->rows()) {
      commits.insert(brief_commit(*r));
      if (!r->started.empty()) days.insert(date(r->started));
      if (!r->suite.empty()) suites.insert(r->suite);
    }
  }
  const auto joined = [](const char* name, const std::set<std::string>& items) {
    std::string text;
    for (const std::string& item : items)
      text += fmt::format("{}{}", text.empty() ? "" : " and ", item);
    return text.empty() ? text : fmt::format(", {} {}", name, markdown(text));
  };
  const totals t = count(cases);
  std::string line = markdown(device.device_name) + joined("commit", commits) +
                     joined("measured", days) + joined("suite", suites) + ".";
  if (t.stale_cases) {
    line += fmt::format(" **{} stale**: the sources have changed since.", t.stale_cases);
  }
  return line + "\n";
}

namespace {

std::string code(const std::string& text) { return markdown(text.empty() ? missing : text); }

std::string case_table(const op_group& op) {
  std::string table =
      "| verdict | direction | dtype | shape | ms | GB/s | of ceiling | fastest rival | its time "
      "over ours | interval |\n|---|---|---|---|--:|--:|--:|---|--:|--:|\n";
  std::string reasons;
  for (const measured_case* c : op.losses_first()) {
    const outcome o = c->result();
    const row empty;
    const row& r = c->own ? *c->own : empty;
    const std::string verdict =
        o == outcome::loss || o == outcome::failed ? fmt::format("**{}**", word(o)) : word(o);
    table += fmt::format("| {}{} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", verdict,
                         r.stale ? ", stale" : "", code(c->direction), code(c->dtype),
                         case_name(*c), digits(r.ms), digits(r.gbps), percent(r.share),
                         code(r.rival), times(c->middle()), range(r));
    if ((o == outcome::loss || o == outcome::failed) && !r.reason.empty()) {
      reasons += fmt::format("- {} {} {}: {}\n", code(c->direction), code(c->dtype), case_name(*c),
                             markdown(r.reason));
    }
  }
  return reasons.empty() ? table : table + "\nWhy the losses:\n\n" + reasons;
}

std::string summary_table(const op_group& op) {
  std::string table =
      "| direction | dtype | LOSS | FAILED | UNCLEAR | TIE | WIN | no verdict | worst | geometric "
      "mean | best | of ceiling |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const auto& column : op.columns()) {
    totals t = count(column);
    std::optional<double> low, high;
    for (const measured_case* c : column) {
      if (!c->own || !c->own->share) continue;
      low = std::min(low.value_or(*c->own->share), *c->own->share);
      high = std::max(high.value_or(*c->own->share), *c->own->share);
    }
    const auto ratio = [](const measured_case* c) { return times(c ? c->middle() : std::nullopt); };
    table += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {}–{} |\n",
        code(column.front()->direction), code(column.front()->dtype), t.cases[outcome::loss],
        t.cases[outcome::failed], t.cases[outcome::unclear], t.cases[outcome::tie],
        t.cases[outcome::win], t.cases[outcome::absent] + t.cases[outcome::unrated], ratio(t.worst),
        t.rated ? times(t.geometric_mean) : missing, ratio(t.best), percent(low), percent(high));
  }
  return table;
}

std::string rung_table(const op_group& op) {
  // Columns from the slowest rung to the fastest, by their mean share.
  std::map<std::string, std::pair<double, int>> shares;
  for (const measured_case& c : op.cases) {
    for (const row* r : c.rungs) {
      auto& [sum, n] = shares[r->rung];
      sum += r->share.value_or(0);
      ++n;
    }
  }
  if (shares.empty()) return "No rung was measured by name.\n";
  std::vector<std::string> order;
  for (const auto& [name, share] : shares) order.push_back(name);
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return shares[a].first / shares[a].second < shares[b].first / shares[b].second;
  });

  std::string table = "| direction | dtype | shape |", rule = "|---|---|---|";
  for (const std::string& name : order) {
    table += fmt::format(" {} |", markdown(name));
    rule += "--:|";
  }
  table += " library’s choice |\n" + rule + "--:|\n";
  for (const auto& column : op.columns()) {
    for (const measured_case* c : column) {
      if (c->rungs.empty()) continue;
      const auto timed = [](const row* r) -> std::string {
        if (!r) return missing;
        if (!r->ms) return markdown(r->check.empty() ? missing : r->check);
        return fmt::format("{} ms ({}){}{}", digits(r->ms), percent(r->share),
                           r->check == "failed" ? ", FAILED" : "", r->stale ? ", stale" : "");
      };
      table += fmt::format("| {} | {} | {} |", code(c->direction), code(c->dtype), case_name(*c));
      for (const std::string& name : order) {
        const auto at = std::find_if(c->rungs.begin(), c->rungs.end(),
                                     [&](const row* r) { return r->rung == name; });
        table += fmt::format(" {} |", timed(at == c->rungs.end() ? nullptr : *at));
      }
      table += fmt::format(" {} |\n", timed(c->own));
    }
  }
  return table;
}

struct table_name {
  std::string op, device, kind;
};

table_name parsed(const std::string& name, const std::string& where) {
  const size_t first = name.find('-');
  const size_t second = first == std::string::npos ? first : name.find('-', first + 1);
  table_name t;
  t.op = name.substr(0, first);
  if (first != std::string::npos) t.device = name.substr(first + 1, second - first - 1);
  if (second != std::string::npos) t.kind = name.substr(second + 1);
  const bool whole = second == std::string::npos || t.kind == "rungs" || t.kind == "summary";
  if (t.op.empty() || (t.device != "cpu" && t.device != "cuda") || !whole) {
    throw std::invalid_argument(
        fmt::format("{}: no ledger table is called '{}'; expected OP-cpu or OP-cuda, OP being "
                    "rivals for all of "
                    "them, with -summary or -rungs",
                    where, name));
  }
  return t;
}

std::string table_of(const ledger& book, const table_name& name) {
  std::string text;
  if (name.op == "rivals")
    text = name.kind == "summary" ? rivals_summary(book, name.device)
                                  : rivals_table(book, name.device);
  for (const device_group& device : book.devices) {
    if (device.device != name.device) continue;
    for (const op_group& op : device.ops) {
      if (op.op != name.op) continue;
      if (!text.empty()) text += '\n';
      text += source_line(device, all_cases(op)) + '\n' +
              (name.kind == "rungs"     ? rung_table(op)
               : name.kind == "summary" ? summary_table(op)
                                        : case_table(op));
    }
  }
  if (!text.empty()) return text;
  return fmt::format("No rows of {} on {} are committed yet.\n", markdown(name.op), name.device);
}

// The name inside `<!-- ledger:begin NAME -->`, if the line holds such a marker.
std::optional<std::string> marker(const std::string& line, const std::string& kind) {
  const std::string opening = fmt::format("<!-- ledger:{} ", kind);
  const size_t begin = line.find(opening);
  if (begin == std::string::npos) return std::nullopt;
  const size_t end = line.find(" -->", begin);
  if (end == std::string::npos) return "";
  return line.substr(begin + opening.size(), end - begin - opening.size());
}

}  // namespace
}  // namespace report

std::string markdown_tables(const std::vector<nlohmann::json>& rows, const source_hashes& current) {
  using namespace report;
  const ledger book = read_rows(rows, current);
  std::string text;
  for (const device_group& device : book.devices) {
    for (const op_group& op : device.ops) {
      text += fmt::format("{}## {} on {}\n\n{}\n{}\n{}", text.empty() ? "" : "\n", markdown(op.op),
                          markdown(device.device_name), source_line(device, all_cases(op)),
                          summary_table(op), case_table(op));
      const bool laddered = std::any_of(op.cases.begin(), op.cases.end(),
                                        [](const auto& c) { return !c.rungs.empty(); });
      if (laddered) text += fmt::format("\n{}", rung_table(op));
    }
  }
  return text;
}

std::string fill_markdown(const std::string& text, const std::vector<nlohmann::json>& rows,
                          const source_hashes& current) {
  using namespace report;
  const ledger book = read_rows(rows, current);
  std::string filled, open;
  size_t opened = 0, number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string line = text.substr(begin, end - begin);
    begin = end;
    const std::string where = fmt::format("line {}", ++number);
    if (const auto name = marker(line, "begin")) {
      if (opened) {
        throw std::invalid_argument(fmt::format(
            "{}: ledger:begin {} inside ledger:begin {} of line {}", where, *name, open, opened));
      }
      filled += line + "\n" + table_of(book, parsed(*name, where)) + "\n";
      open = *name;
      opened = number;
    } else if (const auto closed = marker(line, "end")) {
      if (!opened || *closed != open) {
        throw std::invalid_argument(
            fmt::format("{}: ledger:end {} without its ledger:begin", where, *closed));
      }
      filled += line;
      opened = 0;
    } else if (!opened) {
      filled += line;
    }
  }
  if (opened) {
    throw std::invalid_argument(
        fmt::format("line {}: ledger:begin {} without its ledger:end", opened, open));
  }
  return filled;
}

}  // namespace ninefold::lab
