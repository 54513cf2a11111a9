// Four floats in NEON. What the functions mean is told in scalar.h.
#pragma once

#include <arm_neon.h>

#include "vectors/types.h"

namespace {

struct Wide {
  static constexpr int kLanes = 4;
  using F = float32x4_t;
  using I = int32x4_t;
  using M = uint32x4_t;

  static F set(float value) { return vdupq_n_f32(value); }
  static F load(const float* p) { return vld1q_f32(p); }
  static F load(const Bf16* p) { return widen_bf16(load_half(p)); }
  static F load(const F16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(load_half(p))); }
  static void store(float* p, F value) { vst1q_f32(p, value); }
  static void store(Bf16* p, F value) { vst1_u16(reinterpret_cast<uint16_t*>(p), bf16_bits(value)); }
  static void store(F16* p, F value) { vst1_u16(reinterpret_cast<uint16_t*>(p), f16_bits(value)); }
  static F rounded(F value, const float*) { return value; }
  static F rounded(F value, const Bf16*) { return widen_bf16(bf16_bits(value)); }
  static F rounded(F value, const F16*) { return vcvt_f32_f16(vcvt_f16_f32(value)); }
  static void load_pairs(const float* p, F* even, F* odd) {
    const float32x4x2_t both = vld2q_f32(p);
    *even = both.val[0];
    *odd = both.val[1];
  }
  static void load_pairs(const Bf16* p, F* even, F* odd) {
    const uint16x4x2_t both = vld2_u16(reinterpret_cast<const uint16_t*>(p));
    *even = widen_bf16(both.val[0]);
    *odd = widen_bf16(both.val[1]);
  }
  static void load_pairs(const F16* p, F* even, F* odd) {
    const uint16x4x2_t both = vld2_u16(reinterpret_cast<const uint16_t*>(p));
    *even = vcvt_f32_f16(vreinterpret_f16_u16(both.val[0]));
    *odd = vcvt_f32_f16(vreinterpret_f16_u16(both.val[1]));
  }
  static void store_pairs(float* p, F even, F odd) { vst2q_f32(p, (float32x4x2_t{{even, odd}})); }
  static void store_pairs(Bf16* p, F even, F odd) {
    vst2_u16(reinterpret_cast<uint16_t*>(p), (uint16x4x2_t{{bf16_bits(even), bf16_bits(odd)}}));
  }
  static void store_pairs(F16* p, F even, F odd) {
    vst2_u16(reinterpret_cast<uint16_t*>(p), (uint16x4x2_t{{f16_bits(even), f16_bits(odd)}}));
  }
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
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F fms(F a, F b, F c) { return vfmaq_f32(-c, a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  static F mulsign(F a, F b) {
    const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(b), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), sign));
  }
  static F min(F a, F b) { return select(less(a, b), a, b); }
  static F max(F a, F b) { return select(less(b, a), a, b); }
  static F clamped(F a, float bound) { return max(set(-bound), min(a, set(bound))); }
  static F whole(F a) { return vrndnq_f32(a); }
  static F scaled(F a, F q) {
    const I all = vcvtnq_s32_f32(q);
    const I half = vshrq_n_s32(all, 1);
    return a * power(half) * power(vsubq_s32(all, half));
  }
  static M less(F a, F b) { return vcltq_f32(a, b); }
  static M unordered(F a) { return vmvnq_u32(vceqq_f32(a, a)); }
  static F select(M mask, F yes, F no) { return vbslq_f32(mask, yes, no); }

 private:
  template <class T>
  static uint16x4_t load_half(const T* p) {
    return vld1_u16(reinterpret_cast<const uint16_t*>(p));
  }
  static F widen_bf16(uint16x4_t bits) { return vreinterpretq_f32_u32(vshll_n_u16(bits, 16)); }
  static F power(I q) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(q, vdupq_n_s32(127)), 23)); }
  static uint16x4_t bf16_bits(F value) {
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t round = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
    return vmovn_u32(vbslq_u32(unordered(value), vdupq_n_u32(0x7fc0), round));
  }
  static uint16x4_t f16_bits(F value) { return vreinterpret_u16_f16(vcvt_f16_f32(value)); }
};

}  // namespace
