// The kernels in plain C++, the reference for all others.
#include "kernels.h"

extern const KernelTable kScalarKernels = {"scalar", norm, gate, rotary, quant, peak};
