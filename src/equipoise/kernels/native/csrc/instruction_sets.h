/* Compiles a TEMPLATE for each instruction set and type, and chooses one at run time.
 *
 * The file that includes this one defines TEMPLATE, the name of a header. It is included once per
 * instruction set (NAME adds its name as a suffix) and type (SCALAR). */
#include "platform.h"

#if defined(__x86_64__) || defined(__i386__)
#define X86 1
#include <immintrin.h>
#else
#define X86 0
#endif

#define NAME3(name, type, set) name##_##type##_##set
#define NAME2(name, type, set) NAME3(name, type, set)
#define NAME(name) NAME2(name, TYPE, INSTRUCTION_SET)

/* Any CPU: vectors of 16 bytes, which the compiler maps to SSE2, NEON and the like. */
typedef float floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t float_masks __attribute__((vector_size(16), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(16), aligned(8), may_alias));
typedef int64_t double_masks __attribute__((vector_size(16), aligned(8), may_alias));

#define INSTRUCTION_SET baseline
#define TARGET
#define FENCE() (void)0
#define SCALAR float
#define TYPE f32
#define VECTOR floats
#define MASK float_masks
#include "vector_generic.h"
#define SCALAR double
#define TYPE f64
#define VECTOR doubles
#define MASK double_masks
#include "vector_generic.h"
#undef INSTRUCTION_SET
#undef TARGET
#undef FENCE

#if X86
#define FENCE() _mm_sfence()
#define INSTRUCTION_SET avx2
#define TARGET __attribute__((target("avx2,fma")))
#define INTRINSIC(name) _mm256_##name
#include "vector_x86.h"
#undef INSTRUCTION_SET
#undef TARGET
#undef INTRINSIC

#define INSTRUCTION_SET avx512
#define TARGET __attribute__((target("avx512f,fma")))
#define INTRINSIC(name) _mm512_##name
#define HAS_AVX512 1
#include "vector_x86.h"
#undef HAS_AVX512
#undef INSTRUCTION_SET
#undef TARGET
#undef INTRINSIC
#endif

enum { BASELINE, AVX2, AVX512 };

static int best_set(void) {
#if X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return BASELINE;
}

static int chosen_set = -1;

/* The instruction set in use: 0 that of any CPU, 1 AVX2, 2 AVX-512. */
EXPORT int eq_instructions(void) {
    if (chosen_set < 0) chosen_set = best_set();
    return chosen_set;
}

/* Use this instruction set if the CPU has it, for tests. Returns the one in use. */
EXPORT int eq_use_instructions(int wanted) {
    chosen_set = wanted < best_set() ? wanted : best_set();
    return chosen_set;
}

#if X86
#define DISPATCH(name, ...)                             \
    switch (eq_instructions()) {                        \
        case AVX512: return name##_avx512(__VA_ARGS__); \
        case AVX2: return name##_avx2(__VA_ARGS__);     \
        default: return name##_baseline(__VA_ARGS__);   \
    }
#else
#define DISPATCH(name, ...) return name##_baseline(__VA_ARGS__);
#endif
