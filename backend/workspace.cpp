#include "backend/workspace.hpp"

#include "backend/status.hpp"

namespace ninefold {

view check_workspace(const char* op, const DLTensor* tensor, int64_t bytes, const view& like) {
  const auto expected = static_cast<long long>(bytes);
  if (!tensor)
    fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got NULL", op, expected);
  const view w = check_view(op, "workspace", tensor);
  require_same_device(op, like, w);
  if (w.type != dtype::boolean || w.rank != 1 || (w.stride[0] != 1 && w.count > 1))
    fail(NF_INVALID_ARGUMENT, "%s: workspace: expected contiguous bytes (uint8) of rank 1", op);
  if (w.count < bytes)
    fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got %lld", op, expected,
         static_cast<long long>(w.count));
  if (reinterpret_cast<uintptr_t>(w.data) % 16 != 0)
    fail(NF_INVALID_ARGUMENT, "%s: workspace: expected an alignment of 16 bytes", op);
  return w;
}

}  // namespace ninefold
