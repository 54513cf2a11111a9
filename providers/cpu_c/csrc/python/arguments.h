// The arguments of a call: how many, whole numbers among them, and whether the call is an ordinary one.
#pragma once

#include <initializer_list>

#include "python/connection.h"
#include "python/outputs.h"

namespace {

// A whole number; True is one for Python, and is none here.
bool read_size(PyObject* object, int64_t* out) {
  if (PyBool_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "a truth value where a whole number is wanted");
    return false;
  }
  *out = PyLong_AsLongLong(object);
  return !(*out == -1 && PyErr_Occurred());
}

// Whether a flag is set, as Python tells the truth of a value: 1 is set like True.
bool is_set(PyObject* flag) {
  if (flag == Py_True || flag == Py_False) return flag == Py_True;
  const int truth = PyObject_IsTrue(flag);
  if (truth < 0) PyErr_Clear();
  return truth == 1;
}

bool arity(const char* name, Py_ssize_t got, Py_ssize_t wanted) {
  if (got == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, got);
  return false;
}

// Turns "cannot be read" into "not taken": the slow predicate then says why.
PyObject* not_taken() {
  PyErr_Clear();
  Py_RETURN_FALSE;
}

// Whether a Python predicate of torch holds; -1 with an exception set.
int holds(PyObject* predicate) {
  PyObject* answer = PyObject_CallNoArgs(predicate);
  if (answer == nullptr) return -1;
  const int truth = PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

// Whether a call is an ordinary one: plain tensors, no dispatch mode, no transform of torch.func. All others are for
// the torch op. 1 or 0, or -1 with an exception set.
int ordinary(PyObject* const* args, Py_ssize_t count, unsigned tensors) {
  if (!connected()) return -1;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if ((tensors >> i & 1u) == 0) continue;
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(args[i]));
    if (type != torch_.tensor && type != torch_.parameter && args[i] != Py_None) return 0;
  }
  for (PyObject* predicate : {torch_.modes, torch_.transforms}) {
    const int found = holds(predicate);
    if (found != 0) return found < 0 ? -1 : 0;
  }
  return 1;
}

// The same for whoever does not know whether tensors are plain: None for a call that is not an ordinary one.
template <PyObject* (*kFunction)(PyObject*, PyObject* const*, Py_ssize_t), unsigned kTensors>
PyObject* attempt(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  const int answer = ordinary(args, count, kTensors);
  if (answer < 0) return nullptr;
  return answer == 1 ? kFunction(module, args, count) : keep(Py_None);
}

}  // namespace
