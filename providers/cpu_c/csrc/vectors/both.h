// Two vectors taken together.
#pragma once

#include "vectors/types.h"

namespace {

// Two vectors taken together, with the interface of one: twice the work in flight. kPairs: the first holds the even
// elements and the second the odd ones, which for bfloat16 is a shift and a mask where widening is a shuffle; otherwise
// they hold the first and the second half. Nothing that is computed per element depends on the order.
template <class V, bool kPairs>
struct Both {
  static constexpr int kLanes = 2 * V::kLanes;
  struct F {
    typename V::F a, b;
    friend F operator+(F x, F y) { return {x.a + y.a, x.b + y.b}; }
    friend F operator-(F x, F y) { return {x.a - y.a, x.b - y.b}; }
    friend F operator*(F x, F y) { return {x.a * y.a, x.b * y.b}; }
    friend F operator/(F x, F y) { return {x.a / y.a, x.b / y.b}; }
    friend F operator-(F x) { return {-x.a, -x.b}; }
  };
  struct M {
    typename V::M a, b;
  };

  static F set(float value) { return {V::set(value), V::set(value)}; }
  template <class T>
  static F load(const T* p) {
    F value;
    if constexpr (kPairs) {
      V::load_pairs(p, &value.a, &value.b);
    } else {
      value = {V::load(p), V::load(p + V::kLanes)};
    }
    return value;
  }
  template <class T>
  static void store(T* p, F value) {
    if constexpr (kPairs) {
      V::store_pairs(p, value.a, value.b);
    } else {
      V::store(p, value.a);
      V::store(p + V::kLanes, value.b);
    }
  }
  template <class T>
  static F rounded(F value, const T* p) {
    return {V::rounded(value.a, p), V::rounded(value.b, p)};
  }
  template <class T>
  static F rounded_own(F value, const T* p) {
    return {V::rounded_own(value.a, p), V::rounded_own(value.b, p)};
  }
  template <class T>
  static void store_own(T* p, F value) {
    if constexpr (kPairs) {
      V::store_pairs_own(p, value.a, value.b);
    } else {
      V::store_own(p, value.a);
      V::store_own(p + V::kLanes, value.b);
    }
  }
  static F fms(F x, F y, F z) { return {V::fms(x.a, y.a, z.a), V::fms(x.b, y.b, z.b)}; }
  static F clamped(F x, float bound) { return {V::clamped(x.a, bound), V::clamped(x.b, bound)}; }
  static F fma(F x, F y, F z) { return {V::fma(x.a, y.a, z.a), V::fma(x.b, y.b, z.b)}; }
  static F abs(F x) { return {V::abs(x.a), V::abs(x.b)}; }
  static F mulsign(F x, F y) { return {V::mulsign(x.a, y.a), V::mulsign(x.b, y.b)}; }
  static F min(F x, F y) { return {V::min(x.a, y.a), V::min(x.b, y.b)}; }
  static F max(F x, F y) { return {V::max(x.a, y.a), V::max(x.b, y.b)}; }
  static F whole(F x) { return {V::whole(x.a), V::whole(x.b)}; }
  static F scaled(F x, F q) { return {V::scaled(x.a, q.a), V::scaled(x.b, q.b)}; }
  static M less(F x, F y) { return {V::less(x.a, y.a), V::less(x.b, y.b)}; }
  static M unordered(F x) { return {V::unordered(x.a), V::unordered(x.b)}; }
  static F select(M mask, F yes, F no) { return {V::select(mask.a, yes.a, no.a), V::select(mask.b, yes.b, no.b)}; }
};

}  // namespace
