// The kernels in AVX512.
#define VLLM_IR_AVX512 1
#include "kernels.h"

extern const KernelTable kAvx512Kernels = {"avx512", norm, gate, rotary, quant, peak};
