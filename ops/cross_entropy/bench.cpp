// Cross-entropy over (N, V). The least that forward can do is read the logits; the gradient is one
// read and one write of them, whether it comes from a saved lse or in one pass with the loss.
#include "lab/bench.hpp"

#include <algorithm>
#include <cstring>
#include <ninefold/ninefold.hpp>
#include <span>

#ifdef NF_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "lab/sampling.hpp"
#include "ops/cross_entropy/reference.hpp"
#include "verify/tensor.hpp"

namespace ninefold::lab {
namespace {

using verify::tensor;

struct cross_entropy_case {
  int64_t rows, classes, offset;
  bool loss, gradient;  // what is computed
  bool in_place;        // the gradient lies over the logits
  bool options;         // smoothing, soft cap, z-loss and class weights, all of them
  bool defer;           // softmax - one-hot is stored, without the scale
  int64_t loss_scale;
  DLDataType type;
  DLDevice device;

  verify::layout where() const { return {{rows, classes}, {}, offset}; }
  int64_t bytes() const { return rows * classes * type.bits / 8; }
};

std::vector<int64_t> targets_of(const cross_entropy_case& c, uint64_t seed) {
  std::vector<int64_t> t(static_cast<size_t>(c.rows));
  for (size_t i = 0; i < t.size(); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    t[i] = static_cast<int64_t>((seed >> 33) % static_cast<uint64_t>(c.classes));
  }
  return t;
}

class cross_entropy_problem : public problem {
 public:
  explicit cross_entropy_problem(const cross_entropy_case& c)
      : case_(c),
        logits_(c.type, c.where(), c.device),
        other_(c.type, c.gradient ? c.where() : verify::layout{{0}}, c.device),
        targets_(i64, {{c.rows}}, c.device),
        weights_(f32, {{c.classes}}, c.device),
        token_loss_(f32, {{c.rows}}, c.device),
        lse_(f32, {{c.rows}}, c.device),
        row_scale_(f32, {{c.rows}}, c.device),
        rows_(sampled_rows(c.rows, c.classes)) {
    std::vector<double> w = tensor_of_normals(c.classes).load();
    for (double& each : w) each = 0.5 + std::abs(each);
    weights_.store(w);
    nf_cross_entropy_args sized = args(nullptr);
    workspace_bytes_ = cross_entropy_workspace_size(sized);
    workspace_ = std::make_unique<tensor>(u8, verify::layout{{workspace_bytes_}}, c.device);
  }

  void fill(uint64_t seed) override {
    logits_.fill_normal(seed);
    chosen_ = targets_of(case_, seed);
    targets_.store(std::vector<double>(chosen_.begin(), chosen_.end()));
    keep_logits();
    if (case_.gradient && !case_.loss) {
      // From logits as they are: the saved lse of the backward.
      nf_cross_entropy_args forward = args(nullptr);
      forward.lse = lse_;
      cross_entropy(forward);
    }
    expected_.dlogits.values.clear();
  }

  void poison() override {
    if (case_.in_place) {
      restore(nullptr);
    } else if (case_.gradient) {
      other_.poison();
    }
    if (!case_.loss) return;
    token_loss_.poison();
    lse_.poison();
  }

  verify::error_report check() override {
    if (expected_.dlogits.values.empty()) expect();
    verify::error_report report;
    if (case_.gradient)
      report.add(verify::compare(gradient().load_rows(rows_), expected_.dlogits.values,
                                 expected_.dlogits.allowed));
    if (case_.gradient && !case_.in_place) report.unwritten = other_.count_poison();
    if (case_.loss) {
      report.add(verify::compare(per_token(token_loss_), expected_.token_loss.values,
                                 expected_.token_loss.allowed));
      report.unwritten += token_loss_.count_poison();
    }
    if (!gradient().canaries_intact() || !token_loss_.canaries_intact())
      report.worst = std::numeric_limits<double>::infinity();
    return report;
  }

  std::vector<contender> contenders() override {
    const bool cuda = case_.device.device_type == kDLCUDA;
    std::vector<const char*> rungs{"stream"};
    if (cuda) rungs = {"online"};
    if (cuda && case_.loss && case_.gradient)
      rungs = {"online", "row_per_warp", "row_per_block", "row_per_cluster"};
    std::vector<contender> out =
        own_contenders([this](const char* rung) { return ours(rung); }, "three_pass", rungs);
    out.push_back({.provider = cuda ? "cuDNN" : "oneDNN",
                   .absent = "has no cross-entropy; PyTorch's and Liger's are timed from Python"});
    return out;
  }

  std::vector<buffer> buffers() override {
    std::vector<buffer> out{buffer_of(logits_, logits_.bytes(), case_.in_place)};
    if (case_.gradient && !case_.in_place) out.push_back(buffer_of(other_, other_.bytes(), true));
    return out;
  }

 private:
  tensor tensor_of_normals(int64_t count) const {
    tensor t(f32, {{count}});
    t.fill_normal(11);
    return t;
  }

  std::vector<double> per_token(const tensor& t) const {
    const std::vector<double> all = t.load();
    std::vector<double> some;
    for (const int64_t r : rows_) some.push_back(all[static_cast<size_t>(r)]);
    return some;
  }

  const tensor& gradient() const { return case_.in_place ? logits_ : other_; }
  const tensor& inputs() const { return case_.in_place ? other_ : logits_; }

  // In place, `other_` keeps what the calls overwrite.
  void keep_logits() {
    if (case_.in_place) copy(logits_, other_, nullptr);
  }
  void restore(nf_stream stream) { copy(other_, logits_, stream); }

  void copy(const tensor& from, const tensor& to, nf_stream stream) const {
    const auto at = [](const DLTensor* t) { return static_cast<char*>(t->data) + t->byte_offset; };
    const size_t bytes = static_cast<size_t>(from.bytes());
#ifdef NF_WITH_CUDA
    if (case_.device.device_type == kDLCUDA) {
      cudaMemcpyAsync(at(to), at(from), bytes, cudaMemcpyDeviceToDevice,
                      static_cast<cudaStream_t>(stream));
      return;
    }
#endif
    (void)stream;
    std::memcpy(at(to), at(from), bytes);
  }

  reference::cross_entropy_spec spec() const {
    reference::cross_entropy_spec s{.classes = case_.classes,
                                    .loss_scale = static_cast<double>(case_.loss_scale),
                                    .defer_scale = case_.defer,
                                    .from_lse = !case_.loss,
                                    .type = case_.type};
    if (!case_.options) return s;
    s.label_smoothing = 0.1;
    s.z_loss = 1e-4;
    s.soft_cap = 30;
    s.class_weights = weights_.load();
    return s;
  }

  void expect() {
    std::vector<int64_t> some;
    for (const int64_t r : rows_) some.push_back(chosen_[static_cast<size_t>(r)]);
    expected_ = reference::cross_entropy(spec(), inputs().load_rows(rows_), some, {},
                                         reference::denominator_of(spec(), chosen_));
  }

  nf_cross_entropy_args args(const char* rung) const {
    nf_cross_entropy_args a{};
    a.logits = logits_;
    a.targets = targets_;
    a.loss_scale.value = static_cast<double>(case_.loss_scale);
    if (case_.options) {
      a.class_weights = weights_;
      a.label_smoothing = 0.1;
      a.z_loss = 1e-4;
      a.soft_cap = 30;
    }
    if (workspace_) a.workspace = *workspace_;
    a.rung = rung;
    return a;
  }

  contender ours(const char* rung) {
    const auto call = [this, rung](nf_stream stream) {
      nf_cross_entropy_args a = args(rung);
      a.lse = lse_;
      if (case_.loss) a.token_loss = token_loss_;
      if (!case_.gradient) return cross_entropy(a, stream);
      a.dlogits = gradient();
      a.defer_scale = case_.defer;
      if (case_.defer) a.row_scale = row_scale_;
      if (case_.loss) return cross_entropy_forward_backward(a, stream);
      cross_entropy_backward(a, stream);
    };
    contender c{.provider = "ninefold",
                .rung = rung ? rung : "",
                .call = call,
                .workspace_bytes = workspace_bytes_};
    if (case_.in_place) c.restore = [this](nf_stream stream) { restore(stream); };
    return c;
  }

  cross_entropy_case case_;
  tensor logits_, other_, targets_, weights_, token_loss_, lse_, row_scale_;
  std::unique_ptr<tensor> workspace_;
  int64_t workspace_bytes_ = 0;
  std::vector<int64_t> rows_, chosen_;
  reference::cross_entropy_result expected_;
};

}  // namespace

bench_case cases_cross_entropy(const shape_entry& shape, const std::string& direction,
                               const std::string& dtype, DLDevice device) {
  const auto option = [&](const char* name, int64_t otherwise) {
    return size_named(shape.options, name, otherwise);
  };
  cross_entropy_case c{};
  c.rows = size_named(shape.sizes, "N");
  c.classes = size_named(shape.sizes, "V");
  c.offset = option("offset", 0);
  c.loss = direction != "backward";
  c.gradient = direction != "forward";
  c.in_place = c.gradient && option("in_place", 0) != 0;
  c.options = option("all_options", 0) != 0;
  c.defer = c.gradient && option("defer_scale", 0) != 0;
  c.loss_scale = option("loss_scale", 1);
  c.type = dtype_named(dtype);
  c.device = device;

  const int64_t target_bytes = c.rows * 8, token_bytes = c.rows * 4;
  bench_case b{.op = "cross_entropy",
               .direction = direction,
               .device = device,
               .dtype = dtype,
               .name = shape.name,
               .shape = shape.sizes,
               .options = shape.options};
  b.bytes_read = c.bytes() + target_bytes + (c.options ? c.classes * 4 : 0);
  if (!c.loss) b.bytes_read += token_bytes;       // lse
  if (c.loss) b.bytes_written = 2 * token_bytes;  // token_loss, lse
  if (c.defer) b.bytes_written += token_bytes;    // row_scale
  if (c.gradient) b.bytes_written += c.bytes();
  // Subtract, exponential, add; for the gradient subtract, exponential, multiply.
  b.flops = c.rows * c.classes * (3 * c.loss + 3 * c.gradient);
  // From forward to backward: lse beside the logits, or the gradient, which may lie over them.
  b.kept_bytes = !c.gradient || !c.loss ? token_bytes : c.in_place ? 0 : c.bytes();
  b.ceiling = c.gradient ? "copy" : "read";
  b.make = [c] { return std::make_unique<cross_entropy_problem>(c); };
  return b;
}

}  // namespace ninefold::lab
