// Who multiplies on the CPU. A call is cut into blocks of rows by panels of columns: a panel of B
// is packed once, then each block of A meets it, and its product stays in the caches, in fp32,
// until the epilogue has made d of it. How a call is cut depends on its shape alone, and one thread
// makes a block from beginning to end, so neither threads nor their number show in a bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "ops/matmul/matmul.hpp"

namespace ninefold::cpu {

// The most rows of a block, and columns of z in a panel.
inline constexpr int64_t matmul_most_rows = 192, matmul_most_columns = 512;

// Blocks of d: rows by columns. A panel of B has z_columns, in two parts where gates and ups lie
// apart.
struct block_plan {
  int64_t rows = matmul_most_rows, columns, row_blocks, panels;
  int64_t z_columns = matmul_most_columns, parts;

  explicit block_plan(const matmul_problem& p) {
    const int64_t h = matmul_columns(p), of_z = is_gated(p.epilogue) ? 2 : 1;
    const auto pieces = [](int64_t total, int64_t each) { return (total + each - 1) / each; };
    const auto count = [&] {
      columns = std::min(z_columns / of_z, std::max<int64_t>(h, 1));
      row_blocks = pieces(p.m, rows);
      panels = pieces(h, columns);
      return row_blocks * panels;
    };
    // Enough for a few threads, whatever their number; smaller ones would repack too often.
    constexpr int64_t enough = 16, fewest_rows = 48, fewest_columns = 128;
    while (count() < enough && (rows > fewest_rows || z_columns > fewest_columns)) {
      if (z_columns > fewest_columns) z_columns /= 2;
      if (count() < enough && rows > fewest_rows) rows /= 2;
    }
    z_columns = columns * of_z;
    parts = p.epilogue == NF_MATMUL_SWIGLU_CONCATENATED ? 2 : 1;
  }
};

// Columns [first, first + count) of B.
struct column_range {
  int64_t first, count;
};

class product {
 public:
  virtual ~product() = default;
  virtual int64_t packed_bytes() const = 0;   // of one part of a whole panel
  virtual int64_t scratch_bytes() const = 0;  // of each thread
  // Neither may throw; `packed` and `scratch` begin at a cache line.
  virtual void pack(int64_t batch, column_range columns, void* packed) = 0;
  // out[i * z_columns + j] = row (row + i) of A times column j of those packed.
  virtual void multiply(int64_t batch, int64_t row, int64_t rows, column_range columns,
                        const void* packed, void* scratch, float* out) = 0;
  virtual void require_success() const {}  // fails if one of them did
};

// oneDNN; nullptr where it cannot, with the reason in `why`.
std::unique_ptr<product> make_onednn_product(const matmul_problem& p, const char** why);

// The whole call by one primitive of oneDNN, if that has it in one pass and with one rounding.
bool matmul_by_one_primitive(const matmul_problem& p);

}  // namespace ninefold::cpu
