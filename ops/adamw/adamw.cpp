#include "ops/adamw/adamw.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "backend/device.hpp"
#include "backend/launch.hpp"
#include "backend/status.hpp"

namespace ninefold {
namespace {

constexpr const char* op = "adamw";

bool contiguous(const view& v) {
  if (v.count == 0) return true;  // whatever strides its maker gave it
  int64_t expected = 1;
  for (int d = v.rank - 1; d >= 0; --d) {
    const auto i = static_cast<size_t>(d);
    if (v.shape[i] > 1 && v.stride[i] != expected) return false;
    expected *= v.shape[i];
  }
  return true;
}

// Every range of bytes of the call. Sorted, since a list of thousands of tensors cannot be compared
// pair by pair.
class byte_ranges {
 public:
  void add(const view& v, bool written, int64_t tensor = -1) {
    if (v.count == 0) return;
    const auto begin = reinterpret_cast<uintptr_t>(v.data);
    ranges_.push_back({begin, begin + static_cast<uintptr_t>(v.count * size_of(v.type)), v.name,
                       tensor, written});
  }
  // What is written shares no byte with anything.
  void check() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const range& a, const range& b) { return a.begin < b.begin; });
    const range *any = nullptr, *written = nullptr;  // those that reach furthest so far
    for (const range& r : ranges_) {
      const range* const other = r.written ? any : written;
      if (other && r.begin < other->end)
        fail(NF_INVALID_ARGUMENT, "%s: %s overlaps %s", op, r.text().c_str(),
             other->text().c_str());
      if (!any || r.end > any->end) any = &r;
      if (r.written && (!written || r.end > written->end)) written = &r;
    }
  }

 private:
  struct range {
    uintptr_t begin, end;
    const char* name;
    int64_t tensor;
    bool written;
    std::string text() const {
      return tensor < 0 ? name : "tensors[" + std::to_string(tensor) + "]." + name;
    }
  };
  std::vector<range> ranges_;
};

// Fills a problem while checking the call.
class call {
 public:
  explicit call(const nf_adamw_args& args) : args_(args) {
    options();
    if (args.count < 0)
      fail(NF_INVALID_ARGUMENT, "%s: count: expected 0 or more, got %lld", op,
           static_cast<long long>(args.count));
    if (args.count > 0 && !args.tensors) fail(NF_INVALID_ARGUMENT, "%s: tensors is NULL", op);
    tensors_.reserve(static_cast<size_t>(args.count));
    for (int64_t i = 0; i < args.count; ++i) add_tensor(i);
    numbers();
    p_.tensors = tensors_;
  }

  int64_t workspace_bytes() const {
    if (!p_.in.by_address() && !p_.in.norm()) return 0;
    int64_t pieces = 0;
    if (p_.in.norm())
      for (const adamw_tensor& t : tensors_) pieces += adamw_pieces(t.count);
    return factors_bytes + pieces * static_cast<int64_t>(sizeof(double));
  }

  const adamw_problem& checked() {
    if (const int64_t bytes = workspace_bytes()) bring_workspace(bytes);
    ranges_.check();
    return p_;
  }
  DLDevice device() const { return like_.device; }
  bool nothing_to_do() const { return tensors_.empty() && !p_.in.by_address() && !p_.in.norm(); }

 private:
  static constexpr int64_t factors_bytes = 128;
  static_assert(sizeof(adamw_factors) <= factors_bytes);

  void options() {
    const auto refuse = [](const char* name, const char* expected, double got) {
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected %s, got %g", op, name, expected, got);
    };
    adamw_inputs& in = p_.in;
    in.beta1 = args_.beta1 == 0 ? 0.9 : args_.beta1;
    in.beta2 = args_.beta2 == 0 ? 0.999 : args_.beta2;
    if (!(in.beta1 > 0 && in.beta1 < 1)) refuse("beta1", "a number in [0, 1)", in.beta1);
    if (!(in.beta2 > 0 && in.beta2 < 1)) refuse("beta2", "a number in [0, 1)", in.beta2);
    in.eps = args_.eps == 0 ? 1e-8 : args_.eps;
    const float eps = static_cast<float>(in.eps);
    if (!(eps > 0) || !std::isfinite(eps))
      refuse("eps", "0 or a positive number that fp32 holds", args_.eps);
    if (!args_.lr.tensor && !std::isfinite(args_.lr.value))
      refuse("lr", "a finite number", args_.lr.value);
    if (!args_.grad_scale.tensor && !std::isfinite(args_.grad_scale.value))
      refuse("grad_scale", "a finite number", args_.grad_scale.value);
    if (!args_.step.tensor && args_.step.value < 0)
      refuse("step", "0 or more", static_cast<double>(args_.step.value));
    if (!(args_.max_grad_norm >= 0))
      refuse("max_grad_norm", "0 or a positive number", args_.max_grad_norm);
    in.max_norm = args_.max_grad_norm;
    if (args_.stochastic_rounding != 0 && args_.stochastic_rounding != 1)
      refuse("stochastic_rounding", "0 or 1", args_.stochastic_rounding);
    p_.rung = asked_rung(op, args_.rung);
  }

  void add_tensor(int64_t i) {
    try {
      check_tensor(args_.tensors[i], i);
    } catch (failure& f) {
      // The text begins with the name of the op, and then of the argument.
      const size_t at = std::char_traits<char>::length(op) + 2;
      f.text.insert(std::min(at, f.text.size()), "tensors[" + std::to_string(i) + "].");
      throw;
    }
  }

  void check_tensor(const nf_adamw_tensor& from, int64_t i) {
    const view param = check_view(op, "param", from.param, 0);
    require_float(op, param);
    const view grad = like(param, "grad", from.grad), m = like(param, "m", from.m),
               v = like(param, "v", from.v);
    if (m.type == dtype::f16)
      fail(NF_UNSUPPORTED, "%s: m: expected fp32 or bf16, got %s", op, name_of(m.type));
    require_same_dtype(op, m, v);
    adamw_tensor t{};
    t.param = param.data;
    t.grad = grad.data;
    t.m = m.data;
    t.v = v.data;
    t.count = param.count;
    t.first = elements_;
    t.param_type = param.type;
    t.grad_type = grad.type;
    t.moment_type = m.type;
    if (from.master) {
      if (param.type == dtype::f32)
        fail(NF_INVALID_ARGUMENT, "%s: master: expected NULL beside an fp32 param", op);
      const view master = like(param, "master", from.master);
      require_dtype(op, master, dtype::f32);
      t.master = static_cast<float*>(master.data);
      ranges_.add(master, true, i);
    } else if (param.type == dtype::f16 ||
               (param.type == dtype::bf16 && !args_.stochastic_rounding)) {
      fail(NF_UNSUPPORTED,
           "%s: param: expected fp32, a master copy%s, got %s alone: small updates would be lost",
           op, param.type == dtype::bf16 ? " or stochastic_rounding" : "", name_of(param.type));
    }
    t.weight_decay = number("weight_decay", from.weight_decay);
    t.lr_scale = number("lr_scale", from.lr_scale);
    if (t.lr_scale == 0) t.lr_scale = 1;
    ranges_.add(param, true, i);
    ranges_.add(grad, false, i);
    ranges_.add(m, true, i);
    ranges_.add(v, true, i);
    if (param.count == 0) return;
    elements_ += param.count;
    tensors_.push_back(t);
  }

  view like(const view& param, const char* name, const DLTensor* tensor) {
    const view v = check_view(op, name, tensor, 0);
    require_float(op, v);
    require_same_shape(op, param, v);
    on_device(param);
    on_device(v);
    for (const view* each : {&param, &v})
      if (!contiguous(*each))
        fail(NF_UNSUPPORTED, "%s: %s: expected a contiguous tensor, got strides", op, each->name);
    return v;
  }

  // Not negative, and a number.
  static double number(const char* name, double value) {
    if (!(value >= 0 && std::isfinite(value)))
      fail(NF_INVALID_ARGUMENT, "%s: %s: expected 0 or a positive number, got %g", op, name, value);
    return value;
  }

  // The first view of the call says where it runs.
  void on_device(const view& v) {
    if (!has_device_) like_ = v;
    has_device_ = true;
    require_same_device(op, like_, v);
  }

  // The number that the work reads or writes, nullptr where there is none.
  void* element(const char* name, const DLTensor* tensor, dtype type, bool written = false) {
    if (!tensor) return nullptr;
    const view v = check_view(op, name, tensor, 0);
    require_dtype(op, v, type);
    require_one_element(op, v);
    on_device(v);
    // The offset may be the step that is counted up, for it is read before.
    if (p_.in.counted != v.data || type != dtype::i64) ranges_.add(v, written);
    return v.data;
  }

  void numbers() {
    adamw_inputs& in = p_.in;
    const auto real = [&](const char* name, const nf_scalar& s) -> adamw_inputs::number {
      return {static_cast<const float*>(element(name, s.tensor, dtype::f32)), s.value};
    };
    const auto whole = [&](const char* name, const nf_integer& n) -> integer {
      return {static_cast<const int64_t*>(element(name, n.tensor, dtype::i64)), n.value};
    };
    in.lr = real("lr", args_.lr);
    in.grad_scale = real("grad_scale", args_.grad_scale);
    if (!in.grad_scale.at && in.grad_scale.value == 0) in.grad_scale.value = 1;
    in.counted = static_cast<int64_t*>(element("step", args_.step.tensor, dtype::i64, true));
    in.step = {in.counted, args_.step.value};
    in.seed = whole("seed", args_.seed);
    in.offset = whole("offset", args_.offset);
    in.found_inf = static_cast<const float*>(element("found_inf", args_.found_inf, dtype::f32));
    in.grad_norm = static_cast<float*>(element("grad_norm", args_.grad_norm, dtype::f32, true));
  }

  void bring_workspace(int64_t bytes) {
    if (!args_.workspace)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got NULL", op,
           static_cast<long long>(bytes));
    const view w = check_view(op, "workspace", args_.workspace);
    on_device(w);
    if (w.type != dtype::boolean || w.rank != 1 || !contiguous(w))
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected contiguous bytes (uint8) of rank 1", op);
    if (w.count < bytes)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected %lld bytes, got %lld", op,
           static_cast<long long>(bytes), static_cast<long long>(w.count));
    if (reinterpret_cast<uintptr_t>(w.data) % 16 != 0)
      fail(NF_INVALID_ARGUMENT, "%s: workspace: expected an alignment of 16 bytes", op);
    ranges_.add(w, true);
    p_.factors = static_cast<adamw_factors*>(w.data);
    p_.squares = reinterpret_cast<double*>(static_cast<char*>(w.data) + factors_bytes);
  }

  static view on_cpu() {
    view out{};
    out.device = {kDLCPU, 0};
    return out;
  }

  const nf_adamw_args& args_;
  bool has_device_ = false;
  view like_ = on_cpu();
  int64_t elements_ = 0;
  std::vector<adamw_tensor> tensors_;
  byte_ranges ranges_;
  adamw_problem p_{};
};

}  // namespace
}  // namespace ninefold

nf_status nf_adamw_workspace_size(const nf_adamw_args* args, int64_t* bytes) {
  using namespace ninefold;
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    if (!bytes) fail(NF_INVALID_ARGUMENT, "%s: bytes is NULL", op);
    *bytes = call(*args).workspace_bytes();
  });
}

nf_status nf_adamw_step(const nf_adamw_args* args, nf_stream stream) {
  using namespace ninefold;
  return guarded([&] {
    if (!args) fail(NF_INVALID_ARGUMENT, "%s: args is NULL", op);
    call checking(*args);
    const adamw_problem& p = checking.checked();
    if (checking.nothing_to_do()) return record({.op = op, .direction = "step"});
    if (checking.device().device_type == kDLCPU) {
      cpu::adamw_step(p);
    } else if constexpr (with_cuda) {
      cuda::adamw_step(p, checking.device(), stream);
    }
  });
}
