// Quantisation to 8-bit floating point, of rows as they are and of gated rows: with a scale that is given, one for each
// row, and one for each group of a row.
#include "activation.h"
#include "fp8.h"
#include "rows.h"
#include "sum.h"

struct QuantArguments {
  Rows x;
  void* out;  // contiguous
  Scaling scaling;
  long long rows, row_step, group_step;  // steps between scales, from row to row and from group to group
  int size, per_channel;                 // of a row of the result; whether `scaling.scale` has a value for each element
  int columns;                           // blocks along a row; groups of a row
  int group_size;
  int power_of_two;  // whether scales of groups are rounded up to one
};

// One pack of what is quantised: x, or silu of its first half, rounded, times the second, rounded.
template <typename T, bool ALIGNED, bool GATED>
struct Unquantized {
  static constexpr int N = per_access<T>();
  const T* x;
  int size;

  __device__ __forceinline__ Pack<T, N> read(int first, int end) const {
    Pack<T, N> pack = load<T, N, ALIGNED>(x + first, end - first);
    if constexpr (GATED) {
      const Pack<T, N> up = load<T, N, ALIGNED>(x + size + first, end - first);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float active = rounded<T>(activated<SILU>(Number<T>::widen(pack.at[i])));
        pack.at[i] = Number<T>::round(active * Number<T>::widen(up.at[i]));
      }
    }
    return pack;
  }
};

// A scale that is given. As in gate.cu, a block is blockDim.x threads along a row by blockDim.y rows.
template <typename T, bool ALIGNED, int PACKS, bool GATED>
__device__ __forceinline__ void quantize_given(const QuantArguments& a) {
  constexpr int N = per_access<T>();
  const int column = blockIdx.x % a.columns;
  const long long row = static_cast<long long>(blockIdx.x / a.columns) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const Unquantized<T, ALIGNED, GATED> source{a.x.at<const T>(row), a.size};
  unsigned char* out = static_cast<unsigned char*>(a.out) + row * a.size;
  const float inverse = __frcp_rn(*a.scaling.scale);
  Pack<T, N> kept[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int first = ((column * PACKS + k) * blockDim.x + threadIdx.x) * N;
    if (first < a.size) kept[k] = source.read(first, a.size);
  }
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int first = ((column * PACKS + k) * blockDim.x + threadIdx.x) * N;
    if (first >= a.size) break;
    if (!GATED && a.per_channel) {
      const Pack<float, N> scales = load<float, N, ALIGNED>(a.scaling.scale + first, a.size - first);
      float v[N];
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = __fmul_rn(Number<T>::widen(kept[k].at[i]), __frcp_rn(scales.at[i]));
      store<unsigned char, N, ALIGNED>(out + first, narrowed<N>(v, a.scaling.format), a.size - first);
    } else {
      const Pack<unsigned char, N> narrow = multiplied<T, N>(kept[k], inverse, a.scaling.format);
      store<unsigned char, N, ALIGNED>(out + first, narrow, a.size - first);
    }
  }
}

// A scale for each row, or the largest magnitude of each row in its place. Threads, packs and KEPT are as in norm.cu.
template <typename T, bool ALIGNED, int KEPT, bool GATED>
__device__ __forceinline__ void quantize_rows(const QuantArguments& a) {
  constexpr int N = per_access<T>();
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // only where a row is a warp's, which then leaves as a whole
  const Unquantized<T, ALIGNED, GATED> source{a.x.at<const T>(row), a.size};
  unsigned char* out = static_cast<unsigned char*>(a.out) + row * a.size;
  const int packs = (a.size + N - 1) / N;

  Pack<T, N> kept[KEPT ? KEPT : 1];
  unsigned most = 0;
  if constexpr (KEPT) {
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
      const int pack = threadIdx.x + k * blockDim.x;
      if (pack < packs) kept[k] = source.read(pack * N, a.size);
    }
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
      const int pack = threadIdx.x + k * blockDim.x;
      if (pack < packs) most = Most::both(most, magnitude<T, N>(kept[k], a.size - pack * N));
    }
  } else {
#pragma unroll 1
    for (int pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      most = Most::both(most, magnitude<T, N>(source.read(pack * N, a.size), a.size - pack * N));
    }
  }
  most = row_most(most);
  if (a.scaling.kind == MEASURED) {
    if (threadIdx.x == 0) a.scaling.scale[row] = __uint_as_float(most);
    return;
  }
  const float scale = scale_of(most, a.scaling);
  if (threadIdx.x == 0) a.scaling.scale[row] = scale;
  const float inverse = __frcp_rn(scale);

#pragma unroll(KEPT ? KEPT : 1)
  for (int k = 0; k < (KEPT ? KEPT : 0x7fffffff); ++k) {
    const int pack = threadIdx.x + k * blockDim.x;
    if (pack >= packs) break;
    const int first = pack * N;
    if constexpr (KEPT == 0) kept[0] = source.read(first, a.size);
    const Pack<unsigned char, N> narrow = multiplied<T, N>(kept[KEPT ? k : 0], inverse, a.scaling.format);
    store<unsigned char, N, ALIGNED>(out + first, narrow, a.size - first);
  }
}

// A scale for each group of a row. A block is blockDim.x neighbours of a warp for one group by blockDim.y groups; KEPT
// says that a thread has one pack of it at most.
template <typename T, bool ALIGNED, int KEPT, bool GATED>
__device__ __forceinline__ void quantize_groups(const QuantArguments& a) {
  constexpr int N = per_access<T>();
  const long long number = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool mine = number < a.rows * a.columns;  // whose warp may have others': all take part in the shuffles
  const long long row = mine ? number / a.columns : 0;
  const int group = mine ? static_cast<int>(number % a.columns) : 0;
  const int begin = group * a.group_size, end = mine ? begin + a.group_size : begin;
  const Unquantized<T, ALIGNED, GATED> source{a.x.at<const T>(row), a.size};
  unsigned char* out = static_cast<unsigned char*>(a.out) + row * a.size;
  const int step = blockDim.x * N;

  Pack<T, N> kept;
  unsigned most = 0;
  const int first = begin + threadIdx.x * N;
  if constexpr (KEPT) {
    if (first < end) {
      kept = source.read(first, end);
      most = magnitude<T, N>(kept, end - first);
    }
  } else {
#pragma unroll 1
    for (int at = first; at < end; at += step) most = Most::both(most, magnitude<T, N>(source.read(at, end), end - at));
  }
  const float scale = group_scale(lanes_fold<Most>(most, blockDim.x), a.scaling, a.power_of_two);
  if (mine && threadIdx.x == 0) a.scaling.scale[row * a.row_step + group * a.group_step] = scale;

#pragma unroll 1
  for (int at = first; at < end; at += step) {
    if constexpr (KEPT == 0) kept = source.read(at, end);
    store<unsigned char, N, ALIGNED>(out + at, divided<T, N>(kept, scale, a.scaling.format), end - at);
    if constexpr (KEPT) break;
  }
}

// The scale of a tensor, from the magnitudes of its rows in the place of x, by one block; for no rows the least scale.
__global__ void __launch_bounds__(1024) tensor_scale(const __grid_constant__ QuantArguments a) {
  unsigned most = 0;
  const float* magnitudes = static_cast<const float*>(a.x.data);
  for (long long i = threadIdx.x; i < a.rows; i += blockDim.x) most = Most::both(most, __float_as_uint(magnitudes[i]));
  most = row_most(most);
  if (threadIdx.x == 0) *a.scaling.scale = scale_of(most, a.scaling);
}

template <typename T, bool ALIGNED, int PACKS>
__global__ void __launch_bounds__(256) static_quant(const __grid_constant__ QuantArguments a) {
  quantize_given<T, ALIGNED, PACKS, false>(a);
}

template <typename T, bool ALIGNED, int PACKS>
__global__ void __launch_bounds__(256) silu_static_quant(const __grid_constant__ QuantArguments a) {
  quantize_given<T, ALIGNED, PACKS, true>(a);
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(1024, 1) row_quant(const __grid_constant__ QuantArguments a) {
  quantize_rows<T, ALIGNED, KEPT, false>(a);
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(1024, 1) silu_row_quant(const __grid_constant__ QuantArguments a) {
  quantize_rows<T, ALIGNED, KEPT, true>(a);
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(256) group_quant(const __grid_constant__ QuantArguments a) {
  quantize_groups<T, ALIGNED, KEPT, false>(a);
}

template <typename T, bool ALIGNED, int KEPT>
__global__ void __launch_bounds__(256) silu_group_quant(const __grid_constant__ QuantArguments a) {
  quantize_groups<T, ALIGNED, KEPT, true>(a);
}
