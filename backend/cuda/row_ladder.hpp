// The ladder of ops that reduce a row and then map it: which rung runs a call, and with how many
// threads, vectors and blocks a row. One rule, and the tables it looks up are the ops' own.
//   three_pass       a thread a row, each pass reads it anew; any strides
//   online           a block a row, two reads; any length and any strides
//   row_per_warp, row_per_block, row_per_cluster
//                    one read: the row stays on chip, shared by lanes, by a block, by a cluster
#pragma once

#include <array>
#include <initializer_list>
#include <utility>

#include "backend/cuda/arch.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/row.hpp"
#include "backend/cuda/vec.hpp"
#include "backend/launch.hpp"
#include "backend/rows.hpp"

namespace ninefold::cuda {

inline constexpr const char* row_rungs[] = {"three_pass", "online", "row_per_warp", "row_per_block",
                                            "row_per_cluster"};
enum row_rung : int { three_pass, online, row_per_warp, row_per_block, row_per_cluster };

// One instantiation of the one-read kernel. Narrow rows first: the first that holds a row is taken.
struct row_shape {
  int lanes, vectors, cluster;
  int resident;         // blocks a multiprocessor must hold: caps the registers
  bool shared = false;  // part of the row waits in shared memory, where the kernel has that choice
  bool core = false;    // also built for the op's options, not only for its plain calls

  constexpr int threads() const { return row_threads(lanes); }
  constexpr int64_t columns(int width) const { return int64_t{lanes} * vectors * cluster * width; }
  constexpr row_rung rung() const {
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
struct row_extent {
  int64_t by_vector, by_line;

  int64_t of(const row_shape& s) const { return row_boundary(s.lanes) == 16 ? by_vector : by_line; }
};

template <int kTensors>
row_extent extent_of(const row_layout<kTensors>& layout, const row_memory& lead) {
  const auto cut_at = [&](int bytes) {
    const int elements = bytes / lead.size;
    bool aligned = lead.first() % elements == 0;
    for (int d = 0; d < layout.dims; ++d)
      aligned = aligned && layout.stride[lead.index][d] % elements == 0;
    return layout.cols + (aligned ? 0 : elements - 1);
  };
  return {cut_at(16), cut_at(128)};
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

struct row_choice {
  row_rung rung;
  int shape = -1;  // index into the table, for the one-read rungs
};

inline constexpr int three_pass_threads = 128, online_threads = 512;

// A call on its way up the ladder.
struct row_call {
  const char *op, *direction;
  const char* asked;  // a rung by name, or nullptr
  int64_t rows;
  bool fits;  // vectors_fit
  row_extent columns;
  int width;  // elements of a vector
  int online_block = online_threads;
};

// The rule: the first shape of `shapes` that holds the row, if vectors fit and the shape is usable;
// else online. A rung asked for by name narrows the search to its shapes.
template <size_t kShapes, class Usable>
row_choice choose(const row_call& call, const std::array<row_shape, kShapes>& shapes,
                  Usable&& usable) {
  const int wanted =
      call.asked ? find_rung(call.op, call.asked, row_rungs, std::size(row_rungs)) : -1;
  if (wanted == three_pass || wanted == online) return {static_cast<row_rung>(wanted)};
  if (call.fits) {
    const bool clusters = current_arch().sm90;
    for (int i = 0; i < static_cast<int>(kShapes); ++i) {
      const row_shape& s = shapes[static_cast<size_t>(i)];
      if (s.columns(call.width) < call.columns.of(s) || !usable(s)) continue;
      if (s.cluster > 1 && !clusters) continue;
      if (wanted < 0 || wanted == s.rung()) return {s.rung(), i};
    }
  }
  if (wanted < 0) return {online};
  fail(NF_UNSUPPORTED, "%s: rung %s cannot take this call: N = %lld, %s", call.op,
       row_rungs[wanted], static_cast<long long>(call.columns.by_vector),
       call.fits ? "or an option it does not have" : "strides or alignment");
}

inline void record_row(const char* op, const char* direction, row_rung rung, int threads,
                       const row_shape& shape = {}) {
  record({.op = op,
          .direction = direction,
          .device = "cuda",
          .rung = row_rungs[rung],
          .isa = current_arch().name,
          .threads = threads,
          .lanes = shape.lanes,
          .vectors = shape.vectors,
          .cluster = shape.cluster});
}

// Chooses, launches by the one of the three functions that is right, and records. The first two
// get the shape of the launch, the third the index of a row_shape.
template <size_t kShapes, class Usable, class ThreePass, class Online, class OneRead>
void climb(const row_call& call, const std::array<row_shape, kShapes>& shapes, Usable&& usable,
           ThreePass&& launch_three_pass, Online&& launch_online, OneRead&& launch_one_read) {
  const row_choice choice = choose(call, shapes, usable);
  if (choice.rung == three_pass) {
    launch_three_pass(launch_shape{grid_for(call.rows, three_pass_threads), three_pass_threads});
    return record_row(call.op, call.direction, three_pass, three_pass_threads);
  }
  if (choice.rung == online) {
    launch_online(launch_shape{grid_for(call.rows, 1), call.online_block});
    return record_row(call.op, call.direction, online, call.online_block);
  }
  launch_one_read(choice.shape);
  const row_shape& s = shapes[static_cast<size_t>(choice.shape)];
  record_row(call.op, call.direction, choice.rung, s.threads(), s);
}

}  // namespace ninefold::cuda
