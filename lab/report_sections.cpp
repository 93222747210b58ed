#include "lab/report_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "lab/report_text.hpp"

namespace ninefold::lab::report {
namespace {

const char* glyph(outcome o) {
  constexpr std::array glyphs = {"▼", "✕", "?", "∅", "·", "=", "▲"};
  return glyphs[static_cast<size_t>(o)];
}

const char* style(outcome o) {
  constexpr std::array styles = {"loss", "failed", "unclear", "absent", "unrated", "tie", "win"};
  return styles[static_cast<size_t>(o)];
}

}  // namespace

std::string named(const std::string& name) { return name.empty() ? missing : name; }

std::string column_name(const measured_case& c) {
  return named(c.direction) + " " + named(c.dtype);
}

std::string table_head(std::initializer_list<column_head> columns) {
  std::string cells;
  for (const auto& [name, left] : columns) {
    cells += fmt::format("<th scope=\"col\"{}>{}</th>", left ? " class=\"left\"" : "", name);
  }
  return "<thead><tr>" + cells + "</tr></thead>";
}

std::string badge(outcome o) {
  return fmt::format("<span class=\"badge {}\"><span aria-hidden=\"true\">{}</span> {}</span>",
                     style(o), glyph(o), word(o));
}

std::string stale_mark(const row* r) {
  if (!r || !r->stale) return {};
  return " <abbr class=\"stale-mark\" title=\"measured on other sources than the present "
         "ones\">stale</abbr>";
}

std::string case_cell(const measured_case& c) {
  const std::string names = size_names(c.shape);
  return fmt::format("<span class=\"shape\" title=\"{}\">{}</span><span class=\"sub\">{}</span>",
                     html(names), html(sizes(c.shape)), html(c.title()));
}

std::string scroll_box(const std::string& name, const std::string& table) {
  return fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">{}</div>\n",
      html(name), table);
}

std::string matrix(const op_group& op) {
  const auto columns = op.columns();
  using line_key = std::pair<named_sizes, std::string>;
  std::vector<line_key> lines;
  for (const measured_case& c : op.cases) {
    const line_key key{c.shape, c.title()};
    if (std::find(lines.begin(), lines.end(), key) == lines.end()) lines.push_back(key);
  }
  if (lines.empty()) return {};

  std::string directions, dtypes;
  for (size_t i = 0; i < columns.size();) {
    const std::string& direction = columns[i].front()->direction;
    size_t span = 0;
    for (; i < columns.size() && columns[i].front()->direction == direction; ++i, ++span) {
      dtypes += fmt::format("<th scope=\"col\">{}</th>", html(named(columns[i].front()->dtype)));
    }
    directions +=
        fmt::format("<th scope=\"colgroup\" colspan=\"{}\">{}</th>", span, html(named(direction)));
  }
  std::string table = fmt::format(
      "<table class=\"matrix\"><thead><tr><th rowspan=\"2\" scope=\"col\">{}</th>{}</tr>"
      "<tr>{}</tr></thead><tbody>\n",
      html(size_names(op.cases.back().shape)), directions, dtypes);
  for (const auto& [shape, name] : lines) {
    table += "<tr>";
    bool headed = false;
    std::string cells;
    for (const auto& column : columns) {
      const auto at = std::find_if(column.begin(), column.end(), [&](const auto* c) {
        return c->shape == shape && c->title() == name;
      });
      if (at == column.end()) {
        cells += fmt::format("<td class=\"none\" title=\"not run\">{}</td>", missing);
        continue;
      }
      const measured_case& c = **at;
      if (!headed) table += fmt::format("<th scope=\"row\">{}</th>", case_cell(c));
      headed = true;
      const outcome o = c.result();
      // Without a rival the share of the ceiling is what there is to say.
      const std::string number =
          o == outcome::unrated && c.own ? percent(c.own->share) : times(c.middle());
      cells += fmt::format(
          "<td class=\"v {}{}\" title=\"{}\"><span class=\"n\">{}</span><span class=\"w\"><span "
          "aria-hidden=\"true\">{}</span> {}{}</span></td>",
          style(o), c.own && c.own->stale ? " is-stale" : "",
          c.own ? html(fmt::format("against {}: {}\n{}", c.own->rival, range(*c.own),
                                   fingerprint(*c.own)))
                : "no row of our own",
          number, glyph(o), word(o), stale_mark(c.own));
    }
    table += cells + "</tr>\n";
  }
  return scroll_box("Verdicts of " + op.op, table + "</tbody></table>");
}

std::string ladder(const op_group& op) {
  std::string out;
  for (const auto& column : op.columns()) {
    std::string blocks;
    for (const measured_case* c : column) {
      if (c->rungs.empty()) continue;
      std::vector<const row*> rows = c->rows();
      std::stable_sort(rows.begin(), rows.end(), [](const row* a, const row* b) {
        return a->ms.value_or(1e300) > b->ms.value_or(1e300);  // the ladder climbs
      });
      std::string bars;
      for (const row* r : rows) {
        const bool choice = r == c->own;
        const std::string& name = r->ours() && !choice ? r->rung : r->provider;
        const char* kind = choice ? "own" : r->ours() ? "rung" : "rival";
        if (!r->ms) {
          bars += fmt::format(
              "<li class=\"{}\" title=\"{}\"><span class=\"name\">{}</span><span class=\"why\">{}"
              "</span></li>",
              kind, html(fingerprint(*r)), html(name),
              html(r->reason.empty() ? (r->check.empty() ? "not run" : r->check) : r->reason));
          continue;
        }
        const double share = std::clamp(r->share.value_or(0), 0.0, 1.0) * 100;
        bars += fmt::format(
            "<li class=\"{}\" title=\"{}\"><span class=\"name\">{}{}</span><span class=\"track\">"
            "<i style=\"width:{:.1f}%\"></i></span><span class=\"num\">{} ms</span>"
            "<span class=\"num\">{}</span></li>",
            kind, html(fingerprint(*r)), html(name), stale_mark(r), share, digits(r->ms),
            r->check == "failed" ? "FAILED" : percent(r->share));
      }
      blocks += fmt::format(
          "<figure class=\"rungs\"><figcaption>{}</figcaption><ul>{}</ul>"
          "</figure>\n",
          case_cell(*c), bars);
    }
    if (blocks.empty()) continue;
    out += fmt::format("<details{}><summary>{}</summary><div class=\"ladder\">{}</div></details>\n",
                       out.empty() ? " open" : "", html(column_name(*column.front())), blocks);
  }
  if (out.empty()) return {};
  return "<h4>The ladder</h4>\n<p class=\"note\">Each rung is one idea. The line at the right is "
         "the measured "
         "ceiling, the slowest stands on top, and <b>ninefold</b> is what the library chooses by "
         "itself.</p>\n" +
         out;
}

}  // namespace ninefold::lab::report
