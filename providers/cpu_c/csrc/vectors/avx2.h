// Eight floats in AVX2 with FMA and F16C. What the functions mean is told in scalar.h.
#pragma once

#include <immintrin.h>

#include "vectors/types.h"

namespace {

struct Wide {
  static constexpr int kLanes = 8;
  using F = __m256;
  using I = __m256i;
  using M = __m256;

  static F set(float value) { return _mm256_set1_ps(value); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const Bf16* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16));
  }
  static F load(const F16* p) { return _mm256_cvtph_ps(load_half(p)); }
  static void store(float* p, F value) { _mm256_storeu_ps(p, value); }
  static void store(Bf16* p, F value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(bf16_bits(value))); }
  static void store(F16* p, F value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), f16_bits(value)); }
  static F rounded(F value, const float*) { return value; }
  static F rounded(F value, const Bf16*) {
    return _mm256_castsi256_ps(_mm256_and_si256(bf16_high(value), _mm256_set1_epi32(kHigh)));
  }
  static F rounded(F value, const F16*) { return _mm256_cvtph_ps(f16_bits(value)); }
  static void load_pairs(const float* p, F* even, F* odd) {
    const __m256 a = load(p), b = load(p + 8);
    *even = ordered(_mm256_shuffle_ps(a, b, 0x88));
    *odd = ordered(_mm256_shuffle_ps(a, b, 0xdd));
  }
  static void load_pairs(const Bf16* p, F* even, F* odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(kHigh)));
  }
  static void load_pairs(const F16* p, F* even, F* odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    *even = _mm256_cvtph_ps(narrow(_mm256_and_si256(both, _mm256_set1_epi32(0xffff))));
    *odd = _mm256_cvtph_ps(narrow(_mm256_srli_epi32(both, 16)));
  }
  static void store_pairs(float* p, F even, F odd) {
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    store(p, _mm256_permute2f128_ps(low, high, 0x20));
    store(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
  static void store_pairs(Bf16* p, F even, F odd) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), joined(even, odd));
  }
  static void store_pairs(F16* p, F even, F odd) {
    const I high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(f16_bits(odd)), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(_mm256_cvtepu16_epi32(f16_bits(even)), high));
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
    return _mm256_castsi256_ps(_mm256_and_si256(bf16_high_own(value), _mm256_set1_epi32(kHigh)));
  }
  static void store_pairs_own(Bf16* p, F even, F odd) {
    const I low = _mm256_srli_epi32(bf16_high_own(even), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi16(low, bf16_high_own(odd), 0xaa));
  }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  static F abs(F a) { return _mm256_andnot_ps(set(-0.0f), a); }
  static F mulsign(F a, F b) { return _mm256_xor_ps(a, _mm256_and_ps(b, set(-0.0f))); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F clamped(F a, float bound) { return max(set(-bound), min(a, set(bound))); }
  static F whole(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scaled(F a, F q) {
    const I all = _mm256_cvtps_epi32(q);
    const I half = _mm256_srai_epi32(all, 1);
    return a * power(half) * power(_mm256_sub_epi32(all, half));
  }
  static M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static M unordered(F a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  static F select(M mask, F yes, F no) { return _mm256_blendv_ps(no, yes, mask); }

 private:
  template <class T>
  static __m128i load_half(const T* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static F power(I q) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(q, _mm256_set1_epi32(127)), 23));
  }
  static constexpr int kHigh = static_cast<int>(0xffff0000u);
  // Rounded to bfloat16 in the upper 16 bits; the lower ones are rubbish.
  static I bf16_high(F value) {
    const I nan = _mm256_castps_si256(unordered(value));
    return _mm256_blendv_epi8(bf16_high_own(value), _mm256_set1_epi32(0x7fc00000), nan);
  }
  static I bf16_high_own(F value) {
    const I bits = _mm256_castps_si256(value);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  }
  static I bf16_bits(F value) { return _mm256_srli_epi32(bf16_high(value), 16); }
  static I joined(F even, F odd) { return _mm256_blend_epi16(bf16_bits(even), bf16_high(odd), 0xaa); }
  static __m128i f16_bits(F value) { return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // Eight 32-bit integers below 65536 as eight 16-bit ones.
  static __m128i narrow(I wide) {
    return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  }
  static F ordered(F value) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(value), 0xd8));
  }
};

}  // namespace
