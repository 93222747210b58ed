// Element-wise calls on the CPU: N inputs and M outputs of one dtype, any number of rows. Here is
// the walk; what becomes of one vector is the op's. Include it after foreach_target.h.
//
//   #if HWY_ONCE   pointwise_rows(tensors, ...) hands out pieces of rows to the threads, and
//   per target     pointwise_run(...) walks one piece in vectors.

#ifndef NF_BACKEND_CPU_POINTWISE_ROWS
#define NF_BACKEND_CPU_POINTWISE_ROWS

#include <algorithm>
#include <cstdint>

#include "backend/cpu/parallel.hpp"
#include "backend/pointwise.hpp"

namespace ninefold::cpu {

// A piece of a row: where it is in each tensor, and which elements it has.
template <class T, int kIn, int kOut>
struct pointwise_piece {
  const T* in[kIn];
  T* out[kOut];
  int64_t index;  // logical, of the first element
  int64_t count;
};

template <class T, int kIn, int kOut>
pointwise_piece<T, kIn, kOut> piece_of(const pointwise_tensors<kIn, kOut>& tensors, int64_t row,
                                       int64_t from, int64_t count) {
  const auto& at = tensors.layout;
  const auto offsets = offsets_of_row(at, row);
  pointwise_piece<T, kIn, kOut> piece{};
  for (int t = 0; t < kIn; ++t)
    piece.in[t] = static_cast<const T*>(tensors.in[t]) + offsets[t] + from * at.col_stride[t];
  for (int t = 0; t < kOut; ++t)
    piece.out[t] =
        static_cast<T*>(tensors.out[t]) + offsets[kIn + t] + from * at.col_stride[kIn + t];
  piece.index = row * at.cols + from;
  piece.count = count;
  return piece;
}

// Calls body(row, from, count) for pieces that cover all elements: a contiguous call is a single
// long row, which the threads share.
template <class Body>
row_split pointwise_rows(int64_t rows, int64_t cols, int64_t bytes_an_element, const Body& body) {
  constexpr int64_t piece_size = 1 << 16;  // elements
  const int64_t pieces = (cols + piece_size - 1) / piece_size;
  const row_split split = split_rows(rows * pieces, bytes_an_element * std::min(cols, piece_size));
  parallel_rows(rows * pieces, split, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / pieces, from = i % pieces * piece_size;
      body(row, from, std::min(piece_size, cols - from));
    }
  });
  return split;
}

// Outputs this large would leave the caches before anyone reads them, so they need not pass through
// them. In place the lines are there already, and a stream must be able to store whole lines.
template <int kIn, int kOut>
bool passes_caches(const pointwise_tensors<kIn, kOut>& tensors, int64_t element) {
  constexpr int64_t threshold = 8 << 20, line = 64;
  const auto& at = tensors.layout;
  if (at.rows * at.cols * element <= threshold || at.cols * element < 8 * line) return false;
  for (int o = 0; o < kOut; ++o) {
    for (int i = 0; i < kIn; ++i)
      if (tensors.in[i] == tensors.out[o]) return false;
    const auto apart =
        reinterpret_cast<uintptr_t>(tensors.out[o]) - reinterpret_cast<uintptr_t>(tensors.out[0]);
    if (apart % line != 0) return false;
    for (int d = 0; d < at.dims; ++d)
      if ((at.stride[kIn + o][d] - at.stride[kIn][d]) * element % line != 0) return false;
  }
  return true;
}

}  // namespace ninefold::cpu

#endif  // NF_BACKEND_CPU_POINTWISE_ROWS

#include "backend/cpu/reduce.hpp"

#if defined(NF_BACKEND_CPU_POINTWISE_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef NF_BACKEND_CPU_POINTWISE_HPP
#undef NF_BACKEND_CPU_POINTWISE_HPP
#else
#define NF_BACKEND_CPU_POINTWISE_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {

// Which elements the lanes of a vector are: first, first + step, first + 2 step, ... of which
// `count` lanes hold one; what the others hold is not stored.
struct lanes_at {
  int64_t first, step;
  size_t count;
};

// Walks a piece whose columns are side by side: body(lanes_at, const vec (&in)[kIn], vec
// (&out)[kOut]). In a pair tensor the first two inputs (kPairIn) or outputs (kPairOut) lie as one,
// element after element of both: in[0] is the first of it, and in[1] is not looked at. kInOrder:
// the lanes of every vector are neighbours (step 1).
template <class T, int kIn, int kOut, bool kPairIn, bool kPairOut, bool kInOrder, class Body>
class pointwise_walk {
 public:
  using piece_type = pointwise_piece<T, kIn, kOut>;

  HWY_INLINE pointwise_walk(const piece_type& piece, const Body& body) : p_(piece), body_(body) {}

  HWY_INLINE void run(bool past_caches) const {
    int64_t i = 0;
    if (past_caches) {
      i = count_to_line(p_.out[0], p_.count);
      ends(0, i);
    }
    for (; i + advance <= p_.count; i += advance) {
      // Conversions leave the CPU too few loads in flight to keep memory busy, but for fetches.
      if (past_caches)
        for (int t = 0; t < kIn; ++t) hwy::Prefetch(p_.in[t] + i * per_in(t) + ahead);
      step(i, past_caches);
    }
    ends(i, p_.count);
  }

 private:
  static constexpr int64_t lanes = kLanes, ahead = 4096 / sizeof(T);
  // By even and odd places bf16 takes one instruction to load or store instead of two.
  static constexpr bool even_odd = all_bf16<T> && !kInOrder && !kPairIn && !kPairOut;
  static constexpr int64_t advance = even_odd ? 2 * lanes : lanes;
  static constexpr int64_t per_in(int t) { return kPairIn && t < 2 ? 2 : 1; }

  HWY_INLINE void step(int64_t i, bool past_caches) const {
    vec in[kIn], out[kOut];
    if constexpr (even_odd) {
      vec odd_out[kOut];
      for (int t = 0; t < kIn; ++t) in[t] = load_even(p_.in[t] + i);
      body_(lanes_at{p_.index + i, 2, kLanes}, in, out);
      for (int t = 0; t < kIn; ++t) in[t] = load_odd(p_.in[t] + i);
      body_(lanes_at{p_.index + i + 1, 2, kLanes}, in, odd_out);
      for (int t = 0; t < kOut; ++t) {
        if (past_caches) {
          stream_even_odd<true>(out[t], odd_out[t], p_.out[t] + i);
        } else {
          store_even_odd<true>(out[t], odd_out[t], p_.out[t] + i);
        }
      }
    } else {
      if constexpr (kPairIn) split(p_.in[0] + 2 * i, in[0], in[1]);
      for (int t = kPairIn ? 2 : 0; t < kIn; ++t) in[t] = load(p_.in[t] + i);
      body_(lanes_at{p_.index + i, 1, kLanes}, in, out);
      if constexpr (kPairOut) join(out[0], out[1], p_.out[0] + 2 * i);
      for (int t = kPairOut ? 2 : 0; t < kOut; ++t) {
        if (past_caches) {
          stream(out[t], p_.out[t] + i);
        } else {
          store(out[t], p_.out[t] + i);
        }
      }
    }
  }

  // What is left at either end of a piece, by up to a vector at a time; touches no byte beyond it.
  // Not inlined, for the body would be there once more.
  HWY_NOINLINE void ends(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; i += lanes) {
      const auto count = static_cast<size_t>(HWY_MIN(lanes, end - i));
      vec in[kIn], out[kOut];
      if constexpr (kPairIn) {
        T both[2 * kLanes] = {};
        std::memcpy(both, p_.in[0] + 2 * i, 2 * count * sizeof(T));
        split(both, in[0], in[1]);
      }
      for (int t = kPairIn ? 2 : 0; t < kIn; ++t) in[t] = load_first(count, p_.in[t] + i);
      body_(lanes_at{p_.index + i, 1, count}, in, out);
      if constexpr (kPairOut) {
        T both[2 * kLanes];
        join(out[0], out[1], both);
        std::memcpy(p_.out[0] + 2 * i, both, 2 * count * sizeof(T));
      }
      for (int t = kPairOut ? 2 : 0; t < kOut; ++t) store_first(count, out[t], p_.out[t] + i);
    }
  }

  static HWY_INLINE void split(const T* p, vec& first, vec& second) {
    const vec low = load(p), high = load(p + kLanes);
#if HWY_TARGET == HWY_SCALAR
    first = low;
    second = high;
#else
    first = hn::ConcatEven(floats(), high, low);
    second = hn::ConcatOdd(floats(), high, low);
#endif
  }
  static HWY_INLINE void join(vec first, vec second, T* p) {
    HWY_ALIGN float both[2 * kLanes];
    hn::StoreInterleaved2(first, second, floats(), both);
    store(load(both), p);
    store(load(both + kLanes), p + kLanes);
  }

  const piece_type& p_;
  const Body& body_;
};

template <bool kPairIn, bool kPairOut, bool kInOrder, class T, int kIn, int kOut, class Body>
HWY_INLINE void pointwise_run(const pointwise_piece<T, kIn, kOut>& piece, bool past_caches,
                              const Body& body) {
  pointwise_walk<T, kIn, kOut, kPairIn, kPairOut, kInOrder, Body>(piece, body).run(past_caches);
  if (past_caches) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace ninefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
