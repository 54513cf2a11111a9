// The element types, and how a single element becomes a float and back. Vectors of them are left to vec.h.
//
// Everything here has internal linkage: each instruction set compiles its own copy with its own flags, and a copy made
// with newer instructions must never be linked into the path of an older CPU.
#pragma once

#include <stdint.h>

namespace {

struct Bf16 {
  uint16_t bits;
};

struct F16 {
  uint16_t bits;
};

inline float as_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float to_float(float value) { return value; }

inline float to_float(Bf16 value) { return as_float(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact
    return as_float(as_bits(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  }
  if (exponent == 31) {  // infinity or NaN; a NaN comes out quiet, as from hardware
    return as_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  }
  return as_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to nearest, ties to even; a NaN stays a NaN.
inline void from_float(float value, float* out) { *out = value; }

inline void from_float(float value, Bf16* out) {
  const uint32_t bits = as_bits(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out->bits = nan ? 0x7fc0u : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void from_float(float value, F16* out) {
  const uint32_t bits = as_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below the smallest normal: adding 0.5 rounds at the last place, 2^-24
    result = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
  } else {
    result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | result);
}

}  // namespace
