// How far from float64 everybody ends up.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lab/report_sections.hpp"
#include "lab/report_text.hpp"

namespace ninefold::lab::report {
std::string numerics(const op_group& op) {
  struct worst {
    const row* at = nullptr;
    const measured_case* of = nullptr;
    std::optional<double> to_naive, of_tolerance, flushed;
  };
  std::string body;
  for (const auto& column : op.columns()) {
    // Our choice first, then our rungs as one, then the rivals.
    std::map<std::pair<int, std::string>, worst> providers;
    for (const measured_case* c : column) {
      for (const row* r : c->rows()) {
        if (!r->error) continue;
        const bool rung = r->ours() && !r->rung.empty();
        worst& w = providers[{rung ? 1 : r->ours() ? 0 : 2, rung ? "any rung" : r->label()}];
        if (!w.at || *r->error > *w.at->error) {
          w.at = r;
          w.of = c;
        }
        if (r->worst) w.of_tolerance = std::max(w.of_tolerance.value_or(0), *r->worst);
        if (r->flushed) w.flushed = std::max(w.flushed.value_or(0), *r->flushed);
        if (r->error_ratio) w.to_naive = std::max(w.to_naive.value_or(0), *r->error_ratio);
      }
    }
    bool first = true;
    for (const auto& [name, w] : providers) {
      body += fmt::format(
          "<tr{} title=\"{}\">{}<th scope=\"row\">{}{}</th><td>{}</td><td>{}</td><td>{}</td>"
          "<td>{}</td><td>{}</td></tr>\n",
          first ? " class=\"first\"" : "", html(fingerprint(*w.at)),
          first ? fmt::format("<td rowspan=\"{}\">{}</td>", providers.size(),
                              html(column_name(*column.front())))
                : "",
          html(name.second), stale_mark(w.at), scientific(w.at->error), times(w.to_naive),
          digits(w.of_tolerance), percent(w.flushed), html(sizes(w.of->shape)));
      first = false;
    }
  }
  if (body.empty()) return {};
  return "<h4>Numerics</h4>\n<p class=\"note\">The largest relative L2 error over all shapes, "
         "against float64, and the shape where it arose; the largest ratio to what the naive form "
         "loses in the same dtype; and the worst element as a part of what is allowed: above 1 "
         "fails; and the largest share of the values that became 0 and are not.</p>\n" +
         scroll_box("Numerics of " + op.op, "<table class=\"plain\">" +
                                                table_head({{"what", true},
                                                            {"provider", true},
                                                            {"error"},
                                                            {"to naive"},
                                                            {"of tolerance"},
                                                            {"became 0"},
                                                            {"at"}}) +
                                                "<tbody>" + body + "</tbody></table>");
}

}  // namespace ninefold::lab::report
