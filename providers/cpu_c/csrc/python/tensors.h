// Tensors as rows: read through DLPack's C table, and checked. Where results go is left to outputs.h.
#pragma once

#include <cstring>

#include "python/connection.h"

namespace {

// Whether a tensor may be a negated view: the imaginary parts of conjugates, two elements apart, whose sign DLPack does
// not tell. Asking torch costs as much as reading, so that what has adjacent elements is not asked.
bool may_be_negated(const DLTensor& t) {
  if (t.dtype.code != kDLFloat && t.dtype.code != kDLBfloat) return false;
  if (t.strides == nullptr) return true;
  for (int32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] > 1 && t.strides[d] % 2 != 0) return false;
  }
  return true;
}

// Reads a tensor without owning it; false with an exception set, also for one whose values are not those in memory.
bool read(PyObject* object, DLTensor* out) {
  if (!connected() || torch_.api->dltensor_from_py_object_no_sync(object, out) != 0) return false;
  if (!may_be_negated(*out)) return true;
  PyObject* answer = PyObject_CallFunctionObjArgs(torch_.is_neg, object, nullptr);
  if (answer == nullptr) return false;
  const bool negated = answer == Py_True;
  Py_DECREF(answer);
  if (negated) PyErr_SetString(PyExc_TypeError, "a negated view, whose values are not those in memory (resolve_neg)");
  return !negated;
}

int32_t dtype_of(const DLTensor& t) {
  if (t.dtype.lanes != 1) return -1;
  if (t.dtype.code == kDLFloat && t.dtype.bits == 32) return VLLM_IR_F32;
  if (t.dtype.code == kDLFloat && t.dtype.bits == 16) return VLLM_IR_F16;
  if (t.dtype.code == kDLBfloat && t.dtype.bits == 16) return VLLM_IR_BF16;
  return -1;
}

int64_t bytes_of(int32_t dtype) { return dtype == VLLM_IR_F32 ? 4 : 2; }

void* data_of(const DLTensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

int64_t count_of(const DLTensor& t) {
  int64_t total = 1;
  for (int32_t d = 0; d < t.ndim; ++d) total *= t.shape[d];
  return total;
}

bool contiguous(const DLTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t wanted = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 0) return true;
    if (t.shape[d] != 1) {
      if (t.strides[d] != wanted) return false;
      wanted *= t.shape[d];
    }
  }
  return true;
}

// The elements of a row are adjacent.
bool adjacent(const DLTensor& t) {
  return t.ndim > 0 && (t.strides == nullptr || t.shape[t.ndim - 1] <= 1 || t.strides[t.ndim - 1] == 1);
}

// Appends a leading dimension, joined with the one before where both make one step.
bool append(vllm_ir_rows* rows, int64_t size, int64_t stride) {
  if (size == 1) return true;
  if (rows->dims > 0 && rows->stride[rows->dims - 1] == stride * size) {
    rows->size[rows->dims - 1] *= size;
    rows->stride[rows->dims - 1] = stride;
    return true;
  }
  if (rows->dims == VLLM_IR_MAX_DIMS) return false;
  rows->size[rows->dims] = size;
  rows->stride[rows->dims] = stride;
  ++rows->dims;
  return true;
}

// Describes a tensor as rows of its last `row` elements; `row` divides the last size.
bool describe(const DLTensor& t, int64_t row, vllm_ir_rows* rows) {
  rows->data = data_of(t);
  rows->dims = 0;
  if (!adjacent(t)) return false;
  int64_t dense = 1;
  int64_t strides[64];
  if (t.ndim > 64) return false;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    strides[d] = t.strides != nullptr ? t.strides[d] : dense;
    dense *= t.shape[d];
  }
  for (int32_t d = 0; d + 1 < t.ndim; ++d) {
    if (!append(rows, t.shape[d], strides[d])) return false;
  }
  const int64_t last = t.shape[t.ndim - 1];
  if (last == row) return true;
  return row > 0 && last % row == 0 && append(rows, last / row, row);
}

bool on_cpu(const DLTensor& t) { return t.device.device_type == kDLCPU; }

// The activations of one call, checked: known dtype, on the CPU, adjacent, few dimensions.
bool activation(const DLTensor& t) {
  return on_cpu(t) && dtype_of(t) >= 0 && t.ndim <= VLLM_IR_MAX_DIMS && adjacent(t);
}

bool same_shape(const DLTensor& a, const DLTensor& b) {
  return a.ndim == b.ndim && std::memcmp(a.shape, b.shape, sizeof(int64_t) * static_cast<size_t>(a.ndim)) == 0;
}

// An optional weight of `hidden` adjacent elements, of x's dtype or float32.
bool weight_fits(const DLTensor& w, int32_t dtype, int64_t hidden) {
  const int32_t own = dtype_of(w);
  return on_cpu(w) && w.ndim == 1 && w.shape[0] == hidden && adjacent(w) && (own == dtype || own == VLLM_IR_F32);
}

}  // namespace
