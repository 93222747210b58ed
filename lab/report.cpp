// The page: headline, losses, a chapter per device and op, what could be wrong, the rows
// themselves.
#include "lab/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lab/report_doubts.hpp"
#include "lab/report_plot.hpp"
#include "lab/report_rows.hpp"
#include "lab/report_sections.hpp"
#include "lab/report_style.hpp"
#include "lab/report_text.hpp"

namespace ninefold::lab {
namespace report {
namespace {

std::string plural(size_t n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

std::string anchor(size_t device, size_t op) { return fmt::format("d{}-{}", device, op); }

page_scope scope_of(const ledger& book) {
  page_scope scope;
  for (const device_group& device : book.devices) {
    for (const measured_case* c : all_cases(device)) {
      if (!c->own || !c->own->ratio) continue;
      scope.lowest_ratio = std::min(scope.lowest_ratio, (*c->own->ratio)[0]);
      scope.highest_ratio = std::max(scope.highest_ratio, (*c->own->ratio)[2]);
    }
  }
  return scope;
}

std::string extreme(const char* name, const measured_case* c) {
  if (!c) return {};
  return fmt::format(
      "<div><dt>{}</dt><dd title=\"{}\">{}<span class=\"sub\">{} {}, {}</span></dd></div>", name,
      html(fingerprint(*c->own)), times(c->middle()), html(c->direction), html(c->dtype),
      html(sizes(c->shape)));
}

std::string headline(const device_group& device) {
  const auto cases = all_cases(device);
  const totals t = count(cases);
  std::set<std::string> commits, days, suites;
  for (const row* r : device.runs) {
    commits.insert(brief_commit(*r));
    if (!r->started.empty()) days.insert(date(r->started));
    if (!r->suite.empty()) suites.insert(r->suite);
  }
  const auto joined = [](const std::set<std::string>& items) {
    std::string text;
    for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
    return html(text.empty() ? missing : text);
  };
  std::string counts, bar;
  const auto counted = [&](const char* name, const char* kind, int n) {
    counts += fmt::format("<div class=\"{}{}\"><dt>{}</dt><dd>{}</dd></div>", kind,
                          n ? "" : " zero", name, n);
  };
  for (const outcome o : {outcome::loss, outcome::unclear, outcome::tie, outcome::win}) {
    const auto it = t.cases.find(o);
    const int n = it == t.cases.end() ? 0 : it->second;
    const std::string kind = std::string("c-") + word(o);
    counted(word(o), kind.c_str(), n);
    if (n) bar += fmt::format("<i class=\"{}\" style=\"flex-grow:{}\"></i>", kind, n);
  }
  counted("absent", "c-absent", t.absent_rows);
  counted("failed", "c-failed", t.failed_rows);
  std::string mean;
  if (t.rated) {
    mean = fmt::format(
        "<div><dt>geometric mean</dt><dd>{}<span class=\"sub\">over all {}, losses included"
        "</span></dd></div>",
        times(t.geometric_mean), plural(static_cast<size_t>(t.rated), "ratio", "ratios"));
  }
  return fmt::format(
      "<section class=\"device\"><h2>{} <small>{}</small></h2>\n<p class=\"meta\">commit <code>{}"
      "</code> · measured {} · suite {} · {}{}</p>\n<dl class=\"counts\">{}</dl>\n<div "
      "class=\"bar\" aria-hidden=\"true\">{}</div>\n<dl class=\"ratios\">{}{}{}</dl></section>\n",
      html(device.device_name), device.device == "cuda" ? "CUDA" : html(device.device),
      joined(commits), joined(days), joined(suites), plural(cases.size(), "case", "cases"),
      t.stale_cases ? fmt::format(" · <b class=\"stale-mark\">{} stale</b>", t.stale_cases) : "",
      counts, bar, extreme("worst ratio", t.worst), mean, extreme("best ratio", t.best));
}

struct listed {
  const device_group* device;
  const op_group* op;
  const measured_case* at;
};

std::vector<listed> with_result(const ledger& book, std::initializer_list<outcome> wanted) {
  std::vector<listed> found;
  for (const device_group& device : book.devices) {
    for (const op_group& op : device.ops) {
      for (const measured_case* c : op.losses_first()) {
        if (std::find(wanted.begin(), wanted.end(), c->result()) != wanted.end()) {
          found.push_back({&device, &op, c});
        }
      }
    }
  }
  return found;
}

std::string cell(const char* name, const std::string& content, const char* kind = "") {
  return fmt::format("<td data-label=\"{}\"{}><div>{}</div></td>", name, kind, content);
}

std::string losses(const ledger& book, const page_scope& scope) {
  auto found = with_result(book, {outcome::loss});
  std::stable_sort(found.begin(), found.end(), [](const listed& a, const listed& b) {
    return a.at->middle().value_or(0) < b.at->middle().value_or(0);
  });
  std::string out = "<section id=\"losses\"><h2>Losses first</h2>\n";
  if (found.empty()) return out + "<p>No case was lost to its fastest rival.</p></section>\n";
  out += "<table class=\"cards\">" +
         table_head({{"rival’s time over ours"},
                     {"case"},
                     {"device"},
                     {"ours"},
                     {"fastest rival"},
                     {"why"}}) +
         "<tbody>\n";
  for (const auto& [device, op, c] : found) {
    const row& own = *c->own;
    out += fmt::format("<tr title=\"{}\">", html(fingerprint(own)));
    out += cell(
        "ratio",
        fmt::format("<b class=\"lost\">{}</b>{}<span class=\"sub\">{}</span>", times(c->middle()),
                    ratio_strip(own, scope.lowest_ratio, scope.highest_ratio), range(own)),
        " class=\"ratio\"");
    out += cell("case",
                fmt::format("{} {} {}{}<span class=\"sub\">{} = {}, {}</span>", html(op->op),
                            html(c->direction), html(c->dtype), stale_mark(&own),
                            html(size_names(c->shape)), html(sizes(c->shape)), html(c->title())));
    out += cell("device", html(device->device_name));
    out += cell("ours", fmt::format("{} ms<span class=\"sub\">{} of {}</span>", digits(own.ms),
                                    percent(own.share),
                                    html(own.ceiling.empty() ? "ceiling" : own.ceiling)));
    out += cell("fastest rival", fmt::format("{}<span class=\"sub\">{} ms</span>", html(own.rival),
                                             digits(c->rival_ms())));
    out +=
        cell("why", own.reason.empty() ? "<em>no reason given in the row</em>" : html(own.reason)) +
        "</tr>\n";
  }
  return out + "</tbody></table></section>\n";
}

// What is missing in many cases for one reason, but for the numbers in it, is told once.
struct absence {
  const listed* first;
  const row* r;
  size_t cases;
};

std::string absences(const std::vector<listed>& all) {
  std::map<std::string, absence> found;
  for (const listed& l : all) {
    for (const row* r : l.at->rows()) {
      if (r->result() != outcome::absent) continue;
      std::string key = l.device->device_name + '\n' + l.op->op + '\n' + r->label() + '\n';
      for (const char c : r->reason)
        if (c < '0' || c > '9') key += c;
      ++found.try_emplace(key, absence{&l, r, 0}).first->second.cases;
    }
  }
  std::string lines;
  for (const auto& [key, a] : found) {
    lines += fmt::format(
        "<li title=\"{}\">{} <b>{}</b> {}, {} <span class=\"sub\">{}: {}</span></li>\n",
        html(fingerprint(*a.r)), badge(outcome::absent), html(a.r->label()), html(a.first->op->op),
        plural(a.cases, "case", "cases"), html(a.first->device->device_name),
        a.r->reason.empty() ? "no reason given in the row" : html(a.r->reason));
  }
  return lines;
}

// What is neither won nor lost has a line each; so has every failed rival.
std::string undecided(const ledger& book) {
  const std::vector<listed> all =
      with_result(book, {outcome::loss, outcome::failed, outcome::unclear, outcome::absent,
                         outcome::unrated, outcome::tie, outcome::win});
  std::string lines;
  const auto line = [&](outcome o, const listed& l, const row& r, const std::string& why) {
    lines += fmt::format(
        "<li title=\"{}\">{} <b>{}</b> {} {} {}, {} {}{} <span class=\"sub\">{}</span></li>\n",
        html(fingerprint(r)), badge(o), html(r.label()), html(l.op->op), html(l.at->direction),
        html(l.at->dtype), html(sizes(l.at->shape)), html(l.at->title()), stale_mark(&r),
        html(l.device->device_name + (why.empty() ? "" : ": " + why)));
  };
  for (const outcome wanted : {outcome::failed, outcome::unclear}) {
    for (const listed& l : all) {
      for (const row* r : l.at->rows()) {
        const bool own = r == l.at->own;
        if (r->result() != wanted || (wanted == outcome::unclear && !own)) continue;
        line(wanted, l, *r,
             wanted == outcome::unclear
                 ? fmt::format("{} against {} {}", range(*r), r->rival, r->reason)
             : r->reason.empty() ? std::string("no reason given in the row")
                                 : r->reason);
      }
    }
  }
  lines += absences(all);
  if (lines.empty()) return {};
  return "<section id=\"undecided\"><h2>Failed, unclear, absent</h2>\n<ul class=\"list\">\n" +
         lines + "</ul></section>\n";
}

std::string chapter(const device_group& device, const op_group& op, const page_scope& scope,
                    const std::string& id) {
  const totals t = count(all_cases(op));
  std::string summary;
  for (const auto& [o, n] : t.cases) summary += fmt::format("<span>{} {}</span>", badge(o), n);
  if (t.rated) {
    summary +=
        fmt::format("<span class=\"sub-inline\">worst {}, geometric mean {}, best {}</span>",
                    times(t.worst->middle()), times(t.geometric_mean), times(t.best->middle()));
  }
  return fmt::format(
             "<section class=\"op\" id=\"{}\"><h3>{} <small>on {}</small></h3>\n<p "
             "class=\"summary\">{}</p>\n",
             id, html(op.op), html(device.device_name), summary) +
         matrix(op) + pictures(device, op) + ladder(op) + memory(op) + numerics(op) +
         every_case(op, scope) + "</section>\n";
}

std::string fingerprints(const ledger& book) {
  std::string out = "<section id=\"runs\"><h2>Fingerprints</h2>\n";
  for (const device_group& device : book.devices) {
    for (const row* r : device.runs) {
      nlohmann::json known = nlohmann::json::object();
      for (const char* key : {"run", "started", "commit", "dirty", "suite", "device_name",
                              "machine", "clocks", "timer", "cache", "schema"}) {
        if (const auto it = r->raw->find(key); it != r->raw->end()) known[key] = *it;
      }
      out += fmt::format(
          "<details><summary>{}, {}, commit <code>{}</code></summary><pre>{}</pre></details>\n",
          html(device.device_name), html(r->started.empty() ? "time unknown" : r->started),
          html(brief_commit(*r)),
          html(known.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)));
    }
    if (device.ceilings.empty()) continue;
    std::string lines;
    for (const row* r : device.ceilings) {
      lines += fmt::format(
          "<tr title=\"{}\"><th scope=\"row\">{}</th><td "
          "class=\"left\">{}</td><td>{}</td><td>{}</td></tr>\n",
          html(fingerprint(*r)), html(r->ceiling.empty() ? r->case_name : r->ceiling),
          html(r->rung), digits(r->gbps), digits(r->tflops));
    }
    out += scroll_box("Ceilings of " + device.device_name,
                      "<table class=\"plain\">" +
                          table_head({{"ceiling", true}, {"kernel", true}, {"GB/s"}, {"Tflop/s"}}) +
                          "<tbody>" + lines + "</tbody></table>");
  }
  return out + "</section>\n";
}

}  // namespace
}  // namespace report

std::string html_report(const std::vector<nlohmann::json>& rows, const source_hashes& current) {
  using namespace report;
  const ledger book = read_rows(rows, current);
  const page_scope scope = scope_of(book);

  std::string title = "Ninefold ledger";
  for (const device_group& device : book.devices) title += ", " + device.device_name;
  std::string headlines, chapters, contents = "<a href=\"#losses\">Losses</a>";
  for (size_t d = 0; d < book.devices.size(); ++d) {
    const device_group& device = book.devices[d];
    headlines += headline(device);
    for (size_t i = 0; i < device.ops.size(); ++i) {
      chapters += chapter(device, device.ops[i], scope, anchor(d, i));
      contents += fmt::format("<a href=\"#{}\">{}, {}</a>", anchor(d, i), html(device.ops[i].op),
                              html(device.device_name));
    }
  }
  contents +=
      "<a href=\"#doubts\">How this could be wrong</a><a href=\"#runs\">Fingerprints</a><a "
      "href=\"#rows\">Rows</a>";
  if (book.devices.empty()) headlines = "<p>There are no rows to report.</p>\n";

  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<meta name=\"color-scheme\" "
      "content=\"light dark\">\n<title>{}</title>\n<style>{}</style></head>\n<body><main>\n"
      "<header><h1>Ninefold ledger</h1></header>\n{}",
      html(title), style_sheet(), headlines);
  page +=
      "<section class=\"how\"><h2>How to read this</h2><p>A ratio is the fastest rival’s time over "
      "ours, taken from interleaved pairs in one run: above 1 we are faster, and the thin line "
      "through a dot is its interval. LOSS, TIE (within 2 %) and WIN are given only where the "
      "whole interval says so; UNCLEAR is never a win. A case without a rival shows its share of a "
      "ceiling. Shares are of ceilings measured in the same "
      "run at the same volume, never of "
      "a data sheet, and bytes are those of the op’s definition.</p></section>\n<nav "
      "aria-label=\"Contents\">" +
      contents + "</nav>\n";
  page += losses(book, scope) + undecided(book) + chapters + doubts(book) + fingerprints(book);
  page += fmt::format(
      "<section id=\"rows\"><h2>Rows</h2><p>All {} are in this file, in full, in the element "
      "<code>ledger-rows</code>.{}{}</p></section>\n</main>\n",
      plural(rows.size(), "row", "rows"),
      book.superseded ? fmt::format(" {} of an earlier run of the same case and not shown above.",
                                    plural(book.superseded, "is", "are"))
                      : "",
      book.unreadable
          ? fmt::format(" {} not a ledger row and left out.", plural(book.unreadable, "is", "are"))
          : "");
  // A line a row, so that a text editor copes with the file.
  page += "<script type=\"application/json\" id=\"ledger-rows\">[";
  for (size_t i = 0; i < rows.size(); ++i) page += (i ? ",\n" : "\n") + script_json(rows[i]);
  page += fmt::format("\n]</script>\n<script>{}</script>\n</body></html>\n", script());
  return page;
}

}  // namespace ninefold::lab
