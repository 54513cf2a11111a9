// Root-mean-square normalisation of each head of query and key, rounded as alone, then the rotary position embedding.
//
// A head has blockDim.x neighbours of a warp, and a block blockDim.y heads, of whichever tokens. A head is read for its
// sum, in the order of norm.cu, and again for its result, which the same threads have just brought into the cache; in place, each number of the
// second reading is written by the thread that read it, and all of the first are in the sum by then.
#include "norm.h"
#include "rotary.h"
#include "sum.h"

struct QkNormArguments {
  RotaryArguments rotary;
  const void *query_weight, *key_weight;
  long long rows;
  int query_kind, key_kind;  // a Weight each
  float epsilon;
};

// Normalised numbers of a head, the first of them number `first`.
template <typename T, int N, bool ALIGNED>
struct Normalized {
  const T* from;
  float scale;
  const void* weight;
  int kind, head_size;

  __device__ __forceinline__ Pack<T, N> read(int first) const {
    const Pack<T, N> pack = load<T, N, ALIGNED>(from + first, N);
    float v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = Number<T>::widen(pack.at[i]);
    return scaled<T, N, ALIGNED>(v, scale, weight, kind, first, head_size);
  }
};

// A head, PAIRS pairs at a time.
template <typename T, int PAIRS, bool NEOX>
__device__ __forceinline__ void turn_head(const RotaryArguments& a, const Normalized<T, 2 * PAIRS, (PAIRS > 1)>& whole,
                                          T* to, long long offset) {
  constexpr bool ALIGNED = PAIRS > 1;  // a single pair need not be aligned to its own size
  const int half = a.rotary_dim / 2;
  const Normalized<T, PAIRS, ALIGNED> part{whole.from, whole.scale, whole.weight, whole.kind, whole.head_size};
  for (int pair = threadIdx.x * PAIRS; pair < half; pair += blockDim.x * PAIRS) {
    const Pack<T, PAIRS> cosines = angles<T, PAIRS>(a, offset + pair);
    const Pack<T, PAIRS> sines = angles<T, PAIRS>(a, offset + half + pair);
    Pack<T, PAIRS> first, second;
    if constexpr (NEOX) {
      first = part.read(pair), second = part.read(half + pair);
      turn(first, second, cosines, sines);
      store<T, PAIRS, true>(to + pair, first, PAIRS);
      store<T, PAIRS, true>(to + half + pair, second, PAIRS);
    } else {
      Pack<T, 2 * PAIRS> both = whole.read(2 * pair);
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) first.at[i] = both.at[2 * i], second.at[i] = both.at[2 * i + 1];
      turn(first, second, cosines, sines);
#pragma unroll
      for (int i = 0; i < PAIRS; ++i) both.at[2 * i] = first.at[i], both.at[2 * i + 1] = second.at[i];
      store<T, 2 * PAIRS, ALIGNED>(to + 2 * pair, both, 2 * PAIRS);
    }
  }
  for (int i = a.rotary_dim + threadIdx.x * PAIRS; i < a.head_size; i += blockDim.x * PAIRS) {
    store<T, PAIRS, true>(to + i, part.read(i), PAIRS);
  }
}

template <typename T, int PAIRS, bool NEOX>
__global__ void __launch_bounds__(256) qk_norm_rope(const __grid_constant__ QkNormArguments arguments) {
  constexpr int N = per_access<T>();
  const RotaryArguments& a = arguments.rotary;
  const long long number = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int heads = a.query.heads + a.key.heads;
  const bool mine = number < arguments.rows * heads;  // whose warp may have others': all take part in the shuffles
  const long long token = mine ? number / heads : 0;
  const int place = mine ? static_cast<int>(number % heads) : 0;
  const bool is_query = place < a.query.heads;
  const Heads& h = is_query ? a.query : a.key;
  const int head = is_query ? place : place - a.query.heads;
  const T* from = h.from.at<const T>(token) + head * h.from_stride;

  float sum = 0.0f;
  if (mine) {
    for (int first = threadIdx.x * N; first < a.head_size; first += blockDim.x * N) {
      const Pack<T, N> pack = load<T, N, (PAIRS > 1)>(from + first, a.head_size - first);
      float v[N];
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = Number<T>::widen(pack.at[i]);
      sum += squares<N>(v, a.head_size - first);
    }
  }
  const float total = lanes_fold<Add>(sum, blockDim.x);
  if (!mine) return;
  const long long position = position_of(a, token);
  if (position < 0 || position >= a.cache_rows) {
    __trap();
    return;
  }
  const float scale = rsqrtf(total / static_cast<float>(a.head_size) + arguments.epsilon);
  const void* weight = is_query ? arguments.query_weight : arguments.key_weight;
  const int kind = is_query ? arguments.query_kind : arguments.key_kind;
  const Normalized<T, 2 * PAIRS, (PAIRS > 1)> whole{from, scale, weight, kind, a.head_size};
  turn_head<T, PAIRS, NEOX>(a, whole, h.to.at<T>(token) + head * h.to_stride, position * a.cache_stride);
}
