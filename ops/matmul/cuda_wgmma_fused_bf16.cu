#include "ops/matmul/wgmma.cuh"

namespace ninefold::cuda {

wgmma_launcher fused_bf16(matmul_epilogue epilogue, bool transposed_b) {
  return fused_of<bfloat16>(epilogue, transposed_b);
}

}  // namespace ninefold::cuda
