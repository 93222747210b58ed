// The walk over a call's blocks; cpu_product.hpp says how it is cut, and why.
#pragma once

#include <hwy/aligned_allocator.h>
#include <omp.h>

#include <algorithm>

#include "backend/cpu/parallel.hpp"
#include "backend/cpu/scalar.hpp"
#include "backend/status.hpp"
#include "ops/matmul/cpu_epilogue.hpp"

namespace ninefold::cpu {

// The partial sums in the workspace: of each row by panel, of each column by block of rows.
struct sum_layout {
  block_plan plan;
  int64_t of_rows = 0, of_columns = 0;  // numbers

  explicit sum_layout(const matmul_problem& p) : plan(p) {
    if (p.row_sums) of_rows = p.m * plan.panels;
    if (p.column_sums) of_columns = plan.row_blocks * matmul_columns(p);
  }
  int64_t bytes() const { return (of_rows + of_columns) * static_cast<int64_t>(sizeof(float)); }
};

// sums[i] = sum over t < terms of partial[i * step + t * stride], each in this order, in double.
inline void add_partials(const matmul_problem& p, void* sums, int64_t count, const float* partial,
                         int64_t step, int64_t terms, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    double sum = p.accumulate ? number_at(sums, p.sums_type, i) : 0;
    for (int64_t t = 0; t < terms; ++t) sum += partial[i * step + t * stride];
    set_number(sums, p.sums_type, i, static_cast<float>(sum));
  }
}

template <class Finish>
class block_walk {
 public:
  block_walk(const matmul_problem& p, product& by, const Finish& finish)
      : p_(p), by_(by), finish_(finish), sums_(p), plan_(sums_.plan) {
    const float alpha = p.alpha.get();
    multiplies_ = p.k > 0 && alpha != 0;
    part_bytes_ = multiplies_ ? lines(by.packed_bytes()) : 0;
    block_bytes_ = lines(plan_.rows * plan_.z_columns * static_cast<int64_t>(sizeof(float)));
    thread_bytes_ = block_bytes_ + lines(by.scratch_bytes());
  }

  // The number of threads that worked.
  int run() {
    const int64_t blocks = plan_.row_blocks * plan_.panels;
    const int threads = blocks * p_.batch > 0 ? most_threads(blocks * p_.batch) : 1;
    // A batch of many small products is shared out whole, each to one thread.
    const bool whole = p_.batch > 1 && blocks < threads * 4;
    constexpr int64_t most_packed = int64_t{64} << 20;
    const int64_t panel_bytes = std::max<int64_t>(plan_.parts * part_bytes_, 1);
    group_ = std::clamp<int64_t>(most_packed / panel_bytes, 1, std::max<int64_t>(plan_.panels, 1));
    const int64_t packed_bytes = lines(group_ * plan_.parts * part_bytes_);
    const int64_t each = thread_bytes_ + (whole ? packed_bytes : 0);
    char* const memory = memory_of(threads * each + (whole ? 0 : packed_bytes));
    if (whole) {
#pragma omp parallel for num_threads(threads) schedule(static)
      for (int64_t b = 0; b < p_.batch; ++b) {
        char* const mine = memory + omp_get_thread_num() * each;
        one_product(b, mine + thread_bytes_, mine, 0, 1);
      }
    } else {
      for (int64_t b = 0; b < p_.batch; ++b)
        one_product(b, memory + threads * each, memory, each, threads);
    }
    by_.require_success();
    finish_sums();
    return threads;
  }

 private:
  static int64_t lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  int most_threads(int64_t items) const {
    // Waking a thread costs some microseconds, as much as this many products.
    constexpr double worth = 1 << 20;
    const double products = static_cast<double>(p_.batch) * static_cast<double>(p_.m) *
                            static_cast<double>(p_.n) * static_cast<double>(p_.k + 8);
    const double threads = std::min(1 + products / worth, double{1 << 16});
    return static_cast<int>(
        std::min({items, static_cast<int64_t>(threads), int64_t{omp_get_max_threads()}}));
  }

  // Kept by the calling thread for its next call, for new pages cost as much as the packing.
  static char* memory_of(int64_t bytes) {
    thread_local hwy::AlignedFreeUniquePtr<char[]> memory;
    thread_local int64_t held = 0;
    if (bytes > held) {
      held = 0;
      memory = hwy::AllocateAligned<char>(static_cast<size_t>(bytes));
      if (!memory)
        fail(NF_RUNTIME_ERROR, "matmul: no memory for %lld bytes of packed operands",
             static_cast<long long>(bytes));
      held = bytes;
    }
    return memory.get();
  }

  int64_t columns_of(int64_t panel) const {
    return std::min(plan_.columns, matmul_columns(p_) - panel * plan_.columns);
  }
  // Of z: those of a panel, or of its part: gates and ups.
  column_range range_of(int64_t panel, int64_t part) const {
    const int64_t first = panel * plan_.columns, count = columns_of(panel);
    if (p_.epilogue == NF_MATMUL_SWIGLU_INTERLEAVED) return {2 * first, 2 * count};
    return {part * (p_.n / 2) + first, count};
  }

  void one_product(int64_t batch, char* packed, char* memory, int64_t each, int threads) {
    for (int64_t from = 0; from < plan_.panels; from += group_) {
      const int64_t count = std::min(group_, plan_.panels - from);
      if (part_bytes_ > 0) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
        for (int64_t i = 0; i < count * plan_.parts; ++i)
          by_.pack(batch, range_of(from + i / plan_.parts, i % plan_.parts),
                   packed + i * part_bytes_);
      }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
      for (int64_t i = 0; i < count * plan_.row_blocks; ++i) {
        const int64_t at = i / plan_.row_blocks;
        char* const mine = memory + (threads > 1 ? omp_get_thread_num() : 0) * each;
        one_block(batch, i % plan_.row_blocks, from + at, packed + at * plan_.parts * part_bytes_,
                  mine);
      }
    }
  }

  void one_block(int64_t batch, int64_t block, int64_t panel, const char* packed, char* mine) {
    const int64_t row = block * plan_.rows, rows = std::min(plan_.rows, p_.m - row);
    float* const z = reinterpret_cast<float*>(mine);
    for (int64_t part = 0; part < plan_.parts; ++part) {
      const column_range columns = range_of(panel, part);
      float* const to = z + part * columns.count;
      if (multiplies_) {
        by_.multiply(batch, row, rows, columns, packed + part * part_bytes_, mine + block_bytes_,
                     to);
      } else {
        for (int64_t i = 0; i < rows; ++i)
          std::fill_n(to + i * plan_.z_columns, columns.count, 0.0f);
      }
    }
    const int64_t column = panel * plan_.columns;
    float* const partials = static_cast<float*>(p_.workspace);
    finish_({.batch = batch,
             .row = row,
             .rows = rows,
             .column = column,
             .columns = columns_of(panel),
             .z = z,
             .z_row = plan_.z_columns,
             .row_sums = p_.row_sums ? partials + row * plan_.panels + panel : nullptr,
             .row_sums_stride = plan_.panels,
             .column_sums = p_.column_sums
                                ? partials + sums_.of_rows + block * matmul_columns(p_) + column
                                : nullptr});
  }

  void finish_sums() const {
    const float* const partials = static_cast<const float*>(p_.workspace);
    const int64_t h = matmul_columns(p_);
    if (p_.row_sums) add_partials(p_, p_.row_sums, p_.m, partials, plan_.panels, plan_.panels, 1);
    if (p_.column_sums)
      add_partials(p_, p_.column_sums, h, partials + sums_.of_rows, 1, plan_.row_blocks, h);
  }

  const matmul_problem& p_;
  product& by_;
  const Finish& finish_;
  const sum_layout sums_;
  const block_plan& plan_;
  int64_t part_bytes_, block_bytes_, thread_bytes_, group_ = 1;
  bool multiplies_;
};

}  // namespace ninefold::cpu
