/* The vectors of AVX2 or, where HAS_AVX512 is defined, of AVX-512. INTRINSIC prefixes intrinsics.
 *
 * A key is an integer that compares like its float: some CPUs compare integers twice as fast.
 * SUM_VECTORS of a sum are in registers, and do not wait for each other.
 * FLIP reverses the order of negative numbers, whose sign bit is set, and is its own inverse. */
#define ROW_VECTORS 4
#ifdef HAS_AVX512
#define DENSE_RECEIVERS 6
#define SUM_VECTORS 16
#define TILE_ROWS 4
#define VECTOR __m512
#define KEY __m512i
#define LANES 16
#define KEY_LOAD(p) _mm512_loadu_si512(p)
#define KEY_STORE(p, v) _mm512_storeu_si512(p, v)
#define FLIP(k) _mm512_xor_si512(k, _mm512_srli_epi32(_mm512_srai_epi32(k, 31), 1))
#define TO_KEY(v) FLIP(_mm512_castps_si512(v))
#define FROM_KEY(k) _mm512_castsi512_ps(FLIP(k))
#define SELECT_LESS(a, b, yes, no) \
    _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes)
#else
#define DENSE_RECEIVERS 2
#define SUM_VECTORS 8
#define TILE_ROWS 3
#define VECTOR __m256
#define KEY __m256i
#define LANES 8
#define KEY_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define KEY_STORE(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define FLIP(k) _mm256_xor_si256(k, _mm256_srli_epi32(_mm256_srai_epi32(k, 31), 1))
#define TO_KEY(v) FLIP(_mm256_castps_si256(v))
#define FROM_KEY(k) _mm256_castsi256_ps(FLIP(k))
#define SELECT_LESS(a, b, yes, no) _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ))
#endif
#define KEY_MIN(a, b) INTRINSIC(min_epi32)(a, b)
#define KEY_MAX(a, b) INTRINSIC(max_epi32)(a, b)
#define LOAD(p) INTRINSIC(loadu_ps)(p)
#define STORE(p, v) INTRINSIC(storeu_ps)(p, v)
#define STREAM(p, v) INTRINSIC(stream_ps)(p, v)
#define BROADCAST(x) INTRINSIC(set1_ps)(x)
#define ADD(a, b) INTRINSIC(add_ps)(a, b)
#define SUB(a, b) INTRINSIC(sub_ps)(a, b)
#define MUL(a, b) INTRINSIC(mul_ps)(a, b)
#define MUL_ADD(a, b, c) INTRINSIC(fmadd_ps)(a, b, c)
#define MIN(a, b) INTRINSIC(min_ps)(a, b)
#define MAX(a, b) INTRINSIC(max_ps)(a, b)
#define SCALAR float
#define TYPE f32
#include TEMPLATE
#include "vector_undef.h"
#undef FLIP

#define ROW_VECTORS 4
#ifdef HAS_AVX512
#define DENSE_RECEIVERS 6
#define SUM_VECTORS 16
#define TILE_ROWS 4
#define VECTOR __m512d
#define LANES 8
#define SELECT_LESS(a, b, yes, no) \
    _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), no, yes)
#else
#define DENSE_RECEIVERS 2
#define SUM_VECTORS 8
#define TILE_ROWS 3
#define VECTOR __m256d
#define LANES 4
#define SELECT_LESS(a, b, yes, no) _mm256_blendv_pd(no, yes, _mm256_cmp_pd(a, b, _CMP_LT_OQ))
#endif
#define KEY VECTOR
#define KEY_LOAD LOAD
#define KEY_STORE STORE
#define KEY_MIN(a, b) INTRINSIC(min_pd)(a, b)
#define KEY_MAX(a, b) INTRINSIC(max_pd)(a, b)
#define TO_KEY(v) (v)
#define FROM_KEY(k) (k)
#define LOAD(p) INTRINSIC(loadu_pd)(p)
#define STORE(p, v) INTRINSIC(storeu_pd)(p, v)
#define STREAM(p, v) INTRINSIC(stream_pd)(p, v)
#define BROADCAST(x) INTRINSIC(set1_pd)(x)
#define ADD(a, b) INTRINSIC(add_pd)(a, b)
#define SUB(a, b) INTRINSIC(sub_pd)(a, b)
#define MUL(a, b) INTRINSIC(mul_pd)(a, b)
#define MUL_ADD(a, b, c) INTRINSIC(fmadd_pd)(a, b, c)
#define MIN(a, b) INTRINSIC(min_pd)(a, b)
#define MAX(a, b) INTRINSIC(max_pd)(a, b)
#define SCALAR double
#define TYPE f64
#include TEMPLATE
#include "vector_undef.h"
