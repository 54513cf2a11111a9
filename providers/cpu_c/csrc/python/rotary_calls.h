// rotary_embedding and fused_qk_norm_rope: from the arguments of a call to the kernel.
#pragma once

#include <initializer_list>

#include "python/arguments.h"
#include "python/outputs.h"
#include "python/team.h"
#include "python/tensors.h"

namespace {

// Which arguments are tensors, as bits.
constexpr unsigned kRotaryTensors = 0b100111, kNormRopeTensors = 0b100011111;

struct RotaryArguments {
  DLTensor positions, query, key, cache;
  int64_t head_size, rotary_dim, tokens;
  int32_t dtype;
};

// Whole heads in the last size, as many rows of heads for every token.
bool heads_fit(const DLTensor& x, int64_t head_size) {
  return activation(x) && x.shape[x.ndim - 1] % head_size == 0;
}

// How heads are normalised before they are turned; `weight` is set where they are `weighted`.
struct HeadNorm {
  bool wanted = false, weighted = false;
  DLTensor weight{};
  float epsilon = 0.0f;
};

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
PyObject* turn(PyObject* object, const DLTensor& x, const RotaryArguments& rotary, const HeadNorm& norm, bool neox,
               bool donated) {
  vllm_ir_rotary call{};
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
  call.normalized = norm.wanted;
  call.weight = norm.weighted ? data_of(norm.weight) : nullptr;
  call.weight_dtype = norm.weighted ? dtype_of(norm.weight) : call.dtype;
  call.epsilon = norm.epsilon;
  int32_t status = VLLM_IR_OK;
  if (!run(vllm_ir_cpu_c_rotary, &call, 2 * each * count_of(x), &status) || status != VLLM_IR_OK) {
    Py_DECREF(out);
    return PyErr_Occurred() ? nullptr : failed(status);
  }
  return out;
}

// Makes a call again with positions that lie next to each other: one integer a token is little to copy, and rare.
template <PyObject* (*kFunction)(PyObject*, PyObject* const*, Py_ssize_t), int kCount>
PyObject* with_dense_positions(PyObject* const* args) {
  PyObject* copy = PyObject_CallMethod(args[0], "contiguous", nullptr);
  if (copy == nullptr) return nullptr;
  PyObject* again[kCount];
  for (int i = 0; i < kCount; ++i) again[i] = i == 0 ? copy : args[i];
  PyObject* result = kFunction(nullptr, again, kCount);
  Py_DECREF(copy);
  return result;
}

// Query and key of one call, positions dense; null with an exception set.
PyObject* rotated(PyObject* const* given, const RotaryArguments& rotary, const HeadNorm& query_norm,
                  const HeadNorm& key_norm, bool neox, bool may_write) {
  // Before anything is written in place: both must be whole heads of every token.
  for (const DLTensor* x : {&rotary.query, &rotary.key}) {
    const int64_t heads = count_of(*x) / rotary.head_size;
    if (rotary.tokens == 0 ? heads != 0 : heads % rotary.tokens != 0) return failed(VLLM_IR_BAD_SIZE);
  }
  bool donated = may_write && apart(rotary.query, rotary.key);
  for (const DLTensor* x : {&rotary.query, &rotary.key}) {
    donated = donated && apart(*x, rotary.positions) && apart(*x, rotary.cache);
    for (const HeadNorm* norm : {&query_norm, &key_norm}) donated = donated && (!norm->weighted || apart(*x, norm->weight));
  }
  PyObject* query = turn(given[1], rotary.query, rotary, query_norm, neox, donated);
  if (query == nullptr) return nullptr;
  PyObject* key = turn(given[2], rotary.key, rotary, key_norm, neox, donated);
  if (key == nullptr) {
    Py_DECREF(query);
    return nullptr;
  }
  return pair(query, key);
}

PyObject* rotary_embedding(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("rotary_embedding", count, 8)) return nullptr;
  RotaryArguments rotary;
  const int taken = read_rotary(args, &rotary);
  if (taken <= 0) return taken < 0 ? nullptr : failed(VLLM_IR_BAD_SIZE);
  if (!contiguous(rotary.positions)) return with_dense_positions<rotary_embedding, 8>(args);
  return rotated(args, rotary, HeadNorm(), HeadNorm(), is_set(args[6]), args[7] == Py_True);
}

// The arguments of fused_qk_norm_rope: 1 taken, 0 not taken, -1 with an exception set.
int read_norm_rope(PyObject* const* args, RotaryArguments* rotary, HeadNorm* norms) {
  PyObject* const turned[] = {args[0], args[1], args[2], args[6], args[7], args[8]};
  const int taken = read_rotary(turned, rotary);
  for (int i = 0; taken == 1 && i < 2; ++i) {
    norms[i].wanted = true;
    if (args[3 + i] == Py_None) continue;
    if (!read(args[3 + i], &norms[i].weight)) return -1;
    if (!weight_fits(norms[i].weight, rotary->dtype, rotary->head_size)) return 0;
    norms[i].weighted = true;
  }
  return taken;
}

PyObject* takes_norm_rope(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("takes_norm_rope", count, 9)) return nullptr;
  if (ordinary(args, count, kNormRopeTensors) != 1) return not_taken();
  RotaryArguments rotary;
  HeadNorm norms[2];
  const int taken = read_norm_rope(args, &rotary, norms);
  return taken < 0 ? not_taken() : PyBool_FromLong(taken);
}

PyObject* fused_qk_norm_rope(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("fused_qk_norm_rope", count, 11)) return nullptr;
  RotaryArguments rotary;
  HeadNorm norms[2];
  const int taken = read_norm_rope(args, &rotary, norms);
  if (taken <= 0) return taken < 0 ? nullptr : failed(VLLM_IR_BAD_SIZE);
  if (!contiguous(rotary.positions)) return with_dense_positions<fused_qk_norm_rope, 11>(args);
  const float epsilon = static_cast<float>(PyFloat_AsDouble(args[5]));
  if (epsilon == -1.0f && PyErr_Occurred()) return nullptr;
  norms[0].epsilon = norms[1].epsilon = epsilon;
  return rotated(args, rotary, norms[0], norms[1], is_set(args[9]), args[10] == Py_True);
}

}  // namespace
