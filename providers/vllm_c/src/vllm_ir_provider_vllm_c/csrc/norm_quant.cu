// Root-mean-square normalisation, alone and after a residual addition, whose rounded result is quantised to 8-bit floating
// point: with a scale that is given, or one for each row.
//
// Threads, packs, KEPT and the order of the sum are as in norm.cu. What is kept are the unrounded float32 values until
// the sum is known, and the result after; KEPT = 0 computes it again for the scale and for the result.
#include "fp8.h"
#include "norm.h"
#include "sum.h"

struct NormQuantArguments {
  NormArguments norm;  // whose `out` is of 8-bit numbers
  Scaling scaling;
};

template <typename T, bool ALIGNED, int KEPT, bool FUSED>
__device__ __forceinline__ void normalize(const NormQuantArguments& arguments) {
  constexpr int N = per_access<T>();
  const NormArguments& a = arguments.norm;
  const Scaling& s = arguments.scaling;
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only where a row is a warp's, which then leaves as a whole
  const Source<T, ALIGNED, FUSED> source{a.x.at<const T>(row), FUSED ? a.residual.at<const T>(row) : nullptr, a.size};
  unsigned char* out = static_cast<unsigned char*>(a.out) + row * a.size;
  T* residual_out = static_cast<T*>(a.residual_out) + row * a.size;
  const int packs = (a.size + N - 1) / N;

  float kept[KEPT ? KEPT : 1][N];
  Pack<T, N> normed[KEPT ? KEPT : 1];
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
      if (pack >= packs) break;
      sum += squares<N>(kept[k], a.variance_size - pack * N);
      if (FUSED && s.kind != MEASURED) keep_sum<T, ALIGNED>(residual_out + pack * N, kept[k], a.size - pack * N);
    }
  } else {
#pragma unroll 1
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      source.read(pack, kept[0]);
      sum += squares<N>(kept[0], a.variance_size - pack * N);
    }
  }
  const float total = row_sum(sum);
  const float normalizer = rsqrtf(total / static_cast<float>(a.variance_size) + a.epsilon);

  unsigned most = 0;
#pragma unroll(KEPT ? KEPT : 1)
  for (int k = 0; k < (KEPT ? KEPT : 0x7fffffff); ++k) {
    const int pack = threadIdx.x + k * blockDim.x;
    if (pack >= packs || (KEPT == 0 && s.kind == GIVEN)) break;
    if constexpr (KEPT == 0) source.read(pack, kept[0]);
    Pack<T, N>& result = normed[KEPT ? k : 0];
    result = scaled<T, ALIGNED>(kept[KEPT ? k : 0], normalizer, a, pack * N);
    if (s.kind != GIVEN) most = Most::both(most, magnitude<T, N>(result, a.size - pack * N));
  }
  float scale;
  if (s.kind == GIVEN) {
    scale = *s.scale;
  } else {
    most = row_most(most);
    scale = s.kind == FOUND ? scale_of(most, s) : __uint_as_float(most);
    if (threadIdx.x == 0) s.scale[row] = scale;
    if (s.kind == MEASURED) return;
  }
  const float inverse = __frcp_rn(scale);

#pragma unroll(KEPT ? KEPT : 1)
  for (int k = 0; k < (KEPT ? KEPT : 0x7fffffff); ++k) {
    const int pack = threadIdx.x + k * blockDim.x;
    if (pack >= packs) break;
    const int first = pack * N;
    if constexpr (KEPT == 0) {
      source.read(pack, kept[0]);
      normed[0] = scaled<T, ALIGNED>(kept[0], normalizer, a, first);
      if constexpr (FUSED) keep_sum<T, ALIGNED>(residual_out + first, kept[0], a.size - first);
    }
    const Pack<unsigned char, N> narrow = multiplied<T, N>(normed[KEPT ? k : 0], inverse, s.format);
    store<unsigned char, N, ALIGNED>(out + first, narrow, a.size - first);
  }
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(1024, 1) rms_norm_quant(const __grid_constant__ NormQuantArguments a) {
  normalize<T, ALIGNED, KEPT, false>(a);
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(1024, 1) fused_add_rms_norm_quant(const __grid_constant__ NormQuantArguments a) {
  normalize<T, ALIGNED, KEPT, true>(a);
}
