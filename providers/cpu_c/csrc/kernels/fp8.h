// Floats to 8-bit floats, without a branch, so that compilers make vectors of it: clamped to the limit that the ops
// have, rounded to the nearest even. What is multiplied or divided before that is left to quant.h.
#pragma once

#include "abi.h"
#include "vectors/types.h"

namespace {

struct E4m3fn {
  static constexpr float kLimit = 448.0f;
  static constexpr int kBias = 7, kMantissa = 3;
  static constexpr uint32_t kNan = 0x7f;
  static constexpr bool kSignedZero = true;
};

// Its largest value is 240; the ops stop at 224, as vLLM does.
struct E4m3fnuz {
  static constexpr float kLimit = 224.0f;
  static constexpr int kBias = 8, kMantissa = 3;
  static constexpr uint32_t kNan = 0x80;
  static constexpr bool kSignedZero = false;
};

struct E5m2 {
  static constexpr float kLimit = 57344.0f;
  static constexpr int kBias = 15, kMantissa = 2;
  static constexpr uint32_t kNan = 0x7f;
  static constexpr bool kSignedZero = true;
};

template <class Q>
inline uint8_t to_fp8(float value) {
  constexpr int kCut = 23 - Q::kMantissa;
  constexpr uint32_t kHalf = (1u << (kCut - 1)) - 1u;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - Q::kBias) << 23;
  // The smallest normal number, and the float whose last place is the smallest subnormal one: adding it rounds there.
  constexpr uint32_t kNormal = static_cast<uint32_t>(128 - Q::kBias) << 23;
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 23 + 1 - Q::kBias - Q::kMantissa) << 23;
  const uint32_t bits = as_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t full = bits & 0x7fffffffu;
  const uint32_t limit = as_bits(Q::kLimit);
  const uint32_t magnitude = full < limit ? full : limit;
  const uint32_t small = as_bits(as_float(magnitude) + as_float(kMagic)) - kMagic;
  const uint32_t large = (magnitude - kRebias + kHalf + ((magnitude >> kCut) & 1u)) >> kCut;
  const uint32_t found = magnitude < kNormal ? small : large;
  const uint32_t signed_found = Q::kSignedZero || found != 0u ? found | sign : 0u;
  const uint32_t nan = Q::kSignedZero ? Q::kNan | sign : Q::kNan;
  return static_cast<uint8_t>(full > 0x7f800000u ? nan : signed_found);
}

inline float limit_of(int32_t quantized) {
  switch (quantized) {
    case VLLM_IR_E4M3FN:
      return E4m3fn::kLimit;
    case VLLM_IR_E4M3FNUZ:
      return E4m3fnuz::kLimit;
    default:
      return E5m2::kLimit;
  }
}

}  // namespace
