// Root-mean-square normalisation, alone and after a residual addition.
//
// A row is cut into packs of 16 bytes; thread t has the packs t, t + blockDim.x, ... Which thread has which element, and
// so the order of the sum, depends on the size of a row alone: not on the number of rows, not on alignment.
// Up to KEPT packs stay in registers between sum and result, so that each input is read once; KEPT = 0 reads it again.
#include "numbers.h"
#include "rows.h"
#include "sum.h"

enum Weight { NONE, AS_X, FLOAT32 };

struct NormArguments {
  Rows x, residual;
  void *out, *residual_out;  // contiguous; they may be x and residual themselves
  const void* weight;
  long long rows;
  int size, variance_size, weight_kind;
  float epsilon;
};

// One pack of a row in float32: x, or the unrounded sum of x and residual.
template <typename T, bool ALIGNED, bool FUSED>
struct Source {
  static constexpr int N = per_access<T>();
  const T *x, *residual;
  int size;

  __device__ __forceinline__ void read(int pack, float (&v)[N]) const {
    const int first = pack * N;
    const Pack<T, N> a = load<T, N, ALIGNED>(x + first, size - first);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = Number<T>::widen(a.at[i]);
    if constexpr (FUSED) {
      const Pack<T, N> b = load<T, N, ALIGNED>(residual + first, size - first);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] += Number<T>::widen(b.at[i]);
    }
  }
};

// The squares of those elements of a pack that the variance is of.
template <int N>
__device__ __forceinline__ float squares(const float (&v)[N], int left) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += i < left ? v[i] * v[i] : 0.0f;
  return sum;
}

// The normalised pack: rounded to the weight's type before the multiply, the product to the type of x.
template <typename T, bool ALIGNED>
__device__ __forceinline__ Pack<T, per_access<T>()> scaled(const float (&v)[per_access<T>()], float scale,
                                                           const NormArguments& a, int first) {
  constexpr int N = per_access<T>();
  Pack<T, N> out;
  if (a.weight_kind == AS_X) {
    const Pack<T, N> w = load<T, N, ALIGNED>(static_cast<const T*>(a.weight) + first, a.size - first);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      out.at[i] = Number<T>::round(rounded<T>(v[i] * scale) * Number<T>::widen(w.at[i]));
    }
  } else if (a.weight_kind == FLOAT32) {
    const Pack<float, N> w = load<float, N, ALIGNED>(static_cast<const float*>(a.weight) + first, a.size - first);
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = Number<T>::round(v[i] * scale * w.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = Number<T>::round(v[i] * scale);
  }
  return out;
}

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
    if constexpr (FUSED) {
      Pack<T, N> added;
#pragma unroll
      for (int i = 0; i < N; ++i) added.at[i] = Number<T>::round(v[i]);
      store<T, N, ALIGNED>(residual_out + first, added, a.size - first);
    }
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
