// Rotary position embedding of query and key: one block a token, each thread a few pairs of a head.
//
// Every product is rounded to T, as in native; nothing is contracted. In place each pair is read and written by one
// thread. A position outside the cache stops the grid, as native's does.
#include "rotary.h"

// PAIRS pairs of one head, from `from` to `to`, with the angles at element `offset` of the cache.
template <typename T, int PAIRS, bool NEOX>
__device__ __forceinline__ void turn_pairs(const RotaryArguments& a, const T* from, T* to, int pair, long long offset) {
  const int half = a.rotary_dim / 2;
  const Pack<T, PAIRS> cosines = angles<T, PAIRS>(a, offset + pair);
  const Pack<T, PAIRS> sines = angles<T, PAIRS>(a, offset + half + pair);
  Pack<T, PAIRS> first, second;
  if constexpr (NEOX) {
    first = load<T, PAIRS, true>(from + pair, PAIRS);
    second = load<T, PAIRS, true>(from + half + pair, PAIRS);
    turn(first, second, cosines, sines);
    store<T, PAIRS, true>(to + pair, first, PAIRS);
    store<T, PAIRS, true>(to + half + pair, second, PAIRS);
  } else {
    constexpr bool ALIGNED = PAIRS > 1;  // a single pair need not be aligned to its own size
    Pack<T, 2 * PAIRS> both = load<T, 2 * PAIRS, ALIGNED>(from + 2 * pair, 2 * PAIRS);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) first.at[i] = both.at[2 * i], second.at[i] = both.at[2 * i + 1];
    turn(first, second, cosines, sines);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) both.at[2 * i] = first.at[i], both.at[2 * i + 1] = second.at[i];
    store<T, 2 * PAIRS, ALIGNED>(to + 2 * pair, both, 2 * PAIRS);
  }
}

template <typename T, int PAIRS, bool NEOX>
__device__ __forceinline__ void turn_heads(const RotaryArguments& a, const Heads& h, long long token, long long offset) {
  const T* from = h.from.at<const T>(token);
  T* to = h.to.at<T>(token);
  const int steps = a.rotary_dim / 2 / PAIRS, rest = a.head_size - a.rotary_dim;
  for (int i = threadIdx.x; i < h.heads * steps; i += blockDim.x) {
    const int head = i / steps, pair = i % steps * PAIRS;
    turn_pairs<T, PAIRS, NEOX>(a, from + head * h.from_stride, to + head * h.to_stride, pair, offset);
  }
  if (!h.copies) return;
  for (int i = threadIdx.x; i < h.heads * rest; i += blockDim.x) {
    const int head = i / rest, element = a.rotary_dim + i % rest;
    to[head * h.to_stride + element] = from[head * h.from_stride + element];
  }
}

template <typename T, int PAIRS, bool NEOX>
__global__ void __launch_bounds__(512) rotary(const __grid_constant__ RotaryArguments a) {
  const long long token = blockIdx.x;
  const long long position = position_of(a, token);
  if (position < 0 || position >= a.cache_rows) {
    __trap();
    return;
  }
  const long long offset = position * a.cache_stride;
  turn_heads<T, PAIRS, NEOX>(a, a.query, token, offset);
  turn_heads<T, PAIRS, NEOX>(a, a.key, token, offset);
}
