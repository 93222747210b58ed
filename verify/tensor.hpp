// An owned tensor for tests and benches, on the CPU or a CUDA device: filled from and read back as
// doubles, poisoned with NaN before use, fenced by canaries on both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ninefold/ninefold.hpp>
#include <span>
#include <vector>

namespace ninefold::verify {

struct layout {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides = {};  // elements; empty: contiguous. May be 0 or negative
  int64_t offset = 0;                 // elements before the first one, to misalign the data
};

class tensor {
 public:
  tensor(DLDataType type, layout where, DLDevice device = cpu_device);
  tensor(tensor&&) noexcept;
  ~tensor();

  // The view to pass to an op; lives as long as the tensor.
  operator const DLTensor*() const;

  int64_t count() const;  // logical elements
  int64_t bytes() const;  // logical elements times their size
  DLDataType type() const;
  const std::vector<int64_t>& shape() const;

  // Logical row-major order, rounded to nearest even on the way in. Blocking.
  void store(std::span<const double> values);
  std::vector<double> load() const;
  // `rows` of the last dimension only, in the order given: for tensors too large to read whole.
  std::vector<double> load_rows(std::span<const int64_t> rows) const;

  // Seeded inputs made in place (no double copy): N(0, 1), keyed by the logical element index, the
  // same on every device, dtype and layout up to rounding.
  void fill_normal(uint64_t seed);

  void poison();                 // every byte of the storage 0xFF: NaN in each float dtype
  int64_t count_poison() const;  // logical elements that still hold the poison's bits
  // Nothing outside the view was written: neither the fences nor the gaps between its elements.
  bool canaries_intact() const;
  std::vector<std::byte> snapshot() const;  // the storage, for bitwise comparison

 private:
  struct storage;
  std::unique_ptr<storage> storage_;
};

// What a value becomes when stored in `type` (round to nearest even; overflow to inf).
double rounded(DLDataType type, double value);

// Unit roundoff of a dtype: 2^-24, 2^-11, 2^-8.
double epsilon(DLDataType type);

bool cuda_present();  // compiled in, with a driver and a device

}  // namespace ninefold::verify
