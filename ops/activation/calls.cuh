// Which tensors and which functor a call has, on either rung: shared by forward and backward, which
// are compiled apart.
#pragma once

#include "backend/cuda/arch.hpp"
#include "backend/launch.hpp"
#include "ops/activation/formulas.cuh"

namespace ninefold::cuda {

inline constexpr const char* activation_op = "activation";

inline constexpr const char* activation_rungs[] = {"scalar", "vector16"};

// Whether "vector16" runs.
inline bool takes_vectors(const activation_problem& p) {
  const bool fits = columns_side_by_side(p);
  if (!p.rung) return fits;
  const bool wide = find_rung(activation_op, p.rung, activation_rungs, 2) == 1;
  if (wide && !fits)
    fail(NF_UNSUPPORTED, "%s: rung \"vector16\" needs columns of stride 1; leave the rung out",
         activation_op);
  return wide;
}

inline void record_launch(const char* direction, bool wide, int threads) {
  record({.op = activation_op,
          .direction = direction,
          .device = "cuda",
          .rung = activation_rungs[wide],
          .isa = current_arch().name,
          .threads = threads,
          .vectors = wide});
}

// body(T{}) with the call's T.
template <class Body>
void with_type(dtype type, const Body& body) {
  if (type == dtype::f32) return body(float{});
  if (type == dtype::f16) return body(half{});
  body(bfloat16{});
}

}  // namespace ninefold::cuda
