#include "lab/compare.hpp"

#include <gtest/gtest.h>

namespace ninefold::lab {
namespace {

using nlohmann::json;

json made(const char* name, double ms, const json& machine = {{"cpu", "x"}}) {
  json samples = json::array();
  for (int i = 0; i < 21; ++i) samples.push_back(ms * (1 + 0.0005 * (i - 10)));
  return {{"op", "softmax"}, {"direction", "forward"}, {"device", "cpu"},   {"dtype", "fp32"},
          {"case", name},    {"provider", "ninefold"}, {"rung", ""},        {"check", "passed"},
          {"ms", ms},        {"samples_ms", samples},  {"machine", machine}};
}

TEST(Compare, JudgesEachRowAndPutsLossesFirst) {
  const std::vector<json> a{made("win", 2), made("tie", 1), made("loss", 1), made("gone", 1)};
  const std::vector<json> b{made("win", 1), made("tie", 1.005), made("loss", 1.1), made("new", 1)};
  const comparison c = compare_rows(a, b);
  ASSERT_EQ(c.rows.size(), 3u);
  EXPECT_EQ(c.rows[0].name, "loss");
  EXPECT_EQ(c.rows[0].verdict, "LOSS");
  EXPECT_EQ(c.rows[1].verdict, "TIE");
  EXPECT_EQ(c.rows[2].verdict, "WIN");
  EXPECT_NEAR(c.rows[2].ratio.middle, 2, 1e-9);
  EXPECT_EQ(c.only_a.size(), 1u);
  EXPECT_EQ(c.only_b.size(), 1u);
}

TEST(Compare, NeverMergesUnlikeMachines) {
  const comparison c = compare_rows({made("a", 1)}, {made("a", 1, {{"cpu", "y"}, {"isa", "z"}})});
  EXPECT_TRUE(c.rows.empty());
  ASSERT_EQ(c.differences.size(), 2u);
  EXPECT_EQ(c.differences[0], "cpu cpu: x | y");
  EXPECT_EQ(c.differences[1], "cpu isa: (none) | z");
}

TEST(Compare, LeavesOutRowsWithoutATime) {
  json failed = made("a", 1);
  failed["ms"] = nullptr;
  const comparison c = compare_rows({failed}, {made("a", 1)});
  EXPECT_TRUE(c.rows.empty());
  EXPECT_EQ(c.only_b.size(), 1u);
}

}  // namespace
}  // namespace ninefold::lab
