// Gated activations: the first half of a row through an activation, rounded, times the second half.
//
// A block is blockDim.x threads along a row by blockDim.y rows; each thread has two packs of 16 bytes of either half.
#include "activation.h"
#include "numbers.h"
#include "rows.h"

struct GateArguments {
  Rows x;
  void* out;  // contiguous
  long long rows;
  int size;     // of one half
  int columns;  // blocks along a row
};

template <typename T, bool ALIGNED, int ACTIVATION>
__global__ void __launch_bounds__(256) gate(const __grid_constant__ GateArguments a) {
  constexpr int N = per_access<T>(), PACKS = 2;
  const int column = blockIdx.x % a.columns;
  const long long row = static_cast<long long>(blockIdx.x / a.columns) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const T* gates = a.x.at<const T>(row);
  const T* ups = gates + a.size;
  T* out = static_cast<T*>(a.out) + row * a.size;
  Pack<T, N> g[PACKS], u[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int first = ((column * PACKS + k) * blockDim.x + threadIdx.x) * N;
    if (first < a.size) {
      g[k] = load<T, N, ALIGNED>(gates + first, a.size - first);
      u[k] = load<T, N, ALIGNED>(ups + first, a.size - first);
    }
  }
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int first = ((column * PACKS + k) * blockDim.x + threadIdx.x) * N;
    if (first < a.size) {
      Pack<T, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float active = rounded<T>(activated<ACTIVATION>(Number<T>::widen(g[k].at[i])));
        result.at[i] = Number<T>::round(active * Number<T>::widen(u[k].at[i]));
      }
      store<T, N, ALIGNED>(out + first, result, a.size - first);
    }
  }
}
