// The words of CUDA C that the kernels use, for a C++ compiler: keywords, indices, barriers, shuffles, a few functions.
//
// Half and bfloat16 come from NVIDIA's own headers, whose host paths convert exactly. A word that is missing here stops
// the build. What runs the threads is in fibers.h.
#pragma once
#define CPU_SHIM 1
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return shim::shuffle(mask, value, (shim::current().running->number & 31) ^ distance, true);
}
