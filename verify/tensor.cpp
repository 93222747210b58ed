#include "verify/tensor.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "verify/number.hpp"

#ifdef NF_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace ninefold::verify {
namespace {

constexpr int64_t fence = 256;  // bytes of canary on each side; keeps the data's alignment
constexpr std::byte canary{0xC7}, poison_byte{0xFF};

struct f32_codec {
  using bits = uint32_t;
  static bits encode(double v) { return std::bit_cast<uint32_t>(static_cast<float>(v)); }
  static double decode(bits b) { return std::bit_cast<float>(b); }
};
template <class Format>
struct narrow_codec {
  using bits = uint16_t;
  static bits encode(double v) { return static_cast<uint16_t>(Format::encode(v)); }
  static double decode(bits b) { return Format::decode(b); }
};
struct byte_codec {
  using bits = uint8_t;
  static bits encode(double v) { return static_cast<uint8_t>(v); }
  static double decode(bits b) { return b; }
};

template <class Bits, class Signed>
struct integer_codec {
  using bits = Bits;
  static bits encode(double v) { return static_cast<bits>(static_cast<Signed>(v)); }
  static double decode(bits b) { return static_cast<double>(static_cast<Signed>(b)); }
};

template <class Body>
auto with_codec(DLDataType type, Body&& body) {
  if (type.code == kDLFloat && type.bits == 32) return body(f32_codec{});
  if (type.code == kDLFloat && type.bits == 16) return body(narrow_codec<half_format>{});
  if (type.code == kDLBfloat && type.bits == 16) return body(narrow_codec<bfloat_format>{});
  if (type.code == kDLInt && type.bits == 32) return body(integer_codec<uint32_t, int32_t>{});
  if (type.code == kDLInt && type.bits == 64) return body(integer_codec<uint64_t, int64_t>{});
  if (type.bits == 8) return body(byte_codec{});
  throw std::invalid_argument("verify::tensor: a dtype that it does not know");
}

// For the sizes that benches use, one thread would wait on page faults.
void fill_bytes(std::byte* at, int64_t count, std::byte value) {
  constexpr int64_t chunk = 1 << 20;
#pragma omp parallel for schedule(static) if (count > 8 * chunk)
  for (int64_t i = 0; i < (count + chunk - 1) / chunk; ++i)
    std::memset(at + i * chunk, static_cast<int>(value),
                static_cast<size_t>(std::min(chunk, count - i * chunk)));
}

uint64_t mixed(uint64_t z) {  // splitmix64's finaliser
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// Box-Muller on the hash of a counter: elements 2k and 2k + 1 come from pair k.
struct normal_pair {
  float first, second;
  normal_pair(uint64_t key, int64_t k) {
    const uint64_t h = mixed(key + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(k + 1));
    const float u = (static_cast<float>(h >> 32) + 0.5f) * 0x1p-32f;
    const float angle = static_cast<float>(h & 0xffffffffu) * (0x1p-32f * 6.2831853f);
    const float radius = std::sqrt(-2.0f * std::log(u));
    first = radius * std::cos(angle);
    second = radius * std::sin(angle);
  }
};

#ifdef NF_WITH_CUDA
void require(cudaError_t status) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string("verify::tensor: ") + cudaGetErrorString(status));
}

// Makes a device current for a scope: tests of device handling rely on what was current before.
class current_device {
 public:
  explicit current_device(int id) {
    require(cudaGetDevice(&before_));
    require(cudaSetDevice(id));
  }
  ~current_device() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// Host memory to see a device's storage through: pinned and kept, for benches read gigabytes and
// fresh pages would take most of that time.
std::byte* staging(int64_t size) {
  thread_local struct pinned {
    std::byte* memory = nullptr;
    int64_t size = 0;
    ~pinned() { cudaFreeHost(memory); }
  } kept;
  if (size > kept.size) {
    cudaFreeHost(kept.memory);
    kept.memory = nullptr;
    kept.size = 0;
    require(cudaMallocHost(reinterpret_cast<void**>(&kept.memory), static_cast<size_t>(size)));
    kept.size = size;
  }
  return kept.memory;
}
#endif

}  // namespace

struct tensor::storage {
  DLDataType type;
  DLDevice device;
  std::vector<int64_t> shape, strides;
  int64_t item = 0;      // bytes of an element
  int64_t count = 1;     // logical elements
  int64_t first = 0;     // where the first logical element is, in elements of the body
  int64_t elements = 0;  // of the body: offset, data and the gaps between them
  bool dense = true;     // logical order is storage order, without gaps
  bool distinct = true;  // no two logical elements share memory
  std::byte* memory = nullptr;
  DLTensor view{};

  storage(DLDataType t, layout where, DLDevice d) : type(t), device(d), shape(where.shape) {
    item = with_codec(type,
                      [](auto codec) { return int64_t{sizeof(typename decltype(codec)::bits)}; });
    for (size_t i = shape.size(); i-- > 0; count *= shape[i]) {
      strides.insert(strides.begin(), count);
    }
    if (!where.strides.empty()) {
      if (where.strides.size() != shape.size())
        throw std::invalid_argument("verify::tensor: strides unlike the shape");
      dense = where.strides == strides || count <= 1;
      strides = where.strides;
    }
    measure(where.offset);
    allocate();
    view = {body() + first * item, device, static_cast<int>(shape.size()), type, shape.data(),
            strides.data(),        0};
  }

  ~storage() {
    if (device.device_type == kDLCPU) std::free(memory);
#ifdef NF_WITH_CUDA
    if (device.device_type == kDLCUDA) cudaFree(memory);
#endif
  }
  storage(const storage&) = delete;

  void measure(int64_t offset) {
    int64_t low = 0, high = count > 0 ? 1 : 0;
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (size_t i = 0; i < shape.size() && count > 0; ++i) {
      const int64_t reach = strides[i] * (shape[i] - 1);
      (reach < 0 ? low : high) += reach;
      if (shape[i] > 1) steps.emplace_back(std::abs(strides[i]), shape[i]);
    }
    first = offset - low;
    elements = offset + high - low;
    std::sort(steps.begin(), steps.end());
    int64_t reached = 0;
    for (const auto& [step, size] : steps) {
      distinct = distinct && step > reached;
      reached += step * (size - 1);
    }
  }

  std::byte* body() const { return memory + fence; }
  int64_t body_bytes() const { return elements * item; }

  void allocate() {
    const int64_t size = (body_bytes() + 2 * fence + 4095) / 4096 * 4096;
    if (device.device_type == kDLCPU) {
      memory = static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(size)));
      if (!memory) throw std::bad_alloc();
      std::memset(memory, static_cast<int>(canary), fence);
      fill_bytes(body(), body_bytes(), poison_byte);
      std::memset(body() + body_bytes(), static_cast<int>(canary), fence);
      return;
    }
#ifdef NF_WITH_CUDA
    if (device.device_type == kDLCUDA) {
      const current_device scope(device.device_id);
      require(cudaMalloc(reinterpret_cast<void**>(&memory), static_cast<size_t>(size)));
      require(cudaMemset(memory, static_cast<int>(canary), fence));
      require(cudaMemset(body(), static_cast<int>(poison_byte), static_cast<size_t>(body_bytes())));
      require(cudaMemset(body() + body_bytes(), static_cast<int>(canary), fence));
      return;
    }
#endif
    throw std::invalid_argument("verify::tensor: a device that this build does not have");
  }

  void copy(void* to, const void* from, int64_t size) const {
    if (device.device_type == kDLCPU) {
      std::memcpy(to, from, static_cast<size_t>(size));
      return;
    }
#ifdef NF_WITH_CUDA
    const current_device scope(device.device_id);
    require(cudaDeviceSynchronize());  // work on any stream may still write here
    require(cudaMemcpy(to, from, static_cast<size_t>(size), cudaMemcpyDefault));
#endif
  }

  // Runs read(bytes) on the storage from byte `from` on, as seen from the host.
  template <class Read>
  auto on_host(int64_t from, int64_t size, Read&& read) const {
#ifdef NF_WITH_CUDA
    if (device.device_type == kDLCUDA) {
      std::byte* image = staging(size);
      copy(image, memory + from, size);
      return read(static_cast<const std::byte*>(image));
    }
#endif
    (void)size;
    return read(static_cast<const std::byte*>(memory + from));
  }

  // Runs write(body) on the host and brings the body back to the device.
  template <class Write>
  void rewrite(Write&& write) {
#ifdef NF_WITH_CUDA
    if (device.device_type == kDLCUDA) {
      std::byte* image = staging(body_bytes());
      if (!dense || first != 0) copy(image, body(), body_bytes());
      write(image);
      copy(body(), image, body_bytes());
      return;
    }
#endif
    write(body());
  }

  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t row_start(int64_t row) const {
    int64_t at = first;
    for (size_t d = shape.size() - 1; d-- > 0;) {
      at += row % shape[d] * strides[d];
      row /= shape[d];
    }
    return at;
  }

  // visit(logical index, body index, length, stride) over all elements, in parallel when no two
  // share memory; a dense tensor comes in chunks, another row by row.
  template <class Visit>
  void for_spans(Visit&& visit) const {
    if (count == 0) return;
    constexpr int64_t chunk = 1 << 16;
    const int64_t length = dense ? chunk : cols();
#pragma omp parallel for schedule(static) if (distinct && count > 4 * chunk)
    for (int64_t i = 0; i < (count + length - 1) / length; ++i) {
      if (dense)
        visit(i * chunk, first + i * chunk, std::min(chunk, count - i * chunk), int64_t{1});
      else
        visit(i * length, row_start(i), length, strides.back());
    }
  }
};

tensor::tensor(DLDataType type, layout where, DLDevice device)
    : storage_(std::make_unique<storage>(type, std::move(where), device)) {}
tensor::tensor(tensor&&) noexcept = default;
tensor::~tensor() = default;

tensor::operator const DLTensor*() const { return &storage_->view; }
int64_t tensor::count() const { return storage_->count; }
int64_t tensor::bytes() const { return storage_->count * storage_->item; }
DLDataType tensor::type() const { return storage_->type; }
const std::vector<int64_t>& tensor::shape() const { return storage_->shape; }

void tensor::store(std::span<const double> values) {
  if (static_cast<int64_t>(values.size()) != count())
    throw std::invalid_argument("verify::tensor: as many values as elements are needed");
  with_codec(type(), [&](auto codec) {
    using bits = typename decltype(codec)::bits;
    storage_->rewrite([&](std::byte* body) {
      storage_->for_spans([&](int64_t from, int64_t at, int64_t length, int64_t stride) {
        bits* out = reinterpret_cast<bits*>(body) + at;
        for (int64_t j = 0; j < length; ++j)
          out[j * stride] = codec.encode(values[static_cast<size_t>(from + j)]);
      });
    });
  });
}

std::vector<double> tensor::load() const {
  std::vector<double> values(static_cast<size_t>(count()));
  const storage& s = *storage_;
  with_codec(type(), [&](auto codec) {
    using bits = typename decltype(codec)::bits;
    s.on_host(fence, s.body_bytes(), [&](const std::byte* body) {
      s.for_spans([&](int64_t from, int64_t at, int64_t length, int64_t stride) {
        const bits* in = reinterpret_cast<const bits*>(body) + at;
        for (int64_t j = 0; j < length; ++j)
          values[static_cast<size_t>(from + j)] = codec.decode(in[j * stride]);
      });
    });
  });
  return values;
}

std::vector<double> tensor::load_rows(std::span<const int64_t> rows) const {
  const storage& s = *storage_;
  std::vector<double> values;
  if (s.cols() == 0) return values;
  values.reserve(rows.size() * static_cast<size_t>(s.cols()));
  const int64_t stride = s.strides.back(), reach = stride * (s.cols() - 1);
  for (const int64_t row : rows) {
    const int64_t low = s.row_start(row) + std::min<int64_t>(reach, 0);
    with_codec(type(), [&](auto codec) {
      using bits = typename decltype(codec)::bits;
      s.on_host(fence + low * s.item, (std::abs(reach) + 1) * s.item, [&](const std::byte* at) {
        const bits* in = reinterpret_cast<const bits*>(at) - std::min<int64_t>(reach, 0);
        for (int64_t j = 0; j < s.cols(); ++j) values.push_back(codec.decode(in[j * stride]));
      });
    });
  }
  return values;
}

void tensor::fill_normal(uint64_t seed) {
  const uint64_t key = mixed(seed + 0x9e3779b97f4a7c15u);
  with_codec(type(), [&](auto codec) {
    using bits = typename decltype(codec)::bits;
    storage_->rewrite([&](std::byte* body) {
      storage_->for_spans([&](int64_t from, int64_t at, int64_t length, int64_t stride) {
        bits* out = reinterpret_cast<bits*>(body) + at;
        for (int64_t j = from % 2 ? -1 : 0; j < length; j += 2) {
          const normal_pair z(key, (from + j) / 2);
          if (j >= 0) out[j * stride] = codec.encode(z.first);
          if (j + 1 < length) out[(j + 1) * stride] = codec.encode(z.second);
        }
      });
    });
  });
}

void tensor::poison() {
  const storage& s = *storage_;
  if (s.device.device_type == kDLCPU) return fill_bytes(s.body(), s.body_bytes(), poison_byte);
#ifdef NF_WITH_CUDA
  const current_device scope(s.device.device_id);
  require(cudaDeviceSynchronize());
  require(cudaMemset(s.body(), static_cast<int>(poison_byte), static_cast<size_t>(s.body_bytes())));
  require(cudaDeviceSynchronize());
#endif
}

int64_t tensor::count_poison() const {
  const storage& s = *storage_;
  return with_codec(type(), [&](auto codec) {
    using bits = typename decltype(codec)::bits;
    return s.on_host(fence, s.body_bytes(), [&](const std::byte* body) {
      int64_t found = 0;
      s.for_spans([&](int64_t, int64_t at, int64_t length, int64_t stride) {
        const bits* in = reinterpret_cast<const bits*>(body) + at;
        int64_t here = 0;
        for (int64_t j = 0; j < length; ++j) here += in[j * stride] == static_cast<bits>(-1);
#pragma omp atomic
        found += here;
      });
      return found;
    });
  });
}

bool tensor::canaries_intact() const {
  const storage& s = *storage_;
  return s.on_host(0, s.body_bytes() + 2 * fence, [&](const std::byte* all) {
    const auto holds = [](const std::byte* from, int64_t size, std::byte value) {
      return std::all_of(from, from + size, [value](std::byte b) { return b == value; });
    };
    if (!holds(all, fence, canary) || !holds(all + fence + s.body_bytes(), fence, canary))
      return false;
    if (s.dense) return holds(all + fence, s.first * s.item, poison_byte);
    std::vector<bool> addressed(static_cast<size_t>(s.elements));
    for (int64_t row = 0; s.count > 0 && row < s.count / s.cols(); ++row)
      for (int64_t j = 0; j < s.cols(); ++j)
        addressed[static_cast<size_t>(s.row_start(row) + j * s.strides.back())] = true;
    for (int64_t i = 0; i < s.elements; ++i)
      if (!addressed[static_cast<size_t>(i)] &&
          !holds(all + fence + i * s.item, s.item, poison_byte))
        return false;
    return true;
  });
}

std::vector<std::byte> tensor::snapshot() const {
  const storage& s = *storage_;
  return s.on_host(fence, s.body_bytes(), [&](const std::byte* body) {
    return std::vector<std::byte>(body, body + s.body_bytes());
  });
}

double rounded(DLDataType type, double value) {
  return with_codec(type, [&](auto codec) { return codec.decode(codec.encode(value)); });
}

double epsilon(DLDataType type) {
  if (type.code == kDLBfloat) return 0x1p-8;
  return type.bits == 16 ? 0x1p-11 : 0x1p-24;
}

bool cuda_present() {
#ifdef NF_WITH_CUDA
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
#else
  return false;
#endif
}

}  // namespace ninefold::verify
