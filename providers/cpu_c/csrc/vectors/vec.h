// One instruction set as a struct of static functions over its widest float register; the kernels are written once
// over such a struct. What is computed is left to vecmath.h and to kernels/.
//
// Every struct gives the same results bit for bit: conversions round to nearest even, fma is fused everywhere, and no
// operation is approximate. Arithmetic is written with the operators that compilers define on vector types; the build
// switches contraction off, so a * b + c rounds twice.
#pragma once

#include "vectors/both.h"
#include "vectors/scalar.h"

#if defined(VLLM_IR_AVX2)
#include "vectors/avx2.h"
#elif defined(VLLM_IR_AVX512)
#include "vectors/avx512.h"
#elif defined(VLLM_IR_NEON)
#include "vectors/neon.h"
#else
namespace {

using Wide = Scalar;

}  // namespace
#endif
