#include "lab/report.hpp"

#include <fmt/format.h>

#include "cli/commands.hpp"
#include "lab/provenance.hpp"
#include "lab/result_file.hpp"

namespace ninefold::cli {
namespace {

lab::source_hashes current_sources() {
  lab::source_hashes out;
  for (const std::string& op : lab::ops())
    for (const char* device : {"cpu", "cuda"}) out[{op, device}] = lab::sources(op, device);
  return out;
}

}  // namespace

int report(const report_options& options) {
  std::vector<nlohmann::json> rows;
  for (const std::string& file : options.files)
    for (nlohmann::json& row : lab::read_rows(file)) rows.push_back(std::move(row));
  const lab::source_hashes current = current_sources();
  if (!options.fill.empty()) {
    const std::string page = lab::read_text(options.fill);
    const std::string filled = lab::fill_markdown(page, rows, current);
    if (filled != page) lab::write_text(options.fill, filled);
    return 0;
  }
  const std::string text =
      options.markdown ? lab::markdown_tables(rows, current) : lab::html_report(rows, current);
  if (options.out.empty()) {
    fmt::print("{}", text);
  } else {
    lab::write_text(options.out, text);
  }
  return 0;
}

}  // namespace ninefold::cli
