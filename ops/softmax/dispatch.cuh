// Which rung runs a call, and with how many threads, vectors and blocks a row: one rule for forward
// and backward, and the tables they are looked up in.
#pragma once

#include <array>
#include <initializer_list>
#include <utility>

#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/vec.hpp"
#include "backend/launch.hpp"
#include "backend/rows.hpp"

namespace ninefold::cuda {

inline constexpr const char* softmax_rungs[] = {"three_pass", "online", "row_per_warp",
                                                "row_per_block", "row_per_cluster"};
enum softmax_rung : int { three_pass, online, row_per_warp, row_per_block, row_per_cluster };

// One instantiation of the one-read kernel. Narrow rows first: the first that holds a row is taken.
struct row_shape {
  int lanes, vectors, cluster;
  int resident;         // blocks a multiprocessor must hold: caps the registers
  bool shared = false;  // backward: y waits in shared memory
  bool core = false;    // forward: also built for masks, scales and wider outputs

  constexpr int threads() const { return lanes > 32 ? lanes : 128; }
  constexpr int64_t columns(int width) const { return int64_t{lanes} * vectors * cluster * width; }
  constexpr softmax_rung rung() const {
    return cluster > 1 ? row_per_cluster : lanes > 32 ? row_per_block : row_per_warp;
  }
};

// How one tensor of a call lies in memory.
struct row_memory {
  int index;  // in the layout
  const void* data;
  int size;  // of an element

  int vector() const { return 16 / size; }
  int64_t first() const { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) / size; }
};

// Whether every row of `tensors` can be read in vectors: unit stride, and each row begins as far
// past a vector's boundary as the leading tensor's does, whose boundaries the kernel cuts at.
template <int kTensors>
bool vectors_fit(const row_layout<kTensors>& layout, std::initializer_list<row_memory> tensors) {
  const row_memory& lead = *tensors.begin();
  for (const row_memory& m : tensors) {
    if (layout.col_stride[m.index] != 1) return false;
    if ((m.first() - lead.first()) % m.vector() != 0) return false;
    for (int d = 0; d < layout.dims; ++d)
      if ((layout.stride[m.index][d] - layout.stride[lead.index][d]) % m.vector() != 0)
        return false;
  }
  return true;
}

// N, and what a row may need beyond it because it begins between two boundaries.
template <int kTensors>
int64_t columns_to_hold(const row_layout<kTensors>& layout, const row_memory& lead) {
  bool aligned = lead.first() % lead.vector() == 0;
  for (int d = 0; d < layout.dims; ++d)
    aligned = aligned && layout.stride[lead.index][d] % lead.vector() == 0;
  return layout.cols + (aligned ? 0 : lead.vector() - 1);
}

// From the first byte that a row of the tensor touches to the last; for tensors of unit stride.
template <int kTensors>
memory_range range_of(const row_layout<kTensors>& layout, const row_memory& m) {
  int64_t low = 0, high = layout.cols;
  for (int d = 0; d < layout.dims; ++d) {
    const int64_t reach = layout.stride[m.index][d] * (layout.size[d] - 1);
    (reach < 0 ? low : high) += reach;
  }
  const auto at = reinterpret_cast<uintptr_t>(m.data);
  return {at + static_cast<uintptr_t>(low * m.size), at + static_cast<uintptr_t>(high * m.size)};
}

struct softmax_choice {
  softmax_rung rung;
  int shape = -1;  // index into the table, for the one-read rungs
};

// The rule: the first shape of `shapes` that holds the row, if vectors fit and the shape is usable;
// else online. A rung asked for by name narrows the search to its shapes.
template <size_t kShapes, class Usable>
softmax_choice choose(const char* op, const char* asked,
                      const std::array<row_shape, kShapes>& shapes, bool fits, int64_t columns,
                      int width, Usable&& usable) {
  const int wanted = asked ? find_rung(op, asked, softmax_rungs, std::size(softmax_rungs)) : -1;
  if (wanted == three_pass || wanted == online) return {static_cast<softmax_rung>(wanted)};
  if (fits) {
    for (int i = 0; i < static_cast<int>(kShapes); ++i) {
      const row_shape& s = shapes[static_cast<size_t>(i)];
      if (s.columns(width) < columns || !usable(s)) continue;
      if (wanted < 0 || wanted == s.rung()) return {s.rung(), i};
    }
  }
  if (wanted < 0) return {online};
  fail(NF_UNSUPPORTED, "%s: rung %s cannot take this call: N = %lld, %s", op, softmax_rungs[wanted],
       static_cast<long long>(columns),
       fits ? "or an option it does not have" : "strides or alignment");
}

inline void record_softmax(const char* direction, softmax_rung rung, int threads,
                           const row_shape& shape = {}) {
  record({.op = "softmax",
          .direction = direction,
          .device = "cuda",
          .rung = softmax_rungs[rung],
          .isa = current_arch().name,
          .threads = threads,
          .lanes = shape.lanes,
          .vectors = shape.vectors,
          .cluster = shape.cluster});
}

}  // namespace ninefold::cuda
