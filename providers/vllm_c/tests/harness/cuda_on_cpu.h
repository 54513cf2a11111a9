// The words of CUDA C that the kernels use, for a C++ compiler: keywords, indices, barriers, shuffles, a few functions.
//
// Half, bfloat16 and 8-bit floats come from NVIDIA's own headers, whose host paths convert exactly. A word that is
// missing here stops the build. What runs the threads is in fibers.h.
#pragma once
#define CPU_SHIM 1
#include <cmath>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "fibers.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (shim::current().running->index)
#define blockIdx (shim::current().index)
#define blockDim (shim::current().size)
#define gridDim (shim::current().grid)

inline void __syncthreads() { shim::give_way(shim::AT_BLOCK); }
inline void __trap() { shim::current().trapped = true; }
// C++ rounds each of these to nearest even, as the words say; the compiler is told not to contract.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return shim::shuffle(mask, value, (shim::current().running->number & 31) ^ distance, true);
}
