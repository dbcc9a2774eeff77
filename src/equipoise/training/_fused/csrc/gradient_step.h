/* Template: a step of gradient descent for weights whose gradient is a product of two matrices.
 *
 * v = momentum * v + left right and weights = weights - rate * v, for many clients, in one pass:
 * the gradient exists only in registers. */
#ifdef HAS_AVX512
#define STEP_ROWS 8 /* with 3 vectors of columns: 24 of 32 registers hold sums */
#else
#define STEP_ROWS 4 /* 12 of 16 */
#endif
#define STEP_VECTORS 3

/* Sizes of the matrices of a client, and the distance of two clients in each tensor. */
typedef struct {
    int64_t clients, rows, depth, columns;
    int64_t left, right, weights, velocity, new_weights, new_velocity;
} NAME(step_shape);

/* Matrices of one client: left (rows, depth), right (depth, columns), the others (rows, columns).
 * New values may overwrite the old ones. Without momentum there is no velocity. */
typedef struct {
    const SCALAR *left, *right, *weights, *velocity;
    SCALAR *new_weights, *new_velocity;
    SCALAR rate, momentum;
} NAME(step);

/* Some rows and vectors from row i and column j on. */
TARGET static ALWAYS_INLINE void NAME(step_tile)(const int rows, const int vectors,
                                                 const NAME(step) *s, int64_t depth,
                                                 int64_t columns, int64_t i, int64_t j) {
    VECTOR sums[STEP_ROWS][STEP_VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = BROADCAST(0);
    const SCALAR *left = s->left + i * depth, *right = s->right + j;
    for (int64_t k = 0; k < depth; k++, right += columns)
        for (int r = 0; r < rows; r++) {
            VECTOR value = BROADCAST(left[r * depth + k]);
            for (int v = 0; v < vectors; v++)
                sums[r][v] = MUL_ADD(value, LOAD(right + v * LANES), sums[r][v]);
        }
    VECTOR momentum = BROADCAST(s->momentum), rate = BROADCAST(-s->rate);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            int64_t at = (i + r) * columns + j + v * LANES;
            VECTOR change = sums[r][v];
            if (s->velocity) {
                change = MUL_ADD(momentum, LOAD(s->velocity + at), change);
                STORE(s->new_velocity + at, change);
            }
            STORE(s->new_weights + at, MUL_ADD(rate, change, LOAD(s->weights + at)));
        }
}

/* A column of some rows, after the last whole vector. */
static void NAME(step_column)(int64_t rows, const NAME(step) *s, const NAME(step_shape) *l,
                              int64_t i, int64_t j) {
    for (; rows > 0; rows--, i++) {
        int64_t at = i * l->columns + j;
        SCALAR change = 0;
        for (int64_t k = 0; k < l->depth; k++)
            change += s->left[i * l->depth + k] * s->right[k * l->columns + j];
        if (s->velocity) {
            change += s->momentum * s->velocity[at];
            s->new_velocity[at] = change;
        }
        s->new_weights[at] = s->weights[at] - s->rate * change;
    }
}

/* All columns of some rows. Weights are read and written in the order of memory, which is faster
 * than to keep columns of the right matrix in the first-level cache. */
TARGET static ALWAYS_INLINE void NAME(step_rows)(const int rows, const NAME(step) *s,
                                                 const NAME(step_shape) *l, int64_t i) {
    int64_t j = 0;
    for (; j + STEP_VECTORS * LANES <= l->columns; j += STEP_VECTORS * LANES)
        NAME(step_tile)(rows, STEP_VECTORS, s, l->depth, l->columns, i, j);
    for (; j + LANES <= l->columns; j += LANES)
        NAME(step_tile)(rows, 1, s, l->depth, l->columns, i, j);
    for (; j < l->columns; j++) NAME(step_column)(rows, s, l, i, j);
}

TARGET static int NAME(gradient_step)(const int64_t *shape, const double *factors,
                                      const SCALAR *left, const SCALAR *right,
                                      const SCALAR *weights, const SCALAR *velocity,
                                      SCALAR *new_weights, SCALAR *new_velocity) {
    const NAME(step_shape) *l = (const NAME(step_shape) *)shape;
    if (l->clients < 0 || l->rows < 0 || l->depth < 0 || l->columns < 0) return OUT_OF_RANGE;
    SCALAR rate = (SCALAR)factors[0], momentum = (SCALAR)factors[1];
    NAME(step) s = {left, right, weights, velocity, new_weights, new_velocity, rate, momentum};
    for (int64_t c = 0; c < l->clients; c++) {
        int64_t i = 0;
        for (; i + STEP_ROWS <= l->rows; i += STEP_ROWS) NAME(step_rows)(STEP_ROWS, &s, l, i);
        for (; i < l->rows; i++) NAME(step_rows)(1, &s, l, i);
        s.left += l->left;
        s.right += l->right;
        s.weights += l->weights;
        s.new_weights += l->new_weights;
        if (velocity) {
            s.velocity += l->velocity;
            s.new_velocity += l->new_velocity;
        }
    }
    return 0;
}
#undef STEP_ROWS
#undef STEP_VECTORS
