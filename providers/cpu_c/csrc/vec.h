// One instruction set as a struct of static functions over its widest float register; the kernels are written once
// over such a struct. What is computed is left to math.h and kernels.h.
//
// Every struct gives the same results bit for bit: conversions round to nearest even, fma is fused everywhere, and no
// operation is approximate. Arithmetic is written with the operators that compilers define on vector types; the build
// switches contraction off, so a * b + c rounds twice.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "types.h"

#if defined(VLLM_IR_AVX2) || defined(VLLM_IR_AVX512)
#include <immintrin.h>
#elif defined(VLLM_IR_NEON)
#include <arm_neon.h>
#endif

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
  static F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
  static F abs(F a) { return __builtin_fabsf(a); }
  // Takes the sign bit of b into a by exclusive or.
  static F mulsign(F a, F b) { return as_float(as_bits(a) ^ (as_bits(b) & 0x80000000u)); }
  // b where either is NaN.
  static F min(F a, F b) { return a < b ? a : b; }
  static F max(F a, F b) { return a > b ? a : b; }
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

#if defined(VLLM_IR_AVX2)

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
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F abs(F a) { return _mm256_andnot_ps(set(-0.0f), a); }
  static F mulsign(F a, F b) { return _mm256_xor_ps(a, _mm256_and_ps(b, set(-0.0f))); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
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
    const I bits = _mm256_castps_si256(value);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I round = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const I nan = _mm256_castps_si256(unordered(value));
    return _mm256_blendv_epi8(round, _mm256_set1_epi32(0x7fc00000), nan);
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

#elif defined(VLLM_IR_AVX512)

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
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F mulsign(F a, F b) {
    const I sign = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(INT32_MIN));
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), sign));
  }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
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
  static I bf16_high(F value) {
    const I bits = _mm512_castps_si512(value);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const I round = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const I even = _mm512_mask_add_epi32(round, odd, round, _mm512_set1_epi32(1));
    return _mm512_mask_blend_epi32(unordered(value), even, _mm512_set1_epi32(0x7fc00000));
  }
  static I bf16_bits(F value) { return _mm512_srli_epi32(bf16_high(value), 16); }
  static I joined(F even, F odd) { return _mm512_mask_blend_epi16(0xaaaaaaaau, bf16_bits(even), bf16_high(odd)); }
  static __m256i f16_bits(F value) { return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static __m256i narrow(I wide) { return _mm512_cvtepi32_epi16(wide); }
};

#elif defined(VLLM_IR_NEON)

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
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  static F mulsign(F a, F b) {
    const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(b), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), sign));
  }
  static F min(F a, F b) { return select(less(a, b), a, b); }
  static F max(F a, F b) { return select(less(b, a), a, b); }
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

#else

using Wide = Scalar;

#endif

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
