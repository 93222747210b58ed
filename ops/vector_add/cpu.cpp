// z = x + y on the CPU: "scalar", the plain loop over any strides, and "stream", Highway vectors.
#include "backend/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/vector_add/cpu.cpp"
#include <hwy/foreach_target.h>
//
#include "backend/cpu/reduce.hpp"
#include "ops/vector_add/vector_add.hpp"

HWY_BEFORE_NAMESPACE();
namespace ninefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void add(int64_t n, const void* x_data, const void* y_data, void* z_data, bool past_caches) {
  const T* x = static_cast<const T*>(x_data);
  const T* y = static_cast<const T*>(y_data);
  T* z = static_cast<T*>(z_data);
  const auto sum = [=](int64_t i, auto part) NF_VECTOR {
    return hn::Add(part.load(x + i, 0.0f), part.load(y + i, 0.0f));
  };
  if (past_caches) {
    // Conversions leave the CPU too few loads in flight to keep memory busy: 0.80 of the ceiling
    // without these fetches, 1.00 with them.
    constexpr int64_t ahead = 4096 / sizeof(T);
    map_past_caches<all_bf16<T>>(n, z, [=](int64_t i, auto part) NF_VECTOR {
      if (part.slot == 0) {
        hwy::Prefetch(x + i + ahead);
        hwy::Prefetch(y + i + ahead);
      }
      return sum(i, part);
    });
  } else {
    map<all_bf16<T>>(n, z, sum);
  }
  if (past_caches) hwy::FlushStream();
}

void add_f32(int64_t n, const void* x, const void* y, void* z, bool past_caches) {
  add<float>(n, x, y, z, past_caches);
}
void add_f16(int64_t n, const void* x, const void* y, void* z, bool past_caches) {
  add<f16>(n, x, y, z, past_caches);
}
void add_bf16(int64_t n, const void* x, const void* y, void* z, bool past_caches) {
  add<bf16>(n, x, y, z, past_caches);
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

HWY_EXPORT(add_f32);
HWY_EXPORT(add_f16);
HWY_EXPORT(add_bf16);

using add_function = void (*)(int64_t, const void*, const void*, void*, bool);

add_function add_of(dtype type) {
  if (type == dtype::f32) return HWY_DYNAMIC_DISPATCH(add_f32);
  return type == dtype::f16 ? HWY_DYNAMIC_DISPATCH(add_f16) : HWY_DYNAMIC_DISPATCH(add_bf16);
}

template <class T>
void scalar_range(const vector_add_problem& p, int64_t begin, int64_t end) {
  const auto& layout = p.layout;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(p.x) + row_offset(layout, p.x_index, r);
    const T* y = static_cast<const T*>(p.y) + row_offset(layout, p.y_index, r);
    T* z = static_cast<T*>(p.z) + row_offset(layout, p.z_index, r);
    for (int64_t i = 0; i < layout.cols; ++i)
      z[i * layout.col_stride[p.z_index]] =
          from_float<T>(to_float(x[i * layout.col_stride[p.x_index]]) +
                        to_float(y[i * layout.col_stride[p.y_index]]));
  }
}

constexpr const char* rungs[] = {"scalar", "stream"};
enum rung : int { scalar, stream };

int choose_rung(const vector_add_problem& p) {
  bool unit = true;
  for (int64_t stride : p.layout.col_stride) unit &= stride == 1 || p.layout.cols == 1;
  if (!p.rung) return unit ? stream : scalar;
  const int rung = find_rung("vector_add", p.rung, rungs, std::size(rungs));
  if (rung == stream && !unit)
    fail(NF_UNSUPPORTED,
         "vector_add: rung \"stream\" needs elements of stride 1 in the last "
         "dimension; leave the rung out");
  return rung;
}

// Output this large would leave the caches before anyone reads it, so it need not pass through
// them. In place the line is there already.
bool past_caches(const vector_add_problem& p, int64_t bytes_out) {
  constexpr int64_t threshold = 32 << 20;
  return p.z != p.x && p.z != p.y && bytes_out > threshold;
}

// Rows are cut into pieces for the threads: contiguous tensors come as a single long row.
row_split stream_rows(const vector_add_problem& p) {
  constexpr int64_t piece_size = 1 << 18;  // elements
  const auto& layout = p.layout;
  const int64_t bytes = size_of(p.type);
  const int64_t pieces = (layout.cols + piece_size - 1) / piece_size;
  const row_split split = split_rows(layout.rows * pieces, 3 * bytes * layout.cols / pieces);
  const bool past = past_caches(p, layout.rows * layout.cols * bytes);
  const auto add = add_of(p.type);
  parallel_rows(layout.rows * pieces, split, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / pieces, from = i % pieces * piece_size;
      const int64_t n = std::min(piece_size, layout.cols - from);
      add(n, static_cast<const char*>(p.x) + (row_offset(layout, p.x_index, r) + from) * bytes,
          static_cast<const char*>(p.y) + (row_offset(layout, p.y_index, r) + from) * bytes,
          static_cast<char*>(p.z) + (row_offset(layout, p.z_index, r) + from) * bytes, past);
    }
  });
  return split;
}

row_split scalar_rows(const vector_add_problem& p) {
  const auto& layout = p.layout;
  const row_split split = split_rows(layout.rows, 3 * size_of(p.type) * layout.cols);
  parallel_rows(layout.rows, split, [&](int64_t begin, int64_t end) {
    if (p.type == dtype::f32) {
      scalar_range<float>(p, begin, end);
    } else if (p.type == dtype::f16) {
      scalar_range<f16>(p, begin, end);
    } else {
      scalar_range<bf16>(p, begin, end);
    }
  });
  return split;
}

}  // namespace

void vector_add_forward(const vector_add_problem& p) {
  const char* isa = isa_name();
  const int rung = choose_rung(p);
  const row_split split = rung == stream ? stream_rows(p) : scalar_rows(p);
  record({.op = "vector_add",
          .direction = "forward",
          .device = "cpu",
          .rung = rungs[rung],
          .isa = isa,
          .threads = split.threads});
}

}  // namespace ninefold::cpu
#endif  // HWY_ONCE
