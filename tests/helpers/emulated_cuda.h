// CUDA C++ run on a CPU: the threads of a block are fibers that a barrier switches between, blocks run one by one.
// What is wrong on a GPU shall be wrong here: shared memory holds NaN when a block begins, threads run in an order that
// the caller chooses, and a barrier that a thread of the block does not come to is an error. So is an instruction of a warp
// that one of its 32 threads does not come to.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define CUDART_INF_F INFINITY
#define __global__
#define __device__
#define __noinline__ __attribute__((noinline))
#define __host__
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
VECTOR(unsigned, uint)

template <class A, class B> static inline auto max(A a, B b) { return a > b ? a : b; }
template <class A, class B> static inline auto min(A a, B b) { return a < b ? a : b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }

VECTOR(long long, longlong)
#define alignas(bytes) __attribute__((aligned(bytes)))

static uint3 threadIdx, blockIdx, blockDim, gridDim;
// So that the section is there.
__shared__ __attribute__((used)) char first_of_shared_memory[64] = {1};
extern "C" char __start_cuda_shared[] __attribute__((visibility("hidden")));
extern "C" char __stop_cuda_shared[] __attribute__((visibility("hidden")));

namespace emulation {
constexpr size_t STACK = 128 << 10;
enum State { READY, WAITING, IN_WARP, AMONG_SOME, DONE };
struct Words { unsigned left[4], right[2]; };
// `operands`: of the last two warp instructions that the thread came to; `meetings` is the number of all of them.
struct Fiber {
  ucontext_t start; jmp_buf place; std::vector<char> stack; State state; bool entered; uint3 index;
  unsigned number, meetings; int packed; Words operands[2];
};
static unsigned expected_among_some;  // Threads that a barrier for a part of a block waits for.
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

// Release each warp whose 32 threads have come to the same instruction; return the number of such warps.
static unsigned warps_go_on(unsigned count) {
  unsigned released = 0;
  for (unsigned first = 0; first + 32 <= count; first += 32) {
    bool met = true;
    for (unsigned i = first; i < first + 32; i++)
      met = met && fibers[i].state == IN_WARP && fibers[i].meetings == fibers[first].meetings
          && fibers[i].packed == fibers[first].packed;
    for (unsigned i = first; met && i < first + 32; i++) fibers[i].state = READY;
    released += met;
  }
  return released;
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
    fiber.number = i;
    fiber.meetings = 0;
  }
  for (;;) {
    unsigned waiting = 0, among_some = 0, done = 0;
    for (unsigned i = 0; i < count; i++) {
      Fiber* fiber = &fibers[place_of(i, count, order)];
      if (fiber->state == READY) resume(fiber);
      waiting += fiber->state == WAITING;
      among_some += fiber->state == AMONG_SOME;
      done += fiber->state == DONE;
    }
    if (done == count) return 0;
    if (warps_go_on(count)) continue;
    if (among_some && among_some == expected_among_some) {
      for (unsigned i = 0; i < count; i++)
        if (fibers[i].state == AMONG_SOME) fibers[i].state = READY;
      continue;
    }
    if (waiting != count) return 1;
    for (unsigned i = 0; i < count; i++) fibers[i].state = READY;
  }
}

// `meets`: whether the function has barriers; without them each thread runs from beginning to end.
static int run(bool meets, void (*function)(void**), void** args, const unsigned* grid, const unsigned* block, int order) {
  body = function;
  arguments = args;
  unsigned threads = block[0] * block[1] * block[2];
  unsigned blocks = grid[0] * grid[1] * grid[2];
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
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

namespace emulation {
static inline void stop(State state) {
  current->state = state;
  if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

static float float_of(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static unsigned bits_of(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }

// Factor `n` of a word. One of tf32 has no lower 13 bits; where some are set, nobody rounded it.
static float factor(unsigned word, int packed, int n) {
  if (packed == 2) return float_of(n ? word & 0xffff0000u : word << 16);
  return word & 0x1fffu ? NAN : float_of(word);
}

// D = A B + C of a warp: 16 x 8 words of A, 8 words x 8 of B, and who holds which, as the PTX ISA has it ("Matrix Fragments
// for mma.m16n8k8 with floating point type", "mma.m16n8k16"). Products are exact in float32; the sums of a GPU are made in an
// order and with roundings of its own.
static void multiply(float** sums, Words words, int packed) {
  Fiber* me = current;
  unsigned turn = me->meetings++ % 2, group = me->number % 32 / 4, in_group = me->number % 4;
  me->operands[turn] = words;
  me->packed = packed;
  stop(IN_WARP);
  const Fiber* warp = &fibers[me->number / 32 * 32];
  for (unsigned i = 0; i < 4; i++) {
    unsigned row = group + i / 2 * 8, column = in_group * 2 + i % 2;
    float sum = *sums[i];
    for (unsigned word = 0; word < 8; word++) {
      unsigned left = warp[row % 8 * 4 + word % 4].operands[turn].left[row / 8 + word / 4 * 2];
      unsigned right = warp[column * 4 + word % 4].operands[turn].right[word / 4];
      for (int n = 0; n < packed; n++) sum += factor(left, packed, n) * factor(right, packed, n);
    }
    *sums[i] = sum;
  }
}
}  // namespace emulation

static inline void __syncthreads() { emulation::stop(emulation::WAITING); }

// `bar.sync` with a number of threads.
static inline void barrier(int threads) {
  emulation::expected_among_some = threads;
  emulation::stop(emulation::AMONG_SOME);
}

namespace emulation {
static std::function<void()> launched;
static void call_launched(void**) { launched(); }

// A launch of the host: a function of no arguments, its blocks and its threads.
static void launch(std::function<void()> function, unsigned x, unsigned y, unsigned z, unsigned threads) {
  unsigned grid[3] = {x, y, z}, block[3] = {threads, 1, 1};
  launched = function;
  if (run(true, call_launched, nullptr, grid, block, 0)) abort();
}
}  // namespace emulation

// Instructions of PTX under their names, operands in the order of their texts.
static inline void ptx_cvt_rna_tf32_f32(unsigned& word, float value) {
  // To nearest, ties away from zero: the magnitude is in the lower 31 bits.
  word = isfinite(value) ? (emulation::bits_of(value) + 0x1000u) & ~0x1fffu : emulation::bits_of(value);
}
static inline void ptx_cvt_rn_bf16x2_f32(unsigned& word, float high, float low) {
  unsigned halves[2];
  const float values[2] = {low, high};
  for (int n = 0; n < 2; n++) {
    unsigned bits = emulation::bits_of(values[n]);
    halves[n] = isnan(values[n]) ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  }
  word = halves[0] | halves[1] << 16;
}
#define MMA(name, packed) \
  static inline void name(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                          unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) { \
    d0 = c0; d1 = c1; d2 = c2; d3 = c3; \
    float* sums[4] = {&d0, &d1, &d2, &d3}; \
    emulation::multiply(sums, {{a0, a1, a2, a3}, {b0, b1}}, packed); \
  }
MMA(ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 1)
MMA(ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 2)
