#include "ops/matmul/wgmma.cuh"

namespace ninefold::cuda {

wgmma_launcher linear_f16(bool d32, int columns, bool transposed_a, bool transposed_b) {
  return linear_of<half>(d32, columns, transposed_a, transposed_b);
}

}  // namespace ninefold::cuda
