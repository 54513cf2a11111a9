// rms_norm and fused_add_rms_norm: from the arguments of a call to the kernel.
#pragma once

#include "python/arguments.h"
#include "python/outputs.h"
#include "python/team.h"
#include "python/tensors.h"

namespace {

// Which arguments are tensors, as bits.
constexpr unsigned kNormTensors = 0b11, kFusedTensors = 0b111;

// The arguments of rms_norm and fused_add_rms_norm, read and checked; residual may be null.
struct NormArguments {
  DLTensor x, residual, weight;
  bool weighted;
  int32_t dtype;
  int64_t hidden, variance;
};

// 1 taken, 0 not taken, -1 with an exception set.
int read_norm(PyObject* x, PyObject* residual, PyObject* weight, PyObject* variance, NormArguments* out) {
  if (!read(x, &out->x)) return -1;
  out->dtype = dtype_of(out->x);
  if (!activation(out->x)) return 0;
  out->hidden = out->x.shape[out->x.ndim - 1];
  if (residual != nullptr) {
    if (!read(residual, &out->residual)) return -1;
    if (!activation(out->residual) || dtype_of(out->residual) != out->dtype || !same_shape(out->x, out->residual)) return 0;
  }
  out->weighted = weight != Py_None;
  if (out->weighted) {
    if (!read(weight, &out->weight)) return -1;
    if (!weight_fits(out->weight, out->dtype, out->hidden)) return 0;
  }
  out->variance = out->hidden;
  if (variance != Py_None) {
    if (!read_size(variance, &out->variance)) return -1;
    if (out->variance < 1 || out->variance > out->hidden) return 0;
  }
  return 1;
}

PyObject* takes_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("takes_norm", count, 4)) return nullptr;
  if (ordinary(args, count, kFusedTensors) != 1) return not_taken();
  NormArguments norm;
  const int taken = read_norm(args[0], args[1] == Py_None ? nullptr : args[1], args[2], args[3], &norm);
  return taken < 0 ? not_taken() : PyBool_FromLong(taken);
}

PyObject* rms_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("rms_norm", count, 4)) return nullptr;
  NormArguments norm;
  const int taken = read_norm(args[0], nullptr, args[1], args[3], &norm);
  if (taken <= 0) return taken < 0 ? nullptr : failed(VLLM_IR_BAD_SIZE);
  vllm_ir_norm call;
  call.epsilon = static_cast<float>(PyFloat_AsDouble(args[2]));
  if (call.epsilon == -1.0f && PyErr_Occurred()) return nullptr;
  if (!describe(norm.x, norm.hidden, &call.x)) return failed(VLLM_IR_BAD_SIZE);
  const int64_t each = bytes_of(norm.dtype);
  PyObject* out = make_output(args[0], norm.x, norm.hidden, each, &call.out);
  if (out == nullptr) return nullptr;
  call.residual.data = nullptr;
  call.residual_out = nullptr;
  call.weight = norm.weighted ? data_of(norm.weight) : nullptr;
  call.hidden_size = norm.hidden;
  call.variance_size = norm.variance;
  call.dtype = norm.dtype;
  call.weight_dtype = norm.weighted ? dtype_of(norm.weight) : norm.dtype;
  int32_t status = VLLM_IR_OK;
  if (!run(vllm_ir_cpu_c_norm, &call, 2 * each * count_of(norm.x), &status) || status != VLLM_IR_OK) {
    Py_DECREF(out);
    return PyErr_Occurred() ? nullptr : failed(status);
  }
  return out;
}

PyObject* fused_add_rms_norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("fused_add_rms_norm", count, 6)) return nullptr;
  NormArguments norm;
  const int taken = read_norm(args[0], args[1], args[2], args[4], &norm);
  if (taken <= 0) return taken < 0 ? nullptr : failed(VLLM_IR_BAD_SIZE);
  vllm_ir_norm call;
  call.epsilon = static_cast<float>(PyFloat_AsDouble(args[3]));
  if (call.epsilon == -1.0f && PyErr_Occurred()) return nullptr;
  if (!describe(norm.x, norm.hidden, &call.x) || !describe(norm.residual, norm.hidden, &call.residual)) {
    return failed(VLLM_IR_BAD_SIZE);
  }
  const int64_t each = bytes_of(norm.dtype);
  // Results are contiguous: what is not, or shares memory, gets memory of its own even where it was donated.
  const bool donated = args[5] == Py_True && contiguous(norm.x) && contiguous(norm.residual) &&
                       apart(norm.x, norm.residual) &&
                       (!norm.weighted || (apart(norm.x, norm.weight) && apart(norm.residual, norm.weight)));
  call.out = data_of(norm.x);
  call.residual_out = data_of(norm.residual);
  PyObject* out = donated ? keep(args[0]) : make_output(args[0], norm.x, norm.hidden, each, &call.out);
  if (out == nullptr) return nullptr;
  PyObject* sum = donated ? keep(args[1]) : make_output(args[0], norm.x, norm.hidden, each, &call.residual_out);
  if (sum == nullptr) {
    Py_DECREF(out);
    return nullptr;
  }
  call.weight = norm.weighted ? data_of(norm.weight) : nullptr;
  call.hidden_size = norm.hidden;
  call.variance_size = norm.variance;
  call.dtype = norm.dtype;
  call.weight_dtype = norm.weighted ? dtype_of(norm.weight) : norm.dtype;
  int32_t status = VLLM_IR_OK;
  // Zero tokens have no memory, and a residual without memory would read as none.
  const bool any = count_of(norm.x) > 0;
  if (any && (!run(vllm_ir_cpu_c_norm, &call, 4 * each * count_of(norm.x), &status) || status != VLLM_IR_OK)) {
    Py_DECREF(out);
    Py_DECREF(sum);
    return PyErr_Occurred() ? nullptr : failed(status);
  }
  return pair(out, sum);
}

}  // namespace
