#include "backend/cuda/launch.hpp"
#include "backend/cuda/sm90/tensor_map.hpp"

namespace ninefold::cuda::sm90 {
namespace {

using encoder = decltype(&cuTensorMapEncodeTiled);

// From the driver that is loaded, without linking it.
encoder find_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result),
        "tensor map");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result),
        "tensor map");
#endif
  if (result != cudaDriverEntryPointSuccess || !found)
    fail(NF_RUNTIME_ERROR, "tensor map: the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<encoder>(found);
}

CUtensorMapDataType code_of(dtype type) {
  switch (type) {
    case dtype::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case dtype::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

// The stride of a dimension of one element is never walked, but has to look like one.
int64_t bytes_between(const boxed_tensor& t, int d) {
  const int64_t least = (t.size[0] * size_of(t.type) + 15) / 16 * 16;
  return t.size[d + 1] == 1 ? least : t.stride[d] * size_of(t.type);
}

}  // namespace

bool mappable(const boxed_tensor& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
  for (const int64_t size : t.size)
    if (size < 1 || size >= int64_t{1} << 31) return false;
  for (int d = 0; d < 2; ++d) {
    if (t.size[d + 1] > 1 && (t.stride[d] <= 0 || t.stride[d] >= int64_t{1} << 36)) return false;
    if (bytes_between(t, d) % 16 != 0) return false;
  }
  return true;
}

CUtensorMap map_of(const char* what, const boxed_tensor& t) {
  static const encoder encode = find_encoder();
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(t.size[0]),
                              static_cast<cuuint64_t>(t.size[1]),
                              static_cast<cuuint64_t>(t.size[2])};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(bytes_between(t, 0)),
                                static_cast<cuuint64_t>(bytes_between(t, 1))};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(t.box[0]), static_cast<cuuint32_t>(t.box[1]),
                             1};
  const cuuint32_t every[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, code_of(t.type), 3, const_cast<void*>(t.data), size, stride, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail(NF_RUNTIME_ERROR, "%s: CUDA: no tensor map (%d) of %lld x %lld x %lld", what,
         static_cast<int>(result), static_cast<long long>(t.size[2]),
         static_cast<long long>(t.size[1]), static_cast<long long>(t.size[0]));
  return map;
}

}  // namespace ninefold::cuda::sm90
