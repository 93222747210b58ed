// The strokes that the pictures are made of.
#pragma once

#include <cmath>
#include <string>
#include <vector>

namespace ninefold::lab::report {

struct axis {
  double low, high;    // values
  double start, stop;  // pixels
  bool logarithmic;

  double at(double v) const {
    const double part =
        logarithmic ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return start + part * (stop - start);
  }
};

// Ninefold's and the rivals' marks differ in shape as well as colour; `extra` adds classes.
std::string mark(int style, double x, double y, const std::string& title, const char* extra = "");
int dtype_style(const std::string& dtype);  // the mark of a dtype where dtypes are compared
std::string line(const char* kind, double x1, double y1, double x2, double y2);
std::string label(double x, double y, const char* anchor, const std::string& text,
                  const char* kind = "tick");
std::string open_svg(double height, const std::string& name);  // 360 wide, to be closed by </svg>
double nice_step(double span, int most);               // 1, 2, 5, 10, ...: at most `most` fit
std::vector<double> decades(double low, double high);  // ticks of a logarithmic axis

}  // namespace ninefold::lab::report
