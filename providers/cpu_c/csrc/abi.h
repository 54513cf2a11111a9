/* The C ABI of the kernels: sixteen ops in four functions, over rows in memory, without torch and without Python.
 *
 * A caller says where rows lie; nothing is allocated, and nothing but the outputs is written. Outputs are contiguous.
 * An output may be the input of the same role (in place) where that input is contiguous; otherwise no output overlaps
 * an input. Every function returns VLLM_IR_OK, or what is wrong with its arguments, and then has written nothing.
 */
#ifndef VLLM_IR_CPU_C_ABI_H
#define VLLM_IR_CPU_C_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define VLLM_IR_EXPORT __attribute__((visibility("default")))
#else
#define VLLM_IR_EXPORT
#endif

#define VLLM_IR_MAX_DIMS 8

typedef enum { VLLM_IR_F32 = 0, VLLM_IR_BF16 = 1, VLLM_IR_F16 = 2 } vllm_ir_dtype;

typedef enum { VLLM_IR_SILU = 0, VLLM_IR_GELU = 1, VLLM_IR_GELU_TANH = 2 } vllm_ir_activation;

typedef enum {
  VLLM_IR_OK = 0,
  VLLM_IR_BAD_DTYPE = 1,    /* a dtype, or a pair of them, that no kernel is for */
  VLLM_IR_BAD_SIZE = 2,     /* a size that is negative, odd or too large where it must not be */
  VLLM_IR_BAD_POSITION = 3, /* a position outside the cache */
} vllm_ir_status;

/* Rows that lie anywhere: leading dimensions, outermost first, with strides in elements. The elements of a row are
 * adjacent. Zero dimensions are one row. */
typedef struct {
  void* data;
  int32_t dims;
  int64_t size[VLLM_IR_MAX_DIMS];
  int64_t stride[VLLM_IR_MAX_DIMS];
} vllm_ir_rows;

/* How the work is spread. `start` calls work(data) on up to `threads` threads, the calling one among them, and returns
 * when all have returned; NULL runs it on the calling thread. Results do not depend on either. */
typedef struct {
  int32_t threads;
  void (*start)(void (*work)(void*), void* data, int32_t threads);
} vllm_ir_team;

/* rms_norm, and with a residual fused_add_rms_norm. */
typedef struct {
  vllm_ir_rows x;
  vllm_ir_rows residual; /* data NULL: no residual */
  const void* weight;    /* NULL: no weight */
  void* out;
  void* residual_out; /* NULL without a residual */
  int64_t hidden_size;
  int64_t variance_size; /* 1 to hidden_size */
  float epsilon;
  int32_t dtype;
  int32_t weight_dtype; /* of x, or VLLM_IR_F32 */
} vllm_ir_norm;

/* silu_and_mul and gelu_and_mul: rows of 2 * size elements to rows of size. */
typedef struct {
  vllm_ir_rows x;
  void* out;
  int64_t size;
  int32_t activation;
  int32_t dtype;
  /* torch computes the last `size % block` elements of a row with the scalar functions of the C library, which differ
   * from the vectorised ones where gelu cancels; 0 takes the vectorised formula for all. */
  int64_t block;
} vllm_ir_gate;

/* rotary_embedding of query or key: rows of one head each, heads of a token adjacent in the order of rows; in
 * fused_qk_norm_rope each head is normalised first. */
typedef struct {
  vllm_ir_rows x;
  void* out;
  const void* positions; /* one a token */
  int32_t positions_wide; /* 1: int64, 0: int32 */
  int64_t tokens;
  int64_t head_size;
  int64_t rotary_dim;
  const void* cache; /* [max_position, rotary_dim], rows `cache_stride` elements apart: cosines, then sines */
  int64_t cache_stride;
  int64_t max_position;
  int32_t cache_dtype; /* of x, or VLLM_IR_F32 */
  int32_t dtype;
  int32_t neox;
  int32_t normalized;   /* 1: each head is normalised, as a row of vllm_ir_norm is, and then turned */
  const void* weight;   /* normalised: one per element of a head; NULL: no weight */
  int32_t weight_dtype; /* of x, or VLLM_IR_F32 */
  float epsilon;
} vllm_ir_rotary;

/* What is quantised: rows as they are, normalised, added to a residual and normalised, or silu(gate) * up. */
typedef enum { VLLM_IR_PLAIN = 0, VLLM_IR_NORM = 1, VLLM_IR_ADD_NORM = 2, VLLM_IR_GATED = 3 } vllm_ir_source;

/* One scale that is given, or one per element of a row; one that is found per row, for all rows, or per group. */
typedef enum {
  VLLM_IR_GIVEN = 0,
  VLLM_IR_CHANNEL = 1,
  VLLM_IR_TOKEN = 2,
  VLLM_IR_TENSOR = 3,
  VLLM_IR_GROUP = 4,
} vllm_ir_scaling;

typedef enum { VLLM_IR_E4M3FN = 0, VLLM_IR_E4M3FNUZ = 1, VLLM_IR_E5M2 = 2 } vllm_ir_quantized;

/* The quantised ops. What is quantised is rounded to `dtype` first, as the unquantised op returns it. */
typedef struct {
  vllm_ir_rows x;        /* rows of `size` elements; gated: of twice as many */
  vllm_ir_rows residual; /* added and normalised only */
  const void* weight;    /* normalised only; NULL: no weight */
  void* residual_out;    /* added and normalised only */
  uint8_t* out;
  const float* scale; /* GIVEN: one; CHANNEL: `size`. TENSOR: set by the call */
  float* scales;      /* TOKEN, TENSOR, GROUP: where scales go */
  const float* bound; /* TOKEN, TENSOR: what the largest magnitude counts for at most; NULL: no bound */
  uint32_t* peak;     /* set by the call */
  int64_t size;
  int64_t group_size;   /* GROUP: divides `size` */
  int64_t token_stride; /* TOKEN, GROUP: elements between the scales of two rows, and of two groups */
  int64_t group_stride;
  float epsilon;
  int32_t dtype;
  int32_t weight_dtype; /* of x, or VLLM_IR_F32 */
  int32_t source;
  int32_t scaling;
  int32_t quantized;
  int32_t power_of_two; /* GROUP: scales are rounded up to powers of two */
} vllm_ir_quant;

VLLM_IR_EXPORT int32_t vllm_ir_cpu_c_quant(const vllm_ir_quant* call, const vllm_ir_team* team);
VLLM_IR_EXPORT int32_t vllm_ir_cpu_c_norm(const vllm_ir_norm* call, const vllm_ir_team* team);
VLLM_IR_EXPORT int32_t vllm_ir_cpu_c_gate(const vllm_ir_gate* call, const vllm_ir_team* team);
VLLM_IR_EXPORT int32_t vllm_ir_cpu_c_rotary(const vllm_ir_rotary* call, const vllm_ir_team* team);

/* The instruction set in use, and those that this CPU has, best first, NULL at the end. */
VLLM_IR_EXPORT const char* vllm_ir_cpu_c_isa(void);
VLLM_IR_EXPORT const char* const* vllm_ir_cpu_c_isas(void);
/* Use another of them from the next call on; 0 when this CPU does not have it. For tests. */
VLLM_IR_EXPORT int32_t vllm_ir_cpu_c_use_isa(const char* name);

#ifdef __cplusplus
}
#endif
#endif
