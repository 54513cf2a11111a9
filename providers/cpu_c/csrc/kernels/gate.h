// silu_and_mul and gelu_and_mul over a range of rows.
#pragma once

#include "abi.h"
#include "kernels/rows.h"
#include "table.h"
#include "vectors/vecmath.h"

// Declared here, because <cmath> brings inline functions that the linker could share between instruction sets.
extern "C" float erff(float);
extern "C" float tanhf(float);

namespace {

constexpr float kSqrtHalf = 0.70710678118654752440f;
constexpr float kTwoOverPi = 0.79788456080286535588f;  // the square root of it

struct Silu {
  template <class V>
  static typename V::F of(typename V::F x) {
    return x / (V::set(1.0f) + Math<V>::exp_of_negative(x));  // a NaN comes from x itself
  }
  static float exact(float x) { return of<Scalar>(x); }
};

struct Gelu {
  template <class V>
  static typename V::F of(typename V::F x) {
    return (x * V::set(0.5f)) * (V::set(1.0f) + Math<V>::erf(x * V::set(kSqrtHalf)));
  }
  static float exact(float x) { return (x * 0.5f) * (1.0f + ::erff(x * kSqrtHalf)); }
};

struct GeluTanh {
  template <class V>
  static typename V::F inner(typename V::F x) {
    return V::set(kTwoOverPi) * V::fma(V::set(0.044715f), (x * x) * x, x);
  }
  template <class V>
  static typename V::F of(typename V::F x) {
    return (V::set(0.5f) * x) * (V::set(1.0f) + Math<V>::tanh(inner<V>(x)));
  }
  static float exact(float x) { return (0.5f * x) * (1.0f + ::tanhf(inner<Scalar>(x))); }
};

template <class A, class T>
void gate_row(const vllm_ir_gate& call, const T* x, T* out) {
  const T* up = x + call.size;
  const int64_t whole = call.block > 0 ? call.size / call.block * call.block : call.size;
  // The activation is rounded to x's dtype before the multiply.
  // It is too long for the compiler to inline unasked, and a call would load every constant anew.
  each<typename Busy<T>::Block>(0, whole, [&](auto v, int64_t i) __attribute__((always_inline)) {
    using V = decltype(v);
    V::store_own(out + i, V::rounded_own(A::template of<V>(V::load(x + i)), x) * V::load(up + i));
  });
  for (int64_t i = whole; i < call.size; ++i) {
    from_float(Scalar::rounded(A::exact(to_float(x[i])), x) * to_float(up[i]), out + i);
  }
}

template <class A, class T>
void gate_rows(const vllm_ir_gate& call, Range range) {
  RowWalk<const T> x(call.x, range.begin);
  T* out = static_cast<T*>(call.out) + range.begin * call.size;
  for (int64_t r = range.begin; r < range.end; ++r, out += call.size, x.next()) {
    gate_row<A>(call, x.row(), out);
  }
}

template <class A>
void gate_of(const vllm_ir_gate& call, Range range) {
  switch (call.dtype) {
    case VLLM_IR_F32:
      return gate_rows<A, float>(call, range);
    case VLLM_IR_BF16:
      return gate_rows<A, Bf16>(call, range);
    default:
      return gate_rows<A, F16>(call, range);
  }
}

void gate(const void* call, Range range) {
  const vllm_ir_gate& c = *static_cast<const vllm_ir_gate*>(call);
  switch (c.activation) {
    case VLLM_IR_SILU:
      return gate_of<Silu>(c, range);
    case VLLM_IR_GELU:
      return gate_of<Gelu>(c, range);
    default:
      return gate_of<GeluTanh>(c, range);
  }
}

}  // namespace
