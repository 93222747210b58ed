#include "ops/matmul/wgmma.cuh"

namespace ninefold::cuda {

wgmma_launcher fused_f16(matmul_epilogue epilogue, bool transposed_b) {
  return fused_of<half>(epilogue, transposed_b);
}

}  // namespace ninefold::cuda
