// What most bench.cpp files need to turn a shape into tensors and to check large ones by samples.
#pragma once

#include <cstdint>
#include <ninefold/ninefold.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/bench.hpp"
#include "verify/tensor.hpp"
#include "verify/tolerance.hpp"

namespace ninefold::lab {

// "fp32", "fp16", "bf16"; throws std::invalid_argument.
DLDataType dtype_named(const std::string& name);

// One of `sizes`; throws std::invalid_argument where it is missing and has no default.
int64_t size_named(const named_sizes& sizes, const std::string& name);
int64_t size_named(const named_sizes& sizes, const std::string& name, int64_t otherwise);

// The rows that are compared with the reference: all of them up to 2^21 elements, else a fixed
// sample, evenly spread with the first and the last among them, at least two.
std::vector<int64_t> sampled_rows(int64_t rows, int64_t cols);

// How far `values` of an output are from what is expected of them. Elements of it that still hold
// the poison and a write beyond its ends count too, wherever they are.
verify::error_report judge(const verify::tensor& out, std::span<const double> values,
                           const verify::expectation& expected);

// The memory of a contiguous view.
buffer buffer_of(const DLTensor* view, int64_t bytes, bool output);

}  // namespace ninefold::lab
