// From the largest magnitude of a row, a tensor or a group to its scale. Magnitudes are bits of floats without a sign:
// their order is that of the floats, and a NaN is above all.
#pragma once

#include "abi.h"
#include "kernels/fp8.h"

namespace {

constexpr float kLeastPeak = 1e-10f;

// The scale of a row or a tensor: its peak, cut by a bound, over the limit; at least one over 512 times the limit.
inline float scale_of_peak(uint32_t peak, const float* bound, int32_t quantized) {
  const float limit = limit_of(quantized);
  float value = as_float(peak);
  if (bound != nullptr && !(value != value) && !(*bound > value)) value = *bound;  // a NaN of either stays
  const float scale = value / limit;
  const float least = static_cast<float>(1.0 / (static_cast<double>(limit) * 512.0));
  return scale < least ? least : scale;
}

// The scale of a group: its peak, at least 1e-10, over the limit; rounded up to a power of two if asked.
inline float scale_of_group(uint32_t peak, bool power_of_two, int32_t quantized) {
  const float value = peak < as_bits(kLeastPeak) ? kLeastPeak : as_float(peak);
  const float scale = value / limit_of(quantized);
  if (!power_of_two || scale != scale) return scale;
  return as_float((as_bits(scale) + 0x007fffffu) & 0x7f800000u);
}

}  // namespace
