// From a call to rows on threads: checks the arguments, chooses the instruction set and cuts the rows into pieces.
// What a row means is left to kernels.h; where threads come from is left to the caller.
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "abi.h"
#include "kernels/scales.h"
#include "table.h"

namespace {

// Below this many bytes read and written, starting threads costs more than it saves.
constexpr int64_t kBytesForThreads = 256 * 1024;
// Pieces per thread: enough that a thread that is late, or sleeps, holds up little.
constexpr int64_t kPiecesPerThread = 4;

constexpr int kMostIsas = 4;

struct Isas {
  const KernelTable* tables[kMostIsas];
  const char* names[kMostIsas + 1];
  int count = 0;

  void add(const KernelTable& table) {
    tables[count] = &table;
    names[count++] = table.name;
    names[count] = nullptr;
  }
};

Isas detect() {
  Isas found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx2 && avx512) found.add(kAvx512Kernels);
  if (avx2) found.add(kAvx2Kernels);
#elif defined(__aarch64__)
  found.add(kNeonKernels);
#endif
  found.add(kScalarKernels);
  return found;
}

const Isas& isas() {
  static const Isas found = detect();
  return found;
}

std::atomic<const KernelTable*> chosen{nullptr};

const KernelTable& kernels() {
  const KernelTable* table = chosen.load(std::memory_order_relaxed);
  return table != nullptr ? *table : *isas().tables[0];
}

// The floating-point mode of a thread: with subnormals flushed or not, threads must agree on a row.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : mode_(_mm_getcsr()) {}
  void set() const { _mm_setcsr(mode_); }

 private:
  unsigned mode_;
#elif defined(__aarch64__)
  FloatMode() { __asm__ __volatile__("mrs %0, fpcr" : "=r"(mode_)); }
  void set() const { __asm__ __volatile__("msr fpcr, %0" : : "r"(mode_)); }

 private:
  uint64_t mode_;
#else
  void set() const {}
#endif
};

struct Job {
  RangeKernel kernel;
  const void* call;
  int64_t rows;
  int64_t piece;
  FloatMode mode;
  std::atomic<int64_t> next{0};
};

void work(void* data) {
  Job& job = *static_cast<Job*>(data);
  const FloatMode before;
  job.mode.set();
  for (;;) {
    const int64_t begin = job.next.fetch_add(job.piece, std::memory_order_relaxed);
    if (begin >= job.rows) break;
    const int64_t end = begin + job.piece < job.rows ? begin + job.piece : job.rows;
    job.kernel(job.call, {begin, end, job.rows});
  }
  before.set();
}

// Runs a kernel over all rows, which read and write `row_bytes` each.
void run(RangeKernel kernel, const void* call, int64_t rows, int64_t row_bytes, const vllm_ir_team* team) {
  int64_t threads = team != nullptr && team->start != nullptr ? team->threads : 1;
  if (rows * row_bytes < kBytesForThreads) threads = 1;
  if (threads > rows) threads = rows;
  if (threads <= 1) {
    kernel(call, {0, rows, rows});
    return;
  }
  const int64_t pieces = threads * kPiecesPerThread;
  Job job{kernel, call, rows, (rows + pieces - 1) / pieces, FloatMode()};
  team->start(work, &job, static_cast<int32_t>(threads));
}

int64_t count(const vllm_ir_rows& rows) {
  int64_t total = 1;
  for (int32_t d = 0; d < rows.dims; ++d) total *= rows.size[d];
  return total;
}

bool sound(const vllm_ir_rows& rows) {
  if (rows.dims < 0 || rows.dims > VLLM_IR_MAX_DIMS) return false;
  for (int32_t d = 0; d < rows.dims; ++d) {
    if (rows.size[d] < 0) return false;
  }
  return true;
}

bool known(int32_t dtype) { return dtype >= VLLM_IR_F32 && dtype <= VLLM_IR_F16; }

int64_t bytes(int32_t dtype) { return dtype == VLLM_IR_F32 ? 4 : 2; }

}  // namespace

extern "C" {

int32_t vllm_ir_cpu_c_norm(const vllm_ir_norm* call, const vllm_ir_team* team) {
  if (!known(call->dtype)) return VLLM_IR_BAD_DTYPE;
  if (call->weight != nullptr && call->weight_dtype != call->dtype && call->weight_dtype != VLLM_IR_F32) {
    return VLLM_IR_BAD_DTYPE;
  }
  const bool add = call->residual.data != nullptr;
  if (!sound(call->x) || call->hidden_size < 0 || (add && (!sound(call->residual) || count(call->residual) != count(call->x)))) {
    return VLLM_IR_BAD_SIZE;
  }
  const int64_t rows = count(call->x);
  if (rows == 0 || call->hidden_size == 0) return VLLM_IR_OK;
  if (call->variance_size < 1 || call->variance_size > call->hidden_size) return VLLM_IR_BAD_SIZE;
  const int64_t one = call->hidden_size * bytes(call->dtype);
  run(kernels().norm, call, rows, (add ? 4 : 2) * one, team);
  return VLLM_IR_OK;
}

int32_t vllm_ir_cpu_c_gate(const vllm_ir_gate* call, const vllm_ir_team* team) {
  if (!known(call->dtype)) return VLLM_IR_BAD_DTYPE;
  if (call->activation < VLLM_IR_SILU || call->activation > VLLM_IR_GELU_TANH) return VLLM_IR_BAD_DTYPE;
  if (!sound(call->x) || call->size < 0 || call->block < 0) return VLLM_IR_BAD_SIZE;
  const int64_t rows = count(call->x);
  if (rows == 0 || call->size == 0) return VLLM_IR_OK;
  const int64_t one = call->size * bytes(call->dtype);
  run(kernels().gate, call, rows, 3 * one, team);
  return VLLM_IR_OK;
}

int32_t vllm_ir_cpu_c_quant(const vllm_ir_quant* given, const vllm_ir_team* team) {
  vllm_ir_quant call = *given;
  if (!known(call.dtype)) return VLLM_IR_BAD_DTYPE;
  if (call.quantized < VLLM_IR_E4M3FN || call.quantized > VLLM_IR_E5M2) return VLLM_IR_BAD_DTYPE;
  if (call.source < VLLM_IR_PLAIN || call.source > VLLM_IR_GATED) return VLLM_IR_BAD_DTYPE;
  if (call.scaling < VLLM_IR_GIVEN || call.scaling > VLLM_IR_GROUP) return VLLM_IR_BAD_DTYPE;
  const bool add = call.source == VLLM_IR_ADD_NORM;
  const bool norm = add || call.source == VLLM_IR_NORM;
  if (norm && call.weight != nullptr && call.weight_dtype != call.dtype && call.weight_dtype != VLLM_IR_F32) {
    return VLLM_IR_BAD_DTYPE;
  }
  if (!sound(call.x) || call.size < 0 || (add && (!sound(call.residual) || count(call.residual) != count(call.x)))) {
    return VLLM_IR_BAD_SIZE;
  }
  if (call.scaling == VLLM_IR_GROUP && (call.group_size < 1 || call.size % call.group_size != 0)) return VLLM_IR_BAD_SIZE;
  const bool peaks = call.scaling == VLLM_IR_TOKEN || call.scaling == VLLM_IR_TENSOR;
  if (peaks && call.size == 0) return VLLM_IR_BAD_SIZE;
  const int64_t rows = count(call.x);
  const int64_t read = call.size * bytes(call.dtype) * (call.source == VLLM_IR_GATED ? 2 : 1);
  if (call.scaling == VLLM_IR_TENSOR) {
    uint32_t peak = 0;
    call.peak = &peak;
    if (rows > 0) run(kernels().peak, &call, rows, (add ? 2 : 1) * read, team);
    *call.scales = scale_of_peak(peak, call.bound, call.quantized);
    call.scale = call.scales;
    call.scaling = VLLM_IR_GIVEN;
  }
  if (rows == 0 || call.size == 0) return VLLM_IR_OK;
  run(kernels().quant, &call, rows, (add ? 3 : 1) * read + call.size, team);
  return VLLM_IR_OK;
}

int32_t vllm_ir_cpu_c_rotary(const vllm_ir_rotary* call, const vllm_ir_team* team) {
  if (!known(call->dtype)) return VLLM_IR_BAD_DTYPE;
  if (call->cache_dtype != call->dtype && call->cache_dtype != VLLM_IR_F32) return VLLM_IR_BAD_DTYPE;
  if (call->normalized && call->weight != nullptr && call->weight_dtype != call->dtype &&
      call->weight_dtype != VLLM_IR_F32) {
    return VLLM_IR_BAD_DTYPE;
  }
  if (!sound(call->x) || call->tokens < 0 || call->rotary_dim < 2 || call->rotary_dim % 2 != 0 ||
      call->rotary_dim > call->head_size) {
    return VLLM_IR_BAD_SIZE;
  }
  const int64_t rows = count(call->x);
  if (rows > 0 && (call->tokens == 0 || rows % call->tokens != 0)) return VLLM_IR_BAD_SIZE;
  for (int64_t token = 0; token < call->tokens; ++token) {
    const int64_t position = position_of(*call, token);
    if (position < 0 || position >= call->max_position) return VLLM_IR_BAD_POSITION;
  }
  if (rows == 0) return VLLM_IR_OK;
  const int64_t one = call->head_size * bytes(call->dtype);
  run(kernels().rotary, call, rows, 2 * one, team);
  return VLLM_IR_OK;
}

const char* vllm_ir_cpu_c_isa(void) { return kernels().name; }

const char* const* vllm_ir_cpu_c_isas(void) { return isas().names; }

int32_t vllm_ir_cpu_c_use_isa(const char* name) {
  for (int i = 0; i < isas().count; ++i) {
    if (std::strcmp(isas().names[i], name) == 0) {
      chosen.store(isas().tables[i], std::memory_order_relaxed);
      return 1;
    }
  }
  return 0;
}

}  // extern "C"
