// The activations on the CPU: "scalar", the plain formulas over any strides, and "stream", Highway
// vectors.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activation/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "backend/cpu/activation.hpp"
#include "backend/cpu/pointwise.hpp"
#include "ops/activation/activation.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

using problem = activation_problem;

// Columns [from, from + count) of a row. `sums`, where dbias is wanted, is that of column `from`.
struct span_of_row {
  int64_t row, from, count;
  bool past_caches;
  float* sums;
};

template <class T, bool kPairIn, bool kPairOut, bool kInOrder, int kIn, int kOut, class Body>
HWY_INLINE void walk(const pointwise_tensors<kIn, kOut>& tensors, const span_of_row& s,
                     const Body& body) {
  pointwise_run<kPairIn, kPairOut, kInOrder>(piece_of<T>(tensors, s.row, s.from, s.count),
                                             s.past_caches, body);
}

// Without a bias x itself is read in its place, from the caches, and not looked at: half the code.
int bias_or_x(const problem& p) { return p.with_bias() ? p.bias_index : p.x_index; }

template <class T, activation_kind kKind>
void ungated_forward(const problem& p, const span_of_row& s) {
  const bool biased = p.with_bias();
  walk<T, false, false, false>(
      tensors_of<2>(p, p.x_index, bias_or_x(p), p.y_index), s,
      [=](lanes_at, const vec(&in)[2], vec(&out)[1]) NF_VECTOR {
        out[0] = curve_at<kKind>(biased ? hn::Add(in[0], in[1]) : in[0], 1.0f).value;
      });
}

template <class T, activation_kind kKind>
void ungated_backward(const problem& p, const span_of_row& s) {
  const bool biased = p.with_bias();
  const int64_t first = s.row * p.layout.cols + s.from;
  float* const sums = s.sums;
  walk<T, false, false, true>(
      tensors_of<3>(p, p.x_index, bias_or_x(p), p.dy_index, p.dx_index), s,
      [=](lanes_at at, const vec(&in)[3], vec(&out)[1]) NF_VECTOR {
        const vec v = biased ? hn::Add(in[0], in[1]) : in[0];
        out[0] = passed_back<kKind>(v, in[2], curve_at<kKind>(v, 1.0f).slope);
        if (!sums) return;
        float* const to = sums + (at.first - first);
        if (at.count == kLanes) {
          store(hn::Add(load(to), out[0]), to);
        } else {
          store_first(at.count, hn::Add(load_first(at.count, to), out[0]), to);
        }
      });
}

template <class T, activation_kind kKind, bool kPair>
void gated_forward(const problem& p, const span_of_row& s) {
  const gate_of<kKind> gate{p.alpha, p.limit};
  walk<T, kPair, false, false>(tensors_of<2>(p, p.x_index, p.up_index, p.y_index), s,
                               [=](lanes_at, const vec(&in)[2], vec(&out)[1])
                                   NF_VECTOR { out[0] = gate.forward(in[0], in[1]); });
}

template <class T, activation_kind kKind, bool kPair>
void gated_backward(const problem& p, const span_of_row& s) {
  const gate_of<kKind> gate{p.alpha, p.limit};
  walk<T, kPair, kPair, false>(
      tensors_of<3>(p, p.x_index, p.up_index, p.dy_index, p.dx_index, p.dup_index), s,
      [=](lanes_at, const vec(&in)[3], vec(&out)[2])
          NF_VECTOR { gate.backward(in[0], in[1], in[2], out[0], out[1]); });
}

template <class T, activation_kind kKind>
void span_of_kind(const problem& p, const span_of_row& s, bool forward) {
  if (p.interleaved)
    return forward ? gated_forward<T, kKind, true>(p, s) : gated_backward<T, kKind, true>(p, s);
  if (p.gated)
    return forward ? gated_forward<T, kKind, false>(p, s) : gated_backward<T, kKind, false>(p, s);
  if constexpr (kKind != NF_ACTIVATION_SWIGLU_CLAMP) {
    forward ? ungated_forward<T, kKind>(p, s) : ungated_backward<T, kKind>(p, s);
  }
}

template <class T>
void span_of_type(const problem& p, const span_of_row& s, bool forward) {
  switch (p.kind) {
    case NF_ACTIVATION_GELU_TANH:
      return span_of_kind<T, NF_ACTIVATION_GELU_TANH>(p, s, forward);
    case NF_ACTIVATION_GELU_ERF:
      return span_of_kind<T, NF_ACTIVATION_GELU_ERF>(p, s, forward);
    case NF_ACTIVATION_SILU:
      return span_of_kind<T, NF_ACTIVATION_SILU>(p, s, forward);
    case NF_ACTIVATION_RELU:
      return span_of_kind<T, NF_ACTIVATION_RELU>(p, s, forward);
    case NF_ACTIVATION_RELU2:
      return span_of_kind<T, NF_ACTIVATION_RELU2>(p, s, forward);
    case NF_ACTIVATION_SWIGLU_CLAMP:
      return span_of_kind<T, NF_ACTIVATION_SWIGLU_CLAMP>(p, s, forward);
  }
}

void stream_span(const problem& p, int64_t row, int64_t from, int64_t count, bool past_caches,
                 float* sums, bool forward) {
  const span_of_row s{row, from, count, past_caches, sums};
  if (p.type == dtype::f32) return span_of_type<float>(p, s, forward);
  if (p.type == dtype::f16) return span_of_type<f16>(p, s, forward);
  span_of_type<bf16>(p, s, forward);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backend/cpu/isa.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"
#include "ops/activation/cpu_scalar.hpp"

namespace ninefold::cpu {
namespace {

HWY_EXPORT(stream_span);

constexpr const char* op = "activation";
constexpr const char* rungs[] = {"scalar", "stream"};
enum rung : int { scalar_rung, stream_rung };

int choose_rung(const activation_problem& p) {
  const bool fits = columns_side_by_side(p);
  if (!p.rung) return fits ? stream_rung : scalar_rung;
  const int rung = find_rung(op, p.rung, rungs, std::size(rungs));
  if (rung == stream_rung && !fits)
    fail(NF_UNSUPPORTED, "%s: rung \"stream\" needs columns of stride 1; leave the rung out", op);
  return rung;
}

bool passes_caches(const activation_problem& p, bool forward) {
  using problem = activation_problem;
  if (!forward && p.interleaved) return false;  // pairs are stored the ordinary way
  const auto passes = [&](const auto& tensors) {
    return cpu::passes_caches(tensors, size_of(p.type));
  };
  if (forward)
    return passes(tensors_of<2>(p, problem::x_index, problem::up_index, problem::y_index));
  if (p.gated)
    return passes(tensors_of<3>(p, problem::x_index, problem::up_index, problem::dy_index,
                                problem::dx_index, problem::dup_index));
  return passes(tensors_of<2>(p, problem::x_index, problem::dy_index, problem::dx_index));
}

// Stage one of dbias: each partial sum is over rows of its own, which ones is a matter of their
// number alone, so that the threads do not show.
template <class Span>
int partial_sums(const activation_problem& p, int64_t row_bytes, const Span& span) {
  const int64_t cols = p.layout.cols, each = p.rows_a_partial;
  const row_split split = split_rows(p.layout.rows, row_bytes);
  parallel_rows(p.partials, {split.threads, 1}, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      float* const sums = p.partial_sums + part * cols;
      std::fill_n(sums, cols, 0.0f);
      for (int64_t row = part * each; row < std::min((part + 1) * each, p.layout.rows); ++row)
        span(row, int64_t{0}, cols, sums);
    }
  });
  return split.threads;
}

// Stage two: the partial sums of each column, in their order, in double.
void add_partials(const activation_problem& p) {
  constexpr int64_t width = 256;
  const int64_t cols = p.layout.cols, blocks = (cols + width - 1) / width;
  const int64_t bytes = p.partials * width * static_cast<int64_t>(sizeof(float));
  parallel_rows(blocks, split_rows(blocks, bytes), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * width; at < std::min(end * width, cols); at += width) {
      double sums[width] = {};
      const int64_t n = std::min(cols - at, width);
      for (int64_t part = 0; part < p.partials; ++part)
        for (int64_t i = 0; i < n; ++i) sums[i] += p.partial_sums[part * cols + at + i];
      for (int64_t i = 0; i < n; ++i) {
        const float old = p.accumulate ? number_at(p.dbias, p.dbias_type, at + i) : 0.0f;
        set_number(p.dbias, p.dbias_type, at + i, static_cast<float>(old + sums[i]));
      }
    }
  });
}

void run(const activation_problem& p, bool forward) {
  const char* isa = isa_name();  // applies NF_CPU_ISA before the first dispatch
  const int rung = choose_rung(p);
  const int64_t tensors = p.gated ? (forward ? 3 : 5) : (forward ? 2 : 3);
  const int64_t element = tensors * size_of(p.type);
  const bool past_caches = rung == stream_rung && passes_caches(p, forward);
  const auto span = [&](int64_t row, int64_t from, int64_t count, float* sums) {
    if (rung == stream_rung)
      HWY_DYNAMIC_DISPATCH(stream_span)(p, row, from, count, past_caches, sums, forward);
    else
      scalar_span(p, row, from, count, sums, forward);
  };
  int threads;
  if (p.dbias) {
    threads = partial_sums(p, element * p.layout.cols, span);
    add_partials(p);
  } else {
    threads = pointwise_rows(p.layout.rows, p.layout.cols, element,
                             [&](int64_t row, int64_t from, int64_t count) {
                               span(row, from, count, nullptr);
                             })
                  .threads;
  }
  record({.op = op,
          .direction = forward ? "forward" : "backward",
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = threads});
}

}  // namespace

void activation_forward(const activation_problem& p) { run(p, true); }
void activation_backward(const activation_problem& p) { run(p, false); }

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
