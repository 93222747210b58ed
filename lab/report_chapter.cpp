// The pictures of an op, and the fold with every case and its fingerprints.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lab/report_plot.hpp"
#include "lab/report_sections.hpp"
#include "lab/report_text.hpp"

namespace ninefold::lab::report {
namespace {

constexpr int naive_style = 9, last_rival_style = 4;

// Ours, the rivals, and the slowest of our rungs: what the ladder started from.
std::vector<series> drawn_series(const op_group& op) {
  std::vector<series> all{{"ninefold", 0}};
  struct mean {
    double sum = 0;
    int count = 0;
  };
  std::map<std::string, mean> rungs;
  for (const measured_case& c : op.cases) {
    for (const row* r : c.rivals) {
      const auto same = [&](const series& s) { return s.name == r->label(); };
      if (!r->gbps || std::any_of(all.begin(), all.end(), same)) continue;
      all.push_back({r->label(), std::min(static_cast<int>(all.size()), last_rival_style)});
    }
    for (const row* r : c.rungs) {
      if (!r->share) continue;
      rungs[r->label()].sum += *r->share;
      ++rungs[r->label()].count;
    }
  }
  int most = 0;
  for (const auto& [name, m] : rungs) most = std::max(most, m.count);
  const std::string* slowest = nullptr;
  for (const auto& [name, m] : rungs) {
    if (2 * m.count < most) continue;  // rungs for a few shapes say little about the op
    if (!slowest || m.sum / m.count < rungs[*slowest].sum / rungs[*slowest].count) slowest = &name;
  }
  if (slowest && rungs.size() > 1) all.push_back({*slowest, naive_style});
  return all;
}

std::string roofline_figure(const device_group& device, const op_group& op) {
  const auto cases = all_cases(op);
  const std::string picture = roofline(cases, device.ceilings);
  if (picture.empty()) return {};
  std::vector<std::pair<std::string, bool>> kinds;  // dtype, hollow
  const measured_case* lowest = nullptr;
  int near = 0, measured = 0;
  for (const auto* c : cases) {
    if (!c->own || !c->own->share || !c->own->intensity()) continue;
    const std::pair<std::string, bool> kind{c->dtype, c->direction != "forward"};
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    ++measured;
    near += *c->own->share >= 0.9;
    if (!lowest || *c->own->share < *lowest->own->share) lowest = c;
  }
  std::string key;
  for (const auto& [dtype, hollow] : kinds) {
    key += fmt::format("<span>{}{} {}</span>", dtype_swatch(dtype, hollow), html(dtype),
                       hollow ? "backward" : "forward");
  }
  std::string text =
      "Each mark is one case of ours, each line a ceiling at the volume where it was highest. "
      "Shares are of the ceiling at a case’s own volume:";
  if (lowest) {
    text += fmt::format(
        " {} of {} cases reach 90 % of theirs. The lowest is {} {} {} at {} = {} with {}.", near,
        measured, html(lowest->direction), html(lowest->dtype), html(lowest->title()),
        html(size_names(lowest->shape)), html(sizes(lowest->shape)), percent(lowest->own->share));
  }
  return fmt::format(
      "<figure class=\"roofline\">{}<figcaption><b>Roofline.</b> {}<span class=\"key\">{}</span>"
      "</figcaption></figure>\n",
      picture, text, key);
}

std::string provider_line(const row& r) {
  return fmt::format(
      "<tr title=\"{}\"><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
      "<td>{}</td><td>{}</td><td>{}</td><td class=\"left\">{}</td></tr>\n",
      html(fingerprint(r)), html(r.label()), stale_mark(&r), digits(r.ms), digits(r.gbps),
      percent(r.share), bytes(r.peak_bytes), bytes(r.kept_bytes), scientific(r.error),
      html(r.check.empty() ? missing : r.check), html(r.reason));
}

}  // namespace

std::string pictures(const device_group& device, const op_group& op) {
  const std::vector<series> all = drawn_series(op);
  std::string panels;
  for (const auto& column : op.columns()) {
    const std::string picture = bandwidth(column, all);
    if (picture.empty()) continue;
    panels += fmt::format("<figure><figcaption>{} {}, GB/s</figcaption>{}</figure>\n",
                          html(column.front()->direction), html(column.front()->dtype), picture);
  }
  std::string out = roofline_figure(device, op);
  if (!panels.empty()) {
    std::string key;
    for (const series& s : all) {
      key += fmt::format("<span>{}{}</span>", swatch(s.style), html(s.name));
    }
    key += fmt::format("<span>{}measured ceiling</span>", ceiling_swatch());
    out += "<h4>Bandwidth against N</h4>\n<p class=\"key\">" + key +
           "</p>\n<p class=\"note\">The line goes through the largest shape at each N; shapes with "
           "less than a sixteenth of the most elements stand alone.</p>\n<div class=\"panels\">\n" +
           panels + "</div>\n";
  }
  return out;
}

std::string every_case(const op_group& op, const page_scope& scope) {
  std::string body;
  for (const measured_case* c : op.losses_first()) {
    const row* own = c->own;
    std::string numbers = "<td></td><td></td><td></td><td></td><td></td>";
    if (own) {
      numbers = fmt::format(
          "<td class=\"ratio left\"><b>{}</b>{}<span "
          "class=\"sub\">{}</span></td><td>{}</td><td>{}</td>"
          "<td>{}</td><td class=\"left\">{}<span class=\"sub\">{} ms</span></td>",
          times(c->middle()), ratio_strip(*own, scope.lowest_ratio, scope.highest_ratio),
          range(*own), digits(own->ms), digits(own->gbps), percent(own->share),
          html(own->rival.empty() ? missing : own->rival), digits(c->rival_ms()));
    }
    body += fmt::format(
        "<tbody class=\"case\"><tr title=\"{}\"><td class=\"left\">{}{}</td><td class=\"left\">{}"
        "<span class=\"sub\">{}</span></td><td class=\"left\">{}</td>{}</tr>\n",
        own ? html(fingerprint(*own)) : "", badge(c->result()), stale_mark(own), html(c->direction),
        html(c->dtype), case_cell(*c), numbers);
    std::string lines;
    for (const row* r : c->rows()) lines += provider_line(*r);
    body += fmt::format(
        "<tr class=\"fold\"><td colspan=\"8\"><details><summary>everyone’s numbers and "
        "fingerprint</summary><table class=\"plain inner\">{}"
        "<tbody>{}</tbody></table>{}</details></td></tr>"
        "</tbody>\n",
        table_head({{"provider", true},
                    {"ms"},
                    {"GB/s"},
                    {"of ceiling"},
                    {"peak"},
                    {"kept"},
                    {"error"},
                    {"check"},
                    {"reason", true}}),
        lines, own ? fmt::format("<pre>{}</pre>", html(full_fingerprint(*own))) : "");
  }
  if (body.empty()) return {};
  return fmt::format(
             "<details class=\"every\"><summary>Every case ({}), losses first, with "
             "fingerprints</summary>\n",
             op.cases.size()) +
         scroll_box("Every case of " + op.op, "<table class=\"cases\">" +
                                                  table_head({{"verdict", true},
                                                              {"what", true},
                                                              {"shape", true},
                                                              {"rival’s time over ours", true},
                                                              {"ms"},
                                                              {"GB/s"},
                                                              {"of ceiling"},
                                                              {"fastest rival", true}}) +
                                                  body + "</table>") +
         "</details>\n";
}

}  // namespace ninefold::lab::report
