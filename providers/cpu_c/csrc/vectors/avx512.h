// Sixteen floats in AVX-512 (F, BW, VL, DQ). What the functions mean is told in scalar.h.
#pragma once

#include <immintrin.h>

#include "vectors/types.h"

namespace {

struct Wide {
  static constexpr int kLanes = 16;
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;

  static F set(float value) { return _mm512_set1_ps(value); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const Bf16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(p)), 16));
  }
  static F load(const F16* p) { return _mm512_cvtph_ps(load_half(p)); }
  static void store(float* p, F value) { _mm512_storeu_ps(p, value); }
  static void store(Bf16* p, F value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(bf16_bits(value))); }
  static void store(F16* p, F value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), f16_bits(value)); }
  static F rounded(F value, const float*) { return value; }
  static F rounded(F value, const Bf16*) {
    return _mm512_castsi512_ps(_mm512_and_si512(bf16_high(value), _mm512_set1_epi32(kHigh)));
  }
  static F rounded(F value, const F16*) { return _mm512_cvtph_ps(f16_bits(value)); }
  static void load_pairs(const float* p, F* even, F* odd) {
    const F a = load(p), b = load(p + 16);
    const I step = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *even = _mm512_permutex2var_ps(a, step, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(step, _mm512_set1_epi32(1)), b);
  }
  static void load_pairs(const Bf16* p, F* even, F* odd) {
    const I both = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(kHigh)));
  }
  static void load_pairs(const F16* p, F* even, F* odd) {
    const I both = _mm512_loadu_si512(p);
    *even = _mm512_cvtph_ps(narrow(both));
    *odd = _mm512_cvtph_ps(narrow(_mm512_srli_epi32(both, 16)));
  }
  static void store_pairs(float* p, F even, F odd) {
    const I low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    store(p, _mm512_permutex2var_ps(even, low, odd));
    store(p + 16, _mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)), odd));
  }
  static void store_pairs(Bf16* p, F even, F odd) { _mm512_storeu_si512(p, joined(even, odd)); }
  static void store_pairs(F16* p, F even, F odd) {
    const I high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(f16_bits(odd)), 16);
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_cvtepu16_epi32(f16_bits(even)), high));
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
  static F rounded_own(F value, const Bf16*) {
    return _mm512_castsi512_ps(_mm512_and_si512(bf16_high_own(value), _mm512_set1_epi32(kHigh)));
  }
  static void store_pairs_own(Bf16* p, F even, F odd) {
    const I low = _mm512_srli_epi32(bf16_high_own(even), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, low, bf16_high_own(odd)));
  }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F mulsign(F a, F b) {
    const I sign = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(INT32_MIN));
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), sign));
  }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  // The smaller magnitude with the sign of a, in one instruction.
  static F clamped(F a, float bound) { return _mm512_range_ps(a, set(bound), 2); }
  static F whole(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scaled(F a, F q) { return _mm512_scalef_ps(a, q); }
  static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static M unordered(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static F select(M mask, F yes, F no) { return _mm512_mask_blend_ps(mask, no, yes); }

 private:
  template <class T>
  static __m256i load_half(const T* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static constexpr int kHigh = static_cast<int>(0xffff0000u);
  // Rounded to bfloat16 in the upper 16 bits; the lower ones are rubbish.
  static I bf16_high(F value) {
    return _mm512_mask_blend_epi32(unordered(value), bf16_high_own(value), _mm512_set1_epi32(0x7fc00000));
  }
  static I bf16_high_own(F value) {
    const I bits = _mm512_castps_si512(value);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const I round = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_sub_epi32(round, odd, round, _mm512_set1_epi32(-1));
  }
  static I bf16_bits(F value) { return _mm512_srli_epi32(bf16_high(value), 16); }
  static I joined(F even, F odd) { return _mm512_mask_blend_epi16(0xaaaaaaaau, bf16_bits(even), bf16_high(odd)); }
  static __m256i f16_bits(F value) { return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static __m256i narrow(I wide) { return _mm512_cvtepi32_epi16(wide); }
};

}  // namespace
