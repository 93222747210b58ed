// A torch tensor as the C library sees it, and what every op here needs around its call: the
// current stream, fresh outputs, and a status that becomes an exception.
//
// Only LibTorch's stable C interface is used, so one build serves torch 2.11 and what follows it,
// with CUDA or without.
#pragma once

#include <ninefold/types.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <span>

namespace ninefold::torch_door {

using torch::stable::Tensor;
using optional_tensor = std::optional<Tensor>;
inline const optional_tensor absent;
using dtype_code = int32_t;  // torch's number of a dtype; ScalarType of a schema
using optional_dtype = std::optional<dtype_code>;

// A view to put into the args of a call. It borrows, so the tensor must outlive it.
class view {
 public:
  view(const Tensor& tensor);  // NOLINT: as one writes {.x = view(x)}
  // The same with one dimension moved to the last place: -1 is the last already, -2 the one before
  // it. Dimensions that are missing in front have size 1, as where a mask broadcasts.
  view(const Tensor& tensor, int64_t from_end);
  // Leaves the part at `index` of the first dimension.
  void select(int64_t index);
  view(const view&) = delete;
  view& operator=(const view&) = delete;

  operator const DLTensor*() const { return &tensor_; }

 private:
  DLTensor tensor_{};
  std::array<int64_t, NF_MAX_RANK> shape_, strides_;  // where a dimension was moved
};

// A view, or NULL where the tensor is not given.
class optional_view {
 public:
  template <class... Dimension>
  explicit optional_view(const optional_tensor& tensor, Dimension... from_end) {
    if (tensor) view_.emplace(*tensor, from_end...);
  }
  void select(int64_t index) {
    if (view_) view_->select(index);
  }
  operator const DLTensor*() const {
    return view_ ? static_cast<const DLTensor*>(*view_) : nullptr;
  }

 private:
  std::optional<view> view_;
};

// `dim` counted from the end, as view wants it. Throws what becomes IndexError in Python.
int64_t from_end(const Tensor& tensor, int64_t dim);

dtype_code dtype_of(const Tensor& tensor);
std::span<const int64_t> shape_of(const Tensor& tensor);

// Uninitialised and contiguous, on the device of `like`.
Tensor empty(const Tensor& like, std::span<const int64_t> shape, dtype_code dtype);
inline Tensor empty_like(const Tensor& like) { return empty(like, shape_of(like), dtype_of(like)); }
// What a nf_..._workspace_size asked for; nothing where that is 0.
optional_tensor workspace(const Tensor& like, int64_t bytes);

// The stream that torch uses now on the tensor's device.
nf_stream stream_of(const Tensor& tensor);

// Throws nf_last_error(). In Python NF_UNSUPPORTED arrives as ValueError, of which
// ninefold/ops/op.py makes torch's NotImplementedError, and everything else as RuntimeError.
void check(nf_status status);

}  // namespace ninefold::torch_door
