/* What one core of an x86 CPU with AVX2 or AVX-512 can do at most, for comparison with the kernels; see docs/kernels.md.
 *
 *     cc -O2 benchmarks/machine_limits.c -o limits && ./limits
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LOOPS 2000000L
#define REPEATS 5
#define BYTES (200L << 20)
#define ROWS 20L
#define COLUMNS 139960L

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

/* Enough registers that no instruction waits for the one before on the same register: 12 of the 16
 * of AVX2, 24 of the 32 of AVX-512. Instructions a and b alternate. */
#define ON(op, v, r, source) op " %%" v #source ", %%" v #r ", %%" v #r "\n"
#define FOUR(v, a, b, source, i, j, k, l) \
    ON(a, v, i, source) ON(b, v, j, source) ON(a, v, k, source) ON(b, v, l, source)
#define TWELVE(v, a, b, source) \
    FOUR(v, a, b, source, 0, 1, 2, 3) FOUR(v, a, b, source, 4, 5, 6, 7) FOUR(v, a, b, source, 8, 9, 10, 11)
#define TWENTY_FOUR(v, a, b, source)                                            \
    TWELVE(v, a, b, source) FOUR(v, a, b, source, 12, 13, 14, 15)               \
    FOUR(v, a, b, source, 16, 17, 18, 19) FOUR(v, a, b, source, 20, 21, 22, 23)
#define LOW "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12"
#define ALL LOW, "xmm13", "xmm14", "xmm15"
#define RATE(v, floats, a, b, count, CODE, source, ...)                                                                \
    do {                                                                                                               \
        double best = 1e9;                                                                                             \
        for (int repeat = 0; repeat < 20 * REPEATS; repeat++) {                                                        \
            long left = LOOPS / 20;                                                                                    \
            double start = now();                                                                                      \
            __asm__ volatile("1:\n" CODE(v, a, b, source) "dec %0\njnz 1b\n" : "+r"(left)::__VA_ARGS__);               \
            double seconds = now() - start;                                                                            \
            if (seconds < best) best = seconds;                                                                        \
        }                                                                                                              \
        double rate = 1e-9 * count * (LOOPS / 20) * floats / best;                                                            \
        printf("%-28s %5.0f floats per ns in %s\n", strcmp(a, b) ? a " and " b : a, rate, v);                          \
    } while (0)
#define RATES(v, floats, ...)                                   \
    do {                                                        \
        RATE(v, floats, "vminps", "vminps", __VA_ARGS__);       \
        RATE(v, floats, "vpminsd", "vpminsd", __VA_ARGS__);     \
        RATE(v, floats, "vfmadd231ps", "vfmadd231ps", __VA_ARGS__); \
        RATE(v, floats, "vsubps", "vfmadd231ps", __VA_ARGS__);  \
    } while (0)

/* The same for products whose values are loaded, as in a weighted sum of rows. A buffer of so many
 * steps is read again and again: 18 KiB stay in the first-level cache, 576 KiB in the second. */
#define STEP_BYTES (24 * 64)
#define L1_STEPS 12L
#define L2_STEPS 384L
#define FROM(w, v, r, source) "vfmadd231ps " #w "*" #r "(%1), %%" v #source ", %%" v #r "\n"
#define FROM_4(w, v, s, i, j, k, l) FROM(w, v, i, s) FROM(w, v, j, s) FROM(w, v, k, s) FROM(w, v, l, s)
#define FROM_12(w, v, s) FROM_4(w, v, s, 0, 1, 2, 3) FROM_4(w, v, s, 4, 5, 6, 7) FROM_4(w, v, s, 8, 9, 10, 11)
#define FROM_24(w, v, s)                                               \
    FROM_12(w, v, s) FROM_4(w, v, s, 12, 13, 14, 15)                   \
    FROM_4(w, v, s, 16, 17, 18, 19) FROM_4(w, v, s, 20, 21, 22, 23)
#define LOADED(w, v, count, CODE, source, steps, cache, ...)                                            \
    do {                                                                                                \
        double best = 1e9;                                                                              \
        for (int repeat = 0; repeat < 20 * REPEATS; repeat++) {                                         \
            long loops = LOOPS / 20 / (steps);                                                          \
            double start = now();                                                                       \
            for (long loop = 0; loop < loops; loop++) {                                                 \
                const char *at = loaded;                                                                \
                long left = steps;                                                                      \
                __asm__ volatile("1:\n" CODE(w, v, source) "add %2, %1\ndec %0\njnz 1b\n"              \
                                 : "+r"(left), "+r"(at)                                                 \
                                 : "n"(STEP_BYTES) : "memory", __VA_ARGS__);                            \
            }                                                                                           \
            double seconds = (now() - start) / (double)(loops * (steps));                               \
            if (seconds < best) best = seconds;                                                         \
        }                                                                                               \
        printf("%-28s %5.0f floats per ns in %s\n", "vfmadd231ps from " cache, 1e-9 * count * w / 4 / best, v); \
    } while (0)
static char loaded[L2_STEPS * STEP_BYTES] __attribute__((aligned(64)));

static double touch(char *memory, long step) {
    double start = now();
    for (long i = 0; i < BYTES; i += step) memory[i] = 1;
    return 1e3 * (now() - start);
}

static char *fresh(int huge) {
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (huge) madvise(memory, BYTES, MADV_HUGEPAGE);
    return memory;
}

/* Copies workload 1 of the benchmarks, row by row or as kernels have to walk over it: some columns of
 * all rows, then the next ones. Half of its rows are not aligned. Returns the best time in ms. */
static double copy_rows(float *to, const float *from, long piece) {
    double best = 1e9;
    for (int repeat = 0; repeat < 20 * REPEATS; repeat++) {
        double start = now();
        for (long c = 0; c < COLUMNS; c += piece)
            for (long r = 0; r < ROWS; r++) {
                long width = COLUMNS - c < piece ? COLUMNS - c : piece;
                memcpy(to + r * COLUMNS + c, from + r * COLUMNS + c, width * sizeof(float));
            }
        double ms = 1e3 * (now() - start);
        if (ms < best) best = ms;
    }
    return best;
}

int main(void) {
    memset(loaded, 1, sizeof(loaded)); /* until it is written, all of it is one page */
    RATES("ymm", 8, 12, TWELVE, 12, LOW);
    LOADED(32, "ymm", 12, FROM_12, 12, L1_STEPS, "L1", LOW);
    LOADED(32, "ymm", 12, FROM_12, 12, L2_STEPS, "L2", LOW);
    /* The compiler need not know of the upper registers, which it does not use without AVX-512. */
    if (__builtin_cpu_supports("avx512f")) {
        RATES("zmm", 16, 24, TWENTY_FOUR, 31, ALL);
        LOADED(64, "zmm", 24, FROM_24, 31, L1_STEPS, "L1", ALL);
        LOADED(64, "zmm", 24, FROM_24, 31, L2_STEPS, "L2", ALL);
    }
    float *from_rows = (float *)fresh(0), *to_rows = (float *)fresh(0);
    /* Unless it is written, all of it is one page of zeros, which stays in the first-level cache. */
    for (long i = 0; i < ROWS * COLUMNS; i++) from_rows[i] = to_rows[i] = 1;
    printf("20 rows of 139,960 floats: copied in %.3f ms; 256 columns at a time %.3f ms\n",
           copy_rows(to_rows, from_rows, COLUMNS), copy_rows(to_rows, from_rows, 256));
    double copy = 1e9, small = 1e9, huge = 1e9;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        char *from = fresh(1), *to = fresh(0);
        double first = touch(from, 4096), second = touch(to, 4096), start = now();
        memcpy(to, from, BYTES);
        double copied = 1e3 * (now() - start);
        huge = first < huge ? first : huge, small = second < small ? second : small, copy = copied < copy ? copied : copy;
        munmap(from, BYTES), munmap(to, BYTES);
    }
    printf("200 MiB: copied in %.0f ms; new memory in %.0f ms, in huge pages %.0f ms\n", copy, small, huge);
    return 0;
}
