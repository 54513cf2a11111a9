// rotary_embedding: from the arguments of a call to the kernel.
#pragma once

#include <initializer_list>

#include "python/arguments.h"
#include "python/outputs.h"
#include "python/team.h"
#include "python/tensors.h"

namespace {

// Which arguments are tensors, as bits.
constexpr unsigned kRotaryTensors = 0b100111;

struct RotaryArguments {
  DLTensor positions, query, key, cache;
  int64_t head_size, rotary_dim, tokens;
  int32_t dtype;
};

// Whole heads in the last size, as many rows of heads for every token.
bool heads_fit(const DLTensor& x, int64_t head_size) {
  return activation(x) && x.shape[x.ndim - 1] % head_size == 0;
}

int read_rotary(PyObject* const* args, RotaryArguments* out) {
  if (!read(args[0], &out->positions) || !read(args[1], &out->query) || !read(args[2], &out->key) ||
      !read_size(args[3], &out->head_size) || !read_size(args[4], &out->rotary_dim) || !read(args[5], &out->cache)) {
    return -1;
  }
  const DLTensor& p = out->positions;
  const DLTensor& c = out->cache;
  if (!on_cpu(p) || p.dtype.code != kDLInt || (p.dtype.bits != 64 && p.dtype.bits != 32)) return 0;
  if (out->rotary_dim < 2 || out->rotary_dim % 2 != 0 || out->rotary_dim > out->head_size) return 0;
  if (!heads_fit(out->query, out->head_size) || !heads_fit(out->key, out->head_size)) return 0;
  out->dtype = dtype_of(out->query);
  if (dtype_of(out->key) != out->dtype) return 0;
  if (!activation(c) || c.ndim != 2 || c.shape[1] != out->rotary_dim) return 0;
  if (dtype_of(c) != out->dtype && dtype_of(c) != VLLM_IR_F32) return 0;
  out->tokens = count_of(p);
  return 1;
}

PyObject* takes_rotary(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("takes_rotary", count, 6)) return nullptr;
  if (ordinary(args, count, kRotaryTensors) != 1) return not_taken();
  RotaryArguments rotary;
  const int taken = read_rotary(args, &rotary);
  return taken < 0 ? not_taken() : PyBool_FromLong(taken);
}

// Query or key of one call; null with an exception set.
PyObject* turn(PyObject* object, const DLTensor& x, const RotaryArguments& rotary, bool neox, bool donated) {
  vllm_ir_rotary call;
  call.dtype = rotary.dtype;
  call.head_size = rotary.head_size;
  if (!describe(x, rotary.head_size, &call.x)) return failed(VLLM_IR_BAD_SIZE);
  const int64_t each = bytes_of(rotary.dtype);
  call.out = data_of(x);
  PyObject* out = donated && contiguous(x) ? keep(object)
                                           : make_output(object, x, x.shape[x.ndim - 1], each, &call.out);
  if (out == nullptr) return nullptr;
  call.positions = data_of(rotary.positions);
  call.positions_wide = rotary.positions.dtype.bits == 64;
  call.tokens = rotary.tokens;
  call.rotary_dim = rotary.rotary_dim;
  call.cache = data_of(rotary.cache);
  call.cache_stride = rotary.cache.strides != nullptr ? rotary.cache.strides[0] : rotary.rotary_dim;
  call.max_position = rotary.cache.shape[0];
  call.cache_dtype = dtype_of(rotary.cache);
  call.neox = neox;
  int32_t status = VLLM_IR_OK;
  if (!run(vllm_ir_cpu_c_rotary, &call, 2 * each * count_of(x), &status) || status != VLLM_IR_OK) {
    Py_DECREF(out);
    return PyErr_Occurred() ? nullptr : failed(status);
  }
  return out;
}

PyObject* rotary_embedding(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("rotary_embedding", count, 8)) return nullptr;
  RotaryArguments rotary;
  const int taken = read_rotary(args, &rotary);
  if (taken <= 0) return taken < 0 ? nullptr : failed(VLLM_IR_BAD_SIZE);
  if (!contiguous(rotary.positions)) {
    // One integer a token is little to copy, and rare; the call is made again with the copy.
    PyObject* copy = PyObject_CallMethod(args[0], "contiguous", nullptr);
    if (copy == nullptr) return nullptr;
    PyObject* again[8];
    for (int i = 0; i < 8; ++i) again[i] = i == 0 ? copy : args[i];
    PyObject* result = rotary_embedding(nullptr, again, 8);
    Py_DECREF(copy);
    return result;
  }
  // Before anything is written in place: both must be whole heads of every token.
  for (const DLTensor* x : {&rotary.query, &rotary.key}) {
    const int64_t heads = count_of(*x) / rotary.head_size;
    if (rotary.tokens == 0 ? heads != 0 : heads % rotary.tokens != 0) return failed(VLLM_IR_BAD_SIZE);
  }
  const bool neox = args[6] == Py_True;
  const bool donated =
      args[7] == Py_True && apart(rotary.query, rotary.key, bytes_of(rotary.dtype));
  PyObject* query = turn(args[1], rotary.query, rotary, neox, donated);
  if (query == nullptr) return nullptr;
  PyObject* key = turn(args[2], rotary.key, rotary, neox, donated);
  if (key == nullptr) {
    Py_DECREF(query);
    return nullptr;
  }
  return pair(query, key);
}

}  // namespace
