#include "lab/report_doubts.hpp"

#include <fmt/format.h>

#include "lab/report_text.hpp"

namespace ninefold::lab::report {
namespace {

// A ratio that would surprise the rival's authors needs a second, separate run.
bool extraordinary(const measured_case& c) {
  const auto middle = c.middle();
  if (!middle || c.result() != outcome::win) return false;
  bool vendor = false;
  for (const char* name : {"cuDNN", "cuBLAS", "FlashAttention"}) {
    vendor = vendor || c.own->rival.starts_with(name);
  }
  return *middle > (vendor ? 1.1 : 2.0);
}

// Names of the first few, then how many more.
class examples {
 public:
  void add(const device_group& device, const op_group& op, const measured_case& c) {
    if (++count_ <= 4) {
      names_ += fmt::format("{}{} {} {} {} on {}", names_.empty() ? "" : "; ", op.op, c.direction,
                            c.dtype, sizes(c.shape), device.device_name);
    }
  }
  std::string item(const char* one, const char* many) const {
    if (!count_) return {};
    return fmt::format("<li><b>{} {}</b> <span class=\"sub\">{}{}</span></li>\n", count_,
                       count_ == 1 ? one : many, html(names_),
                       count_ > 4 ? fmt::format("; and {} more", count_ - 4) : "");
  }

 private:
  int count_ = 0;
  std::string names_;
};

}  // namespace

std::string doubts(const ledger& book) {
  examples stale, dirty, slowed, over, wild, noisy, alone, unchecked;
  std::string single;
  for (const device_group& device : book.devices) {
    if (device.runs.size() == 1) {
      single += (single.empty() ? "" : ", ") + device.device_name;
    }
    for (const op_group& op : device.ops) {
      for (const measured_case* c : op.losses_first()) {
        const row* r = c->own;
        if (!r) continue;
        if (r->stale) stale.add(device, op, *c);
        if (r->slowed) slowed.add(device, op, *c);
        if (r->dirty) dirty.add(device, op, *c);
        if (r->share && *r->share > 1) over.add(device, op, *c);
        if (extraordinary(*c)) wild.add(device, op, *c);
        if (r->ms_low && r->ms_high && *r->ms_low > 0 && *r->ms_high / *r->ms_low > 1.1) {
          noisy.add(device, op, *c);
        }
        if (r->passed() && !r->ratio) alone.add(device, op, *c);
        if (r->ms && r->check != "passed") unchecked.add(device, op, *c);
      }
    }
  }
  std::string out =
      "<section id=\"doubts\"><h2>How this could be wrong</h2>\n<p>What these rows give reason to "
      "doubt:</p>\n<ul class=\"list\">\n";
  out += unchecked.item("time stands without a passed check: do not use it.",
                        "times stand without a passed check: do not use them.");
  out += stale.item("case was measured on sources that have changed since.",
                    "cases were measured on sources that have changed since.");
  out += dirty.item("case was measured on a tree with uncommitted changes: nobody can rebuild it.",
                    "cases were measured on a tree with uncommitted changes: nobody can rebuild "
                    "them.");
  out += slowed.item("case ran on a device that held its clocks back, for power or heat.",
                     "cases ran on a device that held its clocks back, for power or heat.");
  out += over.item("share is above 100 %: the ceiling is too low, or a cache was warm.",
                   "shares are above 100 %: the ceiling is too low, or a cache was warm.");
  out += wild.item("win is large enough to need a second, separate run before it is believed.",
                   "wins are large enough to need a second, separate run before they are "
                   "believed.");
  out += noisy.item("median has an interval wider than 10 %.",
                    "medians have an interval wider than 10 %.");
  out += alone.item("case had no rival to lose to.", "cases had no rival to lose to.");
  if (!single.empty()) {
    out += fmt::format(
        "<li><b>One run only: {}.</b> <span class=\"sub\">An interval knows the spread within its "
        "run. Another day, another chip of the same name or another driver can move a ratio by "
        "more.</span></li>\n",
        html(single));
  }
  return out +
         "</ul>\n<p>What no row can show:</p>\n<ul class=\"list\">\n"
         "<li><b>The ceilings are ours.</b> <span class=\"sub\">If our copy is slower than the "
         "best possible copy, every share flatters us; ratios to rivals do not change."
         "</span></li>\n"
         "<li><b>Bytes are declared, not counted.</b> <span class=\"sub\">Extra traffic of a "
         "kernel shows as a lower rate, never as more bytes.</span></li>\n"
         "<li><b>The rival may be misused.</b> <span class=\"sub\">A better setting, layout or "
         "newer version could beat the one we timed; its version is in its name.</span></li>\n"
         "<li><b>The caches are cold and the data random.</b> <span class=\"sub\">A kernel that "
         "runs right after its producer may find its input in the cache, and real logits are not "
         "normal noise.</span></li>\n"
         "<li><b>Clocks belong to the machine.</b> <span class=\"sub\">Under a power cap they "
         "cannot be held; pairs are interleaved so that both sides feel the same drift."
         "</span></li>\n"
         "<li><b>The same people wrote the kernels and the ledger.</b> <span class=\"sub\">"
         "<code>ninefold selftest</code> plants cheats that it must catch; <code>ninefold "
         "bench</code> on your own machine is the better argument.</span></li>\n</ul></section>\n";
}

}  // namespace ninefold::lab::report
