/* What a copy can be compared with: memcpy, a loop of plain vector stores, a loop of streaming ones; shared out in equal
 * parts among threads that have a core each and sleep between copies. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MEMCPY, PLAIN, STREAMING };
enum { LINE = 64, MOST_THREADS = 1024 };

#if defined(__x86_64__)
#define LOOP(NAME, TARGET, VECTOR, LOAD, STORE)                                       \
  __attribute__((target(TARGET))) static void NAME(char *to, const char *from, size_t bytes) { \
    for (size_t at = 0; at < bytes; at += sizeof(VECTOR))                             \
      STORE((void *)(to + at), LOAD((const void *)(from + at)));                      \
    _mm_sfence();                                                                     \
  }
LOOP(plain_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_store_si512)
LOOP(plain_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_store_si256)
LOOP(plain_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_store_si128)
LOOP(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512)
LOOP(stream_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256)
LOOP(stream_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128)
#endif

typedef void (*loop_fn)(char *, const char *, size_t);

static void by_memcpy(char *to, const char *from, size_t bytes) { memcpy(to, from, bytes); }

/* NULL where this processor's stores of that kind are not known here. */
static loop_fn loop_of(int kind) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  int wide = __builtin_cpu_supports("avx512f"), middle = __builtin_cpu_supports("avx2");
  if (kind == PLAIN) return wide ? plain_avx512 : middle ? plain_avx2 : plain_sse2;
  if (kind == STREAMING) return wide ? stream_avx512 : middle ? stream_avx2 : stream_sse2;
#endif
  return kind == MEMCPY ? by_memcpy : NULL;
}

struct loops {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  loop_fn loop;
  char *to;
  const char *from;
  size_t share;
  unsigned long copies;
  int ending, helpers;
  _Atomic int done;
  pthread_t threads[MOST_THREADS];
};

struct start {
  struct loops *loops;
  int index;
};

static void *help(void *argument) {
  struct start start = *(struct start *)argument;
  struct loops *all = start.loops;
  unsigned long seen = 0;
  free(argument);
  for (;;) {
    pthread_mutex_lock(&all->lock);
    while (!all->ending && all->copies == seen) pthread_cond_wait(&all->wake, &all->lock);
    seen = all->copies;
    pthread_mutex_unlock(&all->lock);
    if (all->ending) return NULL;
    all->loop(all->to + all->share * start.index, all->from + all->share * start.index, all->share);
    atomic_fetch_add(&all->done, 1);
  }
}

/* Threads that sleep, one on each of `cpus`; NULL where there are none to be had. */
struct loops *loops_open(const int *cpus, int helpers) {
  struct loops *all = helpers > MOST_THREADS ? NULL : calloc(1, sizeof *all);
  if (!all) return NULL;
  pthread_mutex_init(&all->lock, NULL);
  pthread_cond_init(&all->wake, NULL);
  for (; all->helpers < helpers; all->helpers++) {
    struct start *start = malloc(sizeof *start);
    cpu_set_t set;
    pthread_attr_t attributes;
    CPU_ZERO(&set);
    CPU_SET(cpus[all->helpers], &set);
    pthread_attr_init(&attributes);
    pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
    *start = (struct start){all, all->helpers};
    if (pthread_create(&all->threads[all->helpers], &attributes, help, start)) return NULL;
    pthread_attr_destroy(&attributes);
  }
  return all;
}

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Nanoseconds of a copy by the caller and the threads, waking included; -1 where there is no such loop here. `to` must
 * lie on a line, and `bytes` be a multiple of one for each thread. */
int64_t loops_copy_ns(struct loops *all, int kind, char *to, const char *from, size_t bytes) {
  int64_t start_ns = now_ns();
  size_t share = bytes / (all->helpers + 1) / LINE * LINE;
  if (!(all->loop = loop_of(kind))) return -1;
  atomic_store(&all->done, 0);
  if (all->helpers) {
    pthread_mutex_lock(&all->lock);
    all->to = to, all->from = from, all->share = share, all->copies++;
    pthread_cond_broadcast(&all->wake);
    pthread_mutex_unlock(&all->lock);
  }
  all->loop(to + share * all->helpers, from + share * all->helpers, bytes - share * all->helpers);
  while (atomic_load(&all->done) < all->helpers) {
  }
  return now_ns() - start_ns;
}

void loops_close(struct loops *all) {
  pthread_mutex_lock(&all->lock);
  all->ending = 1;
  pthread_cond_broadcast(&all->wake);
  pthread_mutex_unlock(&all->lock);
  for (int i = 0; i < all->helpers; i++) pthread_join(all->threads[i], NULL);
  free(all);
}
