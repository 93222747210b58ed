// The C++ face of Ninefold: the same calls, with exceptions for statuses and a small view builder.
//
//   std::vector<float> x(rows * n), y(rows * n);
//   ninefold::view vx(x.data(), {rows, n}), vy(y.data(), {rows, n});
//   ninefold::softmax({.x = vx, .y = vy});
#pragma once

#include <ninefold/activation.h>
#include <ninefold/adamw.h>
#include <ninefold/cross_entropy.h>
#include <ninefold/dropout.h>
#include <ninefold/matmul.h>
#include <ninefold/norm.h>
#include <ninefold/rope.h>
#include <ninefold/softmax.h>
#include <ninefold/types.h>
#include <ninefold/vector_add.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace ninefold {

// A failed call: the status and nf_last_error()'s text.
class error : public std::runtime_error {
 public:
  error(nf_status status, const char* text) : std::runtime_error(text), status_(status) {}
  nf_status status() const { return status_; }

 private:
  nf_status status_;
};

inline constexpr DLDataType f32{kDLFloat, 32, 1};
inline constexpr DLDataType f16{kDLFloat, 16, 1};
inline constexpr DLDataType bf16{kDLBfloat, 16, 1};
inline constexpr DLDataType i32{kDLInt, 32, 1};
inline constexpr DLDataType i64{kDLInt, 64, 1};
inline constexpr DLDataType u8{kDLUInt, 8, 1};
inline constexpr DLDataType boolean{NF_DTYPE_CODE_BOOL, 8, 1};
inline constexpr DLDevice cpu_device{kDLCPU, 0};

// A DLTensor that keeps its own shape and strides: borrows the memory, converts to const DLTensor*.
// Strides count elements; left out, the tensor is contiguous. Throws std::length_error above
// NF_MAX_RANK, or when strides and shape differ in length.
class view {
 public:
  view(float* data, std::initializer_list<int64_t> shape) : view(data, f32, shape) {}
  view(void* data, DLDataType dtype, std::initializer_list<int64_t> shape,
       std::initializer_list<int64_t> strides = {}, DLDevice device = cpu_device) {
    if (shape.size() > NF_MAX_RANK || (strides.size() != 0 && strides.size() != shape.size()))
      throw std::length_error("ninefold::view: rank above NF_MAX_RANK, or strides unlike shape");
    std::copy(shape.begin(), shape.end(), shape_.begin());
    std::copy(strides.begin(), strides.end(), strides_.begin());
    has_strides_ = strides.size() != 0;
    tensor_ = {data, device, static_cast<int>(shape.size()), dtype, nullptr, nullptr, 0};
    point();
  }
  view(const view& other)
      : tensor_(other.tensor_),
        shape_(other.shape_),
        strides_(other.strides_),
        has_strides_(other.has_strides_) {
    point();
  }
  view& operator=(const view& other) {
    tensor_ = other.tensor_;
    shape_ = other.shape_;
    strides_ = other.strides_;
    has_strides_ = other.has_strides_;
    point();
    return *this;
  }

  operator const DLTensor*() const { return &tensor_; }

 private:
  void point() {
    tensor_.shape = shape_.data();
    tensor_.strides = has_strides_ ? strides_.data() : nullptr;
  }

  DLTensor tensor_;
  std::array<int64_t, NF_MAX_RANK> shape_{};
  std::array<int64_t, NF_MAX_RANK> strides_{};
  bool has_strides_ = false;
};

namespace detail {
inline void require(nf_status status) {
  if (status != NF_OK) throw error(status, nf_last_error());
}
}  // namespace detail

inline void vector_add(const nf_vector_add_args& args, nf_stream stream = nullptr) {
  detail::require(nf_vector_add_forward(&args, stream));
}

inline void softmax(const nf_softmax_args& args, nf_stream stream = nullptr) {
  detail::require(nf_softmax_forward(&args, stream));
}

inline void softmax_backward(const nf_softmax_args& args, nf_stream stream = nullptr) {
  detail::require(nf_softmax_backward(&args, stream));
}

inline void cross_entropy(const nf_cross_entropy_args& args, nf_stream stream = nullptr) {
  detail::require(nf_cross_entropy_forward(&args, stream));
}

inline void cross_entropy_backward(const nf_cross_entropy_args& args, nf_stream stream = nullptr) {
  detail::require(nf_cross_entropy_backward(&args, stream));
}

inline void cross_entropy_forward_backward(const nf_cross_entropy_args& args,
                                           nf_stream stream = nullptr) {
  detail::require(nf_cross_entropy_forward_backward(&args, stream));
}

inline int64_t cross_entropy_workspace_size(const nf_cross_entropy_args& args) {
  int64_t bytes = 0;
  detail::require(nf_cross_entropy_workspace_size(&args, &bytes));
  return bytes;
}

inline void rms_norm(const nf_norm_args& args, nf_stream stream = nullptr) {
  detail::require(nf_rms_norm_forward(&args, stream));
}

inline void rms_norm_backward(const nf_norm_args& args, nf_stream stream = nullptr) {
  detail::require(nf_rms_norm_backward(&args, stream));
}

inline int64_t rms_norm_workspace_size(const nf_norm_args& args) {
  int64_t bytes = 0;
  detail::require(nf_rms_norm_workspace_size(&args, &bytes));
  return bytes;
}

inline void layer_norm(const nf_norm_args& args, nf_stream stream = nullptr) {
  detail::require(nf_layer_norm_forward(&args, stream));
}

inline void layer_norm_backward(const nf_norm_args& args, nf_stream stream = nullptr) {
  detail::require(nf_layer_norm_backward(&args, stream));
}

inline int64_t layer_norm_workspace_size(const nf_norm_args& args) {
  int64_t bytes = 0;
  detail::require(nf_layer_norm_workspace_size(&args, &bytes));
  return bytes;
}

inline void rope(const nf_rope_args& args, nf_stream stream = nullptr) {
  detail::require(nf_rope_forward(&args, stream));
}

inline void rope_backward(const nf_rope_args& args, nf_stream stream = nullptr) {
  detail::require(nf_rope_backward(&args, stream));
}

inline void activation(const nf_activation_args& args, nf_stream stream = nullptr) {
  detail::require(nf_activation_forward(&args, stream));
}

inline void activation_backward(const nf_activation_args& args, nf_stream stream = nullptr) {
  detail::require(nf_activation_backward(&args, stream));
}

inline int64_t activation_workspace_size(const nf_activation_args& args) {
  int64_t bytes = 0;
  detail::require(nf_activation_workspace_size(&args, &bytes));
  return bytes;
}

inline void adamw_step(const nf_adamw_args& args, nf_stream stream = nullptr) {
  detail::require(nf_adamw_step(&args, stream));
}

inline int64_t adamw_workspace_size(const nf_adamw_args& args) {
  int64_t bytes = 0;
  detail::require(nf_adamw_workspace_size(&args, &bytes));
  return bytes;
}

inline void dropout(const nf_dropout_args& args, nf_stream stream = nullptr) {
  detail::require(nf_dropout_forward(&args, stream));
}

inline void dropout_backward(const nf_dropout_args& args, nf_stream stream = nullptr) {
  detail::require(nf_dropout_backward(&args, stream));
}

inline void matmul(const nf_matmul_args& args, nf_stream stream = nullptr) {
  detail::require(nf_matmul_forward(&args, stream));
}

inline int64_t matmul_workspace_size(const nf_matmul_args& args) {
  int64_t bytes = 0;
  detail::require(nf_matmul_workspace_size(&args, &bytes));
  return bytes;
}

}  // namespace ninefold
