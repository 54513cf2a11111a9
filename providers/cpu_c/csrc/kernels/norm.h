// rms_norm and fused_add_rms_norm over a range of rows.
#pragma once

#include "abi.h"
#include "kernels/rows.h"
#include "kernels/sum.h"
#include "table.h"

namespace {

// Stands for the element type of a weight that is not there.
struct NoWeight {};

// The normalised value is rounded to the weight's dtype before the multiply; storing rounds the product to x's. A NaN in
// it comes from x, and x is no wider than the weight.
template <class V, class W>
inline typename V::F weighted(typename V::F value, const W* weight, int64_t i) {
  if constexpr (kSame<W, NoWeight>) {
    return value;
  } else {
    return V::rounded_own(value, weight) * V::load(weight + i);
  }
}

// One over the root of a mean of squares.
inline float inverse_root(float squares, int64_t count, float epsilon) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(count) + epsilon);
}

template <bool kAdd, class T, class W>
void norm_row(const vllm_ir_norm& call, const T* x, const T* residual, T* out, T* residual_out) {
  const W* weight = static_cast<const W*>(call.weight);
  const auto value = [&](auto v, int64_t i) {
    using V = decltype(v);
    if constexpr (kAdd) {
      return V::load(x + i) + V::load(residual + i);
    } else {
      return V::load(x + i);
    }
  };
  // A float32 sum loses nothing when it is stored, so the second pass reads it instead of adding again; a narrower one
  // would come back rounded.
  constexpr bool kKeep = kAdd && kSame<T, float>;
  const float squares = sum_of_squares<Block<T>>(call.variance_size, [&](auto v, int64_t i) {
    const auto one = value(v, i);
    if constexpr (kKeep) decltype(v)::store(residual_out + i, one);
    return one * one;
  });
  const float scale = inverse_root(squares, call.variance_size, call.epsilon);
  const auto scaled = [&](auto v, auto one, int64_t i) {
    using V = decltype(v);
    return weighted<V>(one * V::set(scale), weight, i);
  };
  int64_t done = 0;
  if constexpr (kKeep) {
    done = call.variance_size;
    each<Block<T>>(0, done, [&](auto v, int64_t i) {
      using V = decltype(v);
      V::store(out + i, scaled(v, V::load(residual_out + i), i));
    });
  }
  each<Block<T>>(done, call.hidden_size, [&](auto v, int64_t i) {
    using V = decltype(v);
    const auto one = value(v, i);
    // Everything is read before anything is written: an output may be its own input.
    const auto result = scaled(v, one, i);
    if constexpr (kAdd) V::store_own(residual_out + i, one);
    if constexpr (kSame<W, float>) {
      V::store(out + i, result);  // a NaN may be the weight's
    } else {
      V::store_own(out + i, result);
    }
  });
}

template <class T, class W>
void norm_rows(const vllm_ir_norm& call, Range range) {
  const int64_t n = call.hidden_size;
  const bool add = call.residual.data != nullptr;
  RowWalk<const T> x(call.x, range.begin);
  T* out = static_cast<T*>(call.out) + range.begin * n;
  if (!add) {
    for (int64_t r = range.begin; r < range.end; ++r, out += n, x.next()) {
      norm_row<false, T, W>(call, x.row(), nullptr, out, nullptr);
    }
    return;
  }
  RowWalk<const T> residual(call.residual, range.begin);
  T* residual_out = static_cast<T*>(call.residual_out) + range.begin * n;
  for (int64_t r = range.begin; r < range.end; ++r, out += n, residual_out += n, x.next(), residual.next()) {
    norm_row<true, T, W>(call, x.row(), residual.row(), out, residual_out);
  }
}

template <class T>
void norm_of(const vllm_ir_norm& call, Range range) {
  if (call.weight == nullptr) {
    norm_rows<T, NoWeight>(call, range);
  } else if (call.weight_dtype == VLLM_IR_F32) {
    norm_rows<T, float>(call, range);
  } else {
    norm_rows<T, T>(call, range);
  }
}

void norm(const void* call, Range range) {
  const vllm_ir_norm& c = *static_cast<const vllm_ir_norm*>(call);
  switch (c.dtype) {
    case VLLM_IR_F32:
      return norm_of<float>(c, range);
    case VLLM_IR_BF16:
      return norm_of<Bf16>(c, range);
    default:
      return norm_of<F16>(c, range);
  }
}

}  // namespace
