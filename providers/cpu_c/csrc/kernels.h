// The kernels, written once over a vector struct. Which instruction set runs, and on how many threads, is left to
// dispatch.cpp; every function here does a range of rows on the calling thread.
#pragma once

#include "abi.h"
#include "vecmath.h"
#include "table.h"

// Declared here, because <cmath> brings inline functions that the linker could share between instruction sets.
extern "C" float erff(float);
extern "C" float tanhf(float);

namespace {

// Where row `index` begins, and from there every following row without a division.
template <class T>
class RowWalk {
 public:
  RowWalk(const vllm_ir_rows& rows, int64_t index) : rows_(rows) {
    row_ = static_cast<T*>(rows.data);
    for (int32_t d = rows.dims - 1; d >= 0; --d) {
      at_[d] = index % rows.size[d];
      index /= rows.size[d];
      row_ += at_[d] * rows.stride[d];
    }
  }
  T* row() const { return row_; }
  void next() {
    for (int32_t d = rows_.dims - 1; d >= 0; --d) {
      row_ += rows_.stride[d];
      if (++at_[d] < rows_.size[d]) return;
      row_ -= rows_.size[d] * rows_.stride[d];
      at_[d] = 0;
    }
  }

 private:
  const vllm_ir_rows& rows_;
  T* row_;
  int64_t at_[VLLM_IR_MAX_DIMS];
};

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

// How rows of T are taken.
template <class T>
using Block = Both<Wide, kSame<T, Bf16>>;

// Calls body(V(), i) for whole vectors of V between two indices, then body(Scalar(), i) for what is left.
template <class V, class Body>
inline __attribute__((always_inline)) void each(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + V::kLanes <= end; i += V::kLanes) body(V(), i);
  for (; i < end; ++i) body(Scalar(), i);
}

#if defined(__aarch64__)
constexpr int kSumLanes = 4;
#else
constexpr int kSumLanes = 8;
#endif
constexpr int kSumStep = 4 * kSumLanes;

inline int ceil_log2(int64_t n) { return n <= 2 ? 1 : 64 - __builtin_clzll(static_cast<unsigned long long>(n - 1)); }

// The sum of square(V(), i) over i < size, in the one order that torch's own float sum has over a contiguous row:
// kSumLanes lanes times four accumulators, in four levels so that large counts lose nothing. It depends on the size of
// the row alone, so a row has the same sum in any batch, at any place and on any number of threads.
template <class V, class Square>
inline __attribute__((always_inline)) float sum_of_squares(int64_t size, Square square) {
  constexpr int kLevels = 4;
  constexpr int kVectors = kSumStep / V::kLanes;
  if (size < kSumLanes) {
    float part[4] = {};
    const int64_t whole = size / 4 * 4;
    for (int64_t i = 0; i < whole; ++i) part[i % 4] += square(Scalar(), i);
    for (int64_t i = whole; i < size; ++i) part[0] += square(Scalar(), i);
    return ((part[0] + part[1]) + part[2]) + part[3];
  }
  const int64_t steps = size / kSumStep;
  const int power = ceil_log2(steps) / kLevels > 4 ? ceil_log2(steps) / kLevels : 4;
  const int64_t block = int64_t{1} << power;
  const int64_t mask = block - 1;
  typename V::F level[kLevels][kVectors];
  for (int j = 0; j < kLevels; ++j) {
    for (int k = 0; k < kVectors; ++k) level[j][k] = V::set(0.0f);
  }
  int64_t i = 0;
  while (i + block <= steps) {
    typename V::F sum[kVectors];
    for (int k = 0; k < kVectors; ++k) sum[k] = V::set(0.0f);
    for (const int64_t end = i + block; i < end; ++i) {
      for (int k = 0; k < kVectors; ++k) sum[k] = sum[k] + square(V(), i * kSumStep + k * V::kLanes);
    }
    for (int k = 0; k < kVectors; ++k) level[1][k] = level[1][k] + sum[k];
    for (int j = 1; j < kLevels - 1 && (i & (mask << (j * power))) == 0; ++j) {
      for (int k = 0; k < kVectors; ++k) {
        level[j + 1][k] = level[j + 1][k] + level[j][k];
        level[j][k] = V::set(0.0f);
      }
    }
  }
  for (; i < steps; ++i) {
    for (int k = 0; k < kVectors; ++k) {
      level[0][k] = level[0][k] + square(V(), i * kSumStep + k * V::kLanes);
    }
  }
  float part[kSumStep];
  for (int k = 0; k < kVectors; ++k) {
    V::store(part + k * V::kLanes, ((level[0][k] + level[1][k]) + level[2][k]) + level[3][k]);
  }
  const int64_t vectors = size / kSumLanes * kSumLanes;
  for (int64_t at = steps * kSumStep; at < vectors; at += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) part[lane] += square(Scalar(), at + lane);
  }
  for (int k = 1; k < 4; ++k) {
    for (int lane = 0; lane < kSumLanes; ++lane) part[lane] += part[k * kSumLanes + lane];
  }
  float total = 0.0f;
  for (int64_t at = vectors; at < size; ++at) total += square(Scalar(), at);
  for (int lane = 0; lane < kSumLanes; ++lane) total += part[lane];
  return total;
}

// Stands for the element type of a weight that is not there.
struct NoWeight {};

// The normalised value is rounded to the weight's dtype before the multiply; storing rounds the product to x's.
template <class V, class W>
inline typename V::F weighted(typename V::F value, const W* weight, int64_t i) {
  if constexpr (kSame<W, NoWeight>) {
    return value;
  } else {
    return V::rounded(value, weight) * V::load(weight + i);
  }
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
  const float variance = squares / static_cast<float>(call.variance_size);
  const float scale = 1.0f / __builtin_sqrtf(variance + call.epsilon);
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
    if constexpr (kAdd) V::store(residual_out + i, one);
    V::store(out + i, result);
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

constexpr float kSqrtHalf = 0.70710678118654752440f;
constexpr float kTwoOverPi = 0.79788456080286535588f;  // the square root of it

struct Silu {
  template <class V>
  static typename V::F of(typename V::F x) {
    return x / (V::set(1.0f) + Math<V>::exp(-x));
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
  each<Block<T>>(0, whole, [&](auto v, int64_t i) {
    using V = decltype(v);
    V::store(out + i, V::rounded(A::template of<V>(V::load(x + i)), x) * V::load(up + i));
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

// Every product is rounded to x's dtype, then the sum; cosines and sines are taken in x's dtype.
template <class V, class T>
inline void turn(typename V::F* a, typename V::F* b, typename V::F cos, typename V::F sin, const T* x) {
  const auto first = V::rounded(*a * cos, x) - V::rounded(*b * sin, x);
  *b = V::rounded(*b * cos, x) + V::rounded(*a * sin, x);
  *a = first;
}

template <class T, class C>
void turn_head(const vllm_ir_rotary& call, const T* x, T* out, const C* cos) {
  const int64_t half = call.rotary_dim / 2;
  const C* sin = cos + half;
  if (call.neox) {
    each<Wide>(0, half, [&](auto v, int64_t i) {
      using V = decltype(v);
      auto a = V::load(x + i), b = V::load(x + half + i);
      turn<V>(&a, &b, V::rounded(V::load(cos + i), x), V::rounded(V::load(sin + i), x), x);
      V::store(out + i, a);
      V::store(out + half + i, b);
    });
  } else {
    each<Wide>(0, half, [&](auto v, int64_t i) {
      using V = decltype(v);
      typename V::F a, b;
      V::load_pairs(x + 2 * i, &a, &b);
      turn<V>(&a, &b, V::rounded(V::load(cos + i), x), V::rounded(V::load(sin + i), x), x);
      V::store_pairs(out + 2 * i, a, b);
    });
  }
  if (out != x && call.rotary_dim < call.head_size) {
    __builtin_memcpy(out + call.rotary_dim, x + call.rotary_dim, (call.head_size - call.rotary_dim) * sizeof(T));
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
    turn_head<T, C>(call, x.row(), out, static_cast<const C*>(call.cache) + position * call.cache_stride);
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
