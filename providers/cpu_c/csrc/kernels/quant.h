// Quantisation to 8-bit floats over a range of rows: of rows as they are, normalised, added and normalised, or gated.
//
// A row is produced in pieces of floats, rounded to its own dtype as the unquantised op would return it; plain loops
// over the pieces find the largest magnitude and make 8-bit floats, which compilers turn into vectors.
#pragma once

#include "abi.h"
#include "kernels/gate.h"
#include "kernels/norm.h"
#include "kernels/rows.h"
#include "kernels/scales.h"
#include "table.h"

namespace {

// Elements that are kept between finding a scale and using it; a longer row is produced twice.
constexpr int64_t kPiece = 2048;

// Produces elements [begin, end) of a row as floats.
template <class T>
struct PlainRow {
  using Element = T;
  const T* x;
  void produce(int64_t begin, int64_t end, float* out, bool) const {
    each<Block<T>>(begin, end, [&](auto v, int64_t i) { decltype(v)::store(out + (i - begin), decltype(v)::load(x + i)); });
  }
};

template <class T>
struct GateRow {
  using Element = T;
  const T* x;
  int64_t size;
  void produce(int64_t begin, int64_t end, float* out, bool) const {
    const T* up = x + size;
    each<typename Busy<T>::Block>(begin, end, [&](auto v, int64_t i) __attribute__((always_inline)) {
      using V = decltype(v);
      const auto gated = V::rounded_own(Silu::of<V>(V::load(x + i)), x) * V::load(up + i);
      V::store(out + (i - begin), V::rounded(gated, x));
    });
  }
};

template <bool kAdd, class T, class W>
struct NormRow {
  using Element = T;
  const T* x;
  const T* residual;
  T* residual_out;
  const W* weight;
  float scale;

  template <class V>
  typename V::F value(int64_t i) const {
    if constexpr (kAdd) {
      return V::load(x + i) + V::load(residual + i);
    } else {
      return V::load(x + i);
    }
  }
  void measure(int64_t size, float epsilon) {
    scale = inverse_root(sum_of_squares<Block<T>>(size, [&](auto v, int64_t i) {
      const auto one = value<decltype(v)>(i);
      return one * one;
    }), size, epsilon);
  }
  // With `last` the sum is written, too, behind which nothing of these elements is read again: it may lie in the
  // residual's memory.
  void produce(int64_t begin, int64_t end, float* out, bool last) const {
    each<Block<T>>(begin, end, [&](auto v, int64_t i) {
      using V = decltype(v);
      const auto one = value<V>(i);
      const auto result = weighted<V>(one * V::set(scale), weight, i);
      if constexpr (kAdd) {
        if (last) V::store_own(residual_out + i, one);
      }
      V::store(out + (i - begin), V::rounded(result, x));
    });
  }
};

inline uint32_t peak_of(const float* values, int64_t count, uint32_t peak) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = as_bits(values[i]) & 0x7fffffffu;
    peak = peak > magnitude ? peak : magnitude;
  }
  return peak;
}

template <class Row>
uint32_t peak_between(const Row& row, int64_t begin, int64_t end, float* buffer) {
  uint32_t peak = 0;
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t stop = at + kPiece < end ? at + kPiece : end;
    row.produce(at, stop, buffer, false);
    peak = peak_of(buffer, stop - at, peak);
  }
  return peak;
}

template <class Q>
void multiply(const float* values, int64_t count, float factor, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_fp8<Q>(values[i] * factor);
}

template <class Q>
void divide(const float* values, int64_t count, float divisor, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_fp8<Q>(values[i] / divisor);
}

template <class Q>
void multiply_each(const float* values, int64_t count, const float* scales, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_fp8<Q>(values[i] * (1.0f / scales[i]));
}

// Elements [begin, end) with one scale between them, found or given.
template <class Q, class Row>
void quantize(const vllm_ir_quant& call, const Row& row, int64_t begin, int64_t end, float scale, float* buffer,
              bool produced, uint8_t* out) {
  const float factor = call.scaling == VLLM_IR_GROUP ? scale : 1.0f / scale;
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t stop = at + kPiece < end ? at + kPiece : end;
    if (!produced) row.produce(at, stop, buffer, true);
    if (call.scaling == VLLM_IR_GROUP) {
      divide<Q>(buffer, stop - at, factor, out + at);
    } else if (call.scaling == VLLM_IR_CHANNEL) {
      multiply_each<Q>(buffer, stop - at, call.scale + at, out + at);
    } else {
      multiply<Q>(buffer, stop - at, factor, out + at);
    }
  }
}

template <class Q, class Row>
void quant_row(const vllm_ir_quant& call, const Row& row, int64_t index, float* buffer) {
  uint8_t* out = call.out + index * call.size;
  if (call.scaling == VLLM_IR_GIVEN || call.scaling == VLLM_IR_CHANNEL) {
    const float scale = call.scaling == VLLM_IR_GIVEN ? *call.scale : 1.0f;
    return quantize<Q>(call, row, 0, call.size, scale, buffer, false, out);
  }
  const int64_t span = call.scaling == VLLM_IR_GROUP ? call.group_size : call.size;
  const bool kept = span <= kPiece;
  for (int64_t begin = 0, g = 0; begin < call.size; begin += span, ++g) {
    uint32_t peak;
    if (kept) {
      row.produce(begin, begin + span, buffer, true);
      peak = peak_of(buffer, span, 0);
    } else {
      peak = peak_between(row, begin, begin + span, buffer);
    }
    const float scale = call.scaling == VLLM_IR_GROUP ? scale_of_group(peak, call.power_of_two != 0, call.quantized)
                                                      : scale_of_peak(peak, call.bound, call.quantized);
    call.scales[index * call.token_stride + g * call.group_stride] = scale;
    quantize<Q>(call, row, begin, begin + span, scale, buffer, kept, out);
  }
}

// Calls body(row, index) for every row of a range.
template <class T, class Body>
void plain_rows(const vllm_ir_quant& call, Range range, Body body) {
  RowWalk<const T> x(call.x, range.begin);
  for (int64_t r = range.begin; r < range.end; ++r, x.next()) body(PlainRow<T>{x.row()}, r);
}

template <class T, class Body>
void gate_rows_of(const vllm_ir_quant& call, Range range, Body body) {
  RowWalk<const T> x(call.x, range.begin);
  for (int64_t r = range.begin; r < range.end; ++r, x.next()) body(GateRow<T>{x.row(), call.size}, r);
}

template <class T, class W, class Body>
void norm_rows_of(const vllm_ir_quant& call, Range range, Body body) {
  const W* weight = static_cast<const W*>(call.weight);
  RowWalk<const T> x(call.x, range.begin);
  if (call.source != VLLM_IR_ADD_NORM) {
    for (int64_t r = range.begin; r < range.end; ++r, x.next()) {
      NormRow<false, T, W> row{x.row(), nullptr, nullptr, weight, 0.0f};
      row.measure(call.size, call.epsilon);
      body(row, r);
    }
    return;
  }
  RowWalk<const T> residual(call.residual, range.begin);
  T* residual_out = static_cast<T*>(call.residual_out);
  for (int64_t r = range.begin; r < range.end; ++r, x.next(), residual.next()) {
    NormRow<true, T, W> row{x.row(), residual.row(), residual_out + r * call.size, weight, 0.0f};
    row.measure(call.size, call.epsilon);
    body(row, r);
  }
}

template <class T, class Body>
void rows_of(const vllm_ir_quant& call, Range range, Body body) {
  if (call.source == VLLM_IR_PLAIN) return plain_rows<T>(call, range, body);
  if (call.source == VLLM_IR_GATED) return gate_rows_of<T>(call, range, body);
  if (call.weight == nullptr) return norm_rows_of<T, NoWeight>(call, range, body);
  if (call.weight_dtype == VLLM_IR_F32) return norm_rows_of<T, float>(call, range, body);
  norm_rows_of<T, T>(call, range, body);
}

template <class Body>
void each_row(const vllm_ir_quant& call, Range range, Body body) {
  switch (call.dtype) {
    case VLLM_IR_F32:
      return rows_of<float>(call, range, body);
    case VLLM_IR_BF16:
      return rows_of<Bf16>(call, range, body);
    default:
      return rows_of<F16>(call, range, body);
  }
}

void quant(const void* given, Range range) {
  const vllm_ir_quant& call = *static_cast<const vllm_ir_quant*>(given);
  float buffer[kPiece];
  const auto with = [&](auto kind) {
    using Q = decltype(kind);
    each_row(call, range, [&](const auto& row, int64_t index) { quant_row<Q>(call, row, index, buffer); });
  };
  switch (call.quantized) {
    case VLLM_IR_E4M3FN:
      return with(E4m3fn());
    case VLLM_IR_E4M3FNUZ:
      return with(E4m3fnuz());
    default:
      return with(E5m2());
  }
}

// The largest magnitude of all rows of a range, joined with what other ranges found: the order does not matter.
void peak(const void* given, Range range) {
  const vllm_ir_quant& call = *static_cast<const vllm_ir_quant*>(given);
  float buffer[kPiece];
  uint32_t found = 0;
  each_row(call, range, [&](const auto& row, int64_t) {
    const uint32_t one = peak_between(row, 0, call.size, buffer);
    found = found > one ? found : one;
  });
  uint32_t before = __atomic_load_n(call.peak, __ATOMIC_RELAXED);
  while (before < found &&
         !__atomic_compare_exchange_n(call.peak, &before, found, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace
