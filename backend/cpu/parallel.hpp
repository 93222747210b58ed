// Rows over OpenMP threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ninefold::cpu {

// How rows are cut: chunks are handed out as threads become free, so a busy core or the short rows
// of a causal triangle do not hold the others up. Every row is worked on by one thread.
struct row_split {
  int threads;
  int64_t chunk;  // rows
};

inline row_split split_rows(int64_t rows, int64_t bytes_per_row) {
  // Waking a thread costs some microseconds: worth it from about this many bytes each.
  constexpr int64_t bytes_per_thread = 64 << 10;
  constexpr int64_t bytes_per_chunk = 256 << 10;
  const int64_t row_bytes = std::max<int64_t>(bytes_per_row, 1);
  const int64_t rows_per_thread = std::max<int64_t>(bytes_per_thread / row_bytes, 1);
  const int64_t useful = (rows + rows_per_thread - 1) / rows_per_thread;
  const int threads = static_cast<int>(std::clamp<int64_t>(useful, 1, omp_get_max_threads()));
  // Long chunks, for a kernel starts and ends each with an empty pipeline.
  const int64_t chunks = 8 * int64_t{threads};
  return {threads, std::max<int64_t>(bytes_per_chunk / row_bytes, (rows + chunks - 1) / chunks)};
}

// Calls body(begin, end) for chunks that cover [0, rows). `body` must not throw.
template <class Body>
void parallel_rows(int64_t rows, const row_split& split, const Body& body) {
  if (split.threads == 1) return body(int64_t{0}, rows);
  const int64_t chunks = (rows + split.chunk - 1) / split.chunk;
#pragma omp parallel for num_threads(split.threads) schedule(dynamic, 1)
  for (int64_t c = 0; c < chunks; ++c) body(c * split.chunk, std::min((c + 1) * split.chunk, rows));
}

}  // namespace ninefold::cpu
