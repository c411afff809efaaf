/* Copies of bytes by a team of threads: the caller and its helpers, each on a core of its own.
 *
 * Streaming (non-temporal) stores write whole lines past the caches: a plain store first reads the line that it is about
 * to overwrite, and puts out of the caches what kernels had there. Whether asking for lines ahead helps them depends on
 * the processor's own prefetching: callers say how far. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LINE = 64, APART = 32 << 10 };
/* Threads take pieces as they get done, smaller ones towards the end: a thread that another process displaces delays the
 * copy by one piece only. */
enum { LEAST_PIECE = 64 << 10, MOST_PIECE = 1 << 20 };
enum { SPINS = 20000 };

/* --- one thread ------------------------------------------------------------------------------------------------- */

/* `to` on a line, `bytes` a multiple of a line; source lines are asked for `ahead` bytes early, 0 for not at all. Two places
 * are written in turn: a core waits less for memory with two streams of reads and writes than with one. */
typedef void (*lines_fn)(char *to, const char *from, size_t bytes, size_t ahead);

#if defined(__x86_64__)
#define STREAM_LINES(NAME, TARGET, VECTOR, LOAD, STORE)                                                      \
  __attribute__((target(TARGET), always_inline)) static inline void NAME##_line(char *to, const char *from, size_t ahead) { \
    enum { WIDTH = sizeof(VECTOR), COUNT = LINE / WIDTH };                                                   \
    VECTOR held[COUNT];                                                                                      \
    if (ahead) _mm_prefetch(from + ahead, _MM_HINT_NTA);                                                     \
    _Pragma("GCC unroll 4") for (int i = 0; i < COUNT; i++) held[i] = LOAD((const void *)(from + i * WIDTH)); \
    _Pragma("GCC unroll 4") for (int i = 0; i < COUNT; i++) STORE((void *)(to + i * WIDTH), held[i]);        \
  }                                                                                                          \
  __attribute__((target(TARGET))) static void NAME(char *to, const char *from, size_t bytes, size_t ahead) { \
    while (bytes) {                                                                                          \
      size_t half = (bytes < 2 * APART ? bytes / 2 : APART) / LINE * LINE;                                   \
      for (size_t at = 0; at < half; at += LINE) {                                                           \
        NAME##_line(to + at, from + at, ahead);                                                              \
        NAME##_line(to + half + at, from + half + at, ahead);                                                \
      }                                                                                                      \
      if (!half) NAME##_line(to, from, ahead);                                                               \
      size_t done = half ? 2 * half : LINE;                                                                  \
      to += done, from += done, bytes -= done;                                                               \
    }                                                                                                        \
  }
STREAM_LINES(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512)
STREAM_LINES(stream_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256)
STREAM_LINES(stream_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128)
#endif

/* Bytes of the widest streaming store that this build and processor have: 64, 32, 16, or 0 for none. */
int autotm_widest_store(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx2") ? 32 : 16;
#else
  return 0;
#endif
}

static lines_fn streaming(int width) {
#if defined(__x86_64__)
  return width == 64 ? stream_avx512 : width == 32 ? stream_avx2 : width == 16 ? stream_sse2 : NULL;
#else
  (void)width;
  return NULL;
#endif
}

/* Bytes of a core's own second-level cache, 0 if unknown. */
long autotm_own_cache_bytes(void) {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : 0;
#else
  return 0;
#endif
}

/* Streaming stores before it are seen before what is stored after it. It waits for them, so it is called once a copy. */
static void settle(int width) {
#if defined(__x86_64__)
  if (width) _mm_sfence();
#else
  (void)width;
#endif
}

static void copy_unsettled(char *to, const char *from, size_t bytes, int width, size_t ahead) {
  lines_fn lines = streaming(width);
  size_t head = -(uintptr_t)to % LINE;
  if (!lines || bytes < head + LINE) {
    memcpy(to, from, bytes);
    return;
  }
  size_t middle = (bytes - head) / LINE * LINE;
  memcpy(to, from, head);
  lines(to + head, from + head, middle, ahead);
  memcpy(to + head + middle, from + head + middle, bytes - head - middle);
}

/* Copy on the calling thread; `width` as `autotm_widest_store` gives it, 0 for the C library's memcpy; `ahead` as above. */
void autotm_copy(char *to, const char *from, size_t bytes, int width, size_t ahead) {
  copy_unsettled(to, from, bytes, width, ahead);
  settle(width);
}

/* --- a team ----------------------------------------------------------------------------------------------------- */

struct job {
  char *to;
  const char *from;
  size_t bytes, ahead;
  int width, helpers;
};

struct helper {
  pthread_t thread;
  pthread_cond_t wake; /* its own: a copy by few threads wakes no others */
  struct team *team;
};

struct team {
  pthread_mutex_t turn; /* held by the caller whose copy it is */
  pthread_mutex_t lock; /* of all below but the atomic ones */
  pthread_cond_t left;
  struct job job;
  _Atomic size_t taken; /* bytes of the job that threads have taken */
  _Atomic int inside;   /* helpers at work on it */
  unsigned long jobs;   /* how many there have been */
  int open, ending, helpers;
  struct helper all[];
};

static void take_pieces(struct team *team, const struct job *job) {
  size_t threads = job->helpers + 1, start = atomic_load(&team->taken);
  while (start < job->bytes) {
    size_t piece = (job->bytes - start) / (2 * threads) & ~(size_t)4095;
    piece = piece < LEAST_PIECE ? LEAST_PIECE : piece > MOST_PIECE ? MOST_PIECE : piece;
    if (piece > job->bytes - start) piece = job->bytes - start;
    if (!atomic_compare_exchange_weak(&team->taken, &start, start + piece)) continue;
    copy_unsettled(job->to + start, job->from + start, piece, job->width, job->ahead);
    start = atomic_load(&team->taken);
  }
  settle(job->width);
}

static void *help(void *argument) {
  struct helper *self = argument;
  struct team *team = self->team;
  unsigned long seen = 0;
  pthread_mutex_lock(&team->lock);
  for (;;) {
    while (!team->ending && !(team->open && team->jobs != seen && self - team->all < team->job.helpers))
      pthread_cond_wait(&self->wake, &team->lock);
    if (team->ending) break;
    seen = team->jobs;
    struct job job = team->job;
    atomic_fetch_add(&team->inside, 1);
    pthread_mutex_unlock(&team->lock);
    take_pieces(team, &job);
    pthread_mutex_lock(&team->lock);
    if (atomic_fetch_sub(&team->inside, 1) == 1) pthread_cond_signal(&team->left);
  }
  pthread_mutex_unlock(&team->lock);
  return NULL;
}

/* End the helpers and free the team. */
void autotm_team_end(struct team *team) {
  pthread_mutex_lock(&team->lock);
  team->ending = 1;
  for (int i = 0; i < team->helpers; i++) pthread_cond_signal(&team->all[i].wake);
  pthread_mutex_unlock(&team->lock);
  for (int i = 0; i < team->helpers; i++) {
    pthread_join(team->all[i].thread, NULL);
    pthread_cond_destroy(&team->all[i].wake);
  }
  pthread_cond_destroy(&team->left);
  pthread_mutex_destroy(&team->lock);
  pthread_mutex_destroy(&team->turn);
  free(team);
}

/* A team with a helper on each of `cpus`; NULL, with an error number in `*error`, where one cannot run there. */
struct team *autotm_team(const int *cpus, int helpers, int *error) {
  struct team *team = calloc(1, sizeof *team + helpers * sizeof team->all[0]);
  if (!team) return NULL;
  pthread_mutex_init(&team->turn, NULL);
  pthread_mutex_init(&team->lock, NULL);
  pthread_cond_init(&team->left, NULL);
  for (int i = 0; i < helpers && !*error; i++) {
    size_t set_bytes = CPU_ALLOC_SIZE(cpus[i] + 1);
    cpu_set_t *set = CPU_ALLOC(cpus[i] + 1);
    struct helper *helper = &team->all[i];
    pthread_attr_t attributes;
    helper->team = team;
    pthread_cond_init(&helper->wake, NULL);
    pthread_attr_init(&attributes);
    CPU_ZERO_S(set_bytes, set);
    CPU_SET_S(cpus[i], set_bytes, set);
    *error = pthread_attr_setaffinity_np(&attributes, set_bytes, set);
    if (!*error) *error = pthread_create(&helper->thread, &attributes, help, helper);
    if (!*error) {
      team->helpers++;
      pthread_setname_np(helper->thread, "autotm-copy");
    } else {
      pthread_cond_destroy(&helper->wake);
    }
    pthread_attr_destroy(&attributes);
    CPU_FREE(set);
  }
  if (*error) {
    autotm_team_end(team);
    return NULL;
  }
  return team;
}

/* Copy by the caller and the first `helpers`; callers take turns. Returns when all bytes are there. */
void autotm_team_copy(struct team *team, int helpers, char *to, const char *from, size_t bytes, int width, size_t ahead) {
  struct job job = {to, from, bytes, ahead, width, helpers < team->helpers ? helpers : team->helpers};
  pthread_mutex_lock(&team->turn);
  pthread_mutex_lock(&team->lock);
  team->job = job;
  atomic_store(&team->taken, 0);
  team->open = 1;
  team->jobs++;
  pthread_mutex_unlock(&team->lock);
  /* After the lock, which they would else wake up to wait for. */
  for (int i = 0; i < job.helpers; i++) pthread_cond_signal(&team->all[i].wake);
  take_pieces(team, &job);
  /* Helpers that have not woken by now find nothing open; those at work have a piece left at most. */
  pthread_mutex_lock(&team->lock);
  team->open = 0;
  pthread_mutex_unlock(&team->lock);
  for (int spins = 0; spins < SPINS && atomic_load(&team->inside); spins++) {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
  pthread_mutex_lock(&team->lock);
  while (atomic_load(&team->inside)) pthread_cond_wait(&team->left, &team->lock);
  pthread_mutex_unlock(&team->lock);
  pthread_mutex_unlock(&team->turn);
}
