#include "backend/view.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "backend/device.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

std::string text_of(const view& v) {
  std::string s = "(";
  for (int i = 0; i < v.rank; ++i) s += (i ? ", " : "") + std::to_string(v.shape[i]);
  return s + ")";
}

dtype dtype_of(const char* op, const char* what, DLDataType type) {
  if (type.lanes == 1) {
    if (type.code == kDLFloat && type.bits == 32) return dtype::f32;
    if (type.code == kDLFloat && type.bits == 16) return dtype::f16;
    if (type.code == kDLBfloat && type.bits == 16) return dtype::bf16;
    if (type.code == kDLInt && type.bits == 32) return dtype::i32;
    if (type.code == kDLInt && type.bits == 64) return dtype::i64;
    if ((type.code == NF_DTYPE_CODE_BOOL || type.code == kDLUInt) && type.bits == 8)
      return dtype::boolean;
  }
  fail(NF_UNSUPPORTED,
       "%s: %s: expected fp32, fp16, bf16, bool, int32 or int64, got code %d with %d bits x %d", op,
       what, type.code, type.bits, type.lanes);
}

// The whole reach of the view in bytes, relative to data.
struct extent {
  int64_t low = 0, high = 0;
};

bool extent_of(const view& v, extent& out) {
  const int64_t bytes = size_of(v.type);
  out = {0, bytes};
  for (int i = 0; i < v.rank; ++i) {
    int64_t reach;
    if (__builtin_mul_overflow(v.stride[i], v.shape[i] - 1, &reach) ||
        __builtin_mul_overflow(reach, bytes, &reach))
      return false;
    int64_t& side = reach < 0 ? out.low : out.high;
    if (__builtin_add_overflow(side, reach, &side)) return false;
  }
  // Two extents are compared by their difference, which must fit as well.
  return out.high <= INT64_MAX / 4 && out.low >= INT64_MIN / 4;
}

// One unknown of the overlap equation: step * k with k in [low, high].
struct term {
  int64_t step, low, high;
};

// Is there a k for every term with base + sum(step * k) == 0? `reach_low/high` of the tail bound
// the search at each level; few k of each term survive when the terms are sorted by step.
bool solvable(int64_t base, const term* terms, int count, int& budget) {
  if (count == 0) return base == 0;
  if (--budget < 0) return true;
  int64_t tail_low = 0, tail_high = 0;
  for (int i = 1; i < count; ++i) {
    tail_low += terms[i].step * terms[i].low;
    tail_high += terms[i].step * terms[i].high;
  }
  const term& t = terms[0];
  const auto floor_div = [](int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); };
  const int64_t first = std::max(t.low, floor_div(-base - tail_high + t.step - 1, t.step));
  const int64_t last = std::min(t.high, floor_div(-base - tail_low, t.step));
  for (int64_t k = first; k <= last; ++k) {
    if (solvable(base + t.step * k, terms + 1, count - 1, budget)) return true;
    if (budget < 0) return true;
  }
  return false;
}

// The terms of two views and of a byte within an element of each.
struct term_list {
  std::array<term, 2 * NF_MAX_RANK + 2> terms;
  int count = 0;

  void add(int64_t stride, int64_t bytes, int64_t size, bool negative) {
    if (size <= 1 || stride == 0) return;  // the stride of a size of 1 may be any number
    const int64_t step = stride * bytes;
    term t{step, 0, size - 1};
    if (negative) t = {step, -(size - 1), 0};
    if (t.step < 0) t = {-t.step, -t.high, -t.low};
    int at = 0;  // largest step first
    while (at < count && terms[at].step > t.step) ++at;
    if (at < count && terms[at].step == t.step) {
      terms[at].low += t.low;
      terms[at].high += t.high;
      return;
    }
    for (int i = count++; i > at; --i) terms[i] = terms[i - 1];
    terms[at] = t;
  }
};

}  // namespace

int64_t size_of(dtype type) {
  switch (type) {
    case dtype::boolean:
      return 1;
    case dtype::f16:
    case dtype::bf16:
      return 2;
    case dtype::f32:
    case dtype::i32:
      return 4;
    case dtype::i64:
      return 8;
  }
  return 0;
}

const char* name_of(dtype type) {
  switch (type) {
    case dtype::f32:
      return "fp32";
    case dtype::f16:
      return "fp16";
    case dtype::bf16:
      return "bf16";
    case dtype::boolean:
      return "bool";
    case dtype::i32:
      return "int32";
    case dtype::i64:
      return "int64";
  }
  return "";
}

view check_view(const char* op, const char* what, const DLTensor* tensor, int least_rank) {
  if (!tensor) fail(NF_INVALID_ARGUMENT, "%s: %s: expected a tensor, got NULL", op, what);
  if (tensor->ndim < least_rank)
    fail(NF_INVALID_ARGUMENT, "%s: %s: expected rank %d to %d, got %d", op, what, least_rank,
         NF_MAX_RANK, tensor->ndim);
  if (tensor->ndim > NF_MAX_RANK)
    fail(NF_UNSUPPORTED, "%s: %s: expected rank %d to %d, got %d", op, what, least_rank,
         NF_MAX_RANK, tensor->ndim);
  if (!tensor->shape && tensor->ndim > 0)
    fail(NF_INVALID_ARGUMENT, "%s: %s: shape is NULL", op, what);

  view v{};
  v.name = what;
  v.device = tensor->device;
  v.type = dtype_of(op, what, tensor->dtype);
  v.rank = tensor->ndim;
  v.count = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    v.shape[i] = tensor->shape[i];
    if (v.shape[i] < 0)
      fail(NF_INVALID_ARGUMENT, "%s: %s: size %lld in dimension %d is negative", op, what,
           static_cast<long long>(v.shape[i]), i);
  }
  const bool empty =
      std::any_of(v.shape.begin(), v.shape.begin() + v.rank, [](int64_t n) { return n == 0; });
  for (int i = v.rank - 1; i >= 0; --i) {
    v.stride[i] = tensor->strides ? tensor->strides[i] : v.count;
    if (__builtin_mul_overflow(v.count, empty ? 1 : v.shape[i], &v.count))
      fail(NF_INVALID_ARGUMENT, "%s: %s: the number of elements of %s overflows 63 bits", op, what,
           text_of(v).c_str());
  }
  if (empty) v.count = 0;

  require_device(op, what, v.device);
  if (v.count == 0) return v;

  extent e;
  if (!extent_of(v, e))
    fail(NF_INVALID_ARGUMENT, "%s: %s: strides reach further than 63 bits can count", op, what);
  if (!tensor->data) fail(NF_INVALID_ARGUMENT, "%s: %s: data is NULL", op, what);
  v.data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  if (reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(size_of(v.type)) != 0)
    fail(NF_INVALID_ARGUMENT, "%s: %s: data is not aligned to its element of %lld bytes", op, what,
         static_cast<long long>(size_of(v.type)));
  return v;
}

view check_one_element(const char* op, const char* what, const DLTensor* tensor, dtype type,
                       const view& like) {
  const view v = check_view(op, what, tensor, 0);
  require_dtype(op, v, type);
  require_one_element(op, v);
  require_same_device(op, like, v);
  return v;
}

void require_float(const char* op, const view& v) {
  if (v.type == dtype::f32 || v.type == dtype::f16 || v.type == dtype::bf16) return;
  fail(NF_UNSUPPORTED, "%s: %s: expected fp32, fp16 or bf16, got %s", op, v.name, name_of(v.type));
}

void require_dtype(const char* op, const view& v, dtype type) {
  if (v.type == type) return;
  fail(NF_UNSUPPORTED, "%s: %s: expected %s, got %s", op, v.name, name_of(type), name_of(v.type));
}

void require_one_element(const char* op, const view& v) {
  if (v.count == 1) return;
  fail(NF_INVALID_ARGUMENT, "%s: %s: expected one element, got the shape %s", op, v.name,
       text_of(v).c_str());
}

void require_same_shape(const char* op, const view& expected, const view& actual) {
  if (expected.rank == actual.rank &&
      std::equal(expected.shape.begin(), expected.shape.begin() + expected.rank,
                 actual.shape.begin()))
    return;
  fail(NF_INVALID_ARGUMENT, "%s: %s: expected the shape of %s, %s, got %s", op, actual.name,
       expected.name, text_of(expected).c_str(), text_of(actual).c_str());
}

void require_same_dtype(const char* op, const view& expected, const view& actual) {
  if (expected.type == actual.type) return;
  fail(NF_INVALID_ARGUMENT, "%s: %s: expected the dtype of %s, %s, got %s", op, actual.name,
       expected.name, name_of(expected.type), name_of(actual.type));
}

void require_same_device(const char* op, const view& expected, const view& actual) {
  if (expected.device.device_type == actual.device.device_type &&
      expected.device.device_id == actual.device.device_id)
    return;
  fail(NF_INVALID_ARGUMENT, "%s: %s: expected the device of %s (type %d, id %d), got (%d, %d)", op,
       actual.name, expected.name, expected.device.device_type, expected.device.device_id,
       actual.device.device_type, actual.device.device_id);
}

void require_distinct_elements(const char* op, const view& out) {
  if (out.count == 0) return;
  // By rising stride, each dimension must step over all that the smaller ones reach.
  std::array<int, NF_MAX_RANK> order;
  int count = 0;
  for (int i = 0; i < out.rank; ++i) {
    if (out.shape[i] == 1) continue;
    int at = count++;
    for (; at > 0 && std::abs(out.stride[order[at - 1]]) > std::abs(out.stride[i]); --at)
      order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t stride = std::abs(out.stride[order[i]]);
    if (stride <= reach)
      fail(NF_INVALID_ARGUMENT, "%s: %s: an output's elements must not share memory", op, out.name);
    reach += stride * (out.shape[order[i]] - 1);
  }
}

bool overlap(const view& a, const view& b) {
  if (a.count == 0 || b.count == 0) return false;
  if (a.device.device_type != b.device.device_type || a.device.device_id != b.device.device_id)
    return false;
  extent ea, eb;
  extent_of(a, ea);
  extent_of(b, eb);
  const int64_t base = static_cast<char*>(b.data) - static_cast<char*>(a.data);
  if (base + eb.low >= ea.high || ea.low >= base + eb.high) return false;

  // A shared byte: base + (b's element) + (its byte) - (a's element) - (its byte) == 0.
  term_list list;
  const int64_t a_bytes = size_of(a.type), b_bytes = size_of(b.type);
  for (int i = 0; i < b.rank; ++i) list.add(b.stride[i], b_bytes, b.shape[i], false);
  for (int i = 0; i < a.rank; ++i) list.add(a.stride[i], a_bytes, a.shape[i], true);
  list.add(1, 1, b_bytes, false);
  list.add(1, 1, a_bytes, true);
  int budget = 10000;
  return solvable(base, list.terms.data(), list.count, budget);
}

void require_no_overlap(const char* op, const view& in, const view& out, bool in_place) {
  bool same = in.data == out.data && in.type == out.type;
  for (int i = 0; i < in.rank && same; ++i)
    same = in.shape[i] == 1 || in.stride[i] == out.stride[i];
  if ((same && in_place) || !overlap(in, out)) return;
  fail(NF_INVALID_ARGUMENT, "%s: %s overlaps %s and is not the same view", op, out.name, in.name);
}

}  // namespace ninefold
