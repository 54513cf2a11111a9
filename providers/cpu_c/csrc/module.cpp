// The way from a Python call to the C ABI: checks the arguments of a call, and runs its kernel.
//
// It is built against the stable ABI of CPython 3.10, so one binary serves every later version. Which calls come here,
// and the sentences of what is refused, are left to Python; tensors to tensors.h, threads to team.h.
#include "connection.h"
#include "team.h"
#include "tensors.h"

#include <pthread.h>

namespace {

// ---------------------------------------------------------------- predicates

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

// Which arguments of a function are tensors, as bits.
constexpr unsigned kNormTensors = 0b11, kFusedTensors = 0b111, kGateTensors = 0b1, kRotaryTensors = 0b100111;

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

PyObject* takes_gate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("takes_gate", count, 1)) return nullptr;
  if (ordinary(args, count, kGateTensors) != 1) return not_taken();
  DLTensor x;
  if (!read(args[0], &x)) return not_taken();
  return PyBool_FromLong(activation(x) && x.shape[x.ndim - 1] % 2 == 0);
}

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

// ---------------------------------------------------------------- kernels

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

// Whether two tensors share memory, judged by the spans that they reach over.
bool apart(const DLTensor& a, const DLTensor& b, int64_t each) {
  const char* first = static_cast<char*>(data_of(a));
  const char* second = static_cast<char*>(data_of(b));
  return first + count_of(a) * each <= second || second + count_of(b) * each <= first;
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
  // Results are contiguous: what is not, or is given twice, gets memory of its own even where it was donated.
  const bool donated = args[5] == Py_True && contiguous(norm.x) && contiguous(norm.residual) &&
                       apart(norm.x, norm.residual, each);
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

// The same for whoever does not know whether tensors are plain: None for a call that is not an ordinary one.
template <PyObject* (*kFunction)(PyObject*, PyObject* const*, Py_ssize_t), unsigned kTensors>
PyObject* attempt(PyObject* module, PyObject* const* args, Py_ssize_t count) {
  const int answer = ordinary(args, count, kTensors);
  if (answer < 0) return nullptr;
  return answer == 1 ? kFunction(module, args, count) : keep(Py_None);
}

// ---------------------------------------------------------------- the module

PyObject* connect(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!arity("connect", count, 9)) return nullptr;
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
  if (!read_size(args[8], &block)) return nullptr;
  find_openmp();
  // References are kept for good: the kernels need them as long as there are tensors.
  for (Py_ssize_t i = 1; i < 8; ++i) Py_INCREF(args[i]);
  torch_.tensor = args[1];
  torch_.parameter = args[2];
  torch_.empty_like = args[3];
  torch_.empty = args[4];
  torch_.modes = args[5];
  torch_.transforms = args[6];
  torch_.num_threads = args[7];
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
