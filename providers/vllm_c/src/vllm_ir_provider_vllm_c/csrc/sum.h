// What a row comes to, its sum or its largest: within a warp by shuffles, across warps through shared memory, in one order.
#pragma once

struct Add {
  static __device__ __forceinline__ float both(float a, float b) { return a + b; }
};

struct Most {
  static __device__ __forceinline__ unsigned both(unsigned a, unsigned b) { return a > b ? a : b; }
};

// What `lanes` neighbours in a warp come to, a power of two of them; each of them gets it.
template <class Fold, typename V>
__device__ __forceinline__ V lanes_fold(V v, int lanes) {
#pragma unroll
  for (int distance = lanes >> 1; distance > 0; distance >>= 1) {
    v = Fold::both(v, __shfl_xor_sync(0xffffffffu, v, distance));
  }
  return v;
}

// Every thread of a row gets what the row comes to. blockDim.x threads have the row: one warp (and then several rows may
// share the block), or the whole block. Called once in a kernel for each Fold: nothing protects `part` from a second call.
template <class Fold, typename V>
__device__ __forceinline__ V row_fold(V v) {
  __shared__ V part[32];
  v = lanes_fold<Fold>(v, 32);
  if (blockDim.x == 32) return v;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return lanes_fold<Fold>(lane < warps ? part[lane] : V(0), 32);
}

__device__ __forceinline__ float row_sum(float v) { return row_fold<Add>(v); }
__device__ __forceinline__ unsigned row_most(unsigned v) { return row_fold<Most>(v); }
