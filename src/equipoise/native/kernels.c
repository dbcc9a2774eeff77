/* The arithmetic of equipoise on a CPU: distances, weighted sums and order statistics of rows of matrices.
 *
 * Plain C, called through ctypes: nothing of Python or torch is needed to build it. Each kernel is written once, in
 * kernels.inc, and compiled for every instruction set below; the best one that this CPU has is chosen at run time.
 * Matrices have rows of contiguous elements, `stride` elements apart. Whoever calls with several threads gives each
 * its own receivers, rows or columns: no result is shared, and none depends on their number.
 */
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
#define X86 1
#include <immintrin.h>
#else
#define X86 0
#endif

#include "networks.h"

enum { BASELINE, AVX2, AVX512, SETS };

/* Any CPU: one element at a time, which compilers turn into what the platform has, such as SSE2 or NEON. */
#define ISA baseline
#define TARGET
#define T float
#define SUFFIX f32
#define VEC float
#define WIDTH 1
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define SPREAD(x) (x)
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define MULADD(a, b, c) ((a) * (b) + (c))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) < (b) ? (b) : (a))
#define WHERE_LESS(a, b, yes, no) ((a) < (b) ? (yes) : (no))
#include "kernels.inc"
#undef T
#undef SUFFIX
#undef VEC
#define T double
#define SUFFIX f64
#define VEC double
#include "kernels.inc"
#undef T
#undef SUFFIX
#undef VEC
#undef WIDTH
#undef LOAD
#undef STORE
#undef SPREAD
#undef ADD
#undef SUB
#undef MUL
#undef MULADD
#undef MIN
#undef MAX
#undef WHERE_LESS
#undef ISA
#undef TARGET

#if X86
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

#if X86
#define CHOOSE(name, ...)                                   \
    switch (eq_instructions()) {                            \
        case AVX512: name##_avx512(__VA_ARGS__); return;    \
        case AVX2: name##_avx2(__VA_ARGS__); return;        \
        default: name##_baseline(__VA_ARGS__); return;      \
    }
#else
#define CHOOSE(name, ...) name##_baseline(__VA_ARGS__)
#endif

#define EXPORTED(T, S)                                                                                                 \
    EXPORT void eq_squares_##S(const T *a, int64_t a_stride, const T *b, int64_t b_stride, const int64_t *left,        \
                               const int64_t *right, int64_t pairs, int64_t d, double *out) {                          \
        CHOOSE(squares_##S, a, a_stride, b, b_stride, left, right, pairs, d, out)                                      \
    }                                                                                                                  \
    EXPORT void eq_products_##S(const T *a, int64_t a_stride, const T *b, int64_t b_stride, const int64_t *left,       \
                                const int64_t *right, int64_t pairs, int64_t d, double *out) {                         \
        CHOOSE(products_##S, a, a_stride, b, b_stride, left, right, pairs, d, out)                                     \
    }                                                                                                                  \
    EXPORT void eq_sums_##S(const T *bank, int64_t stride, const int64_t *starts, const int64_t *rows,                 \
                            const T *weights, int64_t n, int64_t from, int64_t to, T *out, int64_t out_stride) {       \
        CHOOSE(sums_##S, bank, stride, starts, rows, weights, n, from, to, out, out_stride)                            \
    }                                                                                                                  \
    EXPORT void eq_middle_##S(const T *bank, int64_t stride, const int64_t *rows, int64_t receivers, int64_t count,    \
                              int64_t trim, const int32_t *steps, int64_t step_count, const int32_t *kept,             \
                              int64_t from, int64_t to, T *out, int64_t out_stride, const int64_t *out_rows) {         \
        CHOOSE(middle_##S, bank, stride, rows, receivers, count, trim, steps, step_count, kept, from, to, out,         \
               out_stride, out_rows)                                                                                   \
    }                                                                                                                  \
    EXPORT void eq_leave_out_##S(const T *bank, int64_t stride, const int64_t *rows, int64_t count,                    \
                                 const int64_t *left_out, int64_t receivers, int64_t trim, const int32_t *steps,       \
                                 int64_t step_count, const int32_t *kept, int64_t from, int64_t to, T *out,            \
                                 int64_t out_stride, const int64_t *out_rows) {                                        \
        CHOOSE(leave_out_##S, bank, stride, rows, count, left_out, receivers, trim, steps, step_count, kept, from, to, \
               out, out_stride, out_rows)                                                                              \
    }

EXPORTED(float, f32)
EXPORTED(double, f64)

/* Python wants to see this symbol in an extension, but the library is only ever opened by ctypes. */
EXPORT void *PyInit__native(void) { return NULL; }
