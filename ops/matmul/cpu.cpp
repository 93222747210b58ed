// Matrix products on the CPU: "naive", three loops, "tiled", Highway vectors around a tile in
// registers, and "onednn", whose product this file only wraps in what oneDNN does not have.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/matmul/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "ops/matmul/cpu_epilogue.hpp"
#include "ops/matmul/cpu_tile.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

class tiled_product : public product {
 public:
  explicit tiled_product(const matmul_problem& p) : p_(p), plan_(p) {}
  int64_t packed_bytes() const override {
    return tiled_packed_bytes(p_, plan_.z_columns / plan_.parts);
  }
  int64_t scratch_bytes() const override {
    return (matmul_most_rows + kTileRows) * kBlockDepth * static_cast<int64_t>(sizeof(float));
  }
  void pack(int64_t batch, column_range columns, void* packed) override {
    tiled_pack(p_, batch, columns, packed);
  }
  void multiply(int64_t batch, int64_t row, int64_t rows, column_range columns, const void* packed,
                void* scratch, float* out) override {
    tiled_multiply(p_, batch, row, rows, columns.count, static_cast<const float*>(packed),
                   static_cast<float*>(scratch), out, plan_.z_columns);
  }

 private:
  const matmul_problem& p_;
  const block_plan plan_;
};

std::unique_ptr<product> make_tiled_product(const matmul_problem& p) {
  return std::make_unique<tiled_product>(p);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/isa.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"
#include "ops/matmul/cpu_blocks.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(finish_block);
HWY_EXPORT(make_tiled_product);

constexpr const char* op = "matmul";
constexpr const char* rungs[] = {"naive", "tiled", "onednn"};
enum rung : int { naive, tiled, onednn };

// The plain three loops, each product read from where it is.
class naive_product : public product {
 public:
  explicit naive_product(const matmul_problem& p) : p_(p), plan_(p) {}
  int64_t packed_bytes() const override { return 0; }
  int64_t scratch_bytes() const override { return 0; }
  void pack(int64_t, column_range, void*) override {}
  void multiply(int64_t batch, int64_t row, int64_t rows, column_range columns, const void*, void*,
                float* out) override {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns.count; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < p_.k; ++k)
          sum += number_at(p_.a.data, p_.type, p_.a.at(batch, row + i, k)) *
                 number_at(p_.b.data, p_.type, p_.b.at(batch, k, columns.first + j));
        out[i * plan_.z_columns + j] = sum;
      }
  }

 private:
  const matmul_problem& p_;
  const block_plan plan_;
};

struct choice {
  int rung;
  std::unique_ptr<product> by;  // nullptr: all is done
};

// Below this a call of oneDNN costs more than what it computes.
bool is_tiny(const matmul_problem& p) { return p.m * p.n < 4096 && p.m * p.n * p.k < 1 << 15; }

choice choose(const matmul_problem& p) {
  const int asked = p.rung ? find_rung(op, p.rung, rungs, std::size(rungs)) : -1;
  if (asked == naive) return {naive, std::make_unique<naive_product>(p)};
  const char* why = nullptr;
  if (asked == onednn || (asked < 0 && !is_tiny(p))) {
    if (matmul_by_one_primitive(p)) return {onednn, nullptr};
    if (auto by = make_onednn_product(p, &why)) return {onednn, std::move(by)};
  }
  if (asked == onednn) fail(NF_UNSUPPORTED, "%s: rung \"onednn\" %s; leave the rung out", op, why);
  return {tiled, HWY_DYNAMIC_DISPATCH(make_tiled_product)(p)};
}

}  // namespace

int64_t matmul_workspace(const matmul_problem& p) { return sum_layout(p).bytes(); }

void matmul_forward(const matmul_problem& p) {
  const char* isa = isa_name();  // applies NF_CPU_ISA before the first dispatch
  const choice c = choose(p);
  const auto finish = [&](const matmul_block& b) { HWY_DYNAMIC_DISPATCH(finish_block)(p, b); };
  const int threads = c.by ? block_walk(p, *c.by, finish).run() : omp_get_max_threads();
  record({.op = op,
          .direction = "forward",
          .device = "cpu",
          .rung = rungs[c.rung],
          .isa = isa,
          .threads = threads});
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
