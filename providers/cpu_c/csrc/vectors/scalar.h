// One float at a time, as every other struct of vectors does with several: the reference for them, and the end of rows.
#pragma once

#include "vectors/types.h"

namespace {

struct Scalar {
  static constexpr int kLanes = 1;
  using F = float;
  using M = bool;

  static F set(float value) { return value; }
  static F load(const float* p) { return *p; }
  template <class T>
  static F load(const T* p) {
    return to_float(*p);
  }
  template <class T>
  static void store(T* p, F value) {
    from_float(value, p);
  }
  // The value after a round trip through T.
  template <class T>
  static F rounded(F value, const T*) {
    T narrow;
    from_float(value, &narrow);
    return to_float(narrow);
  }
  template <class T>
  static void load_pairs(const T* p, F* even, F* odd) {
    *even = to_float(p[0]);
    *odd = to_float(p[1]);
  }
  template <class T>
  static void store_pairs(T* p, F even, F odd) {
    from_float(even, p);
    from_float(odd, p + 1);
  }
  // The same three for values whose NaNs, if they have any, come from a T: a NaN then needs no care when it is rounded,
  // because the bits that are cut off are zero.
  template <class T>
  static F rounded_own(F value, const T* p) {
    return rounded(value, p);
  }
  template <class T>
  static void store_own(T* p, F value) {
    store(p, value);
  }
  template <class T>
  static void store_pairs_own(T* p, F even, F odd) {
    store_pairs(p, even, odd);
  }
  static F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
  // a * b - c, rounded once.
  static F fms(F a, F b, F c) { return __builtin_fmaf(a, b, -c); }
  static F abs(F a) { return __builtin_fabsf(a); }
  // Takes the sign bit of b into a by exclusive or.
  static F mulsign(F a, F b) { return as_float(as_bits(a) ^ (as_bits(b) & 0x80000000u)); }
  // b where either is NaN.
  static F min(F a, F b) { return a < b ? a : b; }
  static F max(F a, F b) { return a > b ? a : b; }
  // a, or the nearer of -bound and bound; a number for a NaN.
  static F clamped(F a, float bound) { return max(-bound, min(a, bound)); }
  // The nearest whole number, ties to even.
  static F whole(F a) { return __builtin_rintf(a); }
  // a * 2^q for a whole q of at most 200 either way, rounded once; anything for a NaN in q.
  static F scaled(F a, F q) {
    const int32_t all = q == q ? static_cast<int32_t>(q) : 0;
    const int32_t half = all >> 1;
    return a * power(half) * power(all - half);
  }
  static M less(F a, F b) { return a < b; }
  static M unordered(F a) { return a != a; }
  static F select(M mask, F yes, F no) { return mask ? yes : no; }

 private:
  static F power(int32_t q) { return as_float(static_cast<uint32_t>(q + 127) << 23); }
};

}  // namespace
