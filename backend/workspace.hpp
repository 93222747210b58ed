// The memory that a caller brings for the length of a call.
#pragma once

#include "backend/view.hpp"

namespace ninefold {

// Checks the argument `workspace` of a call that needs `bytes` > 0 of it, on the device of `like`:
// contiguous bytes of rank 1, enough of them, aligned to 16.
view check_workspace(const char* op, const DLTensor* tensor, int64_t bytes, const view& like);

}  // namespace ninefold
