// 8-bit floating point: from float32 to the nearest, and the scale that brings the largest magnitude to the limit.
//
// Quotients and products are the correctly rounded ones by name, whatever a compiler is told. Magnitudes are compared by
// their bits, where NaN is above infinity, so that a NaN reaches the scale as it does in native.
#pragma once

#ifndef CPU_SHIM
#include <cuda_fp8.h>
#endif
#include "numbers.h"
#include "sum.h"

enum Format { E4M3FN, E5M2 };

// Where a scale comes from: it is given, found for what one block reads, or left to a later launch, which needs the
// largest magnitudes in its place.
enum Scale { GIVEN, FOUND, MEASURED };

struct Scaling {
  float* scale;        // one a row or a group: read if given, else written; the magnitude if measured
  const float* bound;  // what the magnitude counts for at most, or null
  float limit, least;  // of the format; of scales or, for groups, of magnitudes
  int format, kind;    // a Format, a Scale
};

// Eight bits of a value: nearest even, saturating; NaN stays NaN and zeros their sign. Before compute capability 8.9
// there is no instruction for it, and NVIDIA's header takes the long way over double.
__device__ __forceinline__ unsigned narrow_by_bits(float v, int format) {
  const bool fn = format == E4M3FN;
  const unsigned bits = __float_as_uint(v), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  const unsigned limit = fn ? 0x43e00000u : 0x47600000u;   // 448; 57344
  const unsigned normal = fn ? 0x3c800000u : 0x38800000u;  // 2^-6; 2^-14
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= limit) return sign | (fn ? 0x7eu : 0x7bu);
  if (magnitude < normal) {
    // The last place of `unit` is our smallest number, so the addition rounds.
    const float unit = fn ? 16384.0f : 128.0f;
    return sign | (__float_as_uint(__fadd_rn(__uint_as_float(magnitude), unit)) - __float_as_uint(unit));
  }
  const int dropped = fn ? 20 : 21;  // bits of the significand
  const unsigned half = (1u << (dropped - 1)) - 1u + (magnitude >> dropped & 1u);
  return sign | (((magnitude + half) >> dropped) - ((fn ? 120u : 112u) << (23 - dropped)));
}

__device__ __forceinline__ unsigned narrow_pair(float low, float high, int format) {
#if defined(CPU_SHIM) || __CUDA_ARCH__ >= 890
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, format == E4M3FN ? __NV_E4M3 : __NV_E5M2);
#else
  return narrow_by_bits(low, format) | narrow_by_bits(high, format) << 8;
#endif
}

template <int N>
__device__ __forceinline__ Pack<unsigned char, N> narrowed(const float (&v)[N], int format) {
  Pack<unsigned char, N> out;
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const unsigned pair = narrow_pair(v[i], v[i + 1], format);
    out.at[i] = static_cast<unsigned char>(pair);
    out.at[i + 1] = static_cast<unsigned char>(pair >> 8);
  }
  return out;
}

// The largest magnitude of a pack, as bits of float32; of the first `left` numbers alone.
template <typename T, int N>
__device__ __forceinline__ unsigned magnitude(const Pack<T, N>& pack, int left) {
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned bits = __float_as_uint(Number<T>::widen(pack.at[i])) & 0x7fffffffu;
    most = Most::both(most, i < left ? bits : 0u);
  }
  return most;
}

// The scale of a row or a tensor.
__device__ __forceinline__ float scale_of(unsigned magnitude, const Scaling& s) {
  float most = __uint_as_float(magnitude);
  if (s.bound) {
    const float bound = *s.bound;
    if (bound < most || bound != bound) most = bound;
  }
  const float scale = __fdiv_rn(most, s.limit);
  return scale < s.least ? s.least : scale;
}

// A pack times the inverse of its scale.
template <typename T, int N>
__device__ __forceinline__ Pack<unsigned char, N> multiplied(const Pack<T, N>& pack, float inverse, int format) {
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = __fmul_rn(Number<T>::widen(pack.at[i]), inverse);
  return narrowed<N>(v, format);
}

// The scale of a group, rounded up to a power of two where that is asked for.
__device__ __forceinline__ float group_scale(unsigned magnitude, const Scaling& s, bool power_of_two) {
  const float most = __uint_as_float(magnitude);
  const float scale = __fdiv_rn(most < s.least ? s.least : most, s.limit);
  if (!power_of_two || scale != scale) return scale;
  return __uint_as_float((__float_as_uint(scale) + 0x7fffffu) & 0x7f800000u);
}

// A pack over its scale.
template <typename T, int N>
__device__ __forceinline__ Pack<unsigned char, N> divided(const Pack<T, N>& pack, float scale, int format) {
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = __fdiv_rn(Number<T>::widen(pack.at[i]), scale);
  return narrowed<N>(v, format);
}
