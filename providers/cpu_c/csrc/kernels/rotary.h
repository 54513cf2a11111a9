// rotary_embedding and fused_qk_norm_rope over a range of heads.
#pragma once

#include "abi.h"
#include "kernels/norm.h"
#include "kernels/rows.h"
#include "table.h"

namespace {

// Every product is rounded to x's dtype, then the sum; cosines and sines are taken in x's dtype.
template <class V, class T>
inline void turn(typename V::F* a, typename V::F* b, typename V::F cos, typename V::F sin, const T* x) {
  const auto first = V::rounded_own(*a * cos, x) - V::rounded_own(*b * sin, x);
  *b = V::rounded_own(*b * cos, x) + V::rounded_own(*a * sin, x);
  *a = first;
}

// A cosine or sine in x's dtype.
template <class V, class T, class C>
inline typename V::F angle(const C* p, const T* x) {
  if constexpr (kSame<C, T>) {
    return V::load(p);
  } else {
    return V::rounded(V::load(p), x);
  }
}

template <class T, class C>
void turn_head(const vllm_ir_rotary& call, const T* x, T* out, const C* cos) {
  const int64_t half = call.rotary_dim / 2;
  const C* sin = cos + half;
  if (call.neox) {
    each<Wide>(0, half, [&](auto v, int64_t i) {
      using V = decltype(v);
      auto a = V::load(x + i), b = V::load(x + half + i);
      turn<V>(&a, &b, angle<V>(cos + i, x), angle<V>(sin + i, x), x);
      V::store(out + i, a);
      V::store(out + half + i, b);
    });
  } else {
    each<Wide>(0, half, [&](auto v, int64_t i) {
      using V = decltype(v);
      typename V::F a, b;
      V::load_pairs(x + 2 * i, &a, &b);
      turn<V>(&a, &b, angle<V>(cos + i, x), angle<V>(sin + i, x), x);
      V::store_pairs(out + 2 * i, a, b);
    });
  }
  if (out != x && call.rotary_dim < call.head_size) {
    __builtin_memcpy(out + call.rotary_dim, x + call.rotary_dim, (call.head_size - call.rotary_dim) * sizeof(T));
  }
}

// A head over its root mean square, times the weight, rounded to its dtype.
template <class T>
void norm_head(const vllm_ir_rotary& call, const T* x, T* out) {
  vllm_ir_norm norm = {};
  norm.weight = call.weight;
  norm.hidden_size = norm.variance_size = call.head_size;
  norm.epsilon = call.epsilon;
  if (call.weight == nullptr) {
    norm_row<false, T, NoWeight>(norm, x, nullptr, out, nullptr);
  } else if (call.weight_dtype == VLLM_IR_F32) {
    norm_row<false, T, float>(norm, x, nullptr, out, nullptr);
  } else {
    norm_row<false, T, T>(norm, x, nullptr, out, nullptr);
  }
}

template <class T, class C>
void rotary_rows(const vllm_ir_rotary& call, Range range) {
  RowWalk<const T> x(call.x, range.begin);
  T* out = static_cast<T*>(call.out) + range.begin * call.head_size;
  const int64_t heads = range.total / call.tokens;
  int64_t token = range.begin / heads;
  int64_t head = range.begin % heads;
  for (int64_t r = range.begin; r < range.end; ++r, out += call.head_size, x.next()) {
    const int64_t position = position_of(call, token);
    const C* cos = static_cast<const C*>(call.cache) + position * call.cache_stride;
    if (call.normalized) {
      norm_head<T>(call, x.row(), out);
      turn_head<T, C>(call, out, out, cos);
    } else {
      turn_head<T, C>(call, x.row(), out, cos);
    }
    if (++head == heads) {
      head = 0;
      ++token;
    }
  }
}

template <class T>
void rotary_of(const vllm_ir_rotary& call, Range range) {
  call.cache_dtype == VLLM_IR_F32 ? rotary_rows<T, float>(call, range) : rotary_rows<T, T>(call, range);
}

void rotary(const void* call, Range range) {
  const vllm_ir_rotary& c = *static_cast<const vllm_ir_rotary*>(call);
  switch (c.dtype) {
    case VLLM_IR_F32:
      return rotary_of<float>(c, range);
    case VLLM_IR_BF16:
      return rotary_of<Bf16>(c, range);
    default:
      return rotary_of<F16>(c, range);
  }
}

}  // namespace
