/* Template: a 3 x 3 convolution without padding, 2 x 2 max pooling and ReLU as one step, and back.
 *
 * Images are (height, width, channels). A square is the 2 x 2 sums that are pooled. Pooling passes
 * a gradient to one of four sums, and ReLU stops it if that sum is negative: the backward pass only
 * multiplies the rest, an eighth to a quarter of all. */
#ifdef HAS_AVX512
#define OUTPUT_VECTORS 4 /* vectors of outputs at a time, of which each has four sums */
#define PATCH_VECTORS 6  /* vectors of a row of a patch at a time, of three rows */
#else
#define OUTPUT_VECTORS 3
#define PATCH_VECTORS 4
#endif
#define PADDED(count) (((count) + LANES - 1) / LANES * LANES)
#define NEGATIVE 4 /* in place of the position of the largest sum: ReLU sets it to 0 */

/* Sizes of a layer. In scalars: `line`, a line of an image, `size`, an image, and `square`, the
 * offsets of the four patches of a square. `across` and `squares` count the squares of a line and
 * of an image. */
typedef struct {
    int64_t images, height, width, channels, outputs;
    int64_t line, size, across, squares, square[4];
} NAME(layer);

/* Shape: images, height, width, channels, outputs. */
static NAME(layer) NAME(new_layer)(const int64_t *shape) {
    NAME(layer) l = {shape[0], shape[1], shape[2], shape[3], shape[4], 0, 0, 0, 0, {0}};
    l.line = l.width * l.channels;
    l.size = l.height * l.line;
    l.across = (l.width - 2) / 2;
    l.squares = (l.height - 2) / 2 * l.across;
    l.square[1] = l.channels;
    l.square[2] = l.line;
    l.square[3] = l.line + l.channels;
    return l;
}

/* NaN where v is NaN, 0 elsewhere: only the absolute value of NaN is not above -1. */
TARGET static inline VECTOR NAME(only_nan)(VECTOR v) {
    VECTOR size = SELECT_LESS(v, BROADCAST(0), SUB(BROADCAST(0), v), v);
    return SELECT_LESS(BROADCAST(-1), size, BROADCAST(0), v);
}

/* The largest of four vectors of sums, or 0 if it is negative, and its position. NaN is larger than
 * any number, as in torch. */
TARGET static inline void NAME(largest_of)(const VECTOR *sums, int64_t step, SCALAR *out,
                                           SCALAR *at) {
    VECTOR best = sums[0], place = BROADCAST(0), nan = NAME(only_nan)(sums[0]);
    for (int p = 1; p < 4; p++) {
        VECTOR value = sums[p * step];
        place = SELECT_LESS(best, value, BROADCAST(p), place);
        best = SELECT_LESS(best, value, value, best);
        nan = ADD(nan, NAME(only_nan)(value));
    }
    place = SELECT_LESS(BROADCAST(0), best, place, BROADCAST(NEGATIVE));
    best = SELECT_LESS(BROADCAST(0), best, best, BROADCAST(0));
    STORE(out, ADD(best, nan));
    STORE(at, SELECT_LESS(BROADCAST(-1), nan, place, BROADCAST(0)));
}

/* Adds the products of four runs of values with the same weights to four times some vectors. */
TARGET static ALWAYS_INLINE void NAME(multiply)(const int vectors, const SCALAR *values,
                                                const int64_t *starts, int64_t length,
                                                const SCALAR *weights, int64_t padded,
                                                VECTOR sums[4][OUTPUT_VECTORS]) {
    for (int64_t j = 0; j < length; j++, weights += padded)
        for (int p = 0; p < 4; p++) {
            VECTOR value = BROADCAST(values[starts[p] + j]);
            for (int v = 0; v < vectors; v++)
                sums[p][v] = MUL_ADD(value, LOAD(weights + v * LANES), sums[p][v]);
        }
}

/* A square of patches, whose first begins at `patch`, with some vectors of outputs. */
TARGET static ALWAYS_INLINE void NAME(convolve)(
    const int vectors, const SCALAR *patch, const NAME(layer) *l, const SCALAR *weights,
    const SCALAR *bias, int64_t padded, SCALAR *out, SCALAR *at) {
    VECTOR sums[4][OUTPUT_VECTORS];
    for (int p = 0; p < 4; p++)
        for (int v = 0; v < vectors; v++) sums[p][v] = LOAD(bias + v * LANES);
    for (int y = 0; y < 3; y++)
        NAME(multiply)(vectors, patch + y * l->line, l->square, 3 * l->channels,
                       weights + 3 * y * l->channels * padded, padded, sums);
    for (int v = 0; v < vectors; v++)
        NAME(largest_of)(&sums[0][v], OUTPUT_VECTORS, out + v * LANES, at + v * LANES);
}

/* Weights (outputs, channels, 3, 3) as (3, 3, channels, outputs), with zeros up to a whole vector,
 * followed by the biases. */
static void NAME(pack_outputs)(const NAME(layer) *l, const SCALAR *weights, const SCALAR *bias,
                               int64_t padded, SCALAR *packed) {
    memset(packed, 0, (size_t)((9 * l->channels + 1) * padded) * sizeof(SCALAR));
    for (int64_t o = 0; o < l->outputs; o++) {
        for (int64_t c = 0; c < l->channels; c++)
            for (int64_t k = 0; k < 9; k++)
                packed[(k * l->channels + c) * padded + o] = *weights++;
        packed[9 * l->channels * padded + o] = bias[o];
    }
}

/* Offset of the first patch of a square. */
static inline int64_t NAME(start)(const NAME(layer) *l, int64_t square) {
    return 2 * (square / l->across * l->line + square % l->across * l->channels);
}

/* One square: the largest sums of all outputs, and their positions. */
#define CASE(n) \
    case n: NAME(convolve)(n, patch, l, packed + o, bias + o, padded, best + o, at + o); break;
TARGET static void NAME(conv_pool_one)(const SCALAR *patch, const NAME(layer) *l,
                                       const SCALAR *packed, int64_t padded, SCALAR *best,
                                       SCALAR *out, uint8_t *largest) {
    const SCALAR *bias = packed + 9 * l->channels * padded;
    SCALAR *at = best + padded;
    for (int64_t o = 0; o < padded; o += OUTPUT_VECTORS * LANES) {
        switch ((padded - o) / LANES) {
            CASE(1) CASE(2) CASE(3)
            default: NAME(convolve)(OUTPUT_VECTORS, patch, l, packed + o, bias + o, padded,
                                    best + o, at + o);
        }
    }
    memcpy(out, best, (size_t)l->outputs * sizeof(SCALAR));
    for (int64_t o = 0; o < l->outputs; o++) largest[o] = (uint8_t)at[o];
}
#undef CASE

TARGET static int NAME(conv_pool)(const int64_t *shape, const SCALAR *x, const SCALAR *weights,
                                  const SCALAR *bias, SCALAR *out, uint8_t *largest) {
    if (!is_layer(shape)) return OUT_OF_RANGE;
    NAME(layer) l = NAME(new_layer)(shape);
    int64_t padded = PADDED(l.outputs);
    SCALAR *packed = allocate((9 * l.channels + 3) * padded * (int64_t)sizeof(SCALAR));
    if (!packed) return NO_MEMORY;
    SCALAR *best = packed + (9 * l.channels + 1) * padded;
    NAME(pack_outputs)(&l, weights, bias, padded, packed);
    for (int64_t i = 0; i < l.images * l.squares; i++) {
        const SCALAR *patch = x + i / l.squares * l.size + NAME(start)(&l, i % l.squares);
        NAME(conv_pool_one)(patch, &l, packed, padded, best, out + i * l.outputs,
                            largest + i * l.outputs);
    }
    free(packed);
    return 0;
}

/* Weighted patches of three rows: a list of factors and offsets. */
typedef struct {
    SCALAR *values;
    int64_t *starts, count;
} NAME(patches);

/* Adds their weighted sum to three rows, some vectors long. */
TARGET static ALWAYS_INLINE void NAME(add_some)(
    const int vectors, const NAME(patches) *p, const SCALAR *from, int64_t from_line, SCALAR *to,
    int64_t to_line) {
    VECTOR total[3][PATCH_VECTORS];
    for (int y = 0; y < 3; y++)
        for (int v = 0; v < vectors; v++) total[y][v] = LOAD(to + y * to_line + v * LANES);
    for (int64_t i = 0; i < p->count; i++) {
        VECTOR value = BROADCAST(p->values[i]);
        const SCALAR *patch = from + p->starts[i];
        for (int y = 0; y < 3; y++)
            for (int v = 0; v < vectors; v++)
                total[y][v] = MUL_ADD(value, LOAD(patch + y * from_line + v * LANES), total[y][v]);
    }
    for (int y = 0; y < 3; y++)
        for (int v = 0; v < vectors; v++) STORE(to + y * to_line + v * LANES, total[y][v]);
}

#define CASE(n) \
    case n: NAME(add_some)(n, p, from + c, from_line, to + c, to_line); break;
TARGET static void NAME(add_patches)(const NAME(patches) *p, const SCALAR *from,
                                     int64_t from_line, SCALAR *to, int64_t to_line, int64_t row) {
    for (int64_t c = 0; c < row; c += PATCH_VECTORS * LANES) {
        switch ((row - c) / LANES) {
            CASE(1) CASE(2) CASE(3)
#if PATCH_VECTORS == 6
            CASE(4) CASE(5)
#endif
            default: NAME(add_some)(PATCH_VECTORS, p, from + c, from_line, to + c, to_line);
        }
    }
}
#undef CASE

/* Weights (outputs, channels, 3, 3) as (outputs, 3, row), a row being (3, channels) with zeros
 * up to a whole vector, or back. */
static void NAME(as_rows)(const NAME(layer) *l, SCALAR *weights, SCALAR *rows, int64_t row,
                          int back) {
    for (int64_t o = 0; o < l->outputs; o++)
        for (int64_t c = 0; c < l->channels; c++)
            for (int64_t k = 0; k < 9; k++, weights++) {
                SCALAR *place = rows + (3 * o + k / 3) * row + k % 3 * l->channels + c;
                if (back) *weights = *place;
                else *place = *weights;
            }
}

/* Gradients of weights, as rows, and of biases from one image: for each output, the patches that
 * its gradients belong to. */
TARGET static void NAME(back_to_weights)(const NAME(layer) *l, const SCALAR *image,
                                         const SCALAR *gradient, const uint8_t *largest,
                                         int64_t row, NAME(patches) p, SCALAR *to_weights,
                                         SCALAR *to_bias) {
    for (int64_t o = 0; o < l->outputs; o++) {
        const SCALAR *value = gradient + o;
        const uint8_t *at = largest + o;
        p.count = 0;
        for (int64_t y = 0; y < l->squares / l->across; y++)
            for (int64_t c = 0; c < l->across; c++, value += l->outputs, at += l->outputs) {
                /* Written without a branch; the list has room for one entry more. */
                p.values[p.count] = *value;
                p.starts[p.count] = 2 * (y * l->line + c * l->channels) + l->square[*at & 3];
                p.count += *at != NEGATIVE;
            }
        for (int64_t i = 0; i < p.count; i++) to_bias[o] += p.values[i];
        NAME(add_patches)(&p, image, l->line, to_weights + 3 * o * row, row, row);
    }
}

/* Gradients of one square: for each of its patches, the weights of the outputs whose largest sum it
 * has. */
TARGET static void NAME(back_to_square)(const NAME(layer) *l, const SCALAR *rows,
                                        const SCALAR *gradient, const uint8_t *largest, int64_t row,
                                        NAME(patches) p, SCALAR *square) {
    for (int at = 0; at < 4; at++) {
        p.count = 0;
        for (int64_t o = 0; o < l->outputs; o++) {
            p.values[p.count] = gradient[o];
            p.starts[p.count] = 3 * o * row;
            p.count += largest[o] == at;
        }
        if (p.count)
            NAME(add_patches)(&p, rows, row, square + l->square[at], l->line, row);
    }
}

/* Gradients of the images, if `to_x` is given, of the weights and of the biases. Rows of patches
 * are whole vectors, so images are copied to memory that has room behind their ends. */
TARGET static int NAME(conv_pool_back)(const int64_t *shape, const SCALAR *x, const SCALAR *weights,
                                       const SCALAR *gradient, const uint8_t *largest, SCALAR *to_x,
                                       SCALAR *to_weights, SCALAR *to_bias) {
    if (!is_layer(shape)) return OUT_OF_RANGE;
    NAME(layer) l = NAME(new_layer)(shape);
    int64_t row = PADDED(3 * l.channels);
    int64_t most = (l.squares > l.outputs ? l.squares : l.outputs) + 1;
    int64_t room = PADDED(l.size + row);
    int64_t filters = 3 * l.outputs * row;
    int64_t step = l.squares * l.outputs;
    SCALAR *memory = allocate((2 * room + 2 * filters) * (int64_t)sizeof(SCALAR) +
                              2 * most * (int64_t)sizeof(int64_t));
    if (!memory) return NO_MEMORY;
    SCALAR *image = memory;
    SCALAR *to_image = image + room;
    SCALAR *rows = to_image + room;
    SCALAR *to_rows = rows + filters;
    NAME(patches) p = {to_rows + filters, (int64_t *)(to_rows + filters) + most, 0};
    memset(memory, 0, (size_t)(2 * room + 2 * filters) * sizeof(SCALAR));
    memset(to_bias, 0, (size_t)l.outputs * sizeof(SCALAR));
    NAME(as_rows)(&l, (SCALAR *)weights, rows, row, 0);
    for (int64_t i = 0; i < l.images; i++, x += l.size, gradient += step, largest += step) {
        memcpy(image, x, (size_t)l.size * sizeof(SCALAR));
        NAME(back_to_weights)(&l, image, gradient, largest, row, p, to_rows, to_bias);
        if (!to_x) continue;
        memset(to_image, 0, (size_t)room * sizeof(SCALAR));
        for (int64_t s = 0; s < l.squares; s++)
            NAME(back_to_square)(&l, rows, gradient + s * l.outputs, largest + s * l.outputs, row,
                                 p, to_image + NAME(start)(&l, s));
        memcpy(to_x + i * l.size, to_image, (size_t)l.size * sizeof(SCALAR));
    }
    NAME(as_rows)(&l, to_weights, to_rows, row, 1);
    free(memory);
    return 0;
}
#undef OUTPUT_VECTORS
#undef PATCH_VECTORS
#undef PADDED
#undef NEGATIVE
