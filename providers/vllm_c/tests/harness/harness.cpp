// The kernels behind two doors: a function for Python, and a program for the sanitizers that reads jobs from a file.
//
// The tests write sources.inc, which includes the sources, and variants.inc, which lists the variants.
#include "cuda_on_cpu.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include "sources.inc"

namespace {

using Kernel = void (*)(const void*);

const std::map<std::string, Kernel>& kernels() {
  static const std::map<std::string, Kernel> table = {
#define VARIANT(name, expression, arguments) \
  {name, [](const void* a) { expression(*static_cast<const arguments*>(a)); }},
#include "variants.inc"
  };
  return table;
}

std::string run(const char* name, unsigned first, unsigned grid, unsigned x, unsigned y, const void* arguments,
                int order) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) return std::string("no variant ") + name;
  const Kernel kernel = found->second;
  return shim::launch(first, {grid, 1, 1}, {x, y, 1}, order, 7, [=] { kernel(arguments); });
}

template <class T>
T take(std::istream& from) {
  T value;
  from.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

}  // namespace

// Python's door: 0, or 1 with the reason in `reason`. Blocks before `first` are left out.
extern "C" int harness_run(const char* name, unsigned first, unsigned grid, unsigned x, unsigned y,
                           const void* arguments, int order, char* reason, size_t size) {
  const std::string error = run(name, first, grid, x, y, arguments, order);
  snprintf(reason, size, "%s", error.c_str());
  return error.empty() ? 0 : 1;
}

// One job: buffers of exactly their sizes, arguments with addresses to fill in, one launch.
static std::string run_job(std::istream& job, int order) {
  std::vector<char*> buffers;
  for (uint64_t n = take<uint64_t>(job); n; n--) {
    const uint64_t size = take<uint64_t>(job);
    buffers.push_back(static_cast<char*>(malloc(size)));
    job.read(buffers.back(), static_cast<std::streamsize>(size));
  }
  std::string name(take<uint64_t>(job), '\0');
  job.read(&name[0], static_cast<std::streamsize>(name.size()));
  const unsigned grid = take<uint64_t>(job), x = take<uint64_t>(job), y = take<uint64_t>(job);
  std::vector<uint64_t> arguments(take<uint64_t>(job) / 8);
  job.read(reinterpret_cast<char*>(arguments.data()), static_cast<std::streamsize>(arguments.size() * 8));
  for (uint64_t n = take<uint64_t>(job); n; n--) {
    const uint64_t at = take<uint64_t>(job), buffer = take<uint64_t>(job), distance = take<uint64_t>(job);
    arguments[at / 8] = reinterpret_cast<uint64_t>(buffers[buffer]) + distance;
  }
  const std::string error = run(name.c_str(), 0, grid, x, y, arguments.data(), order);
  for (char* buffer : buffers) free(buffer);
  return error.empty() ? error : name + ": " + error;
}

// The sanitizers' door: a file of jobs, a schedule. What a sanitizer says goes to stderr, with the kernel in it.
int main(int count, char** words) {
  if (count != 3) return 64;
  std::ifstream jobs(words[1], std::ios::binary);
  while (jobs.peek() != EOF) {
    const std::string error = run_job(jobs, atoi(words[2]));
    if (error.empty()) continue;
    fprintf(stderr, "%s\n", error.c_str());
    return 3;
  }
  return 0;
}
