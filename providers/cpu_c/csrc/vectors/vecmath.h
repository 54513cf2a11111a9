// exp, tanh and erf over any vector struct, with the roundings that torch's vectorised CPU kernels have.
//
// torch calls Sleef (exp and tanh within one unit in the last place) and computes erf by the formula 7.1.26 of
// Abramowitz and Stegun. Its answers are the meaning of the ops, so the same polynomials are evaluated in the same
// order here; another function that is as accurate, or more so, would differ where 1 + erf or 1 + tanh cancels.
#pragma once

#include "vectors/vec.h"

namespace {

template <class V>
struct Math {
  using F = typename V::F;

  static constexpr float kLog2E = 1.442695040888963407359924681001892137f;
  static constexpr float kLn2High = 0.693145751953125f;
  static constexpr float kLn2Low = 1.428606765330187045e-06f;
  // Beyond it e^d is 0 or infinity anyway.
  static constexpr float kBound = 110.0f;

  // e^d within one unit in the last place.
  static F exp(F d) {
    // A NaN passes.
    d = V::max(V::set(-kBound), V::min(V::set(kBound), d));
    const F whole = V::whole(d * V::set(kLog2E));
    F s = V::fma(whole, V::set(-kLn2High), d);
    s = V::fma(whole, V::set(-kLn2Low), s);
    return V::scaled(exp_of_rest(s), whole);
  }

  // e^-x with the bits of exp(-x) and fewer instructions: the sign is in the constants. Some number for a NaN.
  static F exp_of_negative(F x) {
    x = V::clamped(x, kBound);
    const F whole = V::whole(x * V::set(-kLog2E));
    F s = V::fms(whole, V::set(-kLn2High), x);
    s = V::fma(whole, V::set(-kLn2Low), s);
    return V::scaled(exp_of_rest(s), whole);
  }

  // The error function to 1.5e-7: sign(x) (1 - r(t) t e^(-x x)) with t = 1 / (p |x| + 1).
  static F erf(F x) {
    const F one = V::set(1.0f);
    const F t = one / V::fma(V::set(0.3275911f), V::abs(x), one);
    F r = V::fma(V::set(1.061405429f), t, V::set(-1.453152027f));
    r = V::fma(r, t, V::set(1.421413741f));
    r = V::fma(r, t, V::set(-0.284496736f));
    r = V::fma(r, t, V::set(0.254829592f));
    return V::mulsign(V::fma(-exp(-(x * x)) * t, r, one), x);
  }

  // tanh within one unit in the last place, as (e - 1/e) / (e + 1/e) in pairs of floats.
  static F tanh(F x) {
    const Pair e = exp_pair(V::min(V::set(10.0f), V::abs(x)));
    const Pair inverse = reciprocal(e);
    const Pair ratio = divided(sum(e, {-inverse.high, -inverse.low}), sum(e, inverse));
    F y = ratio.high + ratio.low;
    y = V::select(V::less(V::set(8.664339742f), V::abs(x)), V::set(1.0f), y);
    y = V::select(V::unordered(y), V::set(1.0f), y);
    y = V::mulsign(y, x);
    return V::select(V::unordered(x), x, y);
  }

 private:
  // e^s for magnitudes up to half of ln 2.
  static F exp_of_rest(F s) {
    F u = V::set(0.000198527617612853646278381f);
    u = V::fma(u, s, V::set(0.00139304355252534151077271f));
    u = V::fma(u, s, V::set(0.00833336077630519866943359f));
    u = V::fma(u, s, V::set(0.0416664853692054748535156f));
    u = V::fma(u, s, V::set(0.166666671633720397949219f));
    u = V::fma(u, s, V::set(0.5f));
    return V::set(1.0f) + V::fma(s * s, u, s);
  }

  // An unevaluated sum with |low| far below |high|.
  struct Pair {
    F high, low;
  };

  // The sums come in two kinds, as in the original: `sum` wants |a| >= |b|, `exact_sum` does not.
  static Pair sum(Pair a, Pair b) {
    const F high = a.high + b.high;
    return {high, (((a.high - high) + b.high) + a.low) + b.low};
  }
  static Pair sum(F a, Pair b) {
    const F high = a + b.high;
    return {high, ((a - high) + b.high) + b.low};
  }
  static Pair exact_sum(Pair a, F b) {
    const F high = a.high + b;
    const F part = high - a.high;
    return {high, ((a.high - (high - part)) + (b - part)) + a.low};
  }
  static Pair exact_sum(Pair a, Pair b) {
    const F high = a.high + b.high;
    const F part = high - a.high;
    return {high, ((a.high - (high - part)) + (b.high - part)) + (a.low + b.low)};
  }
  static Pair product(Pair a, F b) {
    const F high = a.high * b;
    return {high, V::fma(a.low, b, V::fma(a.high, b, -high))};
  }
  static Pair product(Pair a, Pair b) {
    const F high = a.high * b.high;
    return {high, V::fma(a.high, b.low, V::fma(a.low, b.high, V::fma(a.high, b.high, -high)))};
  }
  static Pair square(Pair a) {
    const F high = a.high * a.high;
    return {high, V::fma(a.high + a.high, a.low, V::fma(a.high, a.high, -high))};
  }
  static Pair reciprocal(Pair a) {
    const F high = V::set(1.0f) / a.high;
    return {high, high * V::fma(-a.low, high, V::fma(-a.high, high, V::set(1.0f)))};
  }
  static Pair divided(Pair a, Pair b) {
    const F inverse = V::set(1.0f) / b.high;
    const F high = a.high * inverse;
    const F rest = V::fma(inverse, a.high, -high);
    const F error = V::fma(-b.low, inverse, V::fma(-b.high, inverse, V::set(1.0f)));
    return {high, V::fma(high, error, V::fma(a.low, inverse, rest))};
  }

  static Pair exp_pair(F d) {
    const F whole = V::whole(d * V::set(kLog2E));
    Pair s = exact_sum({d, V::set(0.0f)}, whole * V::set(-kLn2High));
    s = exact_sum(s, whole * V::set(-kLn2Low));
    F u = V::set(0.1980960224e-3f);
    u = V::fma(u, s.high, V::set(0.1394256484e-2f));
    u = V::fma(u, s.high, V::set(0.8333456703e-2f));
    u = V::fma(u, s.high, V::set(0.4166637361e-1f));
    Pair t = exact_sum(product(s, u), V::set(0.166666659414234244790680580464f));
    t = exact_sum(product(s, t), V::set(0.5f));
    t = exact_sum(s, product(square(s), t));
    t = sum(V::set(1.0f), t);
    return {V::scaled(t.high, whole), V::scaled(t.low, whole)};
  }
};

}  // namespace
