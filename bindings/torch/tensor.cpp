#include "tensor.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace ninefold::torch_door {
namespace {

// The numbers of torch's dtypes are behind functions. Asked for once.
struct known_dtype {
  dtype_code torch;
  DLDataType dlpack;
};

// A schema lets None pass for a tensor, as one that is not there.
AtenTensorHandle defined(const Tensor& tensor) {
  bool is_defined;
  TORCH_ERROR_CODE_CHECK(aoti_torch_is_defined(tensor.get(), &is_defined));
  if (!is_defined) throw std::runtime_error("ninefold: expected a Tensor, got None");
  return tensor.get();
}

DLDataType dlpack_dtype(const Tensor& tensor) {
  static const known_dtype known[] = {
      {aoti_torch_dtype_float32(), {kDLFloat, 32, 1}},
      {aoti_torch_dtype_bfloat16(), {kDLBfloat, 16, 1}},
      {aoti_torch_dtype_float16(), {kDLFloat, 16, 1}},
      {aoti_torch_dtype_bool(), {NF_DTYPE_CODE_BOOL, 8, 1}},
      {aoti_torch_dtype_int64(), {kDLInt, 64, 1}},
      {aoti_torch_dtype_int32(), {kDLInt, 32, 1}},
      {aoti_torch_dtype_uint8(), {kDLUInt, 8, 1}},
      {aoti_torch_dtype_float64(), {kDLFloat, 64, 1}},
  };
  const dtype_code code = dtype_of(tensor);
  for (const known_dtype& dtype : known)
    if (dtype.torch == code) return dtype.dlpack;
  return {kDLOpaqueHandle, 8, 1};  // no op takes it, and each says so in its own words
}

DLDevice dlpack_device(const Tensor& tensor) {
  static const int32_t cuda = aoti_torch_device_type_cuda();
  int32_t type, index;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  if (type != cuda) return {kDLCPU, 0};  // ops are registered for no third device
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  return {kDLCUDA, index};
}

// libtorch_cuda has it, and a CPU build of torch has no libtorch_cuda.
using current_cuda_stream = AOTITorchError (*)(int32_t device, void** stream);
current_cuda_stream find_current_cuda_stream() {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
  if (!symbol) throw std::runtime_error("ninefold: this torch has no CUDA streams");
  return reinterpret_cast<current_cuda_stream>(symbol);
}

// glibc maps blocks above 32 MiB afresh for each allocation, and the first touch of every 4 KiB
// page costs more than a kernel here takes for its elements. Huge pages are touched 512 times less
// often.
void ask_for_huge_pages([[maybe_unused]] const Tensor& fresh, [[maybe_unused]] int64_t elements) {
#ifdef MADV_HUGEPAGE
  constexpr int64_t least = 32 << 20, page = 4096, widest = 8;
  if (elements < least / widest || dlpack_device(fresh).device_type != kDLCPU) return;
  int64_t bytes;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(fresh.get(), &bytes));
  if (bytes < least) return;
  void* data;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(fresh.get(), &data));
  const auto begin = reinterpret_cast<int64_t>(data), end = begin + bytes;
  const int64_t from = (begin + page - 1) / page * page, to = end / page * page;
  // Advice: where the system does not take it, all is as before.
  madvise(reinterpret_cast<void*>(from), static_cast<size_t>(to - from), MADV_HUGEPAGE);
#endif
}

}  // namespace

view::view(const Tensor& tensor) {
  int64_t rank;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(defined(tensor), &tensor_.data));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor.get(), &rank));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &tensor_.shape));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &tensor_.strides));
  tensor_.ndim = static_cast<int32_t>(rank);
  tensor_.dtype = dlpack_dtype(tensor);
  tensor_.device = dlpack_device(tensor);
}

view::view(const Tensor& tensor, int64_t from_end) : view(tensor) {
  const int64_t missing = std::max<int64_t>(-from_end - tensor_.ndim, 0);
  const int64_t rank = tensor_.ndim + missing;
  if ((from_end == -1 && missing == 0) || rank > NF_MAX_RANK) return;  // the op refuses the rank
  for (auto [from, to] : {std::pair{&tensor_.shape, &shape_}, {&tensor_.strides, &strides_}}) {
    std::fill_n(to->begin(), missing, 1);
    std::copy_n(*from, tensor_.ndim, to->begin() + missing);
    const auto last = to->begin() + rank, moved = last + from_end;
    std::rotate(moved, moved + 1, last);
    *from = to->data();
  }
  tensor_.ndim = static_cast<int32_t>(rank);
}

void view::select(int64_t index) {
  tensor_.byte_offset += index * tensor_.strides[0] * (tensor_.dtype.bits / 8);
  ++tensor_.shape, ++tensor_.strides, --tensor_.ndim;
}

int64_t from_end(const Tensor& tensor, int64_t dim) {
  const int64_t rank = std::max<int64_t>(std::ssize(shape_of(tensor)), 1);  // a scalar has one too
  if (dim < -rank || dim >= rank)
    throw std::out_of_range("Dimension out of range (expected to be in range of [" +
                            std::to_string(-rank) + ", " + std::to_string(rank - 1) +
                            "], but got " + std::to_string(dim) + ")");
  return dim < 0 ? dim : dim - rank;
}

dtype_code dtype_of(const Tensor& tensor) {
  dtype_code code;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(defined(tensor), &code));
  return code;
}

std::span<const int64_t> shape_of(const Tensor& tensor) {
  int64_t rank, *sizes;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(defined(tensor), &rank));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
  return {sizes, static_cast<size_t>(rank)};
}

Tensor empty(const Tensor& like, std::span<const int64_t> shape, dtype_code dtype) {
  std::array<int64_t, NF_MAX_RANK> strides;
  if (shape.size() > strides.size())
    throw std::domain_error("ninefold: expected at most " + std::to_string(NF_MAX_RANK) +
                            " dimensions, got " + std::to_string(shape.size()));
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  int32_t type, index;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &index));
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(),
                                                  strides.data(), dtype, type, index, &handle));
  Tensor fresh(handle);
  ask_for_huge_pages(fresh, stride);
  return fresh;
}

optional_tensor workspace(const Tensor& like, int64_t bytes) {
  if (bytes == 0) return std::nullopt;
  return empty(like, std::array{bytes}, aoti_torch_dtype_uint8());
}

nf_stream stream_of(const Tensor& tensor) {
  const DLDevice device = dlpack_device(tensor);
  if (device.device_type == kDLCPU) return nullptr;
  static const current_cuda_stream find = find_current_cuda_stream();
  void* stream;
  TORCH_ERROR_CODE_CHECK(find(device.device_id, &stream));
  return stream;
}

void check(nf_status status) {
  if (status == NF_OK) return;
  if (status == NF_UNSUPPORTED) throw std::domain_error(nf_last_error());
  throw std::runtime_error(nf_last_error());
}

}  // namespace ninefold::torch_door
