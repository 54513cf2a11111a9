// silu_and_mul and gelu_and_mul: from the arguments of a call to the kernel.
#pragma once

#include "python/arguments.h"
#include "python/outputs.h"
#include "python/team.h"
#include "python/tensors.h"

namespace {

// Which arguments are tensors, as bits.
constexpr unsigned kGateTensors = 0b1;

PyObject* takes_gate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("takes_gate", count, 1)) return nullptr;
  if (ordinary(args, count, kGateTensors) != 1) return not_taken();
  DLTensor x;
  if (!read(args[0], &x)) return not_taken();
  return PyBool_FromLong(activation(x) && x.shape[x.ndim - 1] % 2 == 0);
}

PyObject* gate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("gate", count, 2)) return nullptr;
  DLTensor x;
  int64_t which;
  if (!read(args[0], &x) || !read_size(args[1], &which)) return nullptr;
  if (!activation(x) || x.shape[x.ndim - 1] % 2 != 0) return failed(VLLM_IR_BAD_SIZE);
  vllm_ir_gate call;
  call.size = x.shape[x.ndim - 1] / 2;
  call.activation = static_cast<int32_t>(which);
  call.dtype = dtype_of(x);
  const int64_t each = bytes_of(call.dtype);
  call.block = which == VLLM_IR_SILU ? 0 : torch_.block_bytes / each;
  if (!describe(x, 2 * call.size, &call.x)) return failed(VLLM_IR_BAD_SIZE);
  PyObject* out = make_output(args[0], x, call.size, each, &call.out);
  if (out == nullptr) return nullptr;
  int32_t status = VLLM_IR_OK;
  if (!run(vllm_ir_cpu_c_gate, &call, each * count_of(x) / 2 * 3, &status) || status != VLLM_IR_OK) {
    Py_DECREF(out);
    return PyErr_Occurred() ? nullptr : failed(status);
  }
  return out;
}

}  // namespace
