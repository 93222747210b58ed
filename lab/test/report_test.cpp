// The report on invented rows: does it say the right things first, survive what it is given, and
// stay one well-formed file?
#include "lab/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "lab/test/synthetic_rows.hpp"

namespace ninefold::lab {
namespace {

using nlohmann::json;

const std::string& page() {
  static const std::string text = html_report(synthetic::rows(), synthetic::sources());
  return text;
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// The element's text, from its opening tag to its closing one.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t from = text.find(begin);
  if (from == std::string::npos) return {};
  return text.substr(from, text.find(end, from) - from);
}

json own_row(double middle, const std::string& verdict) {
  return {{"op", "softmax"},    {"direction", "forward"},
          {"device", "cuda"},   {"device_name", "NVIDIA H200"},
          {"dtype", "bf16"},    {"shape", {{"M", 8}, {"N", static_cast<int64_t>(middle * 1000)}}},
          {"case", verdict},    {"provider", "ninefold"},
          {"rung", ""},         {"check", "passed"},
          {"ms", 1.0},          {"rival", "cuDNN 9.19"},
          {"verdict", verdict}, {"ratio", {middle - 0.01, middle, middle + 0.01}},
          {"run", "1"},         {"started", "2026-11-30"},
          {"sources", "a"},     {"share", 0.9}};
}

TEST(HtmlReport, IsOneFileWithEveryPart) {
  for (const char* part :
       {"<!doctype html>", "NVIDIA H200", "How to read this", "Losses first", "Roofline.",
        "Bandwidth against N", "The ladder", "Memory", "Numerics", "How this could be wrong",
        "Fingerprints", "prefers-color-scheme:dark", "@media print", "name=\"viewport\"",
        "geometric mean", "worst ratio", "application/json"}) {
    EXPECT_NE(page().find(part), std::string::npos) << part;
  }
  for (const char* network : {"src=", "href=\"http", "@import", "url(", "<link"}) {
    EXPECT_EQ(page().find(network), std::string::npos) << network;
  }
}

TEST(HtmlReport, IsBalancedForAParser) {
  const std::string html = testing::TempDir() + "ninefold_report.html";
  const std::string script = testing::TempDir() + "ninefold_balance.py";
  std::ofstream(html) << page();
  std::ofstream(script) << R"py(
import sys
from html.parser import HTMLParser
VOID = {'meta', 'input', 'br', 'hr', 'img', 'link'}
class Balance(HTMLParser):
    stack = []
    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, attributes)
        if tag not in VOID: self.stack.append(tag)
    def handle_startendtag(self, tag, attributes): pass
    def handle_endtag(self, tag):
        assert self.stack and self.stack[-1] == tag, (self.getpos(), tag, self.stack[-5:])
        self.stack.pop()
parser = Balance()
parser.feed(open(sys.argv[1], encoding='utf-8').read())
parser.close()
assert not parser.stack, parser.stack
)py";
  if (std::system("python3 -c pass") != 0) GTEST_SKIP() << "no python3 to parse the page with";
  EXPECT_EQ(std::system(("python3 '" + script + "' '" + html + "'").c_str()), 0);
}

TEST(HtmlReport, EscapesHostileText) {
  // The page's own scripts: the rows and the filter.
  EXPECT_EQ(occurrences(page(), "</script>"), 2u);
  EXPECT_EQ(page().find("<b>\"'&"), std::string::npos);
  EXPECT_EQ(page().find("<!-- ledger"), std::string::npos);
}

TEST(HtmlReport, CarriesItsRowsUnchanged) {
  const std::string opening = "<script type=\"application/json\" id=\"ledger-rows\">";
  const std::string embedded = between(page(), opening, "</script>").substr(opening.size());
  EXPECT_EQ(json::parse(embedded), json(synthetic::rows()));
}

TEST(HtmlReport, PutsLossesFirstAndTheWorstOnTop) {
  const std::string losses = between(page(), "<section id=\"losses\">", "</section>");
  std::vector<double> ratios;
  const std::string before = "class=\"lost\">";
  for (size_t at = losses.find(before); at != std::string::npos; at = losses.find(before, at + 1)) {
    ratios.push_back(std::stod(losses.substr(at + before.size())));
  }
  ASSERT_GT(ratios.size(), 1u);
  EXPECT_TRUE(std::is_sorted(ratios.begin(), ratios.end()));
  EXPECT_LT(page().find("id=\"losses\""), page().find("WIN</span>"));
}

TEST(HtmlReport, CountsEveryVerdict) {
  const std::string text = html_report(
      {own_row(0.8, "LOSS"), own_row(1.25, "WIN"), own_row(1.3, "WIN"), own_row(1, "UNCLEAR")}, {});
  EXPECT_NE(text.find("<dt>LOSS</dt><dd>1</dd>"), std::string::npos);
  EXPECT_NE(text.find("<dt>WIN</dt><dd>2</dd>"), std::string::npos);
  EXPECT_NE(text.find("<dt>UNCLEAR</dt><dd>1</dd>"), std::string::npos);
  EXPECT_NE(text.find("<dt>TIE</dt><dd>0</dd>"), std::string::npos);
  EXPECT_NE(text.find("over all 4 ratios"), std::string::npos);
}

TEST(HtmlReport, TrustsNoVerdictWithoutAPassedCheck) {
  json row = own_row(2, "WIN");
  row["check"] = "failed";
  const std::string text = html_report({row}, {});
  EXPECT_NE(text.find("<dt>WIN</dt><dd>0</dd>"), std::string::npos);
  EXPECT_NE(text.find("<dt>failed</dt><dd>1</dd>"), std::string::npos);
  EXPECT_EQ(text.find("geometric mean"), std::string::npos);
  EXPECT_NE(text.find("without a passed check"), std::string::npos);
}

TEST(HtmlReport, MarksWhatIsStaleAndNothingElse) {
  const auto stale = [](const source_hashes& current) {
    return html_report({own_row(1.2, "WIN")}, current).find(">stale</abbr>") != std::string::npos;
  };
  EXPECT_TRUE(stale({{{"softmax", "cuda"}, "b"}}));
  EXPECT_FALSE(stale({{{"softmax", "cuda"}, "a"}}));
  EXPECT_FALSE(stale({{{"softmax", "cpu"}, "b"}}));
  EXPECT_FALSE(stale({}));
}

TEST(HtmlReport, ShowsTheNewestRunOfACase) {
  json older = own_row(0.5, "LOSS"), newer = own_row(0.5, "WIN");
  older["case"] = newer["case"] = "same";
  older["started"] = "2026-11-01";
  older["run"] = "0";
  for (const auto& rows : {std::vector{older, newer}, std::vector{newer, older}}) {
    const std::string text = html_report(rows, {});
    EXPECT_NE(text.find("<dt>LOSS</dt><dd>0</dd>"), std::string::npos);
    EXPECT_NE(text.find("1 is of an earlier run"), std::string::npos);
  }
}

TEST(HtmlReport, SurvivesWhatIsNotALedger) {
  EXPECT_NE(html_report({}, {}).find("no rows to report"), std::string::npos);
  const std::vector<json> strange = {
      nullptr,
      7,
      json::array(),
      json::object(),
      {{"op", nullptr}},
      {{"op", "softmax"}},
      {{"op", "softmax"}, {"shape", {{"N", -1}}}, {"gbps", 1}, {"provider", "ninefold"}},
      {{"op", "softmax"},
       {"provider", "ninefold"},
       {"ratio", {0, -1, 1e308}},
       {"check", "passed"},
       {"verdict", "WIN"},
       {"gbps", -4},
       {"share", 1e300}},
      {{"op", "ceiling"}}};
  EXPECT_NE(html_report(strange, {}).find("4 are not a ledger row"), std::string::npos);
  EXPECT_FALSE(markdown_tables(strange, {}).empty());
}

TEST(HtmlReport, HasASaneSize) { EXPECT_LT(page().size(), synthetic::rows().size() * 3000); }

TEST(MarkdownTables, PutLossesFirst) {
  const std::string text = markdown_tables({own_row(1.25, "WIN"), own_row(0.8, "LOSS")}, {});
  EXPECT_NE(text.find("## softmax on NVIDIA H200"), std::string::npos);
  const size_t loss = text.find("| **LOSS** | forward"), win = text.find("| WIN | forward");
  ASSERT_NE(loss, std::string::npos);
  EXPECT_LT(loss, win);
}

TEST(MarkdownTables, KeepHostileTextInItsCell) {
  const std::string text = markdown_tables(synthetic::rows(), synthetic::sources());
  EXPECT_EQ(text.find("<"), std::string::npos);
  EXPECT_NE(text.find(", stale |"), std::string::npos);
  size_t columns = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with("|")) {
      columns = 0;
      continue;
    }
    const size_t bars = occurrences(line, "|");
    if (columns == 0) columns = bars;
    EXPECT_EQ(bars, columns) << line;
  }
}

std::string marked(const std::string& name, const std::string& inside = "") {
  return "before\n<!-- ledger:begin " + name + " -->\n" + inside + "<!-- ledger:end " + name +
         " -->\nafter";
}

TEST(FillMarkdown, FillsAndIsIdempotent) {
  for (const char* name : {"softmax-cuda", "softmax-cpu", "vector_add-cuda", "softmax-cuda-rungs",
                           "softmax-cuda-summary"}) {
    const std::string once =
        fill_markdown(marked(name, "old\n"), synthetic::rows(), synthetic::sources());
    EXPECT_TRUE(once.starts_with("before\n<!-- ledger:begin ")) << once;
    EXPECT_TRUE(once.ends_with(" -->\nafter")) << once;
    EXPECT_EQ(once.find("old"), std::string::npos);
    EXPECT_NE(once.find("|---|"), std::string::npos);
    EXPECT_EQ(fill_markdown(once, synthetic::rows(), synthetic::sources()), once);
  }
}

// A row of the suite that Python times, and its rival's.
std::vector<json> through_pytorch(double middle, const std::string& verdict) {
  json own = own_row(middle, verdict), rival = own;
  own.update({{"suite", "rivals 5"},
              {"rival", "QuACK 0.6.5"},
              {"error", 1e-3},
              {"peak_bytes", 1024},
              {"kept_bytes", 0},
              {"ratios",
               {{"call_ms",
                 {{"rival", "QuACK 0.6.5"}, {"ratio", {3.4, 3.5, 3.6}}, {"verdict", "WIN"}}}}}});
  rival.update({{"suite", "rivals 5"},
                {"provider", "QuACK 0.6.5"},
                {"ms", 7.0},
                {"error", 2e-3},
                {"rival", nullptr},
                {"ratio", nullptr},
                {"verdict", nullptr}});
  return {own, rival};
}

TEST(RivalsTable, IsALedgerOfItsOwn) {
  std::vector<json> rows = through_pytorch(0.5, "LOSS");
  rows.push_back(own_row(0.5, "LOSS"));  // the same case from the C++ lab
  rows.back()["started"] = "2026-11-01";
  const std::string rivals = fill_markdown(marked("rivals-cuda"), rows, {});
  EXPECT_NE(rivals.find("| **LOSS** | softmax forward bf16 | M 8, N 500 (LOSS) | 1.00 | QuACK "
                        "0.6.5 | 7.00 | 0.50× | 0.490–0.510 | – | 3.50× | 1.00 KiB / – | 0 / – | "
                        "1.0e-03 / 2.0e-03 |"),
            std::string::npos)
      << rivals;
  const std::string own = fill_markdown(marked("softmax-cuda"), rows, {});
  EXPECT_NE(own.find("cuDNN 9.19"), std::string::npos) << own;
  EXPECT_EQ(own.find("QuACK"), std::string::npos) << own;
  EXPECT_NE(html_report(rows, {}).find("softmax through PyTorch"), std::string::npos);
}

TEST(RivalsTable, PutsLossesFirstAndAddsUp) {
  std::vector<json> rows;
  for (const auto& [middle, verdict] : {std::pair(2.0, "WIN"), {0.9, "LOSS"}, {0.5, "LOSS"}})
    for (json& row : through_pytorch(middle, verdict)) rows.push_back(std::move(row));
  const std::string text = fill_markdown(marked("rivals-cuda"), rows, {});
  EXPECT_LT(text.find("0.50×"), text.find("0.90×"));
  EXPECT_LT(text.find("0.90×"), text.find("2.00×"));
  EXPECT_NE(fill_markdown(marked("rivals-cuda-summary"), rows, {})
                .find("| softmax | forward | 2 | 0 | 0 | 0 | 1 | 0 | 0.50× | 0.965× | 2.00× | – | "
                      "3.50× |"),
            std::string::npos);
  rows[0]["options"] = {{"log", 1}, {"offset", 1}};
  EXPECT_NE(
      fill_markdown(marked("rivals-cuda-summary"), rows, {}).find("| softmax log | forward |"),
      std::string::npos);
  EXPECT_NE(fill_markdown(marked("rivals-cpu"), rows, {}).find("No rows of rivals on cpu"),
            std::string::npos);
}

TEST(FillMarkdown, LeavesOtherTextAlone) {
  for (const std::string text : {"", "\n", "no marker", "no marker\n\n", "<!-- a comment -->\n"}) {
    EXPECT_EQ(fill_markdown(text, synthetic::rows(), {}), text);
  }
}

TEST(FillMarkdown, SaysWhenNothingIsMeasured) {
  EXPECT_NE(fill_markdown(marked("rmsnorm-cpu"), {}, {}).find("No rows of rmsnorm on cpu"),
            std::string::npos);
}

TEST(FillMarkdown, RefusesUnbalancedMarkersAndUnknownNames) {
  const std::string begin = "<!-- ledger:begin softmax-cpu -->\n";
  const std::string end = "<!-- ledger:end softmax-cpu -->\n";
  for (const std::string& text :
       {begin, end, begin + begin + end, begin + end + end,
        begin + "<!-- ledger:end softmax-cuda -->\n", marked("softmax"), marked("softmax-tpu"),
        marked("softmax-cpu-rings"), marked("-cpu"), std::string("<!-- ledger:begin softmax")}) {
    EXPECT_THROW(fill_markdown(text, synthetic::rows(), {}), std::invalid_argument) << text;
  }
}

}  // namespace
}  // namespace ninefold::lab
