// Rows as the report sees them: typed, tolerant of missing keys, grouped device > op > case.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/report.hpp"

namespace ninefold::lab::report {

using named_sizes = std::vector<std::pair<std::string, int64_t>>;

// Rows of the suite `rivals` come from Python: PyTorch's allocation and autograd are in everyone's
// time. They are groups of their own, called by the op's name and this.
inline constexpr const char* through_torch = " through PyTorch";

// The order is the order of every table: what hurts comes first.
enum class outcome { loss, failed, unclear, absent, unrated, tie, win };
const char* word(outcome o);

struct row {
  const nlohmann::json* raw = nullptr;
  std::string op, direction, device, device_name, dtype, case_name, provider, rung;
  std::string ceiling, check, rival, verdict, commit, sources, suite, run, started, launch, reason;
  named_sizes shape, options;
  std::optional<double> ms, ms_low, ms_high, gbps, tflops, ceiling_gbps, share, flops;
  std::optional<double> bytes_read, bytes_written, peak_bytes, kept_bytes, workspace_bytes;
  std::optional<double> error, error_ratio, worst, flushed;
  std::optional<double> kernel_ratio, call_ratio;  // by clocks of their own: see the schema
  std::optional<std::array<double, 3>> ratio;      // low, middle, high
  bool dirty = false, stale = false, slowed = false;

  bool ours() const { return provider == "ninefold"; }
  bool passed() const { return check == "passed"; }
  outcome result() const;
  std::optional<double> intensity() const;  // flops per byte, both as declared
  std::string label() const;                // "ninefold", "ninefold three_pass", "cuDNN 9.19"
};

// Any key of the row as text: strings bare, the rest as JSON, nothing for null and missing.
std::string text_of(const row& r, const char* key);

// One problem on one device. All its rows come from one run: numbers of different runs are never
// put side by side.
struct measured_case {
  std::string direction, dtype, case_name;
  named_sizes shape, options;
  const row* own = nullptr;  // the library's own choice of rung
  std::vector<const row*> rungs, rivals;

  outcome result() const { return own ? own->result() : outcome::absent; }
  std::optional<double> middle() const;    // of the ratio
  const row* rival() const;                // whom the ratio was taken against
  std::optional<double> rival_ms() const;  // its time
  // Losses first, and the worst of them before the others.
  std::pair<outcome, double> rank() const;
  std::string title() const;             // "gpt2-attention, causal 1024"
  std::vector<const row*> rows() const;  // own, rungs, rivals
  int64_t width() const;                 // N, or the last size where there is no N
  int64_t elements() const;
};

struct op_group {
  std::string op;
  std::vector<measured_case> cases;  // by size
  std::vector<const measured_case*> losses_first() const;
  // One list per (direction, dtype), in reading order.
  std::vector<std::vector<const measured_case*>> columns() const;
};

struct device_group {
  std::string device, device_name;
  std::vector<op_group> ops;
  std::vector<const row*> ceilings;  // the newest of each name
  std::vector<const row*> runs;      // one row of each run that is shown
};

struct ledger {
  std::deque<row> rows;  // addresses stay valid
  std::vector<device_group> devices;
  size_t unreadable = 0;  // entries that are not rows
  size_t superseded = 0;  // rows of a case that a later run measured again
};

// Of ratios: the geometric one, in which 2 and 1/2 make 1.
class ratio_mean {
 public:
  void add(double ratio);
  std::optional<double> value() const;  // nothing where nothing was added

 private:
  double logarithms_ = 0;
  int count_ = 0;
};

struct totals {
  std::map<outcome, int> cases;  // by the result of our own choice
  int absent_rows = 0, failed_rows = 0, stale_cases = 0, rated = 0;
  const measured_case* worst = nullptr;
  const measured_case* best = nullptr;
  double geometric_mean = 0;  // over every case with a ratio; 0 where there is none
};

// `rows` must outlive the ledger.
ledger read_rows(const std::vector<nlohmann::json>& rows, const source_hashes& current);
totals count(const std::vector<const measured_case*>& cases);
std::vector<const measured_case*> all_cases(const device_group& device);
std::vector<const measured_case*> all_cases(const op_group& op);

}  // namespace ninefold::lab::report
