// How matmul's tests call it: one struct says what the call is, and running it checks everything
// that it owes: the values, all elements written, inputs and surroundings untouched.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/matmul/reference.hpp"
#include "verify/inputs.hpp"
#include "verify/testing.hpp"

namespace ninefold::matmul_test {

using reference::matmul_spec;
using verify::infinity;
using verify::layout;
using verify::tensor;

inline constexpr DLDataType float_types[] = {f32, f16, bf16};
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

inline constexpr nf_matmul_epilogue epilogues[] = {NF_MATMUL_LINEAR,
                                                   NF_MATMUL_GELU_TANH,
                                                   NF_MATMUL_GELU_ERF,
                                                   NF_MATMUL_GELU_TANH_BACKWARD,
                                                   NF_MATMUL_GELU_ERF_BACKWARD,
                                                   NF_MATMUL_SWIGLU_CONCATENATED,
                                                   NF_MATMUL_SWIGLU_INTERLEAVED};
inline const char* const epilogue_names[] = {"linear",
                                             "gelu tanh",
                                             "gelu erf",
                                             "gelu tanh backward",
                                             "gelu erf backward",
                                             "swiglu concatenated",
                                             "swiglu interleaved"};

// How the matrices of a tensor lie. Repeated: every row is the first one (inputs only).
enum class lie {
  contiguous,
  transposed,
  off_by_one,
  padded_rows,
  aligned_rows,
  every_second,
  backwards,
  repeated
};
inline constexpr lie lies[] = {lie::contiguous,  lie::transposed,   lie::off_by_one,
                               lie::padded_rows, lie::aligned_rows, lie::every_second,
                               lie::backwards,   lie::repeated};

inline layout lay(const std::vector<int64_t>& shape, lie how) {
  layout out{shape};
  if (how == lie::contiguous) return out;
  const size_t j = shape.size() - 1, i = j - 1;
  out.strides.resize(shape.size());
  out.strides[j] = 1;
  out.strides[i] = shape[j];
  switch (how) {
    case lie::transposed:
      out.strides[i] = 1;
      out.strides[j] = shape[i];
      break;
    case lie::off_by_one:
      out.offset = 1;
      break;
    case lie::padded_rows:
      out.strides[i] += 3;
      break;
    case lie::aligned_rows:
      out.strides[i] = (shape[j] + 15) / 16 * 16 + 16;
      break;
    case lie::every_second:
      out.strides[j] = 2;
      out.strides[i] *= 2;
      break;
    case lie::backwards:
      out.strides[j] = -1;
      out.strides[i] = -out.strides[i];
      break;
    case lie::repeated:
      out.strides[i] = 0;
      break;
    default:
      break;
  }
  if (shape.size() == 3)
    out.strides[0] =
        std::max(std::abs(out.strides[i]) * shape[i], std::abs(out.strides[j]) * shape[j]) + 5;
  return out;
}

struct call {
  DLDevice device;
  int64_t m, n, k;
  int64_t batch = 0;  // 0: tensors of rank 2
  nf_matmul_epilogue epilogue = NF_MATMUL_LINEAR;
  DLDataType type = f32;
  bool wide = false;  // d in fp32
  lie a = lie::contiguous, b = lie::contiguous, d = lie::contiguous, others = lie::contiguous;
  bool c = false, bias = false, bias_by_row = false, residual = false, preactivation = false;
  bool row_sums = false, column_sums = false, accumulate = false;
  bool wide_vectors = true;                                        // bias and sums in fp32
  bool over_c = false, over_residual = false, over_saved = false;  // d
  double alpha = 0, beta = 0;
  bool device_scalars = false;
  bool repeated_b = false;  // one b for the whole batch
  bool tf32 = false;
  double scale = 1;  // of the inputs
  const char* rung = nullptr;
  bool may_refuse = false;  // the rung need not take this call, and then says so and writes nothing

  struct values {
    std::vector<double> d;
    std::vector<std::byte> bits;  // of all outputs
    bool refused = false;
  };

  values run() const { return job(*this).run(); }

 private:
  DLDataType d_type() const { return wide ? f32 : type; }
  DLDataType vector_type() const { return wide_vectors ? f32 : type; }
  matmul_spec spec() const {
    return {.batch = std::max<int64_t>(batch, batch == 0),
            .m = m,
            .n = n,
            .k = k,
            .epilogue = epilogue,
            .bias_by_row = bias_by_row,
            .tf32 = tf32,
            .alpha = alpha == 0 && !device_scalars ? 1 : static_cast<double>(float(alpha)),
            .beta = beta == 0 && !device_scalars ? 1 : static_cast<double>(float(beta)),
            .type = type,
            .d_type = d_type(),
            .sums_type = vector_type()};
  }
  std::vector<int64_t> shape(int64_t rows, int64_t columns) const {
    if (batch == 0) return {rows, columns};
    return {batch, rows, columns};
  }

  // The tensors of one call.
  class job {
   public:
    explicit job(const call& c)
        : c_(c),
          s_(c.spec()),
          h_(s_.columns()),
          a_(c.type, lay(c.shape(c.m, c.k), c.a), c.device),
          b_(c.type, lay_b(), c.device),
          c_in_(c.d_type(), lay(c.shape(c.m, c.n), c.over_c ? c.d : c.others), c.device),
          residual_(c.d_type(), lay(c.shape(c.m, h_), c.over_residual ? c.d : c.others), c.device),
          saved_(c.d_type(), lay(c.shape(c.m, c.n), c.over_saved ? c.d : c.others), c.device),
          d_(c.d_type(), lay(c.shape(c.m, h_), c.d), c.device),
          preactivation_(
              c.d_type(),
              lay(c.shape(c.m, c.n), c.others == lie::repeated ? lie::contiguous : c.others),
              c.device),
          bias_(c.vector_type(), {{c.bias_by_row ? c.m : c.n}, {2}}, c.device),
          row_sums_(c.vector_type(), {{c.m}}, c.device),
          column_sums_(c.vector_type(), {{h_}}, c.device),
          alpha_(f32, {{1}}, c.device),
          beta_(f32, {{1}}, c.device) {
      uint64_t seed = 1;
      for (tensor* t : {&a_, &b_, &c_in_, &residual_, &saved_, &bias_, &row_sums_, &column_sums_})
        fill(*t, seed++);
      if (!c.accumulate) {
        row_sums_.poison();
        column_sums_.poison();
      }
      alpha_.store(std::vector<double>{s_.alpha});
      beta_.store(std::vector<double>{s_.beta});
    }

    values run() {
      SCOPED_TRACE(text());
      const auto expected = reference_result();
      tensor& out = c_.over_c ? c_in_ : c_.over_residual ? residual_ : c_.over_saved ? saved_ : d_;
      nf_matmul_args args = arguments(out);
      int64_t bytes = 0;
      EXPECT_EQ(nf_matmul_workspace_size(&args, &bytes), NF_OK) << nf_last_error();
      tensor work(u8, {{bytes}}, c_.device);
      if (bytes > 0) args.workspace = work;
      const auto before = untouched(&out);
      const nf_status status = nf_matmul_forward(&args, nullptr);
      values result;
      if (c_.may_refuse && status == NF_UNSUPPORTED) {
        EXPECT_TRUE(verify::fails(status, NF_UNSUPPORTED, {"matmul", c_.rung}));
        if (&out == &d_) {
          EXPECT_EQ(d_.count_poison(), d_.count()) << "a refused call has written";
        }
        result.refused = true;
        return result;
      }
      EXPECT_EQ(status, NF_OK) << nf_last_error();
      EXPECT_TRUE(untouched(&out) == before) << "an input was written";
      EXPECT_TRUE(work.canaries_intact());
      EXPECT_TRUE(verify::matches(out, expected.d)) << "d";
      if (c_.preactivation) {
        EXPECT_TRUE(verify::matches(preactivation_, expected.preactivation)) << "preactivation";
      }
      if (c_.row_sums) {
        EXPECT_TRUE(verify::matches(row_sums_, expected.row_sums)) << "row sums";
      }
      if (c_.column_sums) {
        EXPECT_TRUE(verify::matches(column_sums_, expected.column_sums)) << "column sums";
      }
      result.d = out.load();
      for (const tensor* t :
           {static_cast<const tensor*>(&out), static_cast<const tensor*>(&preactivation_),
            static_cast<const tensor*>(&row_sums_), static_cast<const tensor*>(&column_sums_)}) {
        const auto bits = t->snapshot();
        result.bits.insert(result.bits.end(), bits.begin(), bits.end());
      }
      return result;
    }

   private:
    layout lay_b() const {
      layout out = lay(c_.shape(c_.k, c_.n), c_.b);
      if (!c_.repeated_b) return out;
      if (out.strides.empty()) out.strides = {0, c_.n, 1};
      out.strides[0] = 0;
      return out;
    }

    // Stride 0 keeps what is stored last, so what counts is what is loaded.
    void fill(tensor& t, uint64_t seed) const {
      std::vector<double> v = verify::normal(t.count(), seed);
      for (double& x : v) x *= c_.scale;
      t.store(v);
    }

    nf_matmul_args arguments(const tensor& out) const {
      nf_matmul_args args{};
      args.a = a_;
      args.b = b_;
      args.d = out;
      if (c_.c) args.c = c_in_;
      if (c_.bias) args.bias = bias_;
      args.bias_by_row = c_.bias_by_row;
      if (c_.residual) args.residual = residual_;
      if (s_.backward()) args.saved = saved_;
      if (c_.preactivation) args.preactivation = preactivation_;
      if (c_.row_sums) args.row_sums = row_sums_;
      if (c_.column_sums) args.column_sums = column_sums_;
      args.accumulate = c_.accumulate;
      args.epilogue = c_.epilogue;
      args.tf32 = c_.tf32;
      args.rung = c_.rung;
      args.alpha.value = c_.alpha;
      if (c_.c) args.beta.value = c_.beta;
      if (c_.device_scalars) {
        args.alpha = {alpha_, 0};
        if (c_.c) args.beta = {beta_, 0};
      }
      return args;
    }

    reference::matmul_result reference_result() const {
      const auto a = a_.load(), b = b_.load(), c = c_.c ? c_in_.load() : std::vector<double>{};
      const auto bias = c_.bias ? bias_.load() : std::vector<double>{};
      const auto residual = c_.residual ? residual_.load() : std::vector<double>{};
      const auto saved = s_.backward() ? saved_.load() : std::vector<double>{};
      const auto rows = c_.accumulate ? row_sums_.load() : std::vector<double>{};
      const auto columns = c_.accumulate ? column_sums_.load() : std::vector<double>{};
      return reference::matmul(s_, {.a = a,
                                    .b = b,
                                    .c = c,
                                    .bias = bias,
                                    .residual = residual,
                                    .saved = saved,
                                    .old_row_sums = rows,
                                    .old_column_sums = columns});
    }

    std::vector<std::vector<std::byte>> untouched(const tensor* out) const {
      std::vector<std::vector<std::byte>> all;
      for (const tensor* t : {&a_, &b_, &c_in_, &residual_, &saved_, &bias_, &alpha_, &beta_})
        if (t != out) all.push_back(t->snapshot());
      return all;
    }

    std::string text() const {
      std::string out = std::string(epilogue_names[c_.epilogue]) + " " + verify::name_of(c_.type) +
                        (c_.wide ? " to fp32" : "") + " M " + std::to_string(c_.m) + " N " +
                        std::to_string(c_.n) + " K " + std::to_string(c_.k) + " batch " +
                        std::to_string(c_.batch) + " lies " + std::to_string(int(c_.a)) +
                        std::to_string(int(c_.b)) + std::to_string(int(c_.d)) +
                        std::to_string(int(c_.others));
      const auto add = [&](bool on, const char* name) {
        if (on) out += std::string(" ") + name;
      };
      add(c_.c, "c");
      add(c_.bias, c_.bias_by_row ? "bias by row" : "bias");
      add(c_.residual, "residual");
      add(c_.preactivation, "preactivation");
      add(c_.row_sums, "row sums");
      add(c_.column_sums, "column sums");
      add(c_.accumulate, "accumulate");
      add(c_.over_c || c_.over_residual || c_.over_saved, "in place");
      add(c_.rung, c_.rung);
      return out;
    }

    const call& c_;
    const matmul_spec s_;
    const int64_t h_;
    tensor a_, b_, c_in_, residual_, saved_, d_, preactivation_, bias_, row_sums_, column_sums_,
        alpha_, beta_;
  };
};

}  // namespace ninefold::matmul_test
