// The numbers in the activations' formulas.
#pragma once

#include "backend/host_device.hpp"

namespace ninefold {

// GELU's tanh form as x sigmoid(z), for (1 + tanh(a)) / 2 = sigmoid(2 a):
// z = x (slope + cube x^2), slope = 2 sqrt(2 / pi) and cube = 0.044715 slope.
inline constexpr float gelu_tanh_slope = 0x1.988454p0f, gelu_tanh_cube = 0x1.2444f2p-4f;

// 1 / sqrt(2 pi)
inline constexpr float normal_density_at_0 = 0x1.988454p-2f;

// Phi(-x) exp(x^2 / 2) = k q(k) for x >= 0, with k = 1 / (1 + 0.3 x): the coefficients of q, a
// minimax fit of relative error 1.4e-7. ops/activation/README.md.
inline constexpr int normal_tail_degree = 7;
NF_HOST_DEVICE constexpr float normal_tail(int i) {
  constexpr float q[normal_tail_degree + 1] = {0x1.e9fdfep-4f,  0x1.eec0bcp-4f,  0x1.98587ap-4f,
                                               0x1.08c676p-3f,  -0x1.c2f27ap-5f, 0x1.a9a3c0p-3f,
                                               -0x1.43b4a6p-3f, 0x1.25edacp-5f};
  return q[i];
}

}  // namespace ninefold
