// The conversion of fp8.h for GPUs without an instruction for it, beside NVIDIA's own on the host, for Python.
#include "cuda_on_cpu.h"

#include <cstddef>

#include "fp8.h"

// Convert float32 given by their bits; `ours` and `theirs` get a byte each.
extern "C" void harness_narrow(const unsigned* bits, size_t count, int format, unsigned char* ours,
                               unsigned char* theirs) {
  for (size_t i = 0; i < count; ++i) {
    const float v = __uint_as_float(bits[i]);
    ours[i] = static_cast<unsigned char>(narrow_by_bits(v, format));
    theirs[i] = static_cast<unsigned char>(narrow_pair(v, 0.0f, format));
  }
}
