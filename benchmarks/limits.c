/* What one core of an x86 CPU with AVX2 can do at most, for comparison with the kernels; see docs/kernels.md.
 *
 *     cc -O2 benchmarks/limits.c -o limits && ./limits
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LOOPS 20000000L
#define REPEATS 5
#define BYTES (200L << 20)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

#define ON(op, r) op " %%ymm12, %%ymm" #r ", %%ymm" #r "\n"
#define TWELVE(a, b) ON(a, 0) ON(b, 1) ON(a, 2) ON(b, 3) ON(a, 4) ON(b, 5) ON(a, 6) ON(b, 7) ON(a, 8) ON(b, 9) ON(a, 10) ON(b, 11)
#define RATE(a, b)                                                                                                     \
    do {                                                                                                               \
        double best = 1e9;                                                                                             \
        for (int repeat = 0; repeat < REPEATS; repeat++) {                                                             \
            long left = LOOPS;                                                                                         \
            double start = now();                                                                                      \
            __asm__ volatile("1:\n" TWELVE(a, b) "dec %0\njnz 1b\n"                                                    \
                             : "+r"(left)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                               "xmm9", "xmm10", "xmm11", "xmm12");                                                     \
            double seconds = now() - start;                                                                            \
            if (seconds < best) best = seconds;                                                                        \
        }                                                                                                              \
        printf("%-28s %5.1f vectors of 8 floats per ns\n", strcmp(a, b) ? a " and " b : a, 12e-9 * LOOPS / best);      \
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
    RATE("vminps", "vminps");
    RATE("vpminsd", "vpminsd");
    RATE("vfmadd231ps", "vfmadd231ps");
    RATE("vsubps", "vfmadd231ps");
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
