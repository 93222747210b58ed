#include "lab/report_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/report_svg.hpp"
#include "lab/report_text.hpp"

namespace ninefold::lab::report {
namespace {

constexpr double left = 46, right = 352, top = 12;

std::string case_title(const measured_case& c, const row& r) {
  return fmt::format("{} {} {} ({})\n{} GB/s, {} of {}\n{}", c.direction, c.dtype, sizes(c.shape),
                     c.title(), digits(r.gbps), percent(r.share),
                     r.ceiling.empty() ? "its ceiling" : r.ceiling, fingerprint(r));
}

// The line through the largest problem at each N. Small problems measure the launch rather than
// the kernel, so the line does not dip into them.
class curve {
 public:
  curve(const axis& x, const axis& y, int64_t most) : x_(x), y_(y), most_(most) {}

  void add(const measured_case& c, double gbps) {
    if (c.width() <= 0 || c.elements() < most_ / 16) return;
    auto& [elements, rate] = largest_[c.width()];
    if (c.elements() < elements) return;
    elements = c.elements();
    rate = gbps;
  }

  std::string path(const std::string& kind) const {
    std::string points;
    for (const auto& [n, best] : largest_) {
      points += fmt::format("{}{:.1f} {:.1f}", points.empty() ? "M" : "L",
                            x_.at(static_cast<double>(n)), y_.at(best.second));
    }
    // A single point is drawn as a short stroke: a path of one point shows nothing.
    if (largest_.size() == 1) points += "m-14 0h28";
    return points.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>", kind, points);
  }

 private:
  const axis& x_;
  const axis& y_;
  int64_t most_;
  std::map<int64_t, std::pair<int64_t, double>> largest_;  // N -> elements and GB/s
};

}  // namespace

std::string swatch(int style) {
  return fmt::format(
      "<svg class=\"swatch\" viewBox=\"0 0 26 12\" aria-hidden=\"true\"><path class=\"curve s{}\" "
      "d=\"M1 6H25\"/>{}</svg>",
      style, mark(style, 13, 6, ""));
}

std::string ceiling_swatch() {
  return "<svg class=\"swatch\" viewBox=\"0 0 26 12\" aria-hidden=\"true\">" +
         line("roof", 1, 6, 25, 6) + "</svg>";
}

std::string dtype_swatch(const std::string& dtype, bool hollow) {
  return fmt::format(
      "<svg class=\"swatch dot\" viewBox=\"0 0 12 12\" aria-hidden=\"true\">{}</svg>",
      mark(dtype_style(dtype), 6, 6, "", hollow ? " ink hollow" : " ink"));
}

std::string roofline(const std::vector<const measured_case*>& cases,
                     const std::vector<const row*>& ceilings) {
  struct point {
    double x, y;  // flop per byte, Gflop/s
    const measured_case* at;
  };
  std::vector<point> points;
  std::map<std::string, double> used;  // ceilings that our rows name, in GB/s
  for (const auto* c : cases) {
    const row* r = c->own;
    if (!r || !r->gbps || !r->intensity() || *r->gbps <= 0 || *r->intensity() <= 0) continue;
    points.push_back({*r->intensity(), *r->gbps * *r->intensity(), c});
    if (r->ceiling_gbps) used[r->ceiling] = std::max(used[r->ceiling], *r->ceiling_gbps);
  }
  if (points.empty()) return {};
  double compute = 0;  // the highest measured rate, Gflop/s
  std::string compute_name;
  for (const row* r : ceilings) {
    if (r->gbps && used.contains(r->ceiling)) used[r->ceiling] = *r->gbps;
    if (r->tflops && *r->tflops * 1e3 > compute) {
      compute = *r->tflops * 1e3;
      compute_name = r->ceiling;
    }
  }

  const auto by_x = [](const point& a, const point& b) { return a.x < b.x; };
  const auto by_y = [](const point& a, const point& b) { return a.y < b.y; };
  const auto [first, last] = std::minmax_element(points.begin(), points.end(), by_x);
  const auto [slow, fast] = std::minmax_element(points.begin(), points.end(), by_y);
  double bandwidth_high = 0;
  for (const auto& [name, gbps] : used) bandwidth_high = std::max(bandwidth_high, gbps);
  const axis x{first->x / 2, last->x * 2.4, left, right, true};
  const double roof = std::max(fast->y, bandwidth_high * x.high);
  const axis y{slow->y / 2, roof * 1.5, 252, top, true};

  std::string svg = open_svg(292, "Roofline: rate against arithmetic intensity");
  for (const double tick : decades(y.low, y.high)) {
    svg += line("grid", left, y.at(tick), right, y.at(tick));
    svg += label(left - 5, y.at(tick) + 3.5, "end", digits(tick));
  }
  for (const double tick : decades(x.low, x.high)) {
    svg += line("grid", x.at(tick), top, x.at(tick), 252);
    svg += label(x.at(tick), 266, "middle", fmt::format("{:g}", tick));
  }
  svg += label((left + right) / 2, 283, "middle", "flop per byte, as declared", "caption");
  svg += label(left + 4, top + 9, "start", "Gflop/s", "caption");

  int drawn = 0;
  for (const auto& [name, gbps] : used) {
    const double from = std::max(x.low, y.low / gbps), to = std::min(x.high, y.high / gbps);
    const double x1 = x.at(from), y1 = y.at(from * gbps), x2 = x.at(to), y2 = y.at(to * gbps);
    svg += line("roof", x1, y1, x2, y2);
    // Along the line, alternately above and below it, where there are no marks.
    const double part = drawn < 2 ? 0.98 : 0.55;
    svg += fmt::format(
        "<text class=\"caption\" text-anchor=\"{}\" transform=\"translate({:.1f} {:.1f}) "
        "rotate({:.1f})\" dy=\"{}\">{} {} GB/s</text>",
        "end", x1 + part * (x2 - x1), y1 + part * (y2 - y1),
        std::atan2(y2 - y1, x2 - x1) * 180 / 3.14159265, drawn % 2 ? "13" : "-5", html(name),
        digits(gbps));
    ++drawn;
  }
  if (compute > y.low && compute < y.high) {
    svg += line("roof", left, y.at(compute), right, y.at(compute));
    svg += label(right - 2, y.at(compute) - 4, "end", compute_name, "caption");
  } else if (compute > 0 && bandwidth_high > 0) {
    svg += label(right - 2, 246, "end",
                 fmt::format("{} {} TF/s: ridge at {} flop/B →", compute_name,
                             digits(compute / 1e3), digits(compute / bandwidth_high)),
                 "caption");
  }
  for (const point& p : points) {
    const bool hollow = p.at->direction != "forward";
    svg += mark(dtype_style(p.at->dtype), x.at(p.x), y.at(p.y), case_title(*p.at, *p.at->own),
                hollow ? " ink hollow" : " ink");
  }
  return svg + "</svg>";
}

std::string bandwidth(const std::vector<const measured_case*>& cases,
                      const std::vector<series>& all) {
  double widest = 0, narrowest = 1e300, fastest = 0;
  int64_t most = 0;  // elements
  for (const auto* c : cases) {
    for (const row* r : c->rows()) {
      if (!r->gbps || c->width() <= 0) continue;
      widest = std::max(widest, static_cast<double>(c->width()));
      narrowest = std::min(narrowest, static_cast<double>(c->width()));
      fastest = std::max(fastest, *r->gbps);
      most = std::max(most, c->elements());
    }
    if (c->own && c->own->ceiling_gbps) fastest = std::max(fastest, *c->own->ceiling_gbps);
  }
  if (widest <= 0 || fastest <= 0) return {};
  const double margin = widest > narrowest ? std::pow(widest / narrowest, 0.04) : 2;
  const axis x{narrowest / margin, widest * margin, left, right, true};
  const axis y{0, fastest * 1.12, 192, top, false};

  std::string svg = open_svg(228, "Bandwidth against N");
  const double step = nice_step(y.high, 5);
  for (double tick = 0; tick <= y.high; tick += step) {
    svg += line("grid", left, y.at(tick), right, y.at(tick));
    svg += label(left - 5, y.at(tick) + 3.5, "end", digits(tick));
  }
  const double factor = x.high / x.low > 1e4 ? 16 : 4;
  for (double tick = 1; tick <= x.high; tick *= factor) {
    if (tick >= x.low) svg += label(x.at(tick), 206, "middle", short_count(tick));
  }
  svg += label((left + right) / 2, 222, "middle", "N (k = 1,024)", "caption");
  // The ceiling is measured anew at each volume, so it is a line too.
  curve roof(x, y, most);
  double highest = 0;
  for (const auto* c : cases) {
    if (!c->own || !c->own->ceiling_gbps) continue;
    roof.add(*c, *c->own->ceiling_gbps);
    highest = std::max(highest, *c->own->ceiling_gbps);
  }
  svg += roof.path("roof");
  if (highest > 0) {
    svg += label(left + 4, y.at(highest) - 5, "start",
                 fmt::format("ceiling, up to {} GB/s", digits(highest)), "caption");
  }

  // Rivals first, so that our own line lies on top.
  for (auto s = all.rbegin(); s != all.rend(); ++s) {
    std::string marks;
    curve through(x, y, most);
    for (const auto* c : cases) {
      for (const row* r : c->rows()) {
        if (r->label() != s->name || !r->gbps || c->width() <= 0) continue;
        through.add(*c, *r->gbps);
        marks += mark(s->style, x.at(static_cast<double>(c->width())), y.at(*r->gbps),
                      case_title(*c, *r), r->stale ? " stale" : "");
      }
    }
    svg += through.path(fmt::format("curve s{}", s->style));
    svg += marks;
  }
  return svg + "</svg>";
}

std::string ratio_strip(const row& r, double lowest, double highest) {
  if (!r.ratio) return {};
  const axis x{lowest, highest, 4, 116, true};
  const auto [low, middle, high] = *r.ratio;
  return fmt::format(
      "<svg class=\"strip\" viewBox=\"0 0 120 16\" aria-hidden=\"true\">{}"
      "<line class=\"span\" x1=\"{:.1f}\" y1=\"8\" x2=\"{:.1f}\" y2=\"8\"/>"
      "<circle class=\"middle\" cx=\"{:.1f}\" cy=\"8\" r=\"3.4\"/></svg>",
      line("one", x.at(1), 1, x.at(1), 15), x.at(std::clamp(low, lowest, highest)),
      x.at(std::clamp(high, lowest, highest)), x.at(std::clamp(middle, lowest, highest)));
}

}  // namespace ninefold::lab::report
