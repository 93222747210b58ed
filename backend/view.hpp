// Checked tensor views: a DLTensor whose every number was looked at before any work.
#pragma once

#include <ninefold/types.h>

#include <array>
#include <cstdint>

#include "backend/host_device.hpp"

namespace ninefold {

enum class dtype : uint8_t { f32, f16, bf16, boolean, i32, i64 };

int64_t size_of(dtype type);
const char* name_of(dtype type);

// A checked nf_integer: known, or where it will be when the work runs.
struct integer {
  const int64_t* at = nullptr;
  int64_t value = 0;

  NF_HOST_DEVICE uint64_t get() const { return static_cast<uint64_t>(at ? *at : value); }
};

struct view {
  const char* name;  // the argument, for messages
  void* data;        // byte_offset applied; may be nullptr when empty
  DLDevice device;
  dtype type;
  int rank;
  std::array<int64_t, NF_MAX_RANK> shape;
  std::array<int64_t, NF_MAX_RANK> stride;  // elements; contiguous ones filled in
  int64_t count;                            // elements, 0 if any dimension is 0
};

// Checks one argument: not NULL, a known dtype and device, rank least_rank..NF_MAX_RANK, sizes >=
// 0, an extent that fits in 63 bits, memory that is there and aligned to its element. `what` names
// it.
view check_view(const char* op, const char* what, const DLTensor* tensor, int least_rank = 1);

// Checks an argument that is one element (rank 0, or every size 1) of `type` on the device of
// `like`.
view check_one_element(const char* op, const char* what, const DLTensor* tensor, dtype type,
                       const view& like);

void require_float(const char* op, const view& v);  // fp32, fp16 or bf16
void require_dtype(const char* op, const view& v, dtype type);
void require_one_element(const char* op, const view& v);
void require_same_shape(const char* op, const view& expected, const view& actual);
void require_same_dtype(const char* op, const view& expected, const view& actual);
void require_same_device(const char* op, const view& expected, const view& actual);

// An output must not write one element twice (stride 0, or dimensions that overlap).
void require_distinct_elements(const char* op, const view& out);

// `out` may be the very view of `in` (same data, dtype, strides) when `in_place`; any other shared
// byte fails.
void require_no_overlap(const char* op, const view& in, const view& out, bool in_place);

// Whether two views share a byte. Interleaved slices of one buffer do not. When the search would be
// too long it says true.
bool overlap(const view& a, const view& b);

}  // namespace ninefold
