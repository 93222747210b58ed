// Giving operators to torch.
#pragma once

#include <torch/csrc/stable/library.h>

#include <initializer_list>
#include <string>

namespace ninefold::torch_door {

struct op {
  std::string schema;
  void (*kernel)(StableIValue* stack, uint64_t inputs, uint64_t outputs);  // TORCH_BOX(&function)
};

// Registers operators for the life of the process, each kernel for CPU and for CUDA tensors. They
// get two names: torch.ops.ninefold is complete with what ninefold/ops/op.py adds, and
// torch.ops.ninefold_no_grad stays without its autograd kernel, whose Python costs microseconds
// that calls without gradients need not pay.
struct operators {
  operators(std::initializer_list<op> ops);
};

}  // namespace ninefold::torch_door
