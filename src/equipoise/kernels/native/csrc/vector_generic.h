/* The vectors of the compiler, for any CPU: VECTOR, and MASK for the result of a comparison. */
#define ROW_VECTORS 4
#define SUM_VECTORS 8
#define DENSE_RECEIVERS 2
#define TILE_ROWS 3
#define LANES (16 / (int)sizeof(SCALAR))
#define KEY VECTOR
#define LOAD(p) (*(const VECTOR *)(p))
#define STORE(p, v) (*(VECTOR *)(p) = (v))
#define STREAM STORE
#define BROADCAST(x) ((VECTOR){0} + (SCALAR)(x))
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define MUL_ADD(a, b, c) ((a) * (b) + (c))
#define SELECT_LESS(a, b, yes, no) \
    ((VECTOR)(((MASK)(yes) & ((a) < (b))) | ((MASK)(no) & ~((a) < (b)))))
#define MIN(a, b) SELECT_LESS(a, b, a, b)
#define MAX(a, b) SELECT_LESS(b, a, a, b)
#define KEY_LOAD LOAD
#define KEY_STORE STORE
#define KEY_MIN(a, b) SELECT_LESS(a, b, a, b)
#define KEY_MAX(a, b) SELECT_LESS(a, b, b, a)
#define TO_KEY(v) (v)
#define FROM_KEY(k) (k)
#include TEMPLATE
#include "vector_undef.h"
#undef MASK
