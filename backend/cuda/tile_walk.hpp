// The order in which persistent blocks work on the tiles of a product.
#pragma once

#include <cstdint>

#include "backend/host_device.hpp"

namespace ninefold::cuda {

// In bands of `band` rows of tiles, column by column within a band, so that the tiles that run at a
// time share operands in L2. Then the parts of a split of K, then the batches.
struct tile_walk {
  uint32_t rows, columns, splits, band;

  struct place {
    uint32_t row, column, split, batch;
  };

  NF_HOST_DEVICE constexpr place at(uint32_t i) const {
    const uint32_t tiles = rows * columns, rest = i / tiles;
    i -= rest * tiles;
    const uint32_t first = i / (band * columns) * band;
    const uint32_t height = first + band <= rows ? band : rows - first;
    i -= first * columns;
    return {first + i % height, i / height, rest % splits, rest / splits};
  }
};

}  // namespace ninefold::cuda
