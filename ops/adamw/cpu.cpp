// AdamW on the CPU: "scalar", the formula element by element on one thread a tensor, and "chunks",
// Highway vectors over pieces of a fixed size that the threads share out.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/adamw/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "ops/adamw/cpu_chunks.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

void update_run(const adamw_factors& f, const adamw_tensor& t, int64_t from, int64_t count) {
  if (t.param_type == dtype::f32) return update_with_moments<float>(f, t, from, count);
  if (t.param_type == dtype::f16) return update_with_moments<f16>(f, t, from, count);
  update_with_moments<bf16>(f, t, from, count);
}

float squares_of_run(const adamw_tensor& t, int64_t from, int64_t count) {
  if (t.grad_type == dtype::f32) return squares_of(static_cast<const float*>(t.grad) + from, count);
  if (t.grad_type == dtype::f16) return squares_of(static_cast<const f16*>(t.grad) + from, count);
  return squares_of(static_cast<const bf16*>(t.grad) + from, count);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

#include "backend/cpu/isa.hpp"
#include "backend/cpu/parallel.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(update_run);
HWY_EXPORT(squares_of_run);

void scalar_update(const adamw_factors& f, const adamw_tensor& t) {
  const adamw_rates rates = adamw_rates_of(f, t.lr_scale, t.weight_decay);
  for (int64_t i = 0; i < t.count; ++i) {
    float m = number_at(t.m, t.moment_type, i), v = number_at(t.v, t.moment_type, i);
    const float grad = number_at(t.grad, t.grad_type, i);
    const float old = t.master ? t.master[i] : number_at(t.param, t.param_type, i);
    const float p = adamw_update(f, rates, grad, m, v, old);
    set_number(t.m, t.moment_type, i, m);
    set_number(t.v, t.moment_type, i, v);
    if (t.master) t.master[i] = p;
    if (t.param_type == dtype::bf16 && !t.master) {
      const uint32_t word = adamw_word(f, static_cast<uint64_t>(t.first + i));
      static_cast<bf16*>(t.param)[i] = {
          adamw_round_stochastically(std::bit_cast<uint32_t>(p), word)};
    } else {
      set_number(t.param, t.param_type, i, p);
    }
  }
}

double scalar_squares(const adamw_tensor& t) {
  double sum = 0;
  for (int64_t i = 0; i < t.count; ++i) {
    const float g = number_at(t.grad, t.grad_type, i);
    sum += static_cast<double>(g * g);
  }
  return sum;
}

row_split scalar(const adamw_problem& p) {
  double squares = 0;
  if (p.in.norm())
    for (const adamw_tensor& t : p.tensors) squares += scalar_squares(t);
  const adamw_factors f = adamw_prepare(p.in, squares);
  const auto tensors = static_cast<int64_t>(p.tensors.size());
  const row_split split{.threads = static_cast<int>(std::min<int64_t>(std::max<int64_t>(tensors, 1),
                                                                      omp_get_max_threads())),
                        .chunk = 1};
  if (!f.skip)
    parallel_rows(tensors, split, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) scalar_update(f, p.tensors[static_cast<size_t>(i)]);
    });
  return split;
}

// Pieces of adamw_piece elements, counted through all tensors; the last of a tensor may be short.
class piece_table {
 public:
  explicit piece_table(std::span<const adamw_tensor> tensors) : tensors_(tensors) {
    first_.reserve(tensors.size() + 1);
    first_.push_back(0);
    for (const adamw_tensor& t : tensors)
      first_.push_back(first_.back() + (t.count + adamw_piece - 1) / adamw_piece);
  }
  int64_t count() const { return first_.back(); }

  // body(tensor, from, count, piece) for pieces [begin, end).
  template <class Body>
  void for_each(int64_t begin, int64_t end, const Body& body) const {
    if (begin == end) return;
    auto i = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), begin) -
                                 first_.begin() - 1);
    for (int64_t piece = begin; piece < end; ++piece) {
      while (piece >= first_[i + 1]) ++i;
      const int64_t from = (piece - first_[i]) * adamw_piece;
      body(tensors_[i], from, std::min(adamw_piece, tensors_[i].count - from), piece);
    }
  }

 private:
  std::span<const adamw_tensor> tensors_;
  std::vector<int64_t> first_;
};

row_split chunks(const adamw_problem& p) {
  const piece_table pieces(p.tensors);
  int64_t elements = 0;
  for (const adamw_tensor& t : p.tensors) elements += t.count;
  // What a piece moves in fp32, on the average.
  const int64_t bytes = 28 * elements / std::max<int64_t>(pieces.count(), 1);
  const row_split split = split_rows(pieces.count(), bytes);
  double squares = 0;
  if (p.in.norm()) {
    const auto sum = HWY_DYNAMIC_DISPATCH(squares_of_run);
    parallel_rows(pieces.count(), split, [&](int64_t begin, int64_t end) {
      pieces.for_each(begin, end,
                      [&](const adamw_tensor& t, int64_t from, int64_t count, int64_t piece) {
                        p.squares[piece] = sum(t, from, count);
                      });
    });
    // In one order, whoever made them.
    for (int64_t i = 0; i < pieces.count(); ++i) squares += p.squares[i];
  }
  const adamw_factors f = adamw_prepare(p.in, squares);
  const auto update = HWY_DYNAMIC_DISPATCH(update_run);
  if (!f.skip)
    parallel_rows(pieces.count(), split, [&](int64_t begin, int64_t end) {
      pieces.for_each(begin, end, [&](const adamw_tensor& t, int64_t from, int64_t count, int64_t) {
        update(f, t, from, count);
      });
    });
  return split;
}

}  // namespace

void adamw_step(const adamw_problem& p) {
  static constexpr const char* rungs[] = {"scalar", "chunks"};
  const char* isa = isa_name();
  const int rung = p.rung ? find_rung("adamw", p.rung, rungs, std::size(rungs)) : 1;
  const row_split split = rung == 0 ? scalar(p) : chunks(p);
  record({.op = "adamw",
          .direction = "step",
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
