// Root-mean-square normalisation, alone and after a residual addition.
//
// A row is cut into packs of 16 bytes; thread t has the packs t, t + blockDim.x, ... Which thread has which element, and
// so the order of the sum, depends on the size of a row alone: not on the number of rows, not on alignment.
// Up to KEPT packs stay in registers between sum and result, so that each input is read once; KEPT = 0 reads it again.
#include "norm.h"
#include "sum.h"

template <typename T, bool ALIGNED, int KEPT, bool FUSED>
__device__ __forceinline__ void normalize(const NormArguments& a) {
  constexpr int N = per_access<T>();
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only where a row is a warp's, which then leaves as a whole
  const Source<T, ALIGNED, FUSED> source{a.x.at<const T>(row), FUSED ? a.residual.at<const T>(row) : nullptr, a.size};
  T* out = static_cast<T*>(a.out) + row * a.size;
  T* residual_out = static_cast<T*>(a.residual_out) + row * a.size;
  const int packs = (a.size + N - 1) / N;

  float kept[KEPT ? KEPT : 1][N];
  float sum = 0.0f;
  if constexpr (KEPT) {
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
      const int pack = threadIdx.x + k * blockDim.x;
      if (pack < packs) source.read(pack, kept[k]);
    }
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
      const int pack = threadIdx.x + k * blockDim.x;
      if (pack < packs) sum += squares<N>(kept[k], a.variance_size - pack * N);
    }
  } else {
#pragma unroll 1
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      source.read(pack, kept[0]);
      sum += squares<N>(kept[0], a.variance_size - pack * N);
    }
  }
  const float total = row_sum(sum);
  const float scale = rsqrtf(total / static_cast<float>(a.variance_size) + a.epsilon);

#pragma unroll(KEPT ? KEPT : 1)
  for (int k = 0; k < (KEPT ? KEPT : 0x7fffffff); ++k) {
    const int pack = threadIdx.x + k * blockDim.x;
    if (pack >= packs) break;
    float(&v)[N] = kept[KEPT ? k : 0];
    if constexpr (KEPT == 0) source.read(pack, v);
    const int first = pack * N;
    if constexpr (FUSED) keep_sum<T, ALIGNED>(residual_out + first, v, a.size - first);
    store<T, N, ALIGNED>(out + first, scaled<T, ALIGNED>(v, scale, a, first), a.size - first);
  }
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(1024) rms_norm(const __grid_constant__ NormArguments a) {
  normalize<T, ALIGNED, KEPT, false>(a);
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(1024) fused_add_rms_norm(const __grid_constant__ NormArguments a) {
  normalize<T, ALIGNED, KEPT, true>(a);
}
