// What a case needs beyond its inputs and outputs.
#include <fmt/format.h>

#include <algorithm>

#include "lab/report_sections.hpp"
#include "lab/report_text.hpp"

namespace ninefold::lab::report {
namespace {

double bytes_beyond(const row& r) { return r.peak_bytes.value_or(0) + r.kept_bytes.value_or(0); }

}  // namespace

std::string memory(const op_group& op) {
  std::string body;
  bool nothing = true;
  for (const auto& column : op.columns()) {
    // All providers at one shape, the one where we need most: sizes of different shapes do not
    // compare.
    const auto largest = std::max_element(column.begin(), column.end(), [](auto* a, auto* b) {
      const auto need = [](const measured_case* c) {
        return std::pair(c->own ? bytes_beyond(*c->own) : -1, c->elements());
      };
      return need(a) < need(b);
    });
    std::string lines;
    int count = 0;
    for (const row* r : (*largest)->rows()) {
      if (r->ours() && !r->rung.empty()) continue;
      if (!r->peak_bytes && !r->kept_bytes && !r->workspace_bytes) continue;
      if (bytes_beyond(*r) > 0) nothing = false;
      lines += fmt::format("{}<th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                           count ? fmt::format("<tr title=\"{}\">", html(fingerprint(*r))) : "",
                           html(r->label()), stale_mark(r), bytes(r->peak_bytes),
                           bytes(r->kept_bytes), bytes(r->workspace_bytes));
      ++count;
    }
    if (!count) continue;
    body += fmt::format(
        "<tr class=\"first\"><td rowspan=\"{0}\">{1}</td><td rowspan=\"{0}\">{2}</td>{3}", count,
        html(column_name(**largest)), case_cell(**largest), lines);
  }
  if (body.empty()) return {};
  return std::string(
             "<h4>Memory</h4>\n<p class=\"note\">Beyond inputs and outputs, at the shape "
             "where we need most. Kept: alive from forward to backward.") +
         (nothing ? " Nobody here needs any.</p>\n" : "</p>\n") +
         scroll_box("Memory of " + op.op, "<table class=\"plain\">" +
                                              table_head({{"what", true},
                                                          {"shape", true},
                                                          {"provider", true},
                                                          {"peak"},
                                                          {"kept"},
                                                          {"workspace"}}) +
                                              "<tbody>" + body + "</tbody></table>");
}

}  // namespace ninefold::lab::report
