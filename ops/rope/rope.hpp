// A checked rope call, as the backends see it: plain data, passed by value to kernels.
#pragma once

#include <ninefold/rope.h>

#include <cmath>

#include "backend/rows.hpp"
#include "backend/view.hpp"

namespace ninefold {

// Integers on the device, int32 or int64, by up to two indices.
struct rope_integers {
  const void* data = nullptr;  // nullptr: not given
  bool wide = false;           // int64
  int64_t stride[2] = {};

  NF_HOST_DEVICE int64_t at(int64_t i, int64_t j = 0) const {
    const int64_t offset = i * stride[0] + j * stride[1];
    return wide ? static_cast<const int64_t*>(data)[offset]
                : static_cast<const int32_t*>(data)[offset];
  }
};

// q or k, and where it goes. Strides are those of batch, token, head and element.
struct rope_tensor {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t heads = 0;  // 0: there is none
  int64_t in_stride[4] = {}, out_stride[4] = {};

  // Views are checked to be apart or the very same.
  NF_HOST_DEVICE bool in_place() const { return in == out; }
  NF_HOST_DEVICE int64_t in_at(int64_t b, int64_t s, int64_t h) const {
    return b * in_stride[0] + s * in_stride[1] + h * in_stride[2];
  }
  NF_HOST_DEVICE int64_t out_at(int64_t b, int64_t s, int64_t h) const {
    return b * out_stride[0] + s * out_stride[1] + h * out_stride[2];
  }
};

struct rope_table {
  const float *cos = nullptr, *sin = nullptr;
  int64_t rows = 0;
  int64_t cos_stride[2] = {}, sin_stride[2] = {};
};

struct rope_problem {
  static constexpr int most_pairs = 256;  // of computed angles

  rope_tensor of[2];  // q, k
  int64_t batches, length, head_size;
  int64_t pairs;  // rotary_dim / 2
  dtype type;
  bool interleaved, backward;

  rope_integers positions, offsets, cu_seqlens;
  int64_t sequences;
  int64_t offset;

  bool with_table;  // which may have no rows
  rope_table table;
  float cos_factor, sin_factor;    // -1 and the attention factor are in these
  uint64_t frequency[most_pairs];  // turns per position, times 2^64, modulo 2^64

  const char* rung;  // asked for by name, or nullptr

  int64_t tokens() const { return batches * length; }
  int64_t heads() const { return of[0].heads + of[1].heads; }

  // In pair `pair` of a head, element 0 or 1.
  NF_HOST_DEVICE int64_t column(int64_t pair, int element) const {
    return interleaved ? 2 * pair + element : pair + element * pairs;
  }
};

// The sequence that token s is in: the last that begins at or before it. Reads no entry but those
// of beginnings, whatever they hold.
NF_HOST_DEVICE inline int64_t rope_sequence(const rope_problem& p, int64_t s) {
  int64_t low = 0, high = p.sequences;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (p.cu_seqlens.at(middle) <= s ? low : high) = middle;
  }
  return low;
}

// Wraps instead of overflowing: what lies on the device may be anything.
NF_HOST_DEVICE inline int64_t rope_position(const rope_problem& p, int64_t b, int64_t s) {
  uint64_t position = static_cast<uint64_t>(p.offset);
  if (p.positions.data)
    return static_cast<int64_t>(position + static_cast<uint64_t>(p.positions.at(b, s)));
  int64_t sequence = b;
  position += static_cast<uint64_t>(s);
  if (p.cu_seqlens.data) {
    sequence = rope_sequence(p, s);
    position -= static_cast<uint64_t>(p.cu_seqlens.at(sequence));
  }
  if (p.offsets.data) position += static_cast<uint64_t>(p.offsets.at(sequence));
  return static_cast<int64_t>(position);
}

// An angle as a multiple of a quarter turn, of which the two low bits count, and a rest of at most
// an eighth of a turn. The product of a position and a frequency is exact modulo 2^64, which is
// modulo one turn: the integers wrap where the angle does.
struct rope_angle {
  uint32_t quarters;
  float rest;  // in turns
};

NF_HOST_DEVICE inline rope_angle rope_angle_of(uint64_t frequency, int64_t position) {
  const uint64_t turns = static_cast<uint64_t>(position) * frequency;
  const uint64_t quarters = (turns + (uint64_t{1} << 61)) >> 62;
  const int64_t rest = static_cast<int64_t>(turns - (quarters << 62));
  return {static_cast<uint32_t>(quarters), static_cast<float>(rest) * 0x1p-64f};
}

// cos and sin of a rest of r turns, z = r^2. Near-minimax on |r| <= 1/8, the errors 2e-10 and 2e-9:
//   cos = 1 + z (c0 + c1 z + c2 z^2 + c3 z^3)      sin = r (two_pi + (rest + z (s0 + s1 z + s2
//   z^2)))
// 2 pi is in two parts, for as one fp32 number it alone would cost half a unit.
struct rope_series {
  static constexpr float c0 = -0x1.3bd3ccp+4f, c1 = 0x1.03c1eap+6f, c2 = -0x1.55cb98p+6f,
                         c3 = 0x1.db6466p+5f;
  static constexpr float two_pi = 0x1.921fb6p+2f, rest = -1.94219926e-7f;
  static constexpr float s0 = -0x1.4abbbap+5f, s1 = 0x1.465ec2p+6f, s2 = -0x1.2d9b1ep+6f;
};

struct rope_rotation {
  float cos, sin;

  // Both elements of a pair, in place.
  NF_HOST_DEVICE void turn(float& x0, float& x1) const {
    const float y0 = fmaf(x0, cos, -(x1 * sin)), y1 = fmaf(x1, cos, x0 * sin);
    x0 = y0;
    x1 = y1;
  }
};

// By fused operations in one order: every rung on every device has the same bits.
NF_HOST_DEVICE inline rope_rotation rope_rotation_by(const rope_angle& angle) {
  using series = rope_series;
  const float r = angle.rest, z = r * r;
  float c = fmaf(series::c3, z, series::c2);
  c = fmaf(c, z, series::c1);
  c = fmaf(c, z, series::c0);
  c = fmaf(c, z, 1.0f);
  float s = fmaf(series::s2, z, series::s1);
  s = fmaf(s, z, series::s0);
  s = fmaf(s, z, series::rest);
  s = fmaf(r, series::two_pi, r * s);
  const bool swapped = angle.quarters & 1;
  const float x = swapped ? s : c, y = swapped ? c : s;
  return {(angle.quarters + 1) & 2 ? -x : x, angle.quarters & 2 ? -y : y};
}

// Of pair `pair` at a position, the direction and the attention factor included.
NF_HOST_DEVICE inline rope_rotation rope_rotation_of(const rope_problem& p, int64_t position,
                                                     int64_t pair) {
  rope_rotation r{NAN, NAN};
  if (!p.with_table) {
    r = rope_rotation_by(rope_angle_of(p.frequency[pair], position));
  } else if (position >= 0 && position < p.table.rows) {
    const rope_table& t = p.table;
    r = {t.cos[position * t.cos_stride[0] + pair * t.cos_stride[1]],
         t.sin[position * t.sin_stride[0] + pair * t.sin_stride[1]]};
  }
  return {r.cos * p.cos_factor, r.sin * p.sin_factor};
}

namespace cpu {
void rope(const rope_problem& p);
}

namespace cuda {
void rope(const rope_problem& p, DLDevice device, nf_stream stream);
}

}  // namespace ninefold
