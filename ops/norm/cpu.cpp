// RMSNorm and LayerNorm on the CPU: "three_pass", the plain loops over any strides, and "stream",
// Highway vectors that read a row from memory once and find it in the caches again.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "ops/norm/cpu_backward.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

void stream_forward(const norm_problem& p, int64_t begin, int64_t end, bool past_caches) {
  if (p.layer) return forward_range<true>(p, begin, end, past_caches);
  forward_range<false>(p, begin, end, past_caches);
}

void stream_backward(const norm_problem& p, int64_t begin, int64_t end, float* dweight,
                     float* dbias, bool past_caches) {
  if (p.layer) return backward_rows_of<true>(p).run(begin, end, dweight, dbias, past_caches);
  backward_rows_of<false>(p).run(begin, end, dweight, dbias, past_caches);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/isa.hpp"
#include "backend/cpu/parallel.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(stream_forward);
HWY_EXPORT(stream_backward);

float stored_in(dtype type, float value) {
  if (type == dtype::f16) return to_float(from_float<f16>(value));
  return type == dtype::bf16 ? to_float(from_float<bf16>(value)) : value;
}

// The formulas as they are written down, over any strides: each pass reads the row anew.
class three_pass_row {
 public:
  three_pass_row(const norm_problem& p, int64_t row)
      : p_(p),
        row_(row),
        at_(offsets_of_row(p.layout, row)),
        count_(static_cast<double>(std::max<int64_t>(p.layout.cols, 1))) {}

  void forward() const {
    double mean = 0, variance = 0;
    if (p_.layer) {
      for (int64_t c = 0; c < p_.layout.cols; ++c) mean += h(c);
      mean /= count_;
      if (!std::isfinite(mean)) mean = NAN;
    }
    for (int64_t c = 0; c < p_.layout.cols; ++c) variance += (h(c) - mean) * (h(c) - mean);
    const float rstd = static_cast<float>(1 / std::sqrt(variance / count_ + p_.eps));
    if (p_.mean) p_.mean[at_[p_.mean_index]] = static_cast<float>(mean);
    if (p_.rstd) p_.rstd[at_[p_.rstd_index]] = rstd;
    for (int64_t c = 0; c < p_.layout.cols; ++c) {
      const float value = h(c);
      float xhat = static_cast<float>(value - mean) * rstd;
      if (p_.round_llama) xhat = stored_in(p_.y_type, xhat);
      const float bias = p_.bias ? number_at(p_.bias, p_.weight_type, c) : 0.0f;
      const float y = p_.bias ? xhat * weight(c) + bias : xhat * weight(c);
      if (p_.h) set_number(p_.h, p_.h_type, place(p_.h_index, c), value);
      set_number(p_.y, p_.y_type, place(p_.y_index, c), y);
    }
  }

  void backward(float* dweight, float* dbias) const {
    const double rstd = p_.rstd[at_[p_.rstd_index]];
    double mean = 0, mean_g = 0, mean_gx = 0;
    if (p_.layer) {
      for (int64_t c = 0; c < p_.layout.cols; ++c) mean += saved_h(c);
      mean /= count_;
    }
    for (int64_t c = 0; c < p_.layout.cols; ++c) {
      if (p_.layer) mean_g += g(c) / count_;
      mean_gx += g(c) * ((saved_h(c) - mean) * rstd) / count_;
    }
    for (int64_t c = 0; c < p_.layout.cols; ++c) {
      const double xhat = (saved_h(c) - mean) * rstd;
      double dh = rstd * (g(c) - mean_g - xhat * mean_gx);
      if (p_.d_residual_out)
        dh += number_at(p_.d_residual_out, p_.h_type, place(p_.d_residual_out_index, c));
      if (dweight) dweight[c] += static_cast<float>(dy(c) * xhat);
      if (dbias) dbias[c] += dy(c);
      const float value = static_cast<float>(dh);
      if (p_.d_residual) set_number(p_.d_residual, p_.h_type, place(p_.d_residual_index, c), value);
      if (p_.dx)
        set_number(p_.dx, p_.x_type, place(p_.dx_index, c), kept(c) ? value * p_.keep_scale : 0.0f);
    }
  }

 private:
  int64_t place(int tensor, int64_t c) const {
    return at_[tensor] + c * p_.layout.col_stride[tensor];
  }
  bool kept(int64_t c) const {
    return !p_.dropout ||
           dropout_keeps(p_.seed.get(), p_.offset.get(),
                         static_cast<uint64_t>(row_ * p_.layout.cols + c), p_.keep_from);
  }
  float h(int64_t c) const {
    const float x = number_at(p_.x, p_.x_type, place(p_.x_index, c));
    if (!p_.makes_h()) return x;
    const float residual =
        p_.residual ? number_at(p_.residual, p_.h_type, place(p_.residual_index, c)) : 0.0f;
    if (!kept(c)) return residual;
    if (!p_.dropout && !p_.residual) return stored_in(p_.h_type, x);
    return stored_in(p_.h_type, std::fma(x, p_.keep_scale, residual));
  }
  float saved_h(int64_t c) const { return number_at(p_.h, p_.h_type, place(p_.h_index, c)); }
  float dy(int64_t c) const { return number_at(p_.dy, p_.y_type, place(p_.dy_index, c)); }
  float weight(int64_t c) const {
    return p_.weight ? p_.weight_offset + number_at(p_.weight, p_.weight_type, c) : 1.0f;
  }
  double g(int64_t c) const { return static_cast<double>(dy(c)) * weight(c); }

  const norm_problem& p_;
  int64_t row_;
  norm_problem::offsets at_;
  double count_;
};

constexpr const char* rungs[] = {"three_pass", "stream"};
enum rung : int { three_pass_rung, stream_rung };

int choose_rung(const norm_problem& p) {
  bool side_by_side = true;
  const auto look = [&](const void* given, int tensor) {
    if (given) side_by_side &= columns_side_by_side(p.layout, tensor);
  };
  look(p.x, p.x_index);
  look(p.residual, p.residual_index);
  look(p.h, p.h_index);
  look(p.y, p.y_index);
  look(p.dy, p.dy_index);
  look(p.d_residual_out, p.d_residual_out_index);
  look(p.dx, p.dx_index);
  look(p.d_residual, p.d_residual_index);
  if (!p.rung) return side_by_side ? stream_rung : three_pass_rung;
  const int rung = find_rung(p.op, p.rung, rungs, std::size(rungs));
  if (rung == stream_rung && !side_by_side)
    fail(NF_UNSUPPORTED, "%s: rung \"stream\" needs columns of stride 1; leave the rung out", p.op);
  return rung;
}

// An output this large would leave the caches before anyone reads it, so it need not pass through
// them. In place the line is there already.
bool passes_caches(const norm_problem& p, const void* out, dtype type,
                   std::initializer_list<const void*> inputs) {
  constexpr int64_t threshold = 8 << 20;
  return std::find(inputs.begin(), inputs.end(), out) == inputs.end() &&
         p.layout.rows * p.layout.cols * size_of(type) > threshold;
}

void record_launch(const norm_problem& p, const char* direction, int rung, int threads) {
  record({.op = p.op,
          .direction = direction,
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa_name(),
          .threads = threads});
}

// The rows of one partial sum: few enough that summing them in fp32 costs no digits, and enough
// that the partial sums are little beside the rows themselves.
int64_t rows_per_partial(int64_t rows) { return std::clamp<int64_t>((rows + 63) / 64, 16, 128); }

// The second stage: the partial sums of each column, in their order, in double.
void reduce_partials(const norm_problem& p) {
  constexpr int64_t width = 256;
  const int64_t cols = p.layout.cols, blocks = (cols + width - 1) / width;
  const auto reduce = [&](const float* partials, void* out, int64_t at) {
    double sums[width] = {};
    const int64_t n = std::min(cols - at, width);
    for (int64_t part = 0; part < p.partials; ++part)
      for (int64_t i = 0; i < n; ++i) sums[i] += partials[part * cols + at + i];
    for (int64_t i = 0; i < n; ++i) {
      const float old = p.accumulate ? number_at(out, p.dweight_type, at + i) : 0.0f;
      set_number(out, p.dweight_type, at + i, static_cast<float>(old + sums[i]));
    }
  };
  const int64_t block_bytes = p.partials * width * static_cast<int64_t>(sizeof(float));
  parallel_rows(blocks, split_rows(blocks, 2 * block_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      if (p.dweight) reduce(p.dweight_partials, p.dweight, b * width);
      if (p.dbias) reduce(p.dbias_partials, p.dbias, b * width);
    }
  });
}

}  // namespace

int64_t norm_partials(const norm_problem& p) {
  const int64_t each = rows_per_partial(p.layout.rows);
  return (p.layout.rows + each - 1) / each;
}

void norm_forward(const norm_problem& p) {
  const int rung = choose_rung(p);
  const int64_t row_bytes = p.layout.cols * (size_of(p.x_type) + size_of(p.y_type));
  const row_split split = split_rows(p.layout.rows, row_bytes);
  isa_name();  // applies NF_CPU_ISA before the first dispatch
  const bool past_caches = passes_caches(p, p.y, p.y_type, {p.x, p.residual});
  parallel_rows(p.layout.rows, split, [&](int64_t begin, int64_t end) {
    if (rung == stream_rung)
      HWY_DYNAMIC_DISPATCH(stream_forward)(p, begin, end, past_caches);
    else
      for (int64_t r = begin; r < end; ++r) three_pass_row(p, r).forward();
  });
  record_launch(p, "forward", rung, split.threads);
}

void norm_backward(const norm_problem& p) {
  const int rung = choose_rung(p);
  const int64_t row_bytes = p.layout.cols * (size_of(p.h_type) + 2 * size_of(p.y_type));
  const row_split split = split_rows(p.layout.rows, row_bytes);
  isa_name();
  const bool past_caches = passes_caches(p, p.dx ? p.dx : p.d_residual, p.dx ? p.x_type : p.h_type,
                                         {nullptr, p.h, p.dy, p.d_residual_out});
  const auto rows = [&](int64_t begin, int64_t end, float* dweight, float* dbias) {
    if (rung == stream_rung)
      HWY_DYNAMIC_DISPATCH(stream_backward)(p, begin, end, dweight, dbias, past_caches);
    else
      for (int64_t r = begin; r < end; ++r) three_pass_row(p, r).backward(dweight, dbias);
  };
  if (!p.dweight && !p.dbias) {
    parallel_rows(p.layout.rows, split,
                  [&](int64_t begin, int64_t end) { rows(begin, end, nullptr, nullptr); });
    return record_launch(p, "backward", rung, split.threads);
  }
  // Which rows go into which partial sum depends on their number alone, so the threads do not show.
  const int64_t each = rows_per_partial(p.layout.rows), cols = p.layout.cols;
  parallel_rows(p.partials, {split.threads, 1}, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      float* const dweight = p.dweight ? p.dweight_partials + part * cols : nullptr;
      float* const dbias = p.dbias ? p.dbias_partials + part * cols : nullptr;
      if (dweight) std::fill_n(dweight, cols, 0.0f);
      if (dbias) std::fill_n(dbias, cols, 0.0f);
      rows(part * each, std::min((part + 1) * each, p.layout.rows), dweight, dbias);
    }
  });
  reduce_partials(p);
  record_launch(p, "backward", rung, split.threads);
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
