#include "lab/report_svg.hpp"

#include <fmt/format.h>

#include "lab/report_text.hpp"

namespace ninefold::lab::report {

std::string mark(int style, double x, double y, const std::string& title, const char* extra) {
  const std::string head = fmt::format("class=\"mark s{}{}\"", style, extra);
  const std::string tip = title.empty() ? "" : fmt::format("<title>{}</title>", html(title));
  switch (style) {
    case 0:
      return fmt::format("<circle {} cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\">{}</circle>", head, x, y,
                         tip);
    case 1:
      return fmt::format(
          "<rect {} x=\"{:.1f}\" y=\"{:.1f}\" width=\"6.4\" height=\"6.4\">{}</rect>", head,
          x - 3.2, y - 3.2, tip);
    case 2:
      return fmt::format("<path {} d=\"M{:.1f} {:.1f}l4.2 7.4h-8.4z\">{}</path>", head, x, y - 4.6,
                         tip);
    default:
      return fmt::format("<path {} d=\"M{:.1f} {:.1f}l4.4 4.4-4.4 4.4-4.4-4.4z\">{}</path>", head,
                         x, y - 4.4, tip);
  }
}

int dtype_style(const std::string& dtype) {
  if (dtype == "fp32") return 0;
  if (dtype == "fp16") return 1;
  return dtype == "bf16" ? 2 : 3;
}

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>",
                     kind, x1, y1, x2, y2);
}

std::string label(double x, double y, const char* anchor, const std::string& text,
                  const char* kind) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
                     kind, x, y, anchor, html(text));
}

std::string open_svg(double height, const std::string& name) {
  return fmt::format("<svg viewBox=\"0 0 360 {:.0f}\" role=\"img\" aria-label=\"{}\">", height,
                     html(name));
}

double nice_step(double span, int most) {
  double step = std::pow(10.0, std::floor(std::log10(span / most)));
  for (const double factor : {2.0, 2.5, 2.0}) {
    if (span / step <= most) break;
    step *= factor;
  }
  return step;
}

std::vector<double> decades(double low, double high) {
  std::vector<double> ticks;
  const bool wide = high / low > 300;
  for (double power = std::pow(10.0, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (wide && digit > 1) continue;
      if (digit * power >= low * 0.999 && digit * power <= high * 1.001) {
        ticks.push_back(digit * power);
      }
    }
  }
  return ticks;
}

}  // namespace ninefold::lab::report
