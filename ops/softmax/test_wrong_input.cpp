// Wrong calls: the right status, a text that names the argument, and not one byte written.
#include <cstring>

#include "ops/softmax/test.hpp"

namespace ninefold::softmax_test {
namespace {

using verify::spoilt;

class softmax_wrong_input : public verify::on_each_device {
 protected:
  tensor x{f32, {{2, 3, 8}}, device()}, y{f32, {{2, 3, 8}}, device()};
  tensor dy{f32, {{2, 3, 8}}, device()}, dx{f32, {{2, 3, 8}}, device()};
  tensor mask{boolean, {{3, 8}}, device()};

  void SetUp() override {
    x.fill_normal(1);
    y.fill_normal(2);
    dy.fill_normal(3);
    mask.store(std::vector<double>(24, 1));
  }
  nf_softmax_args forward_args() { return {.x = x, .y = y}; }
  nf_softmax_args backward_args() { return {.y = y, .dy = dy, .dx = dx}; }

  // Both directions, or one, must fail alike; `name` is what the text must hold.
  void forward_fails(const nf_softmax_args& args, nf_status status,
                     std::initializer_list<const char*> words) {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(nf_softmax_forward(&args, nullptr), status, words));
    EXPECT_EQ(everything(), before) << "a failed call has written";
  }
  void backward_fails(const nf_softmax_args& args, nf_status status,
                      std::initializer_list<const char*> words) {
    const auto before = everything();
    EXPECT_TRUE(verify::fails(nf_softmax_backward(&args, nullptr), status, words));
    EXPECT_EQ(everything(), before) << "a failed call has written";
  }

  // Puts a spoilt copy in the place of each argument in turn.
  void each_argument_fails(const std::function<void(spoilt&)>& spoil, nf_status status) {
    for (const auto& [name, field] :
         {std::pair{"x", &nf_softmax_args::x}, {"y", &nf_softmax_args::y}}) {
      SCOPED_TRACE(std::string("forward ") + name);
      nf_softmax_args args = forward_args();
      spoilt bad(args.*field);
      spoil(bad);
      args.*field = &bad.view;
      forward_fails(args, status, {"softmax", name});
    }
    for (const auto& [name, field] : {std::pair{"y", &nf_softmax_args::y},
                                      {"dy", &nf_softmax_args::dy},
                                      {"dx", &nf_softmax_args::dx}}) {
      SCOPED_TRACE(std::string("backward ") + name);
      nf_softmax_args args = backward_args();
      spoilt bad(args.*field);
      spoil(bad);
      args.*field = &bad.view;
      backward_fails(args, status, {"softmax", name});
    }
  }

 private:
  std::vector<std::vector<std::byte>> everything() const {
    return {x.snapshot(), y.snapshot(), dy.snapshot(), dx.snapshot(), mask.snapshot()};
  }
};
INSTANTIATE_TEST_SUITE_P(devices, softmax_wrong_input, testing::ValuesIn(verify::devices()),
                         verify::device_name);

TEST_P(softmax_wrong_input, null_arguments) {
  EXPECT_TRUE(verify::fails(nf_softmax_forward(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  EXPECT_TRUE(verify::fails(nf_softmax_backward(nullptr, nullptr), NF_INVALID_ARGUMENT, {"args"}));
  for (const auto& [name, field] :
       {std::pair{"x", &nf_softmax_args::x}, {"y", &nf_softmax_args::y}}) {
    nf_softmax_args args = forward_args();
    args.*field = nullptr;
    forward_fails(args, NF_INVALID_ARGUMENT, {name, "NULL"});
  }
  for (const auto& [name, field] : {std::pair{"y", &nf_softmax_args::y},
                                    {"dy", &nf_softmax_args::dy},
                                    {"dx", &nf_softmax_args::dx}}) {
    nf_softmax_args args = backward_args();
    args.*field = nullptr;
    backward_fails(args, NF_INVALID_ARGUMENT, {name, "NULL"});
  }
}

TEST_P(softmax_wrong_input, null_data_and_shape) {
  each_argument_fails([](spoilt& t) { t.view.data = nullptr; }, NF_INVALID_ARGUMENT);
  each_argument_fails([](spoilt& t) { t.view.shape = nullptr; }, NF_INVALID_ARGUMENT);
}

TEST_P(softmax_wrong_input, dtypes) {
  for (const DLDataType type : {DLDataType{kDLFloat, 64, 1},
                                {kDLInt, 32, 1},
                                {kDLFloat, 32, 4},
                                {kDLFloat, 8, 1},
                                {kDLBfloat, 32, 1},
                                {kDLInt, 8, 1},
                                boolean,
                                {kDLComplex, 64, 1},
                                {200, 32, 1}})
    each_argument_fails([type](spoilt& t) { t.view.dtype = type; }, NF_UNSUPPORTED);
}

TEST_P(softmax_wrong_input, dtype_pairs_that_do_not_exist) {
  for (const dtype_pair& pair : {dtype_pair{f32, f16}, {f32, bf16}, {f16, bf16}, {bf16, f16}}) {
    SCOPED_TRACE(name_of(pair));
    tensor in(pair.in, {{2, 3, 8}}, device()), out(pair.out, {{2, 3, 8}}, device());
    tensor out2(pair.out, {{2, 3, 8}}, device());
    nf_softmax_args args{.x = in, .y = out};
    EXPECT_TRUE(verify::fails(nf_softmax_forward(&args, nullptr), NF_UNSUPPORTED, {"y"}));
    EXPECT_EQ(out.count_poison(), out.count());
    args = {.y = out, .dy = out2, .dx = in};
    EXPECT_TRUE(verify::fails(nf_softmax_backward(&args, nullptr), NF_UNSUPPORTED, {"y"}));
    EXPECT_EQ(in.count_poison(), in.count());
  }
  tensor narrow(bf16, {{2, 3, 8}}, device());
  nf_softmax_args args{.y = y, .dy = narrow, .dx = dx};
  backward_fails(args, NF_INVALID_ARGUMENT, {"dy"});
}

TEST_P(softmax_wrong_input, ranks) {
  each_argument_fails([](spoilt& t) { t.view.ndim = 0; }, NF_INVALID_ARGUMENT);
  each_argument_fails([](spoilt& t) { t.view.ndim = -1; }, NF_INVALID_ARGUMENT);
  each_argument_fails([](spoilt& t) { t.view.ndim = INT32_MAX; }, NF_UNSUPPORTED);
  each_argument_fails(
      [](spoilt& t) {
        t.view.ndim = 9;
        std::fill(t.shape, t.shape + 9, 1);
        t.view.strides = nullptr;
      },
      NF_UNSUPPORTED);
}

TEST_P(softmax_wrong_input, shapes_unlike_each_other) {
  each_argument_fails([](spoilt& t) { t.shape[2] = 7; }, NF_INVALID_ARGUMENT);
  each_argument_fails([](spoilt& t) { t.shape[0] = 1; }, NF_INVALID_ARGUMENT);
  each_argument_fails([](spoilt& t) { t.view.ndim = 2; }, NF_INVALID_ARGUMENT);
}

TEST_P(softmax_wrong_input, negative_sizes) {
  for (int d = 0; d < 3; ++d) {
    each_argument_fails([d](spoilt& t) { t.shape[d] = -1; }, NF_INVALID_ARGUMENT);
    each_argument_fails([d](spoilt& t) { t.shape[d] = INT64_MIN; }, NF_INVALID_ARGUMENT);
  }
  // Also where another dimension is 0.
  each_argument_fails(
      [](spoilt& t) {
        t.shape[0] = 0;
        t.shape[2] = -5;
      },
      NF_INVALID_ARGUMENT);
}

TEST_P(softmax_wrong_input, sizes_and_strides_that_overflow) {
  each_argument_fails(
      [](spoilt& t) {
        t.shape[0] = int64_t{1} << 40;
        t.shape[1] = int64_t{1} << 40;
        t.view.strides = nullptr;
      },
      NF_INVALID_ARGUMENT);
  for (const int64_t stride : {INT64_MAX, INT64_MIN, int64_t{1} << 61, -(int64_t{1} << 61)})
    each_argument_fails([stride](spoilt& t) { t.strides[0] = stride; }, NF_INVALID_ARGUMENT);
  each_argument_fails([](spoilt& t) { t.shape[0] = INT64_MAX; }, NF_INVALID_ARGUMENT);
}

// A size of one is never stepped over, so its stride may be anything (frameworks leave junk there).
TEST_P(softmax_wrong_input, the_stride_of_a_size_one_dimension_does_not_matter) {
  tensor in(f32, {{1, 8}}, device()), out(f32, {{1, 8}}, device());
  in.fill_normal(1);
  for (const int64_t stride : {INT64_MAX, INT64_MIN, int64_t{0}}) {
    spoilt odd(in), odd_out(out);
    odd.strides[0] = odd_out.strides[0] = stride;
    const nf_softmax_args args{.x = &odd.view, .y = &odd_out.view};
    EXPECT_EQ(nf_softmax_forward(&args, nullptr), NF_OK) << nf_last_error();
  }
}

TEST_P(softmax_wrong_input, addresses_that_are_no_multiple_of_the_element) {
  for (const uint64_t off : {1, 2, 3})
    each_argument_fails([off](spoilt& t) { t.view.byte_offset += off; }, NF_INVALID_ARGUMENT);
  each_argument_fails([](spoilt& t) { t.view.data = static_cast<char*>(t.view.data) + 1; },
                      NF_INVALID_ARGUMENT);
}

TEST_P(softmax_wrong_input, devices) {
  each_argument_fails([](spoilt& t) { t.view.device = {kDLVulkan, 0}; }, NF_UNSUPPORTED);
  // A CUDA tensor where there is no CUDA, or on a device that is not there.
  each_argument_fails([](spoilt& t) { t.view.device = {kDLCUDA, 4096}; }, NF_UNAVAILABLE);
  each_argument_fails([](spoilt& t) { t.view.device = {kDLCUDA, -1}; }, NF_UNAVAILABLE);
  if (on_cuda())
    each_argument_fails([](spoilt& t) { t.view.device = cpu_device; }, NF_INVALID_ARGUMENT);
}

TEST_P(softmax_wrong_input, overlaps_that_are_not_the_same_view) {
  tensor buffer(f32, {{4, 8}}, device()), partner(f32, {{2, 8}}, device());
  buffer.fill_normal(1);
  partner.fill_normal(2);
  const auto before = buffer.snapshot();
  const DLTensor* whole = buffer;
  float* data = static_cast<float*>(whole->data);
  const auto at = [&](int64_t offset, int64_t stride) {
    return ninefold::view(data + offset, f32, {2, 8}, {stride, 1}, device());
  };
  const auto forward = [&](const ninefold::view& in, const ninefold::view& out) {
    const nf_softmax_args args{.x = in, .y = out};
    return nf_softmax_forward(&args, nullptr);
  };
  const ninefold::view base = at(0, 8), row_later = at(8, 8), one_later = at(1, 8),
                       other_rows = at(0, 16);
  for (const auto& [in, out] : {std::pair{&base, &row_later},
                                {&row_later, &base},
                                {&base, &one_later},
                                {&base, &other_rows},
                                {&other_rows, &base}}) {
    EXPECT_TRUE(verify::fails(forward(*in, *out), NF_INVALID_ARGUMENT, {"y overlaps x"}));
    EXPECT_EQ(buffer.snapshot(), before);
    nf_softmax_args args{.y = *in, .dy = partner, .dx = *out};
    EXPECT_TRUE(
        verify::fails(nf_softmax_backward(&args, nullptr), NF_INVALID_ARGUMENT, {"dx overlaps y"}));
    args = {.y = partner, .dy = *in, .dx = *out};
    EXPECT_TRUE(verify::fails(nf_softmax_backward(&args, nullptr), NF_INVALID_ARGUMENT,
                              {"dx overlaps dy"}));
    EXPECT_EQ(buffer.snapshot(), before);
  }
  // The same memory as two dtypes is no view of the other.
  const ninefold::view narrow(data, bf16, {2, 8}, {}, device());
  EXPECT_TRUE(verify::fails(forward(narrow, base), NF_INVALID_ARGUMENT, {"y overlaps x"}));
  EXPECT_EQ(buffer.snapshot(), before);
}

TEST_P(softmax_wrong_input, interleaved_views_of_one_buffer_are_no_overlap) {
  tensor buffer(f32, {{2, 2, 8}}, device());
  const DLTensor* whole = buffer;
  float* data = static_cast<float*>(whole->data);
  for (const auto& [offset, stride, step] :
       {std::tuple{int64_t{8}, int64_t{16}, int64_t{1}}, {int64_t{1}, int64_t{16}, int64_t{2}}}) {
    buffer.fill_normal(1);
    const ninefold::view in(data, f32, {2, 8}, {stride, step}, device());
    const ninefold::view out(data + offset, f32, {2, 8}, {stride, step}, device());
    const nf_softmax_args args{.x = in, .y = out};
    EXPECT_EQ(nf_softmax_forward(&args, nullptr), NF_OK) << nf_last_error();
  }
}

TEST_P(softmax_wrong_input, outputs_that_overlap_themselves) {
  for (const auto& strides : std::vector<std::vector<int64_t>>{
           {0, 8, 1}, {24, 0, 1}, {24, 8, 0}, {24, 7, 1}, {8, 8, 1}, {24, -4, 1}, {0, 0, 0}}) {
    tensor wide(f32, {{400}}, device());
    const auto spoil = [&](spoilt& t) {
      std::copy(strides.begin(), strides.end(), t.strides);
      t.view.data = static_cast<char*>(static_cast<const DLTensor*>(wide)->data) + 800;
    };
    spoilt out(y);
    spoil(out);
    nf_softmax_args args{.x = x, .y = &out.view};
    forward_fails(args, NF_INVALID_ARGUMENT, {"y"});
    args = {.y = y, .dy = dy, .dx = &out.view};
    backward_fails(args, NF_INVALID_ARGUMENT, {"dx"});
    EXPECT_EQ(wide.count_poison(), wide.count());
  }
}

TEST_P(softmax_wrong_input, masks) {
  nf_softmax_args args = forward_args();
  const auto fails = [&](DLDataType type, layout where, nf_status status) {
    SCOPED_TRACE(verify::name_of(type) + testing::PrintToString(where.shape));
    const tensor bad(type, where, device());
    args.mask = bad;
    forward_fails(args, status, {"mask"});
  };
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {7}, {2, 8}, {3, 7}, {3, 3, 8}, {1, 2, 3, 8}, {1, 1, 1, 1}, {0}, {3, 0}, {0, 8}})
    fails(boolean, {shape}, NF_INVALID_ARGUMENT);
  fails(f16, {{8}}, NF_UNSUPPORTED);
  fails(bf16, {{8}}, NF_UNSUPPORTED);
  spoilt bad(mask);
  args.mask = &bad.view;
  bad.view.dtype = {kDLInt, 32, 1};
  forward_fails(args, NF_UNSUPPORTED, {"mask"});
  bad.view.dtype = boolean;
  bad.view.data = nullptr;
  forward_fails(args, NF_INVALID_ARGUMENT, {"mask"});
  // A mask in the output's memory would be overwritten while it is read.
  args.mask = y;
  forward_fails(args, NF_INVALID_ARGUMENT, {"mask"});
}

TEST_P(softmax_wrong_input, an_empty_mask_of_an_empty_tensor_is_fine) {
  const tensor none(f32, {{2, 0, 8}}, device()), out(f32, {{2, 0, 8}}, device()),
      empty_mask(boolean, {{0, 8}}, device());
  const nf_softmax_args args{.x = none, .y = out, .mask = empty_mask};
  EXPECT_EQ(nf_softmax_forward(&args, nullptr), NF_OK) << nf_last_error();
}

TEST_P(softmax_wrong_input, scalars) {
  for (const double scale : {double{NAN}, double{INFINITY}, -double{INFINITY}, 1e39, -1e300}) {
    nf_softmax_args args = forward_args();
    args.scale = scale;
    forward_fails(args, NF_INVALID_ARGUMENT, {"scale"});
    args = backward_args();
    args.scale = scale;
    backward_fails(args, NF_INVALID_ARGUMENT, {"scale"});
  }
  for (const int value : {-1, 2, 3, INT32_MAX}) {
    nf_softmax_args args = forward_args();
    args.log = value;
    forward_fails(args, NF_INVALID_ARGUMENT, {"log"});
    args = backward_args();
    args.log = value;
    backward_fails(args, NF_INVALID_ARGUMENT, {"log"});
  }
  for (const char* rung : {"", "fast", "three_pass2", "%s%n"}) {
    nf_softmax_args args = forward_args();
    args.rung = rung;
    forward_fails(args, NF_UNSUPPORTED, {"rung", rung});
    args = backward_args();
    args.rung = rung;
    backward_fails(args, NF_UNSUPPORTED, {"rung", rung});
  }
}

TEST_P(softmax_wrong_input, causal) {
  // Values from C, where an enum holds any int.
  for (const int value : {3, 17}) {
    nf_softmax_args args = forward_args();
    std::memcpy(&args.causal, &value, sizeof value);
    forward_fails(args, NF_INVALID_ARGUMENT, {"causal"});
    args = backward_args();
    std::memcpy(&args.causal, &value, sizeof value);
    backward_fails(args, NF_INVALID_ARGUMENT, {"causal"});
  }
  const tensor in(f32, {{8}}, device()), out(f32, {{8}}, device()), third(f32, {{8}}, device());
  nf_softmax_args args{.x = in, .y = out, .causal = NF_CAUSAL_TOP_LEFT};
  forward_fails(args, NF_UNSUPPORTED, {"causal", "x"});
  args = {.y = in, .dy = third, .dx = out, .causal = NF_CAUSAL_TOP_LEFT};
  backward_fails(args, NF_UNSUPPORTED, {"causal", "y"});
  EXPECT_EQ(out.count_poison(), 8);
}

TEST_P(softmax_wrong_input, the_cpp_face_throws_status_and_text) {
  try {
    ninefold::softmax({.x = x});
    FAIL() << "nothing was thrown";
  } catch (const ninefold::error& e) {
    EXPECT_EQ(e.status(), NF_INVALID_ARGUMENT);
    EXPECT_STREQ(e.what(), nf_last_error());
  }
  EXPECT_THROW(ninefold::view(nullptr, f32, {1, 1, 1, 1, 1, 1, 1, 1, 1}), std::length_error);
  EXPECT_THROW(ninefold::view(nullptr, f32, {1, 2}, {1}), std::length_error);
}

}  // namespace
}  // namespace ninefold::softmax_test
