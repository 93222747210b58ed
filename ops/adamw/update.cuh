// The update on CUDA: of one element, of a quad, of a block's chunk.
#pragma once

#include "ops/adamw/chunks.cuh"

namespace ninefold::cuda {

// Quads of a thread in a chunk: with more, fewer blocks fit on a multiprocessor.
inline constexpr int adamw_quads = 2;
inline constexpr int adamw_chunk = adamw_threads * adamw_quads * quad;

// The numbers of the step, as the host knows them, or where the preparing kernel has put them.
struct adamw_factors_source {
  adamw_factors value;
  const adamw_factors* at;
};

// T: of the parameter. What is updated is a master in fp32, or the parameter itself, which is then
// rounded stochastically if it is narrow.
template <class T, bool kMaster, class M, class G>
struct adamw_tensor_of {
  static constexpr bool stochastic = !kMaster && sizeof(T) == 2;
  using exact = std::conditional_t<kMaster, float, T>;

  const adamw_item& item;

  __device__ T* param() const { return static_cast<T*>(item.param); }
  __device__ const G* grad() const { return static_cast<const G*>(item.grad); }
  __device__ M* m() const { return static_cast<M*>(item.m); }
  __device__ M* v() const { return static_cast<M*>(item.v); }
  __device__ exact* updated() const {
    if constexpr (kMaster) {
      return item.master;
    } else {
      return param();
    }
  }

  __device__ void update_one(const adamw_factors& f, adamw_rates rates, int64_t i) const {
    float m_new = to_float(m()[i]), v_new = to_float(v()[i]);
    const float p =
        adamw_update(f, rates, to_float(grad()[i]), m_new, v_new, to_float(updated()[i]));
    m()[i] = from_float<M>(m_new);
    v()[i] = from_float<M>(v_new);
    if constexpr (stochastic) {
      const uint32_t word = adamw_word(f, item.first + static_cast<uint64_t>(i));
      reinterpret_cast<uint16_t*>(param())[i] =
          adamw_round_stochastically(__float_as_uint(p), word);
    } else {
      updated()[i] = from_float<exact>(p);
      if constexpr (kMaster) param()[i] = from_float<T>(p);
    }
  }
};

template <class Tensor>
struct adamw_quad {
  float p[quad], g[quad], m[quad], v[quad];

  __device__ void load(const Tensor& t, int64_t i) {
    load_quad(t.updated() + i, p);
    load_quad(t.grad() + i, g);
    load_quad(t.m() + i, m);
    load_quad(t.v() + i, v);
  }

  __device__ void update(const adamw_factors& f, adamw_rates rates) {
#pragma unroll
    for (int j = 0; j < quad; ++j) p[j] = adamw_update(f, rates, g[j], m[j], v[j], p[j]);
  }

  __device__ void store(const Tensor& t, const adamw_factors& f, int64_t i) const {
    store_quad(t.m() + i, m);
    store_quad(t.v() + i, v);
    if constexpr (Tensor::stochastic) {
      store_stochastically(t, f, i);
    } else {
      store_quad(t.updated() + i, p);
      if constexpr (!std::is_same_v<decltype(t.updated()), decltype(t.param())>)
        store_quad(t.param() + i, p);
    }
  }

 private:
  // A quad of the tensor need not be one of the list, whose words come by four.
  __device__ void store_stochastically(const Tensor& t, const adamw_factors& f, int64_t i) const {
    const uint64_t index = t.item.first + static_cast<uint64_t>(i);
    const int skipped = static_cast<int>(index % 4);
    philox_words words = philox_group<5>(f.seed, f.offset, index / 4);
    if (skipped != 0) {
      const philox_words next = philox_group<5>(f.seed, f.offset, index / 4 + 1);
      const philox_words w = words;
      if (skipped == 1) words = {{w.word[1], w.word[2], w.word[3], next.word[0]}};
      if (skipped == 2) words = {{w.word[2], w.word[3], next.word[0], next.word[1]}};
      if (skipped == 3) words = {{w.word[3], next.word[0], next.word[1], next.word[2]}};
    }
    uint32_t bits[quad];
#pragma unroll
    for (int j = 0; j < quad; ++j)
      bits[j] = adamw_round_stochastically(__float_as_uint(p[j]), words.word[j]);
    __stwb(reinterpret_cast<uint2*>(t.param() + i),
           uint2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16});
  }
};

template <class T, bool kMaster, class M, class G>
__global__ void __launch_bounds__(adamw_threads, 4)  // room for the loads: 64 registers
    adamw_chunks(const __grid_constant__ adamw_list list,
                 const __grid_constant__ adamw_factors_source source) {
  const adamw_factors f = source.at ? *source.at : source.value;
  if (f.skip) return;
  using tensor = adamw_tensor_of<T, kMaster, M, G>;
  const adamw_share share = adamw_share_of_block<adamw_chunk>(list);
  const adamw_item& item = *share.item;
  const tensor t{item};
  const adamw_rates rates = adamw_rates_of(f, item.lr_scale, item.weight_decay);
  const int64_t mine = share.begin + int64_t{threadIdx.x} * quad;

  // The whole block inside: all loads go out before the first is waited for.
  if (item.aligned && share.begin >= 0 && share.begin + adamw_chunk <= item.count) {
    adamw_quad<tensor> values[adamw_quads];
#pragma unroll
    for (int q = 0; q < adamw_quads; ++q) values[q].load(t, mine + q * adamw_threads * quad);
#pragma unroll
    for (int q = 0; q < adamw_quads; ++q) {
      values[q].update(f, rates);
      values[q].store(t, f, mine + q * adamw_threads * quad);
    }
    return;
  }
#pragma unroll 1
  for (int q = 0; q < adamw_quads; ++q) {
    const int64_t i = mine + q * adamw_threads * quad;
    if (item.aligned && i >= 0 && i + quad <= item.count) {
      adamw_quad<tensor> values;
      values.load(t, i);
      values.update(f, rates);
      values.store(t, f, i);
      continue;
    }
#pragma unroll 1
    for (int64_t j = i; j < i + quad; ++j)
      if (j >= 0 && j < item.count) t.update_one(f, rates, j);
  }
}

template <class T, bool kMaster, class M, class G>
__global__ void __launch_bounds__(adamw_threads)
    adamw_one_tensor(const __grid_constant__ adamw_item item,
                     const __grid_constant__ adamw_factors_source source) {
  const adamw_factors f = source.at ? *source.at : source.value;
  if (f.skip) return;
  const adamw_tensor_of<T, kMaster, M, G> t{item};
  const adamw_rates rates = adamw_rates_of(f, item.lr_scale, item.weight_decay);
  const int64_t step = int64_t{gridDim.x} * adamw_threads;
  for (int64_t i = int64_t{blockIdx.x} * adamw_threads + threadIdx.x; i < item.count; i += step)
    t.update_one(f, rates, i);
}

}  // namespace ninefold::cuda
