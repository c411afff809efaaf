// CUDA C++ run on a CPU: the threads of a block are fibers that a barrier switches between, blocks run one by one.
// What is wrong on a GPU shall be wrong here: shared memory holds NaN when a block begins, threads run in an order that
// the caller chooses, and a barrier that a thread of the block does not come to is an error.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))

struct uint3 { unsigned x, y, z; };
#define VECTOR(type, name) \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; }; \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; }; \
  static inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTOR(float, float)
VECTOR(int, int)

template <class A, class B> static inline auto max(A a, B b) { return a > b ? a : b; }
template <class A, class B> static inline auto min(A a, B b) { return a < b ? a : b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }

VECTOR(long long, longlong)
#define alignas(bytes) __attribute__((aligned(bytes)))

static uint3 threadIdx, blockIdx;
// So that the section is there.
__shared__ __attribute__((used)) char first_of_shared_memory[64] = {1};
extern "C" char __start_cuda_shared[] __attribute__((visibility("hidden")));
extern "C" char __stop_cuda_shared[] __attribute__((visibility("hidden")));

namespace emulation {
constexpr size_t STACK = 128 << 10;
enum State { READY, WAITING, DONE };
struct Fiber { ucontext_t start; jmp_buf place; std::vector<char> stack; State state; bool entered; uint3 index; };
static std::vector<Fiber> fibers;
static ucontext_t unused;
static jmp_buf scheduler;
static Fiber* current;
static void (*body)(void**);
static void** arguments;

static void enter() { body(arguments); current->state = DONE; _longjmp(scheduler, 1); }

// Contexts are for a fiber's first steps only: switching them is a system call, a jump is none.
static void resume(Fiber* fiber) {
  current = fiber;
  threadIdx = fiber->index;
  if (_setjmp(scheduler)) return;
  if (fiber->entered) _longjmp(fiber->place, 1);
  fiber->entered = true;
  swapcontext(&unused, &fiber->start);
}

static unsigned place_of(unsigned i, unsigned count, int order) {
  return order == 0 ? i : order == 1 ? count - 1 - i : unsigned((uint64_t(i) * 7919 + order) % count);
}

static uint3 unraveled(unsigned i, const unsigned* extents) {
  return {i % extents[0], i / extents[0] % extents[1], i / extents[0] / extents[1]};
}

// 0, or 1 where threads of a block parted at a barrier. `order`: 0 forward, 1 backward, above that a permutation.
static int run_block(unsigned count, const unsigned* block, int order) {
  memset(__start_cuda_shared, 0xff, size_t(__stop_cuda_shared - __start_cuda_shared));
  if (fibers.size() < count) fibers.resize(count);
  for (unsigned i = 0; i < count; i++) {
    Fiber& fiber = fibers[i];
    fiber.stack.resize(STACK);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.data();
    fiber.start.uc_stack.ss_size = STACK;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter, 0);
    fiber.state = READY;
    fiber.entered = false;
    fiber.index = unraveled(i, block);
  }
  for (;;) {
    unsigned waiting = 0, done = 0;
    for (unsigned i = 0; i < count; i++) {
      Fiber* fiber = &fibers[place_of(i, count, order)];
      if (fiber->state != DONE) resume(fiber);
      waiting += fiber->state == WAITING;
      done += fiber->state == DONE;
    }
    if (done == count) return 0;
    if (waiting != count) return 1;
  }
}

// `meets`: whether the function has barriers; without them each thread runs from beginning to end.
static int run(bool meets, void (*function)(void**), void** args, const unsigned* grid, const unsigned* block, int order) {
  body = function;
  arguments = args;
  unsigned threads = block[0] * block[1] * block[2];
  unsigned blocks = grid[0] * grid[1] * grid[2];
  for (unsigned i = 0; i < blocks; i++) {
    unsigned at = order == 1 ? blocks - 1 - i : i;
    blockIdx = unraveled(at, grid);
    for (unsigned j = 0; !meets && j < threads; j++) {
      threadIdx = unraveled(place_of(j, threads, order), block);
      function(args);
    }
    if (meets && run_block(threads, block, order)) return 1;
  }
  return 0;
}
}  // namespace emulation

static inline void __syncthreads() {
  emulation::current->state = emulation::WAITING;
  if (!_setjmp(emulation::current->place)) _longjmp(emulation::scheduler, 1);
}
