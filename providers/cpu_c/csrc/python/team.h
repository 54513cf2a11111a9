// Where threads come from: the OpenMP runtime that torch has loaded, or none. How rows are cut is left to dispatch.cpp.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include <dlfcn.h>

#include "python/connection.h"

namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

GompParallel gomp_parallel = nullptr;
// An OpenMP team does not survive a fork, and a child that started one would wait for ever.
std::atomic<bool> forked{false};

void after_fork() { forked.store(true, std::memory_order_relaxed); }

void start_openmp(void (*work)(void*), void* data, int32_t threads) {
  gomp_parallel(work, data, static_cast<unsigned>(threads), 0);
}

// Where no OpenMP runtime is loaded: threads for this call alone, which only large calls are worth.
void start_threads(void (*work)(void*), void* data, int32_t threads) {
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<size_t>(threads));
    for (int32_t i = 1; i < threads; ++i) others.emplace_back(work, data);
  } catch (...) {
    // The work is taken piece by piece, so those that did start, and this one, do it all.
  }
  work(data);
  for (std::thread& other : others) other.join();
}

void find_openmp() {
  // Already loaded by torch, or absent: a runtime of our own would be a second team on the same cores.
  void* found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
  if (found == nullptr) {
    if (void* library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD)) found = dlsym(library, "GOMP_parallel");
  }
  gomp_parallel = reinterpret_cast<GompParallel>(found);
}

// Calls below this many bytes run on this thread and keep the interpreter lock: releasing it costs as much.
constexpr int64_t kBytesForTeam = 128 * 1024;

// Fills `team`; asks torch for its number of threads only where it matters.
bool make_team(int64_t bytes, vllm_ir_team* team) {
  team->threads = 1;
  team->start = nullptr;
  if (bytes < kBytesForTeam || forked.load(std::memory_order_relaxed)) return true;
  PyObject* number = PyObject_CallNoArgs(torch_.num_threads);
  if (number == nullptr) return false;
  const long threads = PyLong_AsLong(number);
  Py_DECREF(number);
  if (threads == -1 && PyErr_Occurred()) return false;
  team->threads = threads > 1 ? static_cast<int32_t>(threads) : 1;
  team->start = gomp_parallel != nullptr ? start_openmp : start_threads;
  return true;
}

template <class Call>
bool run(int32_t (*function)(const Call*, const vllm_ir_team*), const Call* call, int64_t bytes, int32_t* status) {
  vllm_ir_team team;
  if (!make_team(bytes, &team)) return false;
  if (bytes < kBytesForTeam) {
    *status = function(call, &team);
    return true;
  }
  Py_BEGIN_ALLOW_THREADS
  *status = function(call, &team);
  Py_END_ALLOW_THREADS
  return true;
}

}  // namespace
