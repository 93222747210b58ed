#include "lab/run_case.hpp"

#include <gtest/gtest.h>

#include <ninefold/ninefold.hpp>
#include <set>
#include <thread>

#include "lab/provenance.hpp"
#include "lab/registry.hpp"
#include "lab/selftest.hpp"
#include "lab/suite.hpp"

namespace ninefold::lab {
namespace {

TEST(Shapes, AreNamedOnceAndHaveAReason) {
  for (const char* suite : {"quick", "full", "rivals"})
    for (const DLDeviceType type : {kDLCPU, kDLCUDA}) {
      std::set<std::string> seen;
      for (const bench_case& c : select_cases({"", suite, "", {type, 0}})) {
        EXPECT_TRUE(seen.insert(c.op + c.direction + c.dtype + c.name).second) << c.name;
        EXPECT_GT(c.bytes_read, 0) << c.name;
        EXPECT_GT(c.bytes_written, 0) << c.name;
        EXPECT_FALSE(c.ceiling.empty());
      }
      EXPECT_FALSE(seen.empty());
    }
  for (const shape_entry& s : shapes()) EXPECT_FALSE(s.why.empty()) << s.name;
  EXPECT_THROW(factory_of("sofmax"), std::invalid_argument);
}

TEST(Shapes, QuickIsPartOfFull) {
  std::set<std::string> full;
  for (const bench_case& c : select_cases({"", "full", "", {kDLCPU, 0}}))
    full.insert(c.op + c.direction + c.dtype + c.name);
  for (const bench_case& c : select_cases({"", "quick", "", {kDLCPU, 0}}))
    EXPECT_TRUE(full.count(c.op + c.direction + c.dtype + c.name)) << c.name;
}

TEST(Provenance, HashesBothDevicesOfEveryOp) {
  for (const std::string& op : ops()) {
    EXPECT_EQ(sources(op, "cpu").size(), 16u) << op;
    EXPECT_EQ(sources(op, "cuda").size(), 16u) << op;
    EXPECT_NE(sources(op, "cpu"), sources(op, "cuda")) << op;
  }
  EXPECT_EQ(sources("sofmax", "cpu"), "");
}

// A problem of one float whose contenders do what the test says.
class scripted : public problem {
 public:
  explicit scripted(std::vector<contender> list) : list_(std::move(list)) {}
  void fill(uint64_t) override {}
  void poison() override {}
  verify::error_report check() override { return {}; }
  std::vector<contender> contenders() override { return list_; }
  std::vector<buffer> buffers() override { return {}; }

 private:
  std::vector<contender> list_;
};

void wait_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

bench_case scripted_case(std::vector<contender> list) {
  bench_case c;
  c.op = "softmax";
  c.direction = "forward";
  c.device = cpu_device;
  c.dtype = "fp32";
  c.name = "scripted";
  c.bytes_read = c.bytes_written = 1 << 20;
  c.ceiling = "copy";
  c.make = [list] { return std::make_unique<scripted>(list); };
  return c;
}

TEST(RunCase, TheRivalIsTheFastestAdmissibleOne) {
  const bench_case c = scripted_case({
      {.provider = "ninefold", .rung = "", .call = [](nf_stream) { wait_us(2000); }},
      {.provider = "ninefold",
       .rung = "teaching",
       .call = [](nf_stream) { wait_us(10); },
       .headline = false},
      {.provider = "slow", .rung = "", .call = [](nf_stream) { wait_us(9000); }},
      {.provider = "fast", .rung = "", .call = [](nf_stream) { wait_us(4000); }},
      {.provider = "away", .rung = "", .call = nullptr, .absent = "not installed"},
  });
  const auto bench = make_cpu_workbench();
  run_settings settings;
  settings.max_seconds = 0.3;
  const std::vector<outcome> outcomes = run_case(c, *bench, settings);
  ASSERT_EQ(outcomes.size(), 6u);
  EXPECT_EQ(outcomes[0].rival, "fast");
  ASSERT_TRUE(outcomes[0].ratio);
  EXPECT_GT(outcomes[0].ratio->middle, 1.2);
  EXPECT_FALSE(outcomes[1].ratio);
  EXPECT_EQ(outcomes[4].check, "absent");
  EXPECT_EQ(outcomes[4].reason, "not installed");
  EXPECT_EQ(outcomes[5].who.provider, "lab");
  EXPECT_GT(outcomes[5].ceiling_gbps, 0);

  const auto row = make_row({}, c, outcomes[4]);
  EXPECT_TRUE(row.at("ms").is_null());
  EXPECT_EQ(row.at("check"), "absent");
}

TEST(RunCase, ARungThatCannotIsAbsentAndAnErrorIsAFailure) {
  const auto throwing = [](nf_status status) {
    return [status](nf_stream) { throw error(status, "no"); };
  };
  const bench_case c = scripted_case({
      {.provider = "ninefold", .rung = "a", .call = throwing(NF_UNSUPPORTED)},
      {.provider = "ninefold", .rung = "b", .call = throwing(NF_RUNTIME_ERROR)},
  });
  const auto bench = make_cpu_workbench();
  const std::vector<outcome> outcomes = run_case(c, *bench, {});
  EXPECT_EQ(outcomes[0].check, "absent");
  EXPECT_EQ(outcomes[1].check, "failed");
  EXPECT_EQ(outcomes[0].reason, "no");
}

TEST(Selftest, CatchesEveryCheatAndAcceptsTheHonestKernel) {
  const std::vector<selftest_result> results = selftest(cpu_device);
  EXPECT_EQ(results.size(), 6u);
  EXPECT_TRUE(fine(results));
}

}  // namespace
}  // namespace ninefold::lab
