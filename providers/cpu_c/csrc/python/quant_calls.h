// The quantised ops: from the arguments of a call to the kernel.
#pragma once

#include "python/norm_calls.h"

namespace {

// Which arguments are tensors, as bits: x, residual, weight, scale; x and what cuts a scale.
constexpr unsigned kQuantTensors = 0b1111;

// The arguments that all quantised ops share, read and checked.
struct QuantArguments {
  DLTensor x, residual, weight, scale;
  bool added, weighted, scaled;
  int64_t source, scaling, quantized, group, size;
  int32_t dtype;
};

// One float32 value, or one for each of `size` elements.
bool scale_fits(const DLTensor& scale, int64_t size) {
  if (!on_cpu(scale) || dtype_of(scale) != VLLM_IR_F32 || scale.ndim > 1) return false;
  if (count_of(scale) == 1) return true;
  return scale.ndim == 1 && scale.shape[0] == size && adjacent(scale);
}

// x, residual, weight, scale, source, scaling, quantized, group size: 1 taken, 0 not taken, -1 with an exception set.
int read_quant(PyObject* const* args, QuantArguments* out) {
  if (!read(args[0], &out->x) || !read_size(args[4], &out->source) || !read_size(args[5], &out->scaling) ||
      !read_size(args[6], &out->quantized) || !read_size(args[7], &out->group)) {
    return -1;
  }
  if (!activation(out->x)) return 0;
  out->dtype = dtype_of(out->x);
  out->size = out->x.shape[out->x.ndim - 1];
  if (out->source == VLLM_IR_GATED) {
    if (out->size % 2 != 0) return 0;
    out->size /= 2;
  }
  out->added = args[1] != Py_None;
  if (out->added) {
    if (!read(args[1], &out->residual)) return -1;
    if (!activation(out->residual) || dtype_of(out->residual) != out->dtype || !same_shape(out->x, out->residual)) return 0;
  }
  out->weighted = args[2] != Py_None;
  if (out->weighted) {
    if (!read(args[2], &out->weight)) return -1;
    if (!weight_fits(out->weight, out->dtype, out->size)) return 0;
  }
  out->scaled = args[3] != Py_None;
  const bool given = out->scaling == VLLM_IR_GIVEN;
  if (given && !out->scaled) return 0;
  if (out->scaled) {
    if (!read(args[3], &out->scale)) return -1;
    if (!scale_fits(out->scale, given && out->source == VLLM_IR_PLAIN ? out->size : 1)) return 0;
    if (given && count_of(out->scale) != 1) out->scaling = VLLM_IR_CHANNEL;
  }
  if (out->scaling == VLLM_IR_GROUP) return out->group >= 1 && out->size % out->group == 0;
  if (out->scaling == VLLM_IR_TOKEN || out->scaling == VLLM_IR_TENSOR) return out->size > 0;
  return 1;
}

PyObject* takes_quant(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("takes_quant", count, 8)) return nullptr;
  if (ordinary(args, count, kQuantTensors) != 1) return not_taken();
  QuantArguments quant;
  const int taken = read_quant(args, &quant);
  return taken < 0 ? not_taken() : PyBool_FromLong(taken);
}

// Asks torch for a new tensor of x's shape but for the last size, in a dtype, dense in the order of its dimensions or,
// column-major, with the first of them next to each other; null with an exception set.
PyObject* make_like(PyObject* model, const DLTensor& t, int64_t last, PyObject* dtype, bool column_major, int64_t bytes_each,
                    void** data) {
  int64_t shape[VLLM_IR_MAX_DIMS], strides[VLLM_IR_MAX_DIMS];
  int64_t step = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) shape[d] = d == t.ndim - 1 ? last : t.shape[d];
  const int32_t begin = column_major && t.ndim > 1 ? t.ndim - 2 : t.ndim - 1;
  for (int32_t d = begin; d >= 0; --d) {
    strides[d] = step;
    step *= shape[d] > 1 ? shape[d] : 1;
  }
  if (begin != t.ndim - 1) strides[t.ndim - 1] = step;
  PyObject* sizes = size_tuple(shape, t.ndim);
  PyObject* steps = sizes != nullptr ? size_tuple(strides, t.ndim) : nullptr;
  PyObject* out = nullptr;
  if (steps != nullptr) {
    PyObject* names = PyDict_New();
    PyObject* given = PyTuple_Pack(3, model, sizes, steps);
    if (names != nullptr && given != nullptr && PyDict_SetItemString(names, "dtype", dtype) == 0) {
      out = PyObject_Call(torch_.empty, given, names);
    }
    Py_XDECREF(names);
    Py_XDECREF(given);
  }
  Py_XDECREF(sizes);
  Py_XDECREF(steps);
  return ready(out, bytes_each, data);
}

// A single float32 value in a tensor of one dimension.
PyObject* make_one(PyObject* model, PyObject* dtype, void** data) {
  const int64_t one = 1;
  DLTensor shape{};
  shape.ndim = 1;
  shape.shape = const_cast<int64_t*>(&one);
  return make_like(model, shape, 1, dtype, false, 4, data);
}

// quant(x, residual, weight, scale, source, scaling, quantized, group_size, column_major, power_of_two, epsilon, donated,
// dtype, float32): the quantised tensor; with a scale that is found, scales behind it; with a residual, the sum behind both.
PyObject* quant(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("quant", count, 14)) return nullptr;
  QuantArguments quant;
  const int taken = read_quant(args, &quant);
  if (taken <= 0) return taken < 0 ? nullptr : failed(VLLM_IR_BAD_SIZE);
  vllm_ir_quant call{};
  call.epsilon = static_cast<float>(PyFloat_AsDouble(args[10]));
  if (call.epsilon == -1.0f && PyErr_Occurred()) return nullptr;
  if (!describe(quant.x, quant.x.shape[quant.x.ndim - 1], &call.x)) return failed(VLLM_IR_BAD_SIZE);
  if (quant.added && !describe(quant.residual, quant.size, &call.residual)) return failed(VLLM_IR_BAD_SIZE);
  call.weight = quant.weighted ? data_of(quant.weight) : nullptr;
  call.weight_dtype = quant.weighted ? dtype_of(quant.weight) : quant.dtype;
  call.dtype = quant.dtype;
  call.size = quant.size;
  call.source = static_cast<int32_t>(quant.source);
  call.scaling = static_cast<int32_t>(quant.scaling);
  call.quantized = static_cast<int32_t>(quant.quantized);
  call.group_size = quant.group;
  call.power_of_two = is_set(args[9]);
  const bool given = call.scaling == VLLM_IR_GIVEN || call.scaling == VLLM_IR_CHANNEL;
  const float* scale = quant.scaled ? static_cast<const float*>(data_of(quant.scale)) : nullptr;
  (given ? call.scale : call.bound) = scale;

  const int64_t elements = quant.source == VLLM_IR_GATED ? count_of(quant.x) / 2 : count_of(quant.x);
  const int64_t each = bytes_of(quant.dtype);
  void* memory = nullptr;
  PyObject* out = make_like(args[0], quant.x, quant.size, args[12], false, 1, &memory);
  if (out == nullptr) return nullptr;
  call.out = static_cast<uint8_t*>(memory);
  PyObject* scales = nullptr;
  if (!given) {
    const int64_t groups = call.scaling == VLLM_IR_GROUP ? quant.size / quant.group : 1;
    const bool column_major = call.scaling == VLLM_IR_GROUP && is_set(args[8]);
    scales = call.scaling == VLLM_IR_TENSOR
                 ? make_one(args[0], args[13], &memory)
                 : make_like(args[0], quant.x, groups, args[13], column_major, 4, &memory);
    if (scales == nullptr) {
      Py_DECREF(out);
      return nullptr;
    }
    call.scales = static_cast<float*>(memory);
    const bool turned = column_major && quant.x.ndim > 1;
    call.token_stride = turned ? 1 : groups;
    call.group_stride = turned && quant.size > 0 ? elements / quant.size : 1;
  }
  PyObject* sum = nullptr;
  if (quant.added) {
    // A sum is contiguous, and lies in the residual's memory only where nothing else does.
    const bool donated = args[11] == Py_True && contiguous(quant.residual) && contiguous(quant.x) &&
                         apart(quant.residual, quant.x) &&
                         (!quant.weighted || apart(quant.residual, quant.weight)) &&
                         (!quant.scaled || apart(quant.residual, quant.scale));
    call.residual_out = data_of(quant.residual);
    sum = donated ? keep(args[1]) : make_output(args[0], quant.x, quant.size, each, &call.residual_out);
    if (sum == nullptr) {
      Py_DECREF(out);
      Py_XDECREF(scales);
      return nullptr;
    }
  }
  int32_t status = VLLM_IR_OK;
  const int64_t bytes = elements * (each * (quant.added ? 3 : quant.source == VLLM_IR_GATED ? 2 : 1) + 1);
  if (!run(vllm_ir_cpu_c_quant, &call, bytes, &status) || status != VLLM_IR_OK) {
    Py_DECREF(out);
    Py_XDECREF(scales);
    Py_XDECREF(sum);
    return PyErr_Occurred() ? nullptr : failed(status);
  }
  if (scales == nullptr) return sum == nullptr ? out : pair(out, sum);
  if (sum == nullptr) return pair(out, scales);
  PyObject* all = PyTuple_Pack(3, out, scales, sum);
  Py_DECREF(out);
  Py_DECREF(scales);
  Py_DECREF(sum);
  return all;
}

}  // namespace
