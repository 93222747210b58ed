#include "lab/result_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ninefold::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* good =
    R"({"op":"softmax","direction":"forward","device":"cpu","dtype":"fp32","case":"a",)"
    R"("provider":"ninefold","check":"passed"})";

class ResultFile : public testing::Test {
 protected:
  ResultFile() : folder_(fs::temp_directory_path() / ("nf-results-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~ResultFile() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  std::string path(const char* name) const { return folder_ / name; }
  std::string message(const std::string& text) {
    std::ofstream(path("x.jsonl")) << text;
    try {
      read_rows(path("x.jsonl"));
    } catch (const file_error& e) {
      return std::string(e.what()).substr(path("x.jsonl").size());
    }
    return "";
  }
  fs::path folder_;
};

TEST_F(ResultFile, NamesTheLineThatIsWrong) {
  EXPECT_EQ(message(std::string(good) + "\n\n" + good + "\n"), "");
  EXPECT_EQ(message(std::string(good) + "\n{\"op\":"), ":2: not a JSON object");
  EXPECT_EQ(message("\n[1]\n"), ":2: not a JSON object");
  EXPECT_EQ(message("{\"op\":\"softmax\"}\n"), ":1: not a result row: no \"direction\"");
  EXPECT_THROW(read_rows(path("missing.jsonl")), file_error);
  EXPECT_THROW(read_rows(folder_), file_error);
}

TEST_F(ResultFile, WritesAllOrNothing) {
  write_text(path("out"), "old");
  write_text(path("out"), "new");
  EXPECT_EQ(read_text(path("out")), "new");
  EXPECT_THROW(write_text("/dev/full", "text"), file_error);
  EXPECT_THROW(write_text(path("no/such/folder"), "text"), file_error);
  int files = 0;
  for ([[maybe_unused]] const auto& f : fs::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1) << "something was left beside the file";
}

TEST_F(ResultFile, SaysSoBeforeTheWork) {
  require_writable(path("out"));
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_THROW(require_writable(path("no/such/folder")), file_error);
  if (geteuid() == 0) GTEST_SKIP() << "root may write into read-only folders";
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THROW(require_writable(path("out")), file_error);
  EXPECT_THROW(write_text(path("out"), "text"), file_error);
}

}  // namespace
}  // namespace ninefold::lab
