// The sum of squares of a row, in the one order that torch's own sum has.
#pragma once

#include "vectors/scalar.h"

namespace {

#if defined(__aarch64__)
constexpr int kSumLanes = 4;
#else
constexpr int kSumLanes = 8;
#endif
constexpr int kSumStep = 4 * kSumLanes;

inline int ceil_log2(int64_t n) { return n <= 2 ? 1 : 64 - __builtin_clzll(static_cast<unsigned long long>(n - 1)); }

// The sum of square(V(), i) over i < size, in the one order that torch's own float sum has over a contiguous row:
// kSumLanes lanes times four accumulators, in four levels so that large counts lose nothing. It depends on the size of
// the row alone, so a row has the same sum in any batch, at any place and on any number of threads.
template <class V, class Square>
inline __attribute__((always_inline)) float sum_of_squares(int64_t size, Square square) {
  constexpr int kLevels = 4;
  constexpr int kVectors = kSumStep / V::kLanes;
  if (size < kSumLanes) {
    float part[4] = {};
    const int64_t whole = size / 4 * 4;
    for (int64_t i = 0; i < whole; ++i) part[i % 4] += square(Scalar(), i);
    for (int64_t i = whole; i < size; ++i) part[0] += square(Scalar(), i);
    return ((part[0] + part[1]) + part[2]) + part[3];
  }
  const int64_t steps = size / kSumStep;
  const int power = ceil_log2(steps) / kLevels > 4 ? ceil_log2(steps) / kLevels : 4;
  const int64_t block = int64_t{1} << power;
  const int64_t mask = block - 1;
  typename V::F level[kLevels][kVectors];
  for (int j = 0; j < kLevels; ++j) {
    for (int k = 0; k < kVectors; ++k) level[j][k] = V::set(0.0f);
  }
  int64_t i = 0;
  while (i + block <= steps) {
    typename V::F sum[kVectors];
    for (int k = 0; k < kVectors; ++k) sum[k] = V::set(0.0f);
    for (const int64_t end = i + block; i < end; ++i) {
      for (int k = 0; k < kVectors; ++k) sum[k] = sum[k] + square(V(), i * kSumStep + k * V::kLanes);
    }
    for (int k = 0; k < kVectors; ++k) level[1][k] = level[1][k] + sum[k];
    for (int j = 1; j < kLevels - 1 && (i & (mask << (j * power))) == 0; ++j) {
      for (int k = 0; k < kVectors; ++k) {
        level[j + 1][k] = level[j + 1][k] + level[j][k];
        level[j][k] = V::set(0.0f);
      }
    }
  }
  for (; i < steps; ++i) {
    for (int k = 0; k < kVectors; ++k) {
      level[0][k] = level[0][k] + square(V(), i * kSumStep + k * V::kLanes);
    }
  }
  float part[kSumStep];
  for (int k = 0; k < kVectors; ++k) {
    V::store(part + k * V::kLanes, ((level[0][k] + level[1][k]) + level[2][k]) + level[3][k]);
  }
  const int64_t vectors = size / kSumLanes * kSumLanes;
  for (int64_t at = steps * kSumStep; at < vectors; at += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) part[lane] += square(Scalar(), at + lane);
  }
  for (int k = 1; k < 4; ++k) {
    for (int lane = 0; lane < kSumLanes; ++lane) part[lane] += part[k * kSumLanes + lane];
  }
  float total = 0.0f;
  for (int64_t at = vectors; at < size; ++at) total += square(Scalar(), at);
  for (int lane = 0; lane < kSumLanes; ++lane) total += part[lane];
  return total;
}

}  // namespace
