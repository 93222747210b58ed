#include "lab/ceilings.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <stdexcept>

#include "lab/fastest.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

// Buffers live across cases, for filling them takes longer than the samples. They are the very
// tensors that the ops are timed on, so that pages and alignment are the same.
class buffer_pool {
 public:
  const std::vector<DLTensor>& get(int count, int64_t bytes, DLDevice device) {
    if (device.device_type != device_.device_type || device.device_id != device_.device_id) clear();
    device_ = device;
    const int64_t elements = bytes / 4;
    while (static_cast<int>(tensors_.size()) < count) tensors_.emplace_back();
    views_.clear();
    for (int i = 0; i < count; ++i) {
      std::optional<tensor>& t = tensors_[static_cast<size_t>(i)];
      if (!t || t->count() < elements) {
        t.reset();
        t.emplace(f32, verify::layout{{elements}}, device);
        t->fill_normal(static_cast<uint64_t>(i) + 1);
      }
      views_.push_back(*static_cast<const DLTensor*>(*t));
    }
    return views_;
  }
  void clear() {
    tensors_.clear();
    views_.clear();
  }

 private:
  DLDevice device_{kDLCPU, 0};
  std::vector<std::optional<tensor>> tensors_;
  std::vector<DLTensor> views_;
};

buffer_pool& pool() {
  static buffer_pool shared;
  return shared;
}

class stream_ceiling : public ceiling {
 public:
  stream_ceiling(const stream_mix& mix, int64_t total, DLDevice device)
      : mix_(mix), bytes_(ceiling_buffer_bytes(mix, total)) {
    for (const DLTensor& t : pool().get(mix.ins + mix.outs, bytes_, device)) {
      void* data = static_cast<char*>(t.data) + t.byte_offset;
      if (static_cast<int>(ins_.size()) < mix.ins) {
        ins_.push_back(data);
      } else {
        outs_.push_back(data);
      }
      touched_.push_back({data, bytes_});
    }
  }
  const std::string& mix() const override { return mix_.name; }
  const std::string& kernel() const override { return kernel_.name; }
  int64_t bytes() const override { return bytes_ * (mix_.ins + mix_.outs); }
  const std::vector<nf_lab_range>& touched() const override { return touched_; }
  void call(nf_stream stream) override { kernel_.run(ins_.data(), outs_.data(), bytes_, stream); }
  std::string check(workbench& bench) override;
  void use(const stream_kernel& kernel) { kernel_ = kernel; }

 private:
  stream_mix mix_;
  int64_t bytes_;
  stream_kernel kernel_;
  std::vector<const void*> ins_;
  std::vector<void*> outs_;
  std::vector<nf_lab_range> touched_;
};

// A stream has no rounding: what is written is the exclusive or of the inputs.
std::string stream_ceiling::check(workbench& bench) {
  call(bench.stream());
  bench.finish();
  using line = std::array<uint64_t, 8>;
  const line_sample sample = lines_of({nullptr, std::min<int64_t>(bytes_, 1 << 22), true});
  const auto line_at = [&](const void* buffer, int64_t i) {
    line out;
    bench.read(out.data(), static_cast<const char*>(buffer) + i * sample.pitch, sizeof out);
    return out;
  };
  for (int64_t i = 0; i < sample.lines; i += 64) {
    line expected{};
    for (const void* in : ins_) {
      const line read = line_at(in, i);
      for (size_t k = 0; k < read.size(); ++k) expected[k] ^= read[k];
    }
    for (const void* out : outs_)
      if (!ins_.empty() && line_at(out, i) != expected)
        return "the stream \"" + kernel_.name + "\" wrote something else";
  }
  return {};
}

std::vector<stream_kernel> kernels_for(const stream_mix& mix, DLDevice device) {
#ifdef NF_WITH_CUDA
  if (device.device_type == kDLCUDA) return cuda_stream_kernels(mix);
#endif
  static_cast<void>(device);
  return cpu_stream_kernels(mix);
}

stream_kernel fastest(stream_ceiling& of, const stream_mix& mix, DLDevice device,
                      nf_stream stream) {
  const std::vector<stream_kernel> kernels = kernels_for(mix, device);
  std::vector<alternative> alternatives;
  for (const stream_kernel& kernel : kernels)
    alternatives.push_back({kernel.name, [&](nf_stream s) {
                              of.use(kernel);
                              of.call(s);
                            }});
  nf_lab_options options{};
  options.device = device;
  options.stream = stream;
  options.touched = of.touched().data();
  options.touched_count = static_cast<int>(of.touched().size());
  options.warmup_seconds = 0.05;
  options.max_seconds = 0.4;
  options.min_samples = 3;
  options.max_samples = 9;
  const size_t best = fastest_of(alternatives, options);
  if (best == kernels.size())
    throw error(NF_RUNTIME_ERROR, "lab: no implementation of the ceiling's stream could run");
  return kernels[best];
}

}  // namespace

const std::vector<stream_mix>& all_mixes() {
  static const std::vector<stream_mix> mixes = {{"copy", 1, 1}, {"2:1", 2, 1},  {"3:1", 3, 1},
                                                {"3:2", 3, 2},  {"4:3", 4, 3},  {"1:2", 1, 2},
                                                {"read", 1, 0}, {"write", 0, 1}};
  return mixes;
}

const stream_mix& find_mix(const std::string& name) {
  for (const stream_mix& m : all_mixes())
    if (m.name == name) return m;
  throw std::invalid_argument("lab: no ceiling \"" + name + "\"");
}

int64_t ceiling_buffer_bytes(const stream_mix& mix, int64_t total) {
  return std::max<int64_t>(64, (total / (mix.ins + mix.outs) + 63) / 64 * 64);
}

std::unique_ptr<ceiling> make_ceiling(const std::string& mix, int64_t bytes, DLDevice device,
                                      nf_stream stream) {
  if (is_product_ceiling(mix)) return make_product_ceiling(mix, device);
  static std::map<std::string, stream_kernel> known;
  const stream_mix& m = find_mix(mix);
  auto out = std::make_unique<stream_ceiling>(m, bytes, device);
  const std::string key = mix + ' ' + std::to_string(out->bytes()) + ' ' +
                          std::to_string(device.device_type) + ' ' +
                          std::to_string(device.device_id);
  const auto found = known.find(key);
  if (found == known.end()) {
    known[key] = fastest(*out, m, device, stream);
    out->use(known[key]);
  } else {
    out->use(found->second);
  }
  return out;
}

void free_ceiling_buffers() { pool().clear(); }

}  // namespace ninefold::lab
