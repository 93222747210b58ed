// The ledger against the rivals, all ops in one table: what `python -m ninefold.lab` measured.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lab/report_markdown.hpp"
#include "lab/report_text.hpp"

namespace ninefold::lab::report {
namespace {

struct entry {
  const op_group* op;
  const measured_case* at;

  std::string op_name() const { return op->op.substr(0, op->op.find(through_torch)); }
};

// "norm layer residual": cases that do unlike work have unlike rivals, and no mean in common.
// Options that only say how much or where it lies are not named.
std::string variant(const entry& e) {
  std::string text = e.op_name();
  for (const auto& [name, value] : e.at->options) {
    if (name != "kind" && name != "tensors" && name != "gpt2_layers" && name != "offset")
      text += ' ' + name;
  }
  return text;
}

std::vector<entry> entries_of(const device_group& device) {
  std::vector<entry> found;
  for (const op_group& op : device.ops) {
    if (!op.op.ends_with(through_torch)) continue;
    for (const measured_case& c : op.cases) found.push_back({&op, &c});
  }
  return found;
}

std::string source_line(const device_group& device, const std::vector<entry>& entries) {
  std::vector<const measured_case*> cases;
  for (const entry& e : entries) cases.push_back(e.at);
  return source_line(device, cases);
}

std::string pair(const std::string& ours, const std::string& rival) {
  return ours == missing && rival == missing ? missing : fmt::format("{} / {}", ours, rival);
}

std::string line(const entry& e, bool clocks) {
  const row empty;
  const row& own = e.at->own ? *e.at->own : empty;
  const row* found = e.at->rival();
  const row& rival = found ? *found : empty;
  const outcome o = e.at->result();
  std::string text = fmt::format(
      "| {}{} | {} {} {} | {} | {} | {} | {} | {} | {} |",
      o == outcome::loss || o == outcome::failed ? fmt::format("**{}**", word(o)) : word(o),
      own.stale ? ", stale" : "", markdown(e.op_name()), markdown(e.at->direction),
      markdown(e.at->dtype), case_name(*e.at), digits(own.ms),
      markdown(own.rival.empty() ? missing : own.rival), digits(rival.ms), times(e.at->middle()),
      range(own));
  if (clocks) text += fmt::format(" {} | {} |", times(own.kernel_ratio), times(own.call_ratio));
  return text + fmt::format(" {} | {} | {} |\n",
                            pair(bytes(own.peak_bytes), bytes(rival.peak_bytes)),
                            pair(bytes(own.kept_bytes), bytes(rival.kept_bytes)),
                            pair(scientific(own.error), scientific(rival.error)));
}

bool has_clocks(const std::vector<entry>& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const entry& e) {
    return e.at->own && (e.at->own->kernel_ratio || e.at->own->call_ratio);
  });
}

std::string reasons(const std::vector<entry>& entries) {
  std::string text;
  for (const entry& e : entries) {
    const outcome o = e.at->result();
    if ((o != outcome::loss && o != outcome::failed) || e.at->own->reason.empty()) continue;
    text += fmt::format("- {} {} {} {}: {}\n", markdown(e.op_name()), markdown(e.at->direction),
                        markdown(e.at->dtype), case_name(*e.at), markdown(e.at->own->reason));
  }
  return text.empty() ? text : "\nWhy:\n\n" + text;
}

}  // namespace

std::string rivals_table(const ledger& book, const std::string& device) {
  std::string text;
  for (const device_group& group : book.devices) {
    std::vector<entry> entries = entries_of(group);
    if (group.device != device || entries.empty()) continue;
    std::stable_sort(entries.begin(), entries.end(),
                     [](const entry& a, const entry& b) { return a.at->rank() < b.at->rank(); });
    const bool clocks = has_clocks(entries);
    text += fmt::format(
        "{}{}\n| verdict | what | shape | ours, ms | fastest rival | its ms | its time over ours | "
        "interval |{} peak, ours / its | kept, ours / its | error, ours / its |\n|---|---|---|--:|"
        "---|--:|--:|--:|{}--:|--:|--:|\n",
        text.empty() ? "" : "\n", source_line(group, entries),
        clocks ? " kernels alone | host included |" : "", clocks ? "--:|--:|" : "");
    for (const entry& e : entries) text += line(e, clocks);
    text += reasons(entries);
  }
  return text;
}

std::string rivals_summary(const ledger& book, const std::string& device) {
  std::string text;
  for (const device_group& group : book.devices) {
    const std::vector<entry> entries = entries_of(group);
    if (group.device != device || entries.empty()) continue;
    struct sums {
      std::vector<const measured_case*> cases;
      ratio_mean kernels, calls;
    };
    std::map<std::pair<std::string, std::string>, sums> by_op;
    for (const entry& e : entries) {
      sums& s = by_op[{variant(e), e.at->direction}];
      s.cases.push_back(e.at);
      if (!e.at->own) continue;
      if (e.at->own->kernel_ratio) s.kernels.add(*e.at->own->kernel_ratio);
      if (e.at->own->call_ratio) s.calls.add(*e.at->own->call_ratio);
    }
    const bool clocks = has_clocks(entries);
    text += fmt::format(
        "{}{}\n| op | direction | LOSS | FAILED | UNCLEAR | TIE | WIN | no verdict | worst | "
        "geometric mean | best |{}\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|{}\n",
        text.empty() ? "" : "\n", source_line(group, entries),
        clocks ? " kernels alone | host included |" : "", clocks ? "--:|--:|" : "");
    for (const auto& [key, s] : by_op) {
      totals t = count(s.cases);
      const auto ratio = [](const measured_case* c) {
        return times(c ? c->middle() : std::nullopt);
      };
      text +=
          fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                      markdown(key.first), markdown(key.second), t.cases[outcome::loss],
                      t.cases[outcome::failed], t.cases[outcome::unclear], t.cases[outcome::tie],
                      t.cases[outcome::win], t.cases[outcome::absent] + t.cases[outcome::unrated],
                      ratio(t.worst), t.rated ? times(t.geometric_mean) : missing, ratio(t.best));
      if (clocks)
        text += fmt::format(" {} | {} |", times(s.kernels.value()), times(s.calls.value()));
      text += '\n';
    }
  }
  return text;
}

}  // namespace ninefold::lab::report
