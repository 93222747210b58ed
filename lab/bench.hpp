// What an op's bench.cpp tells the lab: cases, what they cost by definition, and who can run them.
// The lab does everything else: checking, timing, ceilings, rows.
#pragma once

#include <ninefold/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verify/error.hpp"

namespace ninefold::lab {

using named_sizes = std::vector<std::pair<std::string, int64_t>>;

// One way to do a case's work on the case's own buffers.
struct contender {
  std::string provider;  // "ninefold", or the rival's name and version: "oneDNN 2.6.3"
  std::string rung;      // what was asked for by name; "" is the library's own choice
  // One call: enqueue on `stream` (CUDA) or do it (CPU). Throws ninefold::error if it cannot.
  std::function<void(nf_stream stream)> call;
  // Puts back the inputs that a call overwrites: before each call, outside the clock.
  std::function<void(nf_stream stream)> restore = {};
  std::string absent = {};      // a reason instead of a call: the row is printed with it
  bool headline = true;         // false: a teaching rung, never the rival of a headline ratio
  bool naive = false;           // the rung whose error the others' is compared with
  bool ladder = false;          // measured only where all rungs are asked for
  int64_t workspace_bytes = 0;  // what the caller brings beyond inputs and outputs
  // How many of the op's tolerances the result may be off by. A rival never promised our single
  // rounding; it is admitted a little further off, and its row says how far it was.
  double allowance = 1;
};

// What the library itself brings: its own choice, its naive rung, and the rungs of its ladder.
template <class Ours>
std::vector<contender> own_contenders(Ours&& ours, const char* naive,
                                      const std::vector<const char*>& ladder) {
  std::vector<contender> out{ours(nullptr), ours(naive)};
  out.back().headline = false;
  out.back().naive = true;
  for (const char* rung : ladder) {
    out.push_back(ours(rung));
    out.back().headline = false;
    out.back().ladder = true;
  }
  return out;
}

// The storage of one input or output: what cold samples evict, and what the lab looks into to find
// constant inputs and work done behind the clock's back.
struct buffer {
  void* data;
  int64_t bytes;
  bool output;
};

// A case's buffers. Built when its turn comes, destroyed after it.
class problem {
 public:
  virtual ~problem() = default;
  virtual void fill(uint64_t seed) = 0;  // fresh random inputs
  virtual void poison() = 0;  // outputs to NaN; those that lie over inputs to the inputs' values
  // Outputs against the float64 reference of the inputs as they are; counts unwritten elements over
  // the whole output; large tensors are compared on all of a fixed sample of rows.
  virtual verify::error_report check() = 0;
  virtual std::vector<contender> contenders() = 0;
  virtual std::vector<buffer> buffers() = 0;
};

struct bench_case {
  std::string op;         // "softmax"
  std::string direction;  // "forward" | "backward" | "forward_backward"
  DLDevice device;
  std::string dtype;    // "fp32", "fp16", "bf16"; "bf16-fp32" where in and out differ
  std::string name;     // where the shape comes from: "gpt2-vocabulary"
  named_sizes shape;    // {{"M", 4096}, {"N", 50257}}
  named_sizes options;  // what else the shape file asks for: {{"log", 1}}
  // By the op's definition, not the implementation: each input once, each output once.
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t flops = 0;
  int64_t kept_bytes = 0;         // alive from forward to backward beyond the inputs
  std::string ceiling;            // the stream of the same mix, see lab/ceilings.hpp
  bool ceiling_is_rival = false;  // an op that is nothing but a stream competes with the stream
  std::function<std::unique_ptr<problem>()> make;
};

// One shape of lab/shapes.json.
struct shape_entry {
  std::string op, name, why;
  named_sizes sizes, options;
  std::vector<std::string> dtypes, directions, devices, suites;  // devices: "cpu", "cuda"
};

// Each op's bench.cpp defines `cases_<op>`: the case of one shape for one device, dtype and
// direction. CMake lists the ops (nf_add_op), the lab calls them.
using case_factory = bench_case (*)(const shape_entry& shape, const std::string& direction,
                                    const std::string& dtype, DLDevice device);

}  // namespace ninefold::lab
