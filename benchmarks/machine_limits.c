/* What one core of an x86 CPU with AVX2 or AVX-512 can do at most, for comparison with the kernels; see docs/kernels.md.
 *
 *     cc -O2 benchmarks/machine_limits.c -o limits && ./limits
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LOOPS 5000000L
#define REPEATS 5
#define BYTES (200L << 20)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

#define ON(op, v, r) op " %%" v "12, %%" v #r ", %%" v #r "\n"
#define FOUR(v, a, b, i, j, k, l) ON(a, v, i) ON(b, v, j) ON(a, v, k) ON(b, v, l)
#define TWELVE(v, a, b) FOUR(v, a, b, 0, 1, 2, 3) FOUR(v, a, b, 4, 5, 6, 7) FOUR(v, a, b, 8, 9, 10, 11)
#define RATE(v, floats, a, b)                                                                                          \
    do {                                                                                                               \
        double best = 1e9;                                                                                             \
        for (int repeat = 0; repeat < REPEATS; repeat++) {                                                             \
            long left = LOOPS;                                                                                         \
            double start = now();                                                                                      \
            __asm__ volatile("1:\n" TWELVE(v, a, b) "dec %0\njnz 1b\n"                                                 \
                             : "+r"(left)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                               "xmm9", "xmm10", "xmm11", "xmm12");                                                     \
            double seconds = now() - start;                                                                            \
            if (seconds < best) best = seconds;                                                                        \
        }                                                                                                              \
        printf("%-28s %5.0f floats per ns in %s\n", strcmp(a, b) ? a " and " b : a, 12e-9 * LOOPS * floats / best, v);  \
    } while (0)
#define RATES(v, floats)                                                                                               \
    do {                                                                                                               \
        RATE(v, floats, "vminps", "vminps");                                                                           \
        RATE(v, floats, "vpminsd", "vpminsd");                                                                         \
        RATE(v, floats, "vfmadd231ps", "vfmadd231ps");                                                                 \
        RATE(v, floats, "vsubps", "vfmadd231ps");                                                                      \
    } while (0)

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

int main(void) {
    RATES("ymm", 8);
    if (__builtin_cpu_supports("avx512f")) RATES("zmm", 16);
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
