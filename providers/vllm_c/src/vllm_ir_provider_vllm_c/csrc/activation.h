// The activations of gated rows, in float32.
#pragma once

enum Activation { SILU, GELU, GELU_TANH };

template <int ACTIVATION>
__device__ __forceinline__ float activated(float v) {
  if constexpr (ACTIVATION == SILU) {
    return v / (1.0f + expf(-v));
  } else if constexpr (ACTIVATION == GELU) {
    return v * 0.5f * (1.0f + erff(v * 0.70710678118654752440f));
  } else {
    const float inner = 0.79788456080286535588f * (v + 0.044715f * (v * v * v));
    return 0.5f * v * (1.0f + tanhf(inner));
  }
}
