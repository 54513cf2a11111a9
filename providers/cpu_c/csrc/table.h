// What one instruction set offers to dispatch.cpp: a function per kernel that does a range of rows.
#pragma once

#include <stdint.h>

#include "abi.h"

// Rows [begin, end) of `total`.
struct Range {
  int64_t begin, end, total;
};

using RangeKernel = void (*)(const void* call, Range range);

struct KernelTable {
  const char* name;
  RangeKernel norm, gate, rotary, quant, peak;
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kNeonKernels;

static inline int64_t position_of(const vllm_ir_rotary& call, int64_t token) {
  return call.positions_wide ? static_cast<const int64_t*>(call.positions)[token]
                             : static_cast<const int32_t*>(call.positions)[token];
}
