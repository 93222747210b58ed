// Cases whose contenders come through lab.h: admitted, refused and excused by the same rules, and
// related to each other in rows that the schema knows.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "lab/lab.h"

namespace {

using rows = std::vector<nlohmann::json>;

// Adds 1 to each input, or something else where the test wants it wrong.
struct adder {
  std::vector<float>* x;
  std::vector<float>* y;
  float added = 1;
  int us = 0;
  nf_status status = NF_OK;
};

nf_status add(void* context, nf_stream) {
  const adder& a = *static_cast<adder*>(context);
  if (a.status != NF_OK) return nf_lab_fail(a.status, "as the test wants it");
  for (size_t i = 0; i < a.x->size(); ++i) (*a.y)[i] = (*a.x)[i] + a.added;
  std::this_thread::sleep_for(std::chrono::microseconds(a.us));
  return NF_OK;
}

struct addition {
  std::vector<float> x = std::vector<float>(1024), y = std::vector<float>(1024);
  std::vector<adder> adders;
  nf_lab_range in{x.data(), 4096}, out{y.data(), 4096};
  int filled = 0;

  static addition& of(void* context) { return *static_cast<addition*>(context); }
  nf_lab_entrant entrant(const char* provider, adder by) {
    adders.reserve(8);
    by.x = &x;
    by.y = &y;
    adders.push_back(by);
    return {.provider = provider,
            .rung = "",
            .absent = nullptr,
            .headline = 1,
            .allowance = 1,
            .context = &adders.back(),
            .call = add,
            .restore = nullptr};
  }
  nf_lab_problem problem(const std::vector<nf_lab_entrant>& entrants) {
    nf_lab_problem p{};
    p.context = this;
    p.fill = [](void* context, uint64_t seed) {
      for (size_t i = 0; i < of(context).x.size(); ++i)
        of(context).x[i] = static_cast<float>(i + seed);
      ++of(context).filled;
      return NF_OK;
    };
    p.poison = [](void* context) {
      for (float& each : of(context).y) each = std::nanf("");
      return NF_OK;
    };
    p.check = [](void* context, nf_lab_error* error) {
      *error = {0, 0, 0};
      for (size_t i = 0; i < of(context).x.size(); ++i) {
        const double off = std::abs(double{of(context).y[i]} - double{of(context).x[i]} - 1);
        error->worst = std::isnan(off) ? INFINITY : std::max(error->worst, off);
        error->rel_l2 = error->worst;
      }
      return NF_OK;
    };
    p.inputs = &in;
    p.outputs = &out;
    p.input_count = p.output_count = 1;
    p.entrants = entrants.data();
    p.entrant_count = static_cast<int>(entrants.size());
    return p;
  }
};

class OutsideCases : public testing::Test {
 protected:
  void SetUp() override {
    const nf_lab_run_options options{{kDLCPU, 0}, "rivals", 7, R"({"PyTorch": "2.11.0"})"};
    ASSERT_EQ(nf_lab_open_run(&options, &run_), NF_OK) << nf_lab_last_error();
    const auto cases = nlohmann::json::parse(nf_lab_cases(run_));
    while (cases.at(tiny_).at("case") != "tiny") ++tiny_;  // its ceiling is measured in no time
  }
  void TearDown() override { nf_lab_close_run(run_); }

  rows rows_of(const nf_lab_problem& problem) {
    const char* text = nullptr;
    EXPECT_EQ(nf_lab_run_case(run_, static_cast<int64_t>(tiny_), &problem, 0.2, &text), NF_OK)
        << nf_lab_last_error();
    rows out;
    std::istringstream lines(text ? text : "");
    for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }

  nf_lab_run* run_ = nullptr;
  size_t tiny_ = 0;
};

TEST_F(OutsideCases, AreListedWithWhatTheyCost) {
  const auto cases = nlohmann::json::parse(nf_lab_cases(run_));
  ASSERT_FALSE(cases.empty());
  for (const auto& c : cases) {
    EXPECT_GT(c.at("bytes_read"), 0) << c;
    EXPECT_TRUE(c.at("shape").is_object() && c.at("options").is_object()) << c;
  }
}

TEST_F(OutsideCases, BecomeRows) {
  addition work;
  std::vector<nf_lab_entrant> entrants{
      work.entrant("ninefold", {.us = 2000}), work.entrant("rival", {.us = 9000}),
      work.entrant("wrong", {.added = 5}), work.entrant("cannot", {.status = NF_UNSUPPORTED}),
      work.entrant("breaks", {.status = NF_RUNTIME_ERROR})};
  entrants.push_back(entrants[0]);
  entrants.back().provider = "away";
  entrants.back().absent = "not installed";
  entrants.push_back(work.entrant("rough", {.added = 3}));  // off by two tolerances, in no time
  entrants.back().allowance = 4;
  entrants.back().headline = 0;
  const rows found = rows_of(work.problem(entrants));
  ASSERT_EQ(found.size(), 8u);
  EXPECT_EQ(found[0].at("rival"), "rival");
  EXPECT_GT(found[0].at("ratio")[1], 1.2);
  EXPECT_EQ(found[0].at("machine").at("baselines").at("PyTorch"), "2.11.0");
  EXPECT_EQ(found[1].at("check"), "passed");
  EXPECT_EQ(found[2].at("check"), "failed");
  EXPECT_EQ(found[3].at("check"), "absent");
  EXPECT_EQ(found[3].at("reason"), "as the test wants it");
  EXPECT_EQ(found[4].at("check"), "failed");
  EXPECT_EQ(found[5].at("reason"), "not installed");
  EXPECT_EQ(found[6].at("check"), "passed");
  EXPECT_FALSE(found[6].at("reason").is_null());
  EXPECT_EQ(found[7].at("provider"), "lab");
  EXPECT_EQ(work.filled, 2) << "not checked again on new inputs";
}

// Everyone reads the inputs anew; who hands out what it had before is caught after the loop.
TEST_F(OutsideCases, ACachedResultIsCaught) {
  addition work;
  std::vector<nf_lab_entrant> entrants{work.entrant("ninefold", {}), work.entrant("cheat", {})};
  std::vector<float> kept;
  struct cheat {
    addition* work;
    std::vector<float>* kept;
  } state{&work, &kept};
  entrants[1].context = &state;
  entrants[1].call = [](void* context, nf_stream) {
    const cheat& c = *static_cast<cheat*>(context);
    if (c.kept->empty())
      for (const float each : c.work->x) c.kept->push_back(each + 1);
    c.work->y = *c.kept;
    return NF_OK;
  };
  const rows found = rows_of(work.problem(entrants));
  EXPECT_EQ(found[1].at("check"), "failed");
  EXPECT_NE(found[1].at("reason").get<std::string>().find("after the timed loop"),
            std::string::npos);
  EXPECT_TRUE(found[1].at("ms").is_null());
}

TEST_F(OutsideCases, RefuseNonsense) {
  const char* text = nullptr;
  const nf_lab_problem empty{};
  EXPECT_EQ(nf_lab_run_case(run_, 0, &empty, 1, &text), NF_INVALID_ARGUMENT);
  EXPECT_EQ(nf_lab_run_case(run_, 1 << 20, &empty, 1, &text), NF_INVALID_ARGUMENT);
  nf_lab_run* none = nullptr;
  const nf_lab_run_options broken{{kDLCPU, 0}, "rivals", 1, "{"};
  EXPECT_EQ(nf_lab_open_run(&broken, &none), NF_INVALID_ARGUMENT);
  const double ours[] = {1, 2, 4}, rival[] = {2, 4, 8};
  EXPECT_DOUBLE_EQ(nf_lab_ratio_of_samples(rival, ours, 3, 1).middle, 2);
}

}  // namespace
