// What the norms share, whatever becomes of the normalised row: arguments, packs of a row, their squares, the multiply.
#pragma once

#include "numbers.h"
#include "rows.h"

enum Weight { NONE, AS_X, FLOAT32 };

struct NormArguments {
  Rows x, residual;
  void *out, *residual_out;  // contiguous; they may be x and residual themselves
  const void* weight;
  long long rows;
  int size, variance_size, weight_kind;
  float epsilon;
};

// One pack of a row in float32: x, or the unrounded sum of x and residual.
template <typename T, bool ALIGNED, bool FUSED>
struct Source {
  static constexpr int N = per_access<T>();
  const T *x, *residual;
  int size;

  __device__ __forceinline__ void read(int pack, float (&v)[N]) const {
    const int first = pack * N;
    const Pack<T, N> a = load<T, N, ALIGNED>(x + first, size - first);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = Number<T>::widen(a.at[i]);
    if constexpr (FUSED) {
      const Pack<T, N> b = load<T, N, ALIGNED>(residual + first, size - first);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += Number<T>::widen(b.at[i]);
    }
  }
};

// The squares of those elements of a pack that the variance is of.
template <int N>
__device__ __forceinline__ float squares(const float (&v)[N], int left) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += i < left ? v[i] * v[i] : 0.0f;
  return sum;
}

// Normalised numbers, the first of them number `first` of a row: rounded to the weight's type before the multiply, the
// product to the type of x.
template <typename T, int N, bool ALIGNED>
__device__ __forceinline__ Pack<T, N> scaled(const float (&v)[N], float scale, const void* weight, int kind, int first,
                                             int size) {
  Pack<T, N> out;
  if (kind == AS_X) {
    const Pack<T, N> w = load<T, N, ALIGNED>(static_cast<const T*>(weight) + first, size - first);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out.at[i] = Number<T>::round(rounded<T>(v[i] * scale) * Number<T>::widen(w.at[i]));
    }
  } else if (kind == FLOAT32) {
    const Pack<float, N> w = load<float, N, ALIGNED>(static_cast<const float*>(weight) + first, size - first);
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = Number<T>::round(v[i] * scale * w.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = Number<T>::round(v[i] * scale);
  }
  return out;
}

template <typename T, bool ALIGNED>
__device__ __forceinline__ Pack<T, per_access<T>()> scaled(const float (&v)[per_access<T>()], float scale,
                                                           const NormArguments& a, int first) {
  return scaled<T, per_access<T>(), ALIGNED>(v, scale, a.weight, a.weight_kind, first, a.size);
}

// Write the sum of x and residual, rounded.
template <typename T, bool ALIGNED>
__device__ __forceinline__ void keep_sum(T* to, const float (&v)[per_access<T>()], int left) {
  constexpr int N = per_access<T>();
  Pack<T, N> added;
#pragma unroll
  for (int i = 0; i < N; ++i) added.at[i] = Number<T>::round(v[i]);
  store<T, N, ALIGNED>(to, added, left);
}
