/* Template: a 3 x 3 convolution without padding, 2 x 2 max pooling and ReLU as one step, and back.
 *
 * Images are (height, width, channels). A square is the 2 x 2 sums that are pooled. Pooling passes
 * a gradient to one of four sums, and ReLU stops it if that sum is negative: the backward pass only
 * multiplies the rest, an eighth to a quarter of all. */
#ifdef HAS_AVX512
#define OUTPUT_VECTORS 4 /* vectors of outputs at a time, of which each has four sums */
#define WEIGHT_BLOCKS 2  /* blocks of gradients of weights at a time, of 9 vectors each */
#else
#define OUTPUT_VECTORS 3
#define WEIGHT_BLOCKS 1
#endif
#define PADDED(count) (((count) + LANES - 1) / LANES * LANES)
/* Whether lanes of the gradient of weights should be outputs, not channels: otherwise most lanes
 * would be empty. Costs are equal at about a quarter of a vector. */
#define FEW_CHANNELS(count) (4 * (count) <= LANES)
#define NEGATIVE 4 /* in place of the position of the largest sum: ReLU sets it to 0 */

/* Sizes of a layer. In scalars: `line`, a line of an image, `size`, an image, and `square`, the
 * offsets of the four patches of a square. `across` and `squares` count the squares of a line and
 * of an image. A pixel has `blocks` of LANES channels, and `block` is one of all pixels. */
typedef struct {
    int64_t images, height, width, channels, outputs;
    int64_t line, size, across, squares, square[4], blocks, block;
} NAME(layer);

/* Shape: images, height, width, channels, outputs. */
static NAME(layer) NAME(new_layer)(const int64_t *shape) {
    NAME(layer) l = {shape[0], shape[1], shape[2], shape[3], shape[4], 0, 0, 0, 0, {0}, 0, 0};
    l.line = l.width * l.channels;
    l.size = l.height * l.line;
    l.across = (l.width - 2) / 2;
    l.squares = (l.height - 2) / 2 * l.across;
    l.square[1] = l.channels;
    l.square[2] = l.line;
    l.square[3] = l.line + l.channels;
    l.blocks = (l.channels + LANES - 1) / LANES;
    l.block = l.height * l.width * LANES;
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

/* The same as largest_of if no sum is NaN. Returns a vector that is 0 if all sums are finite. */
TARGET static ALWAYS_INLINE VECTOR NAME(largest_number)(const VECTOR *sums, int64_t step,
                                                        SCALAR *out, SCALAR *at) {
    VECTOR upper = MAX(sums[0], sums[step]), lower = MAX(sums[2 * step], sums[3 * step]);
    VECTOR first = SELECT_LESS(sums[0], sums[step], BROADCAST(1), BROADCAST(0));
    VECTOR second = SELECT_LESS(sums[2 * step], sums[3 * step], BROADCAST(3), BROADCAST(2));
    VECTOR place = SELECT_LESS(upper, lower, second, first), best = MAX(upper, lower);
    VECTOR total = ADD(ADD(sums[0], sums[step]), ADD(sums[2 * step], sums[3 * step]));
    STORE(out, MAX(best, BROADCAST(0)));
    STORE(at, SELECT_LESS(BROADCAST(0), best, place, BROADCAST(NEGATIVE)));
    return MUL(total, BROADCAST(0));
}

/* Results of one image, (squares, outputs): largest sums and their positions. Vectors may reach
 * into the next square, which is computed later. `check` is a vector that stays 0 if sums are
 * finite. */
typedef struct {
    SCALAR *best, *at, *check;
} NAME(results);

/* A square of patches, whose first begins at `patch`, with some vectors of outputs; `exact` if sums
 * may be NaN. */
TARGET static ALWAYS_INLINE void NAME(convolve)(
    const int vectors, const SCALAR *patch, const NAME(layer) *l, const SCALAR *weights,
    const SCALAR *bias, int64_t padded, int64_t place, const NAME(results) *r, int exact) {
    VECTOR sums[4][OUTPUT_VECTORS];
    for (int p = 0; p < 4; p++)
        for (int v = 0; v < vectors; v++) sums[p][v] = LOAD(bias + v * LANES);
    for (int y = 0; y < 3; y++)
        NAME(multiply)(vectors, patch + y * l->line, l->square, 3 * l->channels,
                       weights + 3 * y * l->channels * padded, padded, sums);
    VECTOR check = LOAD(r->check);
    for (int v = 0; v < vectors; v++, place += LANES) {
        SCALAR *best = r->best + place, *at = r->at + place;
        if (exact) NAME(largest_of)(&sums[0][v], OUTPUT_VECTORS, best, at);
        else check = ADD(check, NAME(largest_number)(&sums[0][v], OUTPUT_VECTORS, best, at));
    }
    STORE(r->check, check);
}

/* An image of one channel with one vector of outputs: pixels of a square and weights stay in
 * registers. Each sum is added up in the same order as by convolve. */
TARGET static void NAME(convolve_gray)(const SCALAR *image, const NAME(layer) *l,
                                       const SCALAR *weights, int64_t padded, int64_t place,
                                       const NAME(results) *r) {
    VECTOR filter[9], bias = LOAD(weights + 9 * padded), check = LOAD(r->check);
    for (int k = 0; k < 9; k++) filter[k] = LOAD(weights + k * padded);
    for (int64_t s = 0; s < l->squares; s += l->across, image += 2 * l->line)
        for (int64_t i = 0; i < l->across; i++, place += l->outputs) {
            VECTOR pixels[4][4], sums[4];
            for (int y = 0; y < 4; y++)
                for (int x = 0; x < 4; x++)
                    pixels[y][x] = BROADCAST(image[y * l->line + 2 * i + x]);
            for (int p = 0; p < 4; p++) sums[p] = bias;
            for (int y = 0; y < 3; y++)
                for (int x = 0; x < 3; x++)
                    for (int p = 0; p < 4; p++)
                        sums[p] = MUL_ADD(pixels[y + p / 2][x + p % 2], filter[3 * y + x], sums[p]);
            check = ADD(check, NAME(largest_number)(sums, 1, r->best + place, r->at + place));
        }
    STORE(r->check, check);
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

/* One image. */
#define CASE(n) \
    case n: NAME(convolve)(n, patch, l, packed + o, bias + o, padded, place + o, r, exact); break;
TARGET static void NAME(conv_pool_one)(const SCALAR *image, const NAME(layer) *l,
                                       const SCALAR *packed, int64_t padded, const NAME(results) *r,
                                       int exact) {
    const SCALAR *bias = packed + 9 * l->channels * padded;
    for (int64_t s = 0; s < l->squares; s++) {
        const SCALAR *patch = image + 2 * (s / l->across * l->line + s % l->across * l->channels);
        int64_t place = s * l->outputs;
        for (int64_t o = 0; o < padded; o += OUTPUT_VECTORS * LANES) {
            switch ((padded - o) / LANES) {
                CASE(1) CASE(2) CASE(3)
                default: NAME(convolve)(OUTPUT_VECTORS, patch, l, packed + o, bias + o, padded,
                                        place + o, r, exact);
            }
        }
    }
}
#undef CASE

TARGET static int NAME(conv_pool)(const int64_t *shape, const SCALAR *x, const SCALAR *weights,
                                  const SCALAR *bias, SCALAR *out, uint8_t *largest) {
    if (!is_layer(shape)) return OUT_OF_RANGE;
    NAME(layer) l = NAME(new_layer)(shape);
    int64_t padded = PADDED(l.outputs);
    int64_t count = l.squares * l.outputs;
    int64_t filters = (9 * l.channels + 1) * padded;
    SCALAR *packed = allocate((filters + 2 * (count + padded) + LANES) * (int64_t)sizeof(SCALAR));
    if (!packed) return NO_MEMORY;
    SCALAR *best = packed + filters;
    NAME(results) r = {best, best + count + padded, best + 2 * (count + padded)};
    NAME(pack_outputs)(&l, weights, bias, padded, packed);
    for (int64_t i = 0; i < l.images; i++, x += l.size, out += count, largest += count) {
        STORE(r.check, BROADCAST(0));
        /* The last vector comes first, as it reaches into the first outputs of the next square. */
        if (l.channels == 1)
            for (int64_t o = padded - LANES; o >= 0; o -= LANES)
                NAME(convolve_gray)(x, &l, packed + o, padded, o, &r);
        else NAME(conv_pool_one)(x, &l, packed, padded, &r, 0);
        int finite = 1;
        for (int j = 0; j < LANES; j++) finite &= r.check[j] == 0;
        if (!finite) NAME(conv_pool_one)(x, &l, packed, padded, &r, 1);
        memcpy(out, r.best, (size_t)count * sizeof(SCALAR));
        for (int64_t j = 0; j < count; j++) largest[j] = (uint8_t)r.at[j];
    }
    free(packed);
    return 0;
}

/* Backwards, images are (blocks, pixels, LANES) and weights (blocks, outputs, 3, 3, LANES): a block
 * has as many channels as a vector has lanes. Then all vectors are aligned, and the patch of one
 * gradient is always 9 vectors: its sums stay in registers, and a block of weights in the cache.
 * After the last channel, numbers of a block are of no interest. */

/* Converts weights (outputs, channels, 3, 3) to blocks, or back. */
static void NAME(weight_blocks)(const NAME(layer) *l, SCALAR *weights, SCALAR *blocks, int back) {
    for (int64_t o = 0; o < l->outputs; o++)
        for (int64_t c = 0; c < l->channels; c++) {
            SCALAR *place = blocks + (c / LANES * l->outputs + o) * 9 * LANES + c % LANES;
            for (int64_t k = 0; k < 9; k++, weights++, place += LANES) {
                if (back) *weights = *place;
                else *place = *weights;
            }
        }
}

/* Converts an image (pixels, channels) to blocks, or back. A whole vector is copied wherever it
 * ends inside of the image: what it writes to the next pixel is replaced by that pixel's own. */
TARGET static void NAME(image_blocks)(const NAME(layer) *l, SCALAR *image, SCALAR *blocks,
                                      int back) {
    for (int64_t i = 0; i < l->size; i += l->channels, blocks += LANES)
        for (int64_t c = 0; c < l->channels; c += LANES) {
            SCALAR *from = image + i + c;
            SCALAR *to = blocks + c / LANES * l->block;
            if (i + c + LANES <= l->size) {
                if (back) STORE(from, LOAD(to));
                else STORE(to, LOAD(from));
                continue;
            }
            for (int64_t j = 0; j < l->channels - c && j < LANES; j++) {
                if (back) from[j] = to[j];
                else to[j] = from[j];
            }
        }
}

/* Gradients of one image, 0 where ReLU stops them, and positions of the largest sums as numbers,
 * both (squares, outputs). Adds the gradients of the biases. Vectors may reach into the next
 * square: what they find there is added after the last bias. */
TARGET static void NAME(read_gradients)(const NAME(layer) *l, const SCALAR *gradient,
                                        const uint8_t *largest, SCALAR *steps, SCALAR *places,
                                        SCALAR *to_bias) {
    int64_t count = l->squares * l->outputs;
    memcpy(steps, gradient, (size_t)count * sizeof(SCALAR));
    for (int64_t i = 0; i < count; i++) places[i] = (SCALAR)largest[i];
    for (int64_t i = 0; i < count; i += LANES)
        STORE(steps + i, SELECT_LESS(LOAD(places + i), BROADCAST(NEGATIVE), LOAD(steps + i),
                                     BROADCAST(0)));
    for (int64_t o = 0; o < l->outputs; o += LANES) {
        VECTOR total = LOAD(to_bias + o);
        for (int64_t i = o; i < count; i += l->outputs) total = ADD(total, LOAD(steps + i));
        STORE(to_bias + o, total);
    }
}

/* Gradients of weights, as (channels, 3, 3, padded), from one image of few channels, for a vector
 * of outputs: each chooses its pixels among those of the square. */
TARGET static void NAME(few_to_weights)(const NAME(layer) *l, const SCALAR *image,
                                        const SCALAR *steps, const SCALAR *places, int64_t padded,
                                        SCALAR *to_weights) {
    VECTOR total[9];
    for (int k = 0; k < 9; k++) total[k] = LOAD(to_weights + k * padded);
    for (int64_t s = 0; s < l->squares; s += l->across, image += 2 * l->line)
        for (int64_t i = 0; i < l->across; i++, steps += l->outputs, places += l->outputs) {
            const SCALAR *corner = image + 2 * i * l->channels;
            VECTOR step = LOAD(steps), place = LOAD(places), pixels[4][4];
            for (int y = 0; y < 4; y++)
                for (int x = 0; x < 4; x++)
                    pixels[y][x] = BROADCAST(corner[y * l->line + x * l->channels]);
            for (int y = 0; y < 3; y++)
                for (int x = 0; x < 3; x++) {
                    VECTOR upper = SELECT_LESS(place, BROADCAST(1), pixels[y][x], pixels[y][x + 1]);
                    VECTOR lower =
                        SELECT_LESS(place, BROADCAST(3), pixels[y + 1][x], pixels[y + 1][x + 1]);
                    VECTOR pixel = SELECT_LESS(place, BROADCAST(2), upper, lower);
                    total[3 * y + x] = MUL_ADD(step, pixel, total[3 * y + x]);
                }
        }
    for (int k = 0; k < 9; k++) STORE(to_weights + k * padded, total[k]);
}

/* Gradients of which each belongs to a patch. */
typedef struct {
    int64_t start;
    SCALAR value;
} NAME(weighted_patch);

/* Adds weighted patches of some blocks of an image to the gradient of the weights of one output.
 * `to_block` is the distance of blocks of weights. */
TARGET static ALWAYS_INLINE void NAME(add_patches)(const int blocks,
                                                   const NAME(weighted_patch) *patches,
                                                   int64_t count, const SCALAR *image,
                                                   const NAME(layer) *l, SCALAR *to,
                                                   int64_t to_block) {
    const int64_t line = l->width * LANES, block = l->block;
    VECTOR total[WEIGHT_BLOCKS][9];
    for (int b = 0; b < blocks; b++)
        for (int k = 0; k < 9; k++) total[b][k] = LOAD(to + b * to_block + k * LANES);
    for (int64_t i = 0; i < count; i++) {
        VECTOR value = BROADCAST(patches[i].value);
        for (int b = 0; b < blocks; b++) {
            const SCALAR *row = image + patches[i].start + b * block;
            for (int y = 0; y < 3; y++, row += line)
                for (int x = 0; x < 3; x++)
                    total[b][3 * y + x] =
                        MUL_ADD(value, LOAD(row + x * LANES), total[b][3 * y + x]);
        }
    }
    for (int b = 0; b < blocks; b++)
        for (int k = 0; k < 9; k++) STORE(to + b * to_block + k * LANES, total[b][k]);
}

/* Gradients of weights, in blocks, from one image in blocks: for each output, the patches that its
 * gradients belong to. */
TARGET static void NAME(back_to_weights)(const NAME(layer) *l, const SCALAR *image,
                                         const SCALAR *gradient, const uint8_t *largest,
                                         NAME(weighted_patch) *patches, SCALAR *to_weights) {
    int64_t line = l->width * LANES;
    int64_t block = l->outputs * 9 * LANES;
    const int64_t square[4] = {0, LANES, line, line + LANES};
    for (int64_t o = 0; o < l->outputs; o++, to_weights += 9 * LANES) {
        const SCALAR *value = gradient + o;
        const uint8_t *at = largest + o;
        int64_t count = 0;
        for (int64_t start = 0; start < l->squares / l->across * 2 * line; start += 2 * line)
            for (int64_t i = 0; i < l->across; i++, value += l->outputs, at += l->outputs) {
                /* Written without a branch; the list has room for one entry more. */
                patches[count].value = *value;
                patches[count].start = start + 2 * i * LANES + square[*at & 3];
                count += *at != NEGATIVE;
            }
        int64_t b = 0;
        for (; b + WEIGHT_BLOCKS <= l->blocks; b += WEIGHT_BLOCKS)
            NAME(add_patches)(WEIGHT_BLOCKS, patches, count, image + b * l->block, l,
                              to_weights + b * block, block);
        for (; b < l->blocks; b++)
            NAME(add_patches)(1, patches, count, image + b * l->block, l, to_weights + b * block,
                              block);
    }
}

/* Lists the outputs whose largest sum is at position 0, then those at 1, 2 and 3; `ends` are those
 * of the four lists. There is room for LANES entries more. */
TARGET static void NAME(list_outputs)(const uint8_t *largest, int64_t outputs, int32_t *list,
                                      int64_t *ends) {
    int64_t count = 0;
    for (int at = 0; at < 4; at++) {
        int64_t o = 0;
#ifdef HAS_AVX512
        __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        for (; o + 16 <= outputs; o += 16) {
            __m512i places = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(largest + o)));
            __mmask16 here = _mm512_cmpeq_epi32_mask(places, _mm512_set1_epi32(at));
            __m512i some = _mm512_add_epi32(numbers, _mm512_set1_epi32((int)o));
            _mm512_storeu_si512(list + count, _mm512_maskz_compress_epi32(here, some));
            count += __builtin_popcount(here);
        }
#endif
        for (; o < outputs; o++) {
            list[count] = (int32_t)o;
            count += largest[o] == at;
        }
        ends[at] = count;
    }
}

/* Adds the weights of listed outputs, times their gradients, to the sums of one patch of a square,
 * whose first pixel is (top, left) of 4 x 4. */
TARGET static ALWAYS_INLINE void NAME(add_outputs)(const int top, const int left,
                                                   const int32_t *list, int64_t from, int64_t to,
                                                   const SCALAR *gradient, const SCALAR *weights,
                                                   VECTOR total[4][4]) {
    for (int64_t i = from; i < to; i++) {
        VECTOR value = BROADCAST(gradient[list[i]]);
        const SCALAR *some = weights + (int64_t)list[i] * 9 * LANES;
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 3; x++)
                total[top + y][left + x] = MUL_ADD(value, LOAD(some + (3 * y + x) * LANES),
                                                   total[top + y][left + x]);
    }
}

/* Gradients of a square of pixels in one block. */
TARGET static void NAME(back_to_square)(const int32_t *list, const int64_t *ends,
                                        const SCALAR *gradient, const SCALAR *weights, int64_t line,
                                        SCALAR *to_image) {
    VECTOR total[4][4];
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++) total[y][x] = LOAD(to_image + y * line + x * LANES);
    NAME(add_outputs)(0, 0, list, 0, ends[0], gradient, weights, total);
    NAME(add_outputs)(0, 1, list, ends[0], ends[1], gradient, weights, total);
    NAME(add_outputs)(1, 0, list, ends[1], ends[2], gradient, weights, total);
    NAME(add_outputs)(1, 1, list, ends[2], ends[3], gradient, weights, total);
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++) STORE(to_image + y * line + x * LANES, total[y][x]);
}

/* Gradients of one image, in blocks. Outputs are listed for a line of squares, which then takes the
 * blocks of weights one by one: the cache has room for one block. */
TARGET static void NAME(back_to_image)(const NAME(layer) *l, const SCALAR *weights,
                                       const SCALAR *gradient, const uint8_t *largest,
                                       int64_t *ends, int32_t *lists, SCALAR *to_image) {
    int64_t line = l->width * LANES;
    int64_t room = l->outputs + 16;
    int64_t step = l->across * l->outputs;
    for (int64_t s = 0; s < l->squares; s += l->across, gradient += step, largest += step) {
        for (int64_t i = 0; i < l->across; i++)
            NAME(list_outputs)(largest + i * l->outputs, l->outputs, lists + i * room,
                               ends + 4 * i);
        for (int64_t b = 0; b < l->blocks; b++)
            for (int64_t i = 0; i < l->across; i++)
                NAME(back_to_square)(lists + i * room, ends + 4 * i, gradient + i * l->outputs,
                                     weights + b * l->outputs * 9 * LANES, line,
                                     to_image + b * l->block + 2 * i * LANES);
        to_image += 2 * line;
    }
}

/* Memory of a backward pass, all in one allocation. */
typedef struct {
    SCALAR *image, *to_image, *weights, *to_weights, *steps, *places, *bias;
    NAME(weighted_patch) *patches;
    int64_t *ends;
    int32_t *lists;
} NAME(back_memory);

/* The next `count` elements of `size` bytes of the memory, in whole cache lines. */
static void *NAME(take)(uintptr_t *memory, int64_t count, size_t size) {
    uintptr_t taken = *memory;
    *memory += ((size_t)count * size + 63) / 64 * 64;
    return (void *)taken;
}

/* Divides the memory at an address, and returns its end: the size needed, if the address is 0. */
static uintptr_t NAME(divide)(const NAME(layer) *l, int64_t padded, uintptr_t memory,
                              NAME(back_memory) *m) {
    int64_t filters = 9 * l->blocks * LANES * l->outputs;
    int64_t few = 9 * l->channels * padded;
    m->image = NAME(take)(&memory, l->blocks * l->block, sizeof(SCALAR));
    m->to_image = NAME(take)(&memory, l->blocks * l->block, sizeof(SCALAR));
    m->weights = NAME(take)(&memory, filters, sizeof(SCALAR));
    m->to_weights = NAME(take)(&memory, filters > few ? filters : few, sizeof(SCALAR));
    m->steps = NAME(take)(&memory, l->squares * l->outputs + LANES, sizeof(SCALAR));
    m->places = NAME(take)(&memory, l->squares * l->outputs + LANES, sizeof(SCALAR));
    m->bias = NAME(take)(&memory, padded, sizeof(SCALAR));
    m->patches = NAME(take)(&memory, l->squares + 1, sizeof(NAME(weighted_patch)));
    m->ends = NAME(take)(&memory, 4 * l->across, sizeof(int64_t));
    m->lists = NAME(take)(&memory, l->across * (l->outputs + 16), sizeof(int32_t));
    return memory;
}

/* Gradients of the images, if `to_x` is given, of the weights and of the biases. */
TARGET static int NAME(conv_pool_back)(const int64_t *shape, const SCALAR *x, const SCALAR *weights,
                                       const SCALAR *gradient, const uint8_t *largest, SCALAR *to_x,
                                       SCALAR *to_weights, SCALAR *to_bias) {
    if (!is_layer(shape)) return OUT_OF_RANGE;
    NAME(layer) l = NAME(new_layer)(shape);
    int64_t padded = PADDED(l.outputs);
    int64_t step = l.squares * l.outputs;
    int few = FEW_CHANNELS(l.channels);
    NAME(back_memory) m;
    size_t bytes = NAME(divide)(&l, padded, 0, &m);
    void *memory = allocate((int64_t)bytes);
    if (!memory) return NO_MEMORY;
    NAME(divide)(&l, padded, (uintptr_t)memory, &m);
    memset(memory, 0, bytes);
    NAME(weight_blocks)(&l, (SCALAR *)weights, m.weights, 0);
    for (int64_t i = 0; i < l.images; i++, x += l.size, gradient += step, largest += step) {
        NAME(read_gradients)(&l, gradient, largest, m.steps, m.places, m.bias);
        if (few) {
            for (int64_t c = 0; c < l.channels; c++)
                for (int64_t o = 0; o < padded; o += LANES)
                    NAME(few_to_weights)(&l, x + c, m.steps + o, m.places + o, padded,
                                         m.to_weights + 9 * c * padded + o);
        } else {
            NAME(image_blocks)(&l, (SCALAR *)x, m.image, 0);
            NAME(back_to_weights)(&l, m.image, gradient, largest, m.patches, m.to_weights);
        }
        if (!to_x) continue;
        memset(m.to_image, 0, (size_t)(l.blocks * l.block) * sizeof(SCALAR));
        NAME(back_to_image)(&l, m.weights, gradient, largest, m.ends, m.lists, m.to_image);
        NAME(image_blocks)(&l, to_x + i * l.size, m.to_image, 1);
    }
    if (few) {
        for (int64_t o = 0; o < l.outputs; o++)
            for (int64_t k = 0; k < 9 * l.channels; k++)
                *to_weights++ = m.to_weights[k * padded + o];
    } else {
        NAME(weight_blocks)(&l, to_weights, m.to_weights, 1);
    }
    memcpy(to_bias, m.bias, (size_t)l.outputs * sizeof(SCALAR));
    free(memory);
    return 0;
}
#undef OUTPUT_VECTORS
#undef WEIGHT_BLOCKS
#undef FEW_CHANNELS
#undef PADDED
#undef NEGATIVE
