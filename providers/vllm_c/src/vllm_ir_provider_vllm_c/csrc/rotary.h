// What the rotations share: where tokens, heads and angles are, and how a pair is turned.
#pragma once

#include "numbers.h"
#include "rows.h"

struct Heads {
  Rows from, to;  // one row a token
  long long from_stride, to_stride;  // from head to head, in elements
  int heads;
  int copies;  // whether what is not turned has to be copied
};

struct RotaryArguments {
  Heads query, key;
  Rows positions;
  const void* cache;
  long long cache_stride, cache_rows, tokens;
  int head_size, rotary_dim, wide_positions, float_cache;
};

template <typename T, int PAIRS>
__device__ __forceinline__ Pack<T, PAIRS> angles(const RotaryArguments& a, long long offset) {
  if (!a.float_cache) return load<T, PAIRS, true>(static_cast<const T*>(a.cache) + offset, PAIRS);
  const Pack<float, PAIRS> wide = load<float, PAIRS, true>(static_cast<const float*>(a.cache) + offset, PAIRS);
  Pack<T, PAIRS> narrow;
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) narrow.at[i] = Number<T>::round(wide.at[i]);
  return narrow;
}

template <typename T, int PAIRS>
__device__ __forceinline__ void turn(Pack<T, PAIRS>& first, Pack<T, PAIRS>& second, const Pack<T, PAIRS>& cosines,
                                     const Pack<T, PAIRS>& sines) {
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const float x = Number<T>::widen(first.at[i]), y = Number<T>::widen(second.at[i]);
    const float c = Number<T>::widen(cosines.at[i]), s = Number<T>::widen(sines.at[i]);
    first.at[i] = Number<T>::round(rounded<T>(x * c) - rounded<T>(y * s));
    second.at[i] = Number<T>::round(rounded<T>(y * c) + rounded<T>(x * s));
  }
}

// The position of a token; all tokens may have one.
__device__ __forceinline__ long long position_of(const RotaryArguments& a, long long token) {
  if (a.tokens == 1) token = 0;
  return a.wide_positions ? *a.positions.at<const long long>(token) : *a.positions.at<const int>(token);
}
