// What the module knows of torch, and the errors that it raises: handed over once by `connect`, kept for good.
#pragma once

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "abi.h"
#include "python/dlpack_abi.h"

namespace {

// What `connect` hands over; kept for the life of the process.
struct Torch {
  const DLPackExchangeAPI* api = nullptr;
  PyObject* tensor = nullptr;
  PyObject* parameter = nullptr;
  PyObject* empty_like = nullptr;   // torch.empty_like: the cheapest where shape and strides are those of an input
  PyObject* empty = nullptr;        // Tensor.new_empty_strided, for any other
  PyObject* modes = nullptr;        // how many dispatch modes are active
  PyObject* transforms = nullptr;   // whether a transform of torch.func is active
  PyObject* num_threads = nullptr;  // torch.get_num_threads
  PyObject* is_neg = nullptr;       // Tensor.is_neg
  int64_t block_bytes = 0;          // what torch's vectorised loops take at once
};

Torch torch_;

// False with an exception set before `connect`.
bool connected() {
  if (torch_.api != nullptr) return true;
  PyErr_SetString(PyExc_RuntimeError, "the kernels were called before they were connected to torch");
  return false;
}

PyObject* failed(int32_t status) {
  switch (status) {
    case VLLM_IR_BAD_POSITION:
      PyErr_SetString(PyExc_IndexError, "a position lies outside cos_sin_cache");
      break;
    case VLLM_IR_BAD_DTYPE:
      PyErr_SetString(PyExc_TypeError, "no kernel for these dtypes; supports_args refuses them");
      break;
    default:
      PyErr_SetString(PyExc_ValueError, "sizes or strides that no kernel takes; supports_args refuses them");
  }
  return nullptr;
}

}  // namespace
