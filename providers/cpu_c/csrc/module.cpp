// The Python module: its functions by name, and the connection to torch.
//
// It is built against the stable ABI of CPython 3.10, so one binary serves every later version. Which calls come here,
// and the sentences of what is refused, are left to Python; the way of a call to the C ABI is in python/.
#include <pthread.h>

#include "python/gate_calls.h"
#include "python/norm_calls.h"
#include "python/quant_calls.h"
#include "python/rotary_calls.h"

namespace {

PyObject* connect(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("connect", count, 10)) return nullptr;
  auto* api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(args[0], kDLPackCapsule));
  if (api == nullptr) return nullptr;
  while (api != nullptr && api->header.version.major != kDLPackMajor) {
    api = reinterpret_cast<const DLPackExchangeAPI*>(api->header.prev_api);
  }
  if (api == nullptr || api->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_SetString(PyExc_ImportError, "this torch speaks no version 1 of DLPack's C exchange table");
    return nullptr;
  }
  int64_t block;
  if (!read_size(args[9], &block)) return nullptr;
  find_openmp();
  // References are kept for good: the kernels need them as long as there are tensors.
  for (Py_ssize_t i = 1; i < 9; ++i) Py_INCREF(args[i]);
  torch_.tensor = args[1];
  torch_.parameter = args[2];
  torch_.empty_like = args[3];
  torch_.empty = args[4];
  torch_.modes = args[5];
  torch_.transforms = args[6];
  torch_.num_threads = args[7];
  torch_.is_neg = args[8];
  torch_.block_bytes = block;
  torch_.api = api;
  Py_RETURN_NONE;
}

PyObject* isa(PyObject*, PyObject*) { return PyUnicode_FromString(vllm_ir_cpu_c_isa()); }

PyObject* isas(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const char* const* name = vllm_ir_cpu_c_isas(); list != nullptr && *name != nullptr; ++name) {
    PyObject* text = PyUnicode_FromString(*name);
    if (text == nullptr || PyList_Append(list, text) != 0) {
      Py_XDECREF(text);
      Py_CLEAR(list);
      break;
    }
    Py_DECREF(text);
  }
  return list;
}

PyObject* use_isa(PyObject*, PyObject* name) {
  PyObject* text = PyUnicode_AsUTF8String(name);
  if (text == nullptr) return nullptr;
  const int32_t found = vllm_ir_cpu_c_use_isa(PyBytes_AsString(text));
  Py_DECREF(text);
  if (!found) {
    PyErr_Format(PyExc_ValueError, "this CPU has no instruction set %R that the kernels are built for", name);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* openmp(PyObject*, PyObject*) { return PyBool_FromLong(gomp_parallel != nullptr); }

template <class Function>
PyCFunction as_function(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"connect", as_function(connect), METH_FASTCALL, nullptr},
    {"takes_norm", as_function(takes_norm), METH_FASTCALL, nullptr},
    {"takes_gate", as_function(takes_gate), METH_FASTCALL, nullptr},
    {"takes_rotary", as_function(takes_rotary), METH_FASTCALL, nullptr},
    {"takes_norm_rope", as_function(takes_norm_rope), METH_FASTCALL, nullptr},
    {"fused_qk_norm_rope", as_function(fused_qk_norm_rope), METH_FASTCALL, nullptr},
    {"try_fused_qk_norm_rope", as_function(attempt<fused_qk_norm_rope, kNormRopeTensors>), METH_FASTCALL, nullptr},
    {"takes_quant", as_function(takes_quant), METH_FASTCALL, nullptr},
    {"quant", as_function(quant), METH_FASTCALL, nullptr},
    {"try_quant", as_function(attempt<quant, kQuantTensors>), METH_FASTCALL, nullptr},
    {"rms_norm", as_function(rms_norm), METH_FASTCALL, nullptr},
    {"fused_add_rms_norm", as_function(fused_add_rms_norm), METH_FASTCALL, nullptr},
    {"gate", as_function(gate), METH_FASTCALL, nullptr},
    {"rotary_embedding", as_function(rotary_embedding), METH_FASTCALL, nullptr},
    {"try_rms_norm", as_function(attempt<rms_norm, kNormTensors>), METH_FASTCALL, nullptr},
    {"try_fused_add_rms_norm", as_function(attempt<fused_add_rms_norm, kFusedTensors>), METH_FASTCALL, nullptr},
    {"try_gate", as_function(attempt<gate, kGateTensors>), METH_FASTCALL, nullptr},
    {"try_rotary_embedding", as_function(attempt<rotary_embedding, kRotaryTensors>), METH_FASTCALL, nullptr},
    {"isa", isa, METH_NOARGS, nullptr},
    {"isas", isas, METH_NOARGS, nullptr},
    {"use_isa", use_isa, METH_O, nullptr},
    {"openmp", openmp, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The kernels; see _native.pyi.", -1, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__native(void) {
  pthread_atfork(nullptr, nullptr, after_fork);
  return PyModule_Create(&definition);
}
