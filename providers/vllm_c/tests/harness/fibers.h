// Runs the threads of one CUDA block on the CPU, each as a fiber, under a chosen schedule.
//
// A fiber gives way at a barrier, a warp synchronisation and a shuffle; in between it runs alone, so what one schedule
// hides another shows. ThreadSanitizer is told of every switch and of what a barrier orders, AddressSanitizer of every
// stack. Not seen: races between blocks, the memory model of a GPU, resource limits. Needs x86-64 and the SysV ABI.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_THREAD__)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#define SHIM_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#define SHIM_THREAD(code) code
#define SHIM_ADDRESS(code)
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SHIM_UNCHECKED __attribute__((no_sanitize("address"), noinline))
#define SHIM_THREAD(code)
#define SHIM_ADDRESS(code) code
#else
#define SHIM_UNCHECKED
#define SHIM_THREAD(code)
#define SHIM_ADDRESS(code)
#endif

namespace shim {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum State { READY, AT_BLOCK, AT_WARP, DONE };

struct Fiber {
  void* sp = nullptr;
  char* stack = nullptr;
  State state = READY;
  unsigned mask = 0;    // of the warp operation it waits in
  unsigned number = 0;  // in the block
  unsigned block_waits = 0, warp_waits = 0;
  Index index;
  void* thread = nullptr;  // ThreadSanitizer's name for it
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<uint64_t> slots;  // what the lanes of a warp give each other
  Index index, size, grid;
  Fiber* running = nullptr;
  void* scheduler_sp = nullptr;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  int order = 0;
  unsigned seed = 1;
  bool trapped = false;
  std::string error;
  char block_barrier[4], warp_barrier[32][4];  // addresses that ThreadSanitizer knows the barriers by
  void* thread = nullptr;
  const void* main_stack = nullptr;
  size_t main_size = 0;
};

SHIM_UNCHECKED inline Block& current() {
  static thread_local Block block;
  return block;
}

constexpr size_t STACK = 64 * 1024;

extern "C" void shim_switch(void** from, void* to);
asm(R"(
.weak shim_switch
.type shim_switch,@function
shim_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size shim_switch,.-shim_switch
)");

// Give way: back to the scheduler until whoever is waited for has come.
SHIM_UNCHECKED inline void give_way(State state) {
  Block& block = current();
  Fiber* self = block.running;
  self->state = state;
  SHIM_THREAD(char* barrier = state == AT_BLOCK  ? &block.block_barrier[self->block_waits++ & 3]
                              : state == AT_WARP ? &block.warp_barrier[self->number / 32][self->warp_waits++ & 3]
                                                 : nullptr;
              __tsan_release(barrier ? static_cast<void*>(barrier) : &block); __tsan_switch_to_fiber(block.thread, 1);)
  SHIM_ADDRESS(void* fake; __sanitizer_start_switch_fiber(state == DONE ? nullptr : &fake, block.main_stack,
                                                          block.main_size);)
  shim_switch(&self->sp, block.scheduler_sp);
  SHIM_ADDRESS(__sanitizer_finish_switch_fiber(fake, &block.main_stack, &block.main_size);)
  SHIM_THREAD(if (barrier) __tsan_acquire(barrier);)
}

SHIM_UNCHECKED inline void resume(Block& block, Fiber& fiber) {
  block.running = &fiber;
  SHIM_THREAD(__tsan_switch_to_fiber(fiber.thread, 1);)
  SHIM_ADDRESS(void* fake; __sanitizer_start_switch_fiber(&fake, fiber.stack, STACK);)
  shim_switch(&block.scheduler_sp, fiber.sp);
  SHIM_ADDRESS(__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);)
}

SHIM_UNCHECKED inline void enter() {
  Block& block = current();
  SHIM_ADDRESS(__sanitizer_finish_switch_fiber(nullptr, &block.main_stack, &block.main_size);)
  block.body(block.argument);
  give_way(DONE);
  abort();
}

// Let the lanes of a warp go on once all that their masks name are there; lanes that are done count as absent.
SHIM_UNCHECKED inline bool release_warp(Fiber* fibers, unsigned first, unsigned count) {
  const unsigned last = std::min(first + 32, count);
  unsigned here = 0, wanted = 0;
  for (unsigned i = first; i < last; i++) {
    if (fibers[i].state == AT_WARP) {
      here |= 1u << (i - first);
      wanted |= fibers[i].mask;
    }
  }
  const unsigned live = last - first == 32 ? ~0u : (1u << (last - first)) - 1;
  if (!here || (wanted & live) != here) return false;
  for (unsigned i = first; i < last; i++) {
    if (here >> (i - first) & 1) fibers[i].state = READY;
  }
  return true;
}

SHIM_UNCHECKED inline void prepare(Block& block, unsigned count) {
  if (block.fibers.size() < count) block.fibers.resize(count);
  block.slots.assign((count + 31) / 32 * 32, 0);
  for (unsigned i = 0; i < count; i++) {
    Fiber& fiber = block.fibers[i];
    if (!fiber.stack) fiber.stack = static_cast<char*>(aligned_alloc(64, STACK));
    SHIM_ADDRESS(__asan_unpoison_memory_region(fiber.stack, STACK);)
    void** sp = reinterpret_cast<void**>(fiber.stack + STACK) - 2;
    *--sp = nullptr;
    *--sp = reinterpret_cast<void*>(&enter);  // where the first switch returns to
    for (int k = 0; k < 6; k++) *--sp = nullptr;
    fiber.sp = sp;
    fiber.state = READY;
    fiber.number = i;
    fiber.block_waits = fiber.warp_waits = 0;
    fiber.index = {i % block.size.x, i / block.size.x % block.size.y, i / (block.size.x * block.size.y)};
  }
}

// Run every warp until it waits for the whole block, one after the other, up or down.
SHIM_UNCHECKED inline bool run_by_warp(Block& block, unsigned count, bool down) {
  Fiber* fibers = block.fibers.data();
  const unsigned warps = (count + 31) / 32;
  bool ran = false;
  for (unsigned k = 0; k < warps; k++) {
    const unsigned first = 32 * (down ? warps - 1 - k : k), last = std::min(first + 32, count);
    do {
      for (unsigned i = first; i < last; i++) {
        if (fibers[i].state == READY) resume(block, fibers[i]), ran = true;
      }
    } while (release_warp(fibers, first, count));
  }
  return ran;
}

// Orders 0, 1, 2: all warps advance together, threads up, down, shuffled. 3, 4: one warp as far as it can, up, down.
SHIM_UNCHECKED inline bool run_block(Block& block) {
  const unsigned count = block.size.x * block.size.y * block.size.z;
  prepare(block, count);
  std::vector<unsigned> threads(count);
  for (unsigned i = 0; i < count; i++) threads[i] = block.order == 1 ? count - 1 - i : i;
  std::mt19937 random(block.seed);
  Fiber* fibers = block.fibers.data();
  bool finished = false;
  SHIM_THREAD(block.thread = __tsan_get_current_fiber();
              for (unsigned i = 0; i < count; i++) fibers[i].thread = __tsan_create_fiber(0);
              __tsan_release(&block.grid); for (unsigned i = 0; i < count; i++) {
                __tsan_switch_to_fiber(fibers[i].thread, 1);
                __tsan_acquire(&block.grid);
              } __tsan_switch_to_fiber(block.thread, 1);)
  for (;;) {
    bool ran = false, released = false;
    if (block.order >= 3) {
      ran = run_by_warp(block, count, block.order == 4);
    } else {
      if (block.order == 2) std::shuffle(threads.begin(), threads.end(), random);
      for (unsigned i : threads) {
        if (fibers[i].state == READY) resume(block, fibers[i]), ran = true;
      }
      for (unsigned warp = 0; warp < count; warp += 32) released |= release_warp(fibers, warp, count);
      if (released) continue;
    }
    unsigned waiting = 0, done = 0;
    for (unsigned i = 0; i < count; i++) waiting += fibers[i].state == AT_BLOCK, done += fibers[i].state == DONE;
    if (done == count) {
      finished = true;
      break;
    }
    if (waiting == count) {
      for (unsigned i = 0; i < count; i++) fibers[i].state = READY;
      continue;
    }
    if (waiting + done == count) block.error = "__syncthreads not reached by every thread";
    else if (!ran) block.error = "deadlock: divergent barrier or shuffle mask";
    if (!block.error.empty()) break;
  }
  SHIM_THREAD(__tsan_acquire(&block); for (unsigned i = 0; i < count; i++) __tsan_destroy_fiber(fibers[i].thread);)
  if (block.trapped) block.error = "__trap";
  return finished && !block.trapped;
}

// Run a grid block by block, from one on; the answer is an empty text, or what went wrong in which block.
template <class F>
SHIM_UNCHECKED std::string launch(unsigned first, Index grid, Index size, int order, unsigned seed, F body) {
  Block& block = current();
  block.grid = grid, block.size = size, block.order = order, block.seed = seed;
  block.argument = &body;
  block.body = [](void* argument) { (*static_cast<F*>(argument))(); };
  for (unsigned x = first; x < grid.x; x++) {
    block.index = {x, 0, 0};
    block.error.clear();
    block.trapped = false;
    if (!run_block(block)) return "block " + std::to_string(x) + ": " + block.error;
  }
  return "";
}

// One lane's value for another, in two steps, so that nobody overwrites what has not been read.
template <class T>
SHIM_UNCHECKED T shuffle(unsigned mask, T value, unsigned lane, bool valid) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most 8 bytes");
  Block& block = current();
  Fiber* self = block.running;
  const unsigned warp = self->number & ~31u;
  union {
    uint64_t bits;
    T value;
  } slot;
  slot.bits = 0;
  slot.value = value;
  uint64_t* slots = block.slots.data();
  slots[self->number] = slot.bits;
  self->mask = mask;
  give_way(AT_WARP);
  if (valid && warp + lane < block.slots.size()) slot.bits = slots[warp + lane];
  self->mask = mask;
  give_way(AT_WARP);
  return slot.value;
}

}  // namespace shim
