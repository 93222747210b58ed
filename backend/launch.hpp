// The launch choice: one small printable struct per call, and the names by which a user forces it.
#pragma once

#include <cstdint>

namespace ninefold {

// What a call did, kept for nf_last_launch(). The fields that a rung does not use stay 0.
struct launch_choice {
  const char* op = "";
  const char* direction = "";
  const char* device = "";
  const char* rung = "none";
  const char* isa = "";
  int threads = 0;  // CUDA: per block; CPU: OpenMP threads
  int lanes = 0;    // CUDA: threads that share a row
  int vectors = 0;  // CUDA: 16-byte vectors a thread holds
  int cluster = 0;  // CUDA: blocks that share a row
};

// Remembers `choice` as this thread's last launch.
void record(const launch_choice& choice) noexcept;

// The rung the user asked for: args->rung if set, else NF_RUNG's entry for `op`
// ("softmax:online,vector_add:scalar"), else nullptr. find_rung checks either.
const char* asked_rung(const char* op, const char* from_args);

// The one of `names` equal to `asked`; fails with NF_UNSUPPORTED and the list if there is none.
int find_rung(const char* op, const char* asked, const char* const* names, int count);

}  // namespace ninefold
