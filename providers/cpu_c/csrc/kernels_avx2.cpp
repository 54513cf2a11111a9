// The kernels in AVX2 with FMA and F16C.
#define VLLM_IR_AVX2 1
#include "kernels.h"

extern const KernelTable kAvx2Kernels = {"avx2", norm, gate, rotary, quant, peak};
