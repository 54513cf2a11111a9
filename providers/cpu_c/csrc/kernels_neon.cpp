// The kernels in NEON.
#define VLLM_IR_NEON 1
#include "kernels.h"

extern const KernelTable kNeonKernels = {"neon", norm, gate, rotary, quant, peak};
