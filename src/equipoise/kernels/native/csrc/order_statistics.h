/* Template: trimmed means, by selection networks on keys: values, or integers in their order. */

/* Rounding can push the mean of finite values beyond the largest finite number, but not that of one
 * or two values, which is exact there. NaN stays NaN. */
#define LARGEST_FINITE BROADCAST(sizeof(SCALAR) == 8 ? (SCALAR)DBL_MAX : (SCALAR)FLT_MAX)
#define SATURATED(v) MAX(SUB(BROADCAST(0), LARGEST_FINITE), MIN(LARGEST_FINITE, v))

/* Networks for few values: one vector of every row at a time, in registers. */
#define EXCHANGE(i, j)                      \
    {                                       \
        KEY low = KEY_MIN(v##i, v##j);      \
        v##j = KEY_MAX(v##i, v##j);         \
        v##i = low;                         \
    }
#define KEEP_LOWER(i, j) v##i = KEY_MIN(v##i, v##j);
#define KEEP_HIGHER(i, j) v##j = KEY_MAX(v##i, v##j);
#define READ(i) KEY v##i = KEY_LOAD(rows[i] + c);
#define MEAN_FIRST(i) VECTOR mean = MUL(share, FROM_KEY(v##i));
#define MEAN_NEXT(i) mean = MUL_ADD(share, FROM_KEY(v##i), mean);
#define DEFINE_NETWORK(count, trim)                                                            \
    TARGET static void NAME(middle_##count##_##trim)(const SCALAR *const *rows, int64_t wide,  \
                                                     SCALAR *out, int stream) {                \
        VECTOR share = BROADCAST((SCALAR)1 / (count - 2 * trim));                              \
        for (int64_t c = 0; c < wide; c += LANES) {                                            \
            VALUES_##count NETWORK_##count##_##trim MEAN_##count##_##trim                      \
            STORE_OR_STREAM(out + c, count - 2 * trim > 2 ? SATURATED(mean) : mean, stream);   \
        }                                                                                      \
    }
NETWORKS(DEFINE_NETWORK)
#undef DEFINE_NETWORK

typedef void (*NAME(network))(const SCALAR *const *, int64_t, SCALAR *, int);

/* The network for this many values and this many to drop, NULL if there is none. */
static NAME(network) NAME(small_network)(int64_t count, int64_t trim) {
#define ENTRY(k, b) [k][b] = NAME(middle_##k##_##b),
    static const NAME(network) networks[MAX_IN_REGISTERS + 1][MAX_IN_REGISTERS / 2] = {
        NETWORKS(ENTRY)};
#undef ENTRY
    return count <= MAX_IN_REGISTERS ? networks[count][trim] : NULL;
}

/* ROW_VECTORS vectors of some rows in ascending order, sorted in registers. */
#define WRITE(i) KEY_STORE(sorted + i * ROW_VECTORS * LANES, v##i);
#define DEFINE_SORTER(count)                                                                      \
    TARGET static void NAME(sort_##count)(const SCALAR *const *rows, int64_t from,                \
                                          SCALAR *sorted) {                                       \
        for (int64_t c = from; c < from + ROW_VECTORS * LANES; c += LANES, sorted += LANES) {     \
            VALUES_##count SORT_##count PLACES_##count                                            \
        }                                                                                         \
    }
SORTERS(DEFINE_SORTER)
#undef DEFINE_SORTER

typedef void (*NAME(sorter))(const SCALAR *const *, int64_t, SCALAR *);

#define ENTRY(k) [k] = NAME(sort_##k),
static const NAME(sorter) NAME(sorters)[MAX_IN_REGISTERS + 1] = {SORTERS(ENTRY)};
#undef ENTRY

#undef EXCHANGE
#undef KEEP_LOWER
#undef KEEP_HIGHER
#undef READ
#undef MEAN_FIRST
#undef MEAN_NEXT
#undef WRITE

/* The larger of low[i] and high[trim - 1 - i], or the only one that exists. Over all i, these are
 * all values of two ascending lists except the `trim` smallest. */
TARGET static inline KEY NAME(raised)(const SCALAR *low, const SCALAR *high, int64_t trim,
                                      int64_t i) {
    const int64_t size = ROW_VECTORS * LANES, j = trim - 1 - i;
    if (i < 0) return KEY_LOAD(high + j * size);
    if (j < 0) return KEY_LOAD(low + i * size);
    return KEY_MAX(KEY_LOAD(low + i * size), KEY_LOAD(high + j * size));
}

/* Both halves of the rows are sorted. The smallest values are dropped where the low end of one half
 * meets that of the other in reverse. The largest are dropped where the remaining values meet each
 * other `left` places on, and the smaller of the two is kept. */
TARGET static void NAME(halves)(const SCALAR *const *rows, int64_t count, int64_t trim,
                                int64_t wide, SCALAR *out, int stream) {
    SCALAR low[MAX_IN_REGISTERS * ROW_VECTORS * LANES] ALIGNED;
    SCALAR high[MAX_IN_REGISTERS * ROW_VECTORS * LANES] ALIGNED;
    int64_t half = count / 2, left = count - 2 * trim, first = trim - (count - half);
    NAME(sorter) sort_low = NAME(sorters)[half], sort_high = NAME(sorters)[count - half];
    VECTOR share = BROADCAST((SCALAR)1 / left);
    for (int64_t c = 0; c < wide; c += ROW_VECTORS * LANES) {
        VECTOR mean[ROW_VECTORS];
        sort_low(rows, c, low);
        sort_high(rows + half, c, high);
        for (int s = 0; s < ROW_VECTORS; s++) mean[s] = BROADCAST(0);
        for (int64_t i = first; i < first + left; i++) {
            KEY kept[ROW_VECTORS];
#define RAISED(s, i) NAME(raised)(low + (s) * LANES, high + (s) * LANES, trim, i)
            for (int s = 0; s < ROW_VECTORS; s++) kept[s] = RAISED(s, i);
            for (int64_t j = i + left; j < half; j += left)
                for (int s = 0; s < ROW_VECTORS; s++) kept[s] = KEY_MIN(kept[s], RAISED(s, j));
#undef RAISED
            for (int s = 0; s < ROW_VECTORS; s++)
                mean[s] = MUL_ADD(share, FROM_KEY(kept[s]), mean[s]);
        }
        for (int s = 0; s < ROW_VECTORS; s++)
            STORE_OR_STREAM(out + c + s * LANES, SATURATED(mean[s]), stream);
    }
}

/* Any other network: some vectors of every row go through a list of steps (i, j, sides) in a buffer
 * that stays in the first-level cache. Sides: 1 for the smaller to i, 2 for the larger to j. */
TARGET static ALWAYS_INLINE void NAME(run_network)(const SCALAR *const *rows, int64_t count,
                                                   const int32_t *steps, int64_t step_count,
                                                   int64_t c, SCALAR *values, int vectors) {
    for (int64_t i = 0; i < count; i++)
        for (int s = 0; s < vectors; s++)
            KEY_STORE(values + (i * vectors + s) * LANES, KEY_LOAD(rows[i] + c + s * LANES));
    for (int64_t step = 0; step < step_count; step++, steps += 3) {
        SCALAR *low = values + steps[0] * vectors * LANES;
        SCALAR *high = values + steps[1] * vectors * LANES;
        KEY a[ROW_VECTORS], b[ROW_VECTORS];
        for (int s = 0; s < vectors; s++) {
            a[s] = KEY_LOAD(low + s * LANES);
            b[s] = KEY_LOAD(high + s * LANES);
        }
        if (steps[2] & 1)
            for (int s = 0; s < vectors; s++) KEY_STORE(low + s * LANES, KEY_MIN(a[s], b[s]));
        if (steps[2] & 2)
            for (int s = 0; s < vectors; s++) KEY_STORE(high + s * LANES, KEY_MAX(a[s], b[s]));
    }
}

#define VALUE(i, s) FROM_KEY(KEY_LOAD(values + (kept[i] * ROW_VECTORS + (s)) * LANES))

TARGET static void NAME(any_network)(const SCALAR *const *rows, int64_t count, int64_t left,
                                     const int32_t *steps, int64_t step_count, const int32_t *kept,
                                     int64_t wide, SCALAR *out, int stream) {
    SCALAR values[MAX_VALUES * ROW_VECTORS * LANES] ALIGNED;
    VECTOR share = BROADCAST((SCALAR)1 / left), mean[ROW_VECTORS];
    for (int64_t c = 0; c < wide; c += ROW_VECTORS * LANES) {
        NAME(run_network)(rows, count, steps, step_count, c, values, ROW_VECTORS);
        for (int s = 0; s < ROW_VECTORS; s++) mean[s] = BROADCAST(0);
        for (int64_t i = 0; i < left; i++)
            for (int s = 0; s < ROW_VECTORS; s++) mean[s] = MUL_ADD(share, VALUE(i, s), mean[s]);
        for (int s = 0; s < ROW_VECTORS; s++)
            STORE_OR_STREAM(out + c + s * LANES, SATURATED(mean[s]), stream);
    }
}

/* out[r] = mean of the rows edges[starts[r]] .. without the trims[r] smallest and largest values of
 * every coordinate, in columns from .. to. Receivers of more than MAX_COMPILED rows must all have
 * the number of rows and of dropped values that the given network is for. Returns whether all
 * values are finite. */
TARGET static int NAME(middle)(const SCALAR *const *rows, int64_t row_count, const int64_t *starts,
                               const int64_t *edges, const int64_t *trims, int64_t receivers,
                               const int32_t *steps, int64_t step_count, const int32_t *kept,
                               int64_t kept_count, SCALAR *const *out, int64_t from, int64_t to,
                               int stream) {
    if (!are_lists(starts, receivers) || !in_range(edges, starts[receivers], 0, row_count) ||
        !can_select(starts, trims, receivers, steps, step_count, kept, kept_count))
        return OUT_OF_RANGE;
    int64_t size = row_count * (int64_t)sizeof(SCALAR);
    /* Wide strips mean fewer calls of a network, unless they make the panel too large. */
    int64_t narrow = size * MAX_STRIP > PANEL_BYTES && size * MIN_STRIP <= PANEL_BYTES;
    NAME(panel) panel = NAME(new_panel)(rows, row_count, row_count, narrow ? 0 : MAX_STRIP);
    SCALAR spare[MAX_STRIP] ALIGNED;
    if (!panel.memory) return NO_MEMORY;
    int64_t wide = panel.wide;
    for (int64_t c = from; c < to; c += wide) {
        const SCALAR *strip = NAME(strip)(&panel, c, to, 1), *values[MAX_VALUES];
        for (int64_t r = 0; r < receivers; r++) {
            int64_t count = starts[r + 1] - starts[r], trim = trims[r];
            NAME(prefetch)(&panel, r + 1, receivers);
            for (int64_t i = 0; i < count; i++) values[i] = strip + edges[starts[r] + i] * wide;
            SCALAR *result = NAME(target)(out[r], c, to, wide, spare);
            int past = CAN_STREAM(result, stream);
            NAME(network) small = NAME(small_network)(count, trim);
            if (small) small(values, wide, result, past);
            else if (count <= MAX_COMPILED) NAME(halves)(values, count, trim, wide, result, past);
            else NAME(any_network)(values, count, count - 2 * trim, steps, step_count, kept, wide,
                                   result, past);
            NAME(finish)(out[r], c, to, wide, spare);
        }
    }
    if (stream) FENCE();
    free(panel.memory);
    return panel.finite;
}

/* The mean of ascending values, `ranks` of them, after removing one value, possibly beyond their
 * ends, with the trimming moved along: a value beyond one end moves the window by one, so that the
 * value at this end drops out. The values that are left are added in ascending order, as by
 * `any_network`: a receiver on its own gets the same bits. */
TARGET static ALWAYS_INLINE void NAME(mean_without)(const SCALAR *values, const int32_t *kept,
                                                    int64_t ranks, const SCALAR *missing,
                                                    VECTOR mean[ROW_VECTORS]) {
    VECTOR share = BROADCAST((SCALAR)1 / (ranks - 1)), low[ROW_VECTORS], removed[ROW_VECTORS];
    for (int s = 0; s < ROW_VECTORS; s++) {
        removed[s] = FROM_KEY(KEY_LOAD(missing + s * LANES));
        low[s] = VALUE(0, s);
        mean[s] = BROADCAST(0);
    }
    for (int64_t i = 1; i < ranks; i++)
        for (int s = 0; s < ROW_VECTORS; s++) {
            VECTOR high = VALUE(i, s);
            VECTOR one = SELECT_LESS(low[s], removed[s], low[s], high);
            mean[s] = MUL_ADD(share, one, mean[s]);
            low[s] = high;
        }
    if (ranks > 3)
        for (int s = 0; s < ROW_VECTORS; s++) mean[s] = SATURATED(mean[s]);
}

/* out[r] = as `middle`, of all rows except rows[left_out[r]]: one sorting serves all receivers.
 * `kept` are the places of the ranks from trim to count - trim - 1. Returns whether all values are
 * finite. */
TARGET static int NAME(middle_but_one)(const SCALAR *const *rows, int64_t count,
                                       const int64_t *left_out, int64_t receivers, int64_t trim,
                                       const int32_t *steps, int64_t step_count,
                                       const int32_t *kept, int64_t kept_count, SCALAR *const *out,
                                       int64_t from, int64_t to, int stream) {
    int64_t ranks = count - 2 * trim;
    if (count > MAX_VALUES || trim < 0 || ranks < 2 || kept_count != ranks ||
        !in_range(left_out, receivers, 0, count) ||
        !is_network(steps, step_count, kept, kept_count, count))
        return OUT_OF_RANGE;
    NAME(panel) panel = NAME(new_panel)(rows, count, count, ROW_VECTORS * LANES);
    const SCALAR *unsorted[MAX_VALUES];
    SCALAR *values = allocate(count * ROW_VECTORS * LANES * (int64_t)sizeof(SCALAR));
    SCALAR spare[ROW_VECTORS * LANES] ALIGNED;
    VECTOR mean[ROW_VECTORS];
    int failed = !panel.memory || !values;
    for (int64_t c = from; !failed && c < to; c += panel.wide) {
        const SCALAR *strip = NAME(strip)(&panel, c, to, 1);
        for (int64_t i = 0; i < count; i++) unsorted[i] = strip + i * panel.wide;
        NAME(run_network)(unsorted, count, steps, step_count, 0, values, ROW_VECTORS);
        for (int64_t r = 0; r < receivers; r++) {
            const SCALAR *missing = unsorted[left_out[r]];
            NAME(prefetch)(&panel, r + 1, receivers);
            SCALAR *result = NAME(target)(out[r], c, to, panel.wide, spare);
            int past = CAN_STREAM(result, stream);
            NAME(mean_without)(values, kept, ranks, missing, mean);
            for (int s = 0; s < ROW_VECTORS; s++)
                STORE_OR_STREAM(result + s * LANES, mean[s], past);
            NAME(finish)(out[r], c, to, panel.wide, spare);
        }
    }
    if (stream) FENCE();
    free(panel.memory);
    free(values);
    return failed ? NO_MEMORY : panel.finite;
}

/* The mean of the `amount` values nearest to the median of each column; of two that are equally far,
 * the lower one counts. They are neighbors among ascending values: a window of the lowest ones moves
 * up while the value above it is nearer than its first one. That is replaced, not subtracted: a huge
 * value must not cancel the digits of others. Differences of close values are exact, while a rounded
 * median need not be, so twice the distances to the mean of the two middle values are compared.
 * `peak` rises to the largest magnitude. */
#define AT(i) (values + (kept[i] * ROW_VECTORS + s) * LANES)
TARGET static ALWAYS_INLINE VECTOR NAME(mean_of_nearest)(SCALAR *values, const int32_t *kept,
                                                         int64_t count, int64_t amount, int s,
                                                         VECTOR *peak) {
    VECTOR low = LOAD(AT((count - 1) / 2)), high = LOAD(AT(count / 2));
    VECTOR least = LOAD(AT(0)), most = LOAD(AT(count - 1));
    VECTOR zero = BROADCAST(0), share = BROADCAST((SCALAR)1 / amount);
    VECTOR moving = BROADCAST(-1); /* below zero as long as the window of a column moves */
    *peak = MAX(*peak, MAX(most, SUB(zero, least)));
    for (int64_t start = 0; start + amount < count; start++) {
        VECTOR first = LOAD(AT(start)), last = LOAD(AT(start + amount));
        VECTOR above = ADD(SUB(last, low), SUB(last, high));
        VECTOR below = ADD(SUB(low, first), SUB(high, first));
        SCALAR *replaced = AT(start % amount);
        moving = SELECT_LESS(SUB(above, below), zero, moving, BROADCAST(1));
        STORE(replaced, SELECT_LESS(moving, zero, last, LOAD(replaced)));
    }
    VECTOR mean = MUL(share, LOAD(AT(0)));
    for (int64_t i = 1; i < amount; i++) mean = MUL_ADD(share, LOAD(AT(i)), mean);
    return MIN(MAX(mean, least), most); /* rounding can leave the range of the values */
}
#undef AT

/* out[r] = the mean of the `amount` values nearest to the median of `count` rows, edges[r * count]
 * .., in columns from .. to. Returns whether all values are finite, and below an eighth of the
 * largest number: sums of two differences of others can overflow. */
TARGET static int NAME(nearest)(const SCALAR *const *rows, int64_t row_count, const int64_t *edges,
                                int64_t count, int64_t receivers, int64_t amount,
                                const int32_t *steps, int64_t step_count, const int32_t *kept,
                                int64_t kept_count, SCALAR *const *out, int64_t from, int64_t to,
                                int stream) {
    if (count < 1 || count > MAX_VALUES || amount < 1 || amount > count || receivers < 0 ||
        kept_count != count || !in_range(edges, receivers * count, 0, row_count) ||
        !is_network(steps, step_count, kept, kept_count, count))
        return OUT_OF_RANGE;
    NAME(panel) panel = NAME(new_panel)(rows, row_count, row_count, 0);
    const SCALAR *unsorted[MAX_VALUES];
    SCALAR *values = allocate(count * ROW_VECTORS * LANES * (int64_t)sizeof(SCALAR));
    SCALAR spare[MAX_STRIP] ALIGNED, peaks[LANES] ALIGNED;
    int32_t ascending[MAX_IN_REGISTERS];
    for (int i = 0; i < MAX_IN_REGISTERS; i++) ascending[i] = i;
    NAME(sorter) sort = count <= MAX_IN_REGISTERS ? NAME(sorters)[count] : NULL;
    const int32_t *places = sort ? ascending : kept;
    VECTOR peak = BROADCAST(0);
    int failed = !panel.memory || !values;
    for (int64_t c = from; !failed && c < to; c += panel.wide) {
        const SCALAR *strip = NAME(strip)(&panel, c, to, 1);
        for (int64_t r = 0; r < receivers; r++) {
            NAME(prefetch)(&panel, r + 1, receivers);
            for (int64_t i = 0; i < count; i++)
                unsorted[i] = strip + edges[r * count + i] * panel.wide;
            SCALAR *result = NAME(target)(out[r], c, to, panel.wide, spare);
            int past = CAN_STREAM(result, stream);
            for (int64_t k = 0; k < panel.wide; k += ROW_VECTORS * LANES) {
                if (sort) sort(unsorted, k, values);
                else NAME(run_network)(unsorted, count, steps, step_count, k, values, ROW_VECTORS);
                for (int64_t i = 0; i < count * ROW_VECTORS * LANES; i += LANES)
                    STORE(values + i, FROM_KEY(KEY_LOAD(values + i)));
                for (int s = 0; s < ROW_VECTORS; s++) {
                    VECTOR mean =
                        NAME(mean_of_nearest)(values, places, count, amount, s, &peak);
                    STORE_OR_STREAM(result + k + s * LANES, mean, past);
                }
            }
            NAME(finish)(out[r], c, to, panel.wide, spare);
        }
    }
    if (stream) FENCE();
    free(panel.memory);
    free(values);
    STORE(peaks, peak);
    SCALAR limit = (sizeof(SCALAR) == 8 ? (SCALAR)DBL_MAX : (SCALAR)FLT_MAX) / 8;
    for (int lane = 0; lane < LANES; lane++) panel.finite &= peaks[lane] < limit;
    return failed ? NO_MEMORY : panel.finite;
}

#undef SATURATED
#undef LARGEST_FINITE
#undef VALUE
