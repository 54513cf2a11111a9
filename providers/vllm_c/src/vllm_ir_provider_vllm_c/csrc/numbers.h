// Numbers as they lie in memory and as they are computed with, and 16-byte packs of them.
//
// One source for NVRTC and for the CPU harness of the tests, which defines CPU_SHIM and brings its own headers.
#pragma once

#ifndef CPU_SHIM
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// float32 <-> T; every conversion to T rounds to nearest even.
template <typename T>
struct Number;

template <>
struct Number<float> {
  static __device__ __forceinline__ float widen(float v) { return v; }
  static __device__ __forceinline__ float round(float v) { return v; }
};

template <>
struct Number<__half> {
  static __device__ __forceinline__ float widen(__half v) { return __half2float(v); }
  static __device__ __forceinline__ __half round(float v) { return __float2half_rn(v); }
};

template <>
struct Number<__nv_bfloat16> {
  static __device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
  static __device__ __forceinline__ __nv_bfloat16 round(float v) { return __float2bfloat16_rn(v); }
};

// A float32 value as it is after a rounding to T.
template <typename T>
__device__ __forceinline__ float rounded(float v) {
  return Number<T>::widen(Number<T>::round(v));
}

__device__ constexpr int access_bytes(int bytes) { return bytes < 16 ? bytes : 16; }

// N numbers side by side: one memory access, or several of 16 bytes where they are longer.
template <typename T, int N>
struct alignas(access_bytes(sizeof(T) * N)) Pack {
  T at[N];
};

// How many T one 16-byte access moves.
template <typename T>
__device__ constexpr int per_access() {
  return 16 / static_cast<int>(sizeof(T));
}

// Read N numbers: at once where the caller knows the address to be aligned, else one by one, and none from `left` on.
template <typename T, int N, bool ALIGNED>
__device__ __forceinline__ Pack<T, N> load(const T* from, int left) {
  if constexpr (ALIGNED) {
    return *reinterpret_cast<const Pack<T, N>*>(from);
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.at[i] = i < left ? from[i] : Number<T>::round(0.0f);
    return pack;
  }
}

// Write N numbers in the same way.
template <typename T, int N, bool ALIGNED>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack, int left) {
  if constexpr (ALIGNED) {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < left) to[i] = pack.at[i];
    }
  }
}
