// The sum over a row: within a warp by shuffles, across warps through shared memory, always in one order.
#pragma once

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

// Every thread of a row gets its sum. blockDim.x threads have the row: one warp (and then several rows may share the
// block), or the whole block. Called once in a kernel: nothing protects `part` from a second call.
__device__ __forceinline__ float row_sum(float v) {
  __shared__ float part[32];
  v = warp_sum(v);
  if (blockDim.x == 32) return v;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return warp_sum(lane < warps ? part[lane] : 0.0f);
}
