// Where results go: new tensors that torch makes, or the donated ones.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "python/tensors.h"

namespace {

PyObject* size_tuple(const int64_t* values, int32_t count) {
  PyObject* tuple = PyTuple_New(count);
  for (int32_t i = 0; tuple != nullptr && i < count; ++i) {
    PyObject* value = PyLong_FromLongLong(values[i]);
    if (value == nullptr || PyTuple_SetItem(tuple, i, value) != 0) {
      Py_DECREF(tuple);
      return nullptr;
    }
  }
  return tuple;
}

// glibc serves what is larger from fresh pages every time, and a page fault per 4 KiB then costs more than the kernel.
constexpr int64_t kFreshBytes = int64_t{32} << 20;

void want_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (bytes < kFreshBytes) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  // A hint: where it is refused, pages are small as before.
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

// Gives the memory of a new tensor, which it takes over; null with an exception set.
PyObject* ready(PyObject* out, int64_t bytes_each, void** data) {
  DLTensor made;
  if (out == nullptr || !read(out, &made)) {
    Py_XDECREF(out);
    return nullptr;
  }
  *data = data_of(made);
  want_huge_pages(*data, count_of(made) * bytes_each);
  return out;
}

// Asks torch for a contiguous tensor like `model` whose last size is `last`; null with an exception set.
PyObject* make_output(PyObject* model, const DLTensor& t, int64_t last, int64_t bytes_each, void** data) {
  if (t.ndim > 64) return failed(VLLM_IR_BAD_SIZE);
  if (last == t.shape[t.ndim - 1] && contiguous(t)) {
    return ready(PyObject_CallFunctionObjArgs(torch_.empty_like, model, nullptr), bytes_each, data);
  }
  int64_t shape[64], strides[64];
  int64_t step = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    shape[d] = d == t.ndim - 1 ? last : t.shape[d];
    strides[d] = step;
    step *= shape[d] > 1 ? shape[d] : 1;
  }
  PyObject* sizes = size_tuple(shape, t.ndim);
  PyObject* steps = sizes != nullptr ? size_tuple(strides, t.ndim) : nullptr;
  PyObject* out = steps != nullptr ? PyObject_CallFunctionObjArgs(torch_.empty, model, sizes, steps, nullptr) : nullptr;
  Py_XDECREF(sizes);
  Py_XDECREF(steps);
  return ready(out, bytes_each, data);
}

PyObject* pair(PyObject* first, PyObject* second) {
  PyObject* tuple = first != nullptr && second != nullptr ? PyTuple_Pack(2, first, second) : nullptr;
  Py_XDECREF(first);
  Py_XDECREF(second);
  return tuple;
}

PyObject* keep(PyObject* object) {
  Py_INCREF(object);
  return object;
}

// The addresses between which all elements of a tensor lie, the second behind the last of them.
struct Span {
  const char *begin, *end;
};

Span span_of(const DLTensor& t) {
  const char* begin = static_cast<char*>(data_of(t));
  const int64_t each = t.dtype.bits * t.dtype.lanes / 8;
  const int64_t count = count_of(t);
  if (count == 0 || t.strides == nullptr) return {begin, begin + count * each};
  int64_t last = 0;
  for (int32_t d = 0; d < t.ndim; ++d) last += (t.shape[d] - 1) * t.strides[d];
  return {begin, begin + (last + 1) * each};
}

// Whether two tensors share no memory, judged by their spans. A donated tensor is written only where this holds for it
// and for all that is read beside it: what a thread writes may come before what another reads.
bool apart(const DLTensor& a, const DLTensor& b) {
  const Span first = span_of(a), second = span_of(b);
  return first.begin == first.end || second.begin == second.end || first.end <= second.begin || second.end <= first.begin;
}

}  // namespace
