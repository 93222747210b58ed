// The program `ninefold`: reads the command line, hands over to one command, turns every error into
// one line on stderr and exit code 2.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "cli/commands.hpp"
#include "cli/nearest.hpp"

namespace {

using namespace ninefold::cli;

int wrong(const std::string& text) {
  fmt::print(stderr, "ninefold: {}\n", text);
  return 2;
}

// What may stand where an unknown word was found.
std::vector<std::string> known_words(const CLI::App& app, bool flag) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (flag) out.push_back("--" + name);
  for (const CLI::App* sub : app.get_subcommands({}))
    if (!flag) out.push_back(sub->get_name());
  return out;
}

int unknown(const CLI::App& app, const std::string& word) {
  const bool flag = word.rfind("-", 0) == 0;
  const std::string name = word.substr(0, word.find('='));
  const std::string near = nearest(name, known_words(app, flag));
  const std::string what = flag                              ? "option"
                           : app.get_subcommands({}).empty() ? "argument"
                                                             : "command";
  return wrong(fmt::format("no {} \"{}\"{}{}", what, name,
                           app.get_parent() ? " for " + app.get_name() : "",
                           near.empty() ? "" : "; did you mean \"" + near + "\"?"));
}

int run(int argc, char** argv) {
  CLI::App app{"Fused transformer kernels: measured, checked, compared."};
  app.name("ninefold");
  app.set_version_flag("--version", nf_version());
  const std::string device_help = "cpu or cuda; left out: every device that can be used";
  const auto is_device = CLI::IsMember({"cpu", "cuda"});

  bench_options bench_with;
  CLI::App* bench_sub = app.add_subcommand("bench", "Check and time the ops against their rivals");
  bench_sub->add_option("--op", bench_with.op, "one op; left out: all");
  bench_sub->add_option("--device", bench_with.device, device_help)->check(is_device);
  bench_sub->add_option("--suite", bench_with.suite, "quick (default) or full")
      ->check(CLI::IsMember({"quick", "full"}));
  bench_sub->add_option("--shape", bench_with.shape, "one shape of the suite, by name");
  bench_sub->add_option("--seed", bench_with.seed, "of data and order (default 1)");
  bench_sub->add_option("--out", bench_with.out, "write the rows here, one JSON object per line");
  bench_sub->add_option("--publish", bench_with.publish,
                        "like --out, but only after a passed self-test, from a clean tree, with "
                        "every baseline present or excused");
  bench_sub->add_flag("--hot", bench_with.hot, "leave the caches warm; such rows say so");
  bench_sub->add_flag("--json", bench_with.json, "print rows instead of tables");

  check_options check_with;
  CLI::App* check_sub = app.add_subcommand("check", "Check every rung against float64 here");
  check_sub->add_option("--op", check_with.op, "one op; left out: all");
  check_sub->add_option("--device", check_with.device, device_help)->check(is_device);
  check_sub->add_flag("--json", check_with.json, "print JSON instead of a table");

  compare_options compare_with;
  CLI::App* compare_sub =
      app.add_subcommand("compare", "What changed from results A to results B of one machine");
  compare_sub->add_option("A", compare_with.a, "results before")->required();
  compare_sub->add_option("B", compare_with.b, "results after")->required();
  compare_sub->add_flag("--fail-on-loss", compare_with.fail_on_loss, "exit code 1 on any LOSS");
  compare_sub->add_flag("--json", compare_with.json, "print JSON instead of a table");

  report_options report_with;
  CLI::App* report_sub = app.add_subcommand("report", "One HTML page, or Markdown tables");
  report_sub->add_option("files", report_with.files, "result files")->required();
  report_sub->add_option("-o,--out", report_with.out, "the page to write; left out: print");
  report_sub->add_flag("--markdown", report_with.markdown, "Markdown tables instead of HTML");
  report_sub->add_option("--fill", report_with.fill,
                         "put the tables between the ledger marks of this Markdown page");

  info_options info_with;
  CLI::App* info_sub = app.add_subcommand("info", "Hardware, build, and measured ceilings");
  info_sub->add_option("--device", info_with.device, device_help)->check(is_device);
  info_sub->add_flag("--json", info_with.json, "print JSON instead of a table");

  selftest_options selftest_with;
  CLI::App* selftest_sub = app.add_subcommand("selftest", "Is every planted cheat caught?");
  selftest_sub->add_option("--device", selftest_with.device, device_help)->check(is_device);
  selftest_sub->add_flag("--json", selftest_with.json, "print JSON instead of a table");

  // Unknown words are collected, so that the near one can be named.
  app.allow_extras();
  for (CLI::App* sub : app.get_subcommands({})) sub->allow_extras();
  const auto first_unknown = [](const CLI::App* a) {
    const std::vector<std::string> words = a->remaining();
    return words.empty() ? std::string() : words.front();
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ParseError& e) {
    for (const CLI::App* a : app.get_subcommands())
      if (const std::string word = first_unknown(a); !word.empty()) return unknown(*a, word);
    return wrong(e.what());
  }
  if (const std::string word = first_unknown(&app); !word.empty()) return unknown(app, word);
  for (const CLI::App* a : app.get_subcommands())
    if (const std::string word = first_unknown(a); !word.empty()) return unknown(*a, word);

  if (bench_sub->parsed()) return bench(bench_with);
  if (check_sub->parsed()) return check(check_with);
  if (compare_sub->parsed()) return compare(compare_with);
  if (report_sub->parsed()) return report(report_with);
  if (info_sub->parsed()) return info(info_with);
  if (selftest_sub->parsed()) return selftest(selftest_with);
  fmt::print("{}", app.help());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int code = run(argc, argv);
    // What was printed may still be in the buffer of a disk that is full.
    if (std::fflush(stdout) != 0) return wrong(std::string("stdout: ") + std::strerror(errno));
    return code;
  } catch (const std::exception& e) {
    return wrong(e.what());
  }
}
