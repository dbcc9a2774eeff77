/* The arithmetic of equipoise on a CPU: distances, weighted sums and order statistics of rows of numbers.
 *
 * Plain C, called through ctypes: nothing of Python or torch is needed to build it. Each kernel is written once, in
 * kernels.inc, and compiled for every instruction set below; the best one that this CPU has is chosen at run time.
 *
 * Every kernel walks over its columns in panels of strips: rows are packed next to each other, where they stay in the
 * cache while everybody uses them, and where no row ends in the middle of a vector. Rows and results are given by
 * their addresses, so rows of several matrices can be used together. Whoever calls with several threads gives each its
 * own columns: what is computed for a column does not depend on where a call starts.
 */
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#if !defined(__GNUC__)
#error "needs vectors as GCC and Clang have them; without this library equipoise works in torch"
#endif

#if defined(__x86_64__) || defined(__i386__)
#define X86 1
#include <immintrin.h>
#else
#define X86 0
#endif

#define EXPORT __attribute__((visibility("default")))
#define ALIGNED __attribute__((aligned(64)))
#define FETCH(p) __builtin_prefetch(p, 0, 2)
#define FETCH_NEAR(p) __builtin_prefetch(p, 0, 3)

#include "networks.h"

enum { BASELINE, AVX2, AVX512 };

#define FAILED (-1)        /* there was no memory */
#define NEAR (28 << 10)    /* bytes of a strip that are to stay in a first-level cache of 32 KiB */
#define MIDDLE (512 << 10) /* bytes that fit twice into a second-level cache of 1 MiB */
#define FAR (4 << 20)      /* bytes of a panel that are to stay in the last-level cache */
#define PAGE 2048          /* bytes of a row that are read at a time */
#define AHEAD (16 << 10)   /* bytes that are on their way from memory while rows are packed */
#define NARROW 64          /* columns of a strip at least, a multiple of MANY vectors and of UNROLLED vectors */
#define WIDEST 256         /* and at most, so that sums of T are short enough to hold 1e-6 */
#define FLUSH 4096         /* columns after which sums of sums go to double precision */
#define SQUARES 1024       /* columns after which sums of squares do, of which a norm has only one */
#define CLIQUES 8          /* times as many pairs as rows, beyond which pairs next to each other share their rows */
#define LARGEST 512        /* values in one network */
#define FEW 24             /* rows that are compared where they are, at most */
#define OTHERS 8           /* rows that one row is compared with at a time, in a sparse graph */
#define HUGE (2 << 20)     /* bytes of a huge page */

/* In huge pages where that is worth it: rows of a strip are used in any order, and each would need a page of its own. */
static void *allocate(int64_t size) {
    void *memory = NULL;
    size_t huge = size < HUGE ? 64 : HUGE;
    if (posix_memalign(&memory, huge, (size_t)size + 64)) return NULL;
#ifdef MADV_HUGEPAGE
    if (huge == HUGE) madvise(memory, (size_t)size, MADV_HUGEPAGE);
#endif
    return memory;
}

/* Any CPU: vectors of 16 bytes, which compilers turn into what the platform has, such as SSE2 or NEON. */
typedef float floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t float_masks __attribute__((vector_size(16), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(16), aligned(8), may_alias));
typedef int64_t double_masks __attribute__((vector_size(16), aligned(8), may_alias));

#define ISA baseline
#define TARGET
#define FENCE() (void)0
#define T float
#define SUFFIX f32
#define VEC floats
#define MASK float_masks
#include "plain.inc"
#define T double
#define SUFFIX f64
#define VEC doubles
#define MASK double_masks
#include "plain.inc"
#undef ISA
#undef TARGET
#undef FENCE

#if X86
#define FENCE() _mm_sfence()
#define ISA avx2
#define TARGET __attribute__((target("avx2,fma")))
#define PREFIX(name) _mm256_##name
#include "x86.inc"
#undef ISA
#undef TARGET
#undef PREFIX

#define ISA avx512
#define TARGET __attribute__((target("avx512f,fma")))
#define PREFIX(name) _mm512_##name
#define WIDE 1
#include "x86.inc"
#undef WIDE
#undef ISA
#undef TARGET
#undef PREFIX
#endif

static int best_set(void) {
#if X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return BASELINE;
}

static int chosen = -1;

/* The instruction set in use: 0 any CPU's, 1 AVX2, 2 AVX-512. */
EXPORT int eq_instructions(void) {
    if (chosen < 0) chosen = best_set();
    return chosen;
}

/* Use this instruction set if the CPU has it, for tests; returns the one in use. */
EXPORT int eq_use_instructions(int wanted) {
    chosen = wanted < best_set() ? wanted : best_set();
    return chosen;
}

/* How many rows make a tile of distances, whose sums are all in registers. */
EXPORT int eq_tile_rows(void) { return eq_instructions() == AVX512 ? 4 : 3; }

#if X86
#define CHOOSE(name, ...)                                  \
    switch (eq_instructions()) {                           \
        case AVX512: return name##_avx512(__VA_ARGS__);    \
        case AVX2: return name##_avx2(__VA_ARGS__);        \
        default: return name##_baseline(__VA_ARGS__);      \
    }
#else
#define CHOOSE(name, ...) return name##_baseline(__VA_ARGS__);
#endif

#define EXPORTED(T, S)                                                                                                 \
    EXPORT int eq_measure_##S(const T *const *rows, int64_t count, int64_t tiles, const int64_t *left,                 \
                              const int64_t *right, int64_t pairs, int differ, int64_t from, int64_t to, double *out,  \
                              double *norms) {                                                                         \
        CHOOSE(measure_##S, rows, count, tiles, left, right, pairs, differ, from, to, out, norms)                      \
    }                                                                                                                  \
    EXPORT int eq_norms_##S(const T *const *rows, int64_t count, int64_t from, int64_t to, double *out) {              \
        CHOOSE(norms_##S, rows, count, from, to, out)                                                                  \
    }                                                                                                                  \
    EXPORT int eq_sums_##S(const T *const *rows, int64_t count, const int64_t *starts, const int64_t *edges,           \
                           const T *weights, int64_t receivers, T *const *out, int64_t from, int64_t to, int stream) { \
        CHOOSE(sums_##S, rows, count, starts, edges, weights, receivers, out, from, to, stream)                        \
    }                                                                                                                  \
    EXPORT int eq_dense_sums_##S(const T *const *rows, int64_t count, const T *weights, int64_t receivers,             \
                                 T *const *out, int64_t from, int64_t to, int stream) {                                \
        CHOOSE(dense_sums_##S, rows, count, weights, receivers, out, from, to, stream)                                 \
    }                                                                                                                  \
    EXPORT int eq_sums_but_one_##S(const T *const *rows, int64_t count, double share, const int64_t *left_out,         \
                                   int64_t receivers, T *const *out, int64_t from, int64_t to, int stream) {           \
        CHOOSE(sums_but_one_##S, rows, count, (T)share, left_out, receivers, out, from, to, stream)                    \
    }                                                                                                                  \
    EXPORT int eq_middle_##S(const T *const *rows, int64_t row_count, const int64_t *starts, const int64_t *heard,     \
                             const int64_t *trims, int64_t receivers, const int32_t *steps, int64_t step_count,        \
                             const int32_t *kept, T *const *out, int64_t from, int64_t to, int stream) {               \
        CHOOSE(middle_##S, rows, row_count, starts, heard, trims, receivers, steps, step_count, kept, out, from, to,   \
               stream)                                                                                                 \
    }                                                                                                                  \
    EXPORT int eq_middle_but_one_##S(const T *const *rows, int64_t count, const int64_t *left_out, int64_t receivers,  \
                                     int64_t trim, const int32_t *steps, int64_t step_count, const int32_t *kept,      \
                                     T *const *out, int64_t from, int64_t to, int stream) {                            \
        CHOOSE(middle_but_one_##S, rows, count, left_out, receivers, trim, steps, step_count, kept, out, from, to,     \
               stream)                                                                                                 \
    }                                                                                                                  \
    EXPORT int eq_conv_pool_##S(const int64_t *shape, const T *x, const T *weights, const T *bias, T *out,             \
                                uint8_t *largest) {                                                                    \
        CHOOSE(conv_pool_##S, shape, x, weights, bias, out, largest)                                                   \
    }                                                                                                                  \
    EXPORT int eq_conv_pool_back_##S(const int64_t *shape, const T *x, const T *weights, const T *gradient,            \
                                     const uint8_t *largest, T *to_x, T *to_weights, T *to_bias) {                     \
        CHOOSE(conv_pool_back_##S, shape, x, weights, gradient, largest, to_x, to_weights, to_bias)                    \
    }

EXPORTED(float, f32)
EXPORTED(double, f64)

/* Python wants to see this symbol in an extension, but the library is only ever opened by ctypes. */
EXPORT void *PyInit__kernels(void) { return NULL; }
