// The report's pictures, as SVG text that takes its colours from the page's style.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "lab/report_rows.hpp"

namespace ninefold::lab::report {

// Rivals keep one mark and colour throughout an op: index 0 is Ninefold.
struct series {
  std::string name;
  int style = 0;
};

// A small sample of a line or mark for a legend.
std::string swatch(int style);
std::string ceiling_swatch();
std::string dtype_swatch(const std::string& dtype, bool hollow);

// Work against intensity, both logarithmic, under the measured roofs.
std::string roofline(const std::vector<const measured_case*>& cases,
                     const std::vector<const row*>& ceilings);

// GB/s against N for one direction and dtype, ours beside the rivals and the ceiling.
std::string bandwidth(const std::vector<const measured_case*>& cases,
                      const std::vector<series>& all);

// The ratio's interval on a logarithmic strip whose middle line is 1.
std::string ratio_strip(const row& r, double lowest, double highest);

}  // namespace ninefold::lab::report
