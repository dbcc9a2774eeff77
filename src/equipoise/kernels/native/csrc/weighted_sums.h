/* Template: weighted sums. Each returns whether all of its results are finite: `odd` adds zero
 * times each result, and so becomes NaN with the first one that is not. */

/* Sums of all rows for DENSE_RECEIVERS receivers, ROW_VECTORS vectors of each. */
TARGET static ALWAYS_INLINE void NAME(add_rows)(const SCALAR *strip, int64_t wide, int64_t count,
                                                const SCALAR *weights,
                                                VECTOR sum[DENSE_RECEIVERS][ROW_VECTORS]) {
    for (int i = 0; i < DENSE_RECEIVERS; i++)
        for (int s = 0; s < ROW_VECTORS; s++) sum[i][s] = BROADCAST(0);
    for (int64_t r = 0; r < count; r++, strip += wide) {
        VECTOR row[ROW_VECTORS];
        for (int s = 0; s < ROW_VECTORS; s++) row[s] = LOAD(strip + s * LANES);
        for (int i = 0; i < DENSE_RECEIVERS; i++) {
            VECTOR weight = BROADCAST(weights[i * count + r]);
            for (int s = 0; s < ROW_VECTORS; s++) sum[i][s] = MUL_ADD(weight, row[s], sum[i][s]);
        }
    }
}

/* out[i] = sum of weights[i, r] * rows[r] in columns from .. to, and of extra_weights[i] * extra[i]
 * if that is not NULL. Receivers share the loads of a row, DENSE_RECEIVERS at a time; the last group
 * overlaps the one before. */
TARGET static int NAME(dense_sums)(const SCALAR *const *rows, int64_t count, const SCALAR *weights,
                                   const SCALAR *const *extra, const SCALAR *extra_weights,
                                   int64_t receivers, SCALAR *const *out, int64_t from, int64_t to,
                                   int stream) {
    if (count < 0 || receivers < MIN_DENSE_RECEIVERS) return OUT_OF_RANGE;
    NAME(panel) panel = NAME(new_panel)(rows, count, count, 0);
    SCALAR spare[DENSE_RECEIVERS][MAX_STRIP] ALIGNED, padded[MAX_STRIP] ALIGNED;
    if (!panel.memory) return NO_MEMORY;
    VECTOR odd = BROADCAST(0);
    for (int64_t c = from; c < to; c += panel.wide) {
        const SCALAR *strip = NAME(strip)(&panel, c, to, 0);
        for (int64_t next = 0; next < receivers; next += DENSE_RECEIVERS) {
            int64_t last = receivers - DENSE_RECEIVERS;
            int64_t first = next < last ? next : last;
            NAME(prefetch)(&panel, first + DENSE_RECEIVERS, receivers);
            for (int64_t k = 0; k < panel.wide; k += ROW_VECTORS * LANES) {
                VECTOR sum[DENSE_RECEIVERS][ROW_VECTORS];
                NAME(add_rows)(strip + k, panel.wide, count, weights + first * count, sum);
                for (int i = 0; i < DENSE_RECEIVERS; i++) {
                    const SCALAR *mine = extra[first + i];
                    if (mine) {
                        mine = NAME(whole)(mine + c, to - c, panel.wide, padded) + k;
                        VECTOR weight = BROADCAST(extra_weights[first + i]);
                        for (int s = 0; s < ROW_VECTORS; s++)
                            sum[i][s] = MUL_ADD(weight, LOAD(mine + s * LANES), sum[i][s]);
                    }
                    SCALAR *result = NAME(target)(out[first + i], c, to, panel.wide, spare[i]) + k;
                    int past = CAN_STREAM(result, stream);
                    for (int s = 0; s < ROW_VECTORS; s++) {
                        odd = MUL_ADD(sum[i][s], BROADCAST(0), odd);
                        STORE_OR_STREAM(result + s * LANES, sum[i][s], past);
                    }
                }
            }
            for (int i = 0; i < DENSE_RECEIVERS; i++)
                NAME(finish)(out[first + i], c, to, panel.wide, spare[i]);
        }
    }
    if (stream) FENCE();
    free(panel.memory);
    return NAME(is_zero)(odd);
}

/* `vectors` vectors of the sum of weighted rows from column k of a strip on. More of them hide the
 * latency of additions, each of which waits for the one before. With `run`, the sums of so many rows
 * at a time are added. Returns `odd`. */
TARGET static ALWAYS_INLINE VECTOR NAME(add_edges)(const SCALAR *strip, const SCALAR *const *at,
                                                   int64_t wide, int64_t k, const int64_t *edges,
                                                   const SCALAR *weights, int64_t count,
                                                   int64_t run, int vectors, SCALAR *result,
                                                   int stream, VECTOR odd) {
    VECTOR sum[SUM_VECTORS], total[SUM_VECTORS];
    int64_t e = 0, stop = run ? run : count;
    /* Addresses are loaded a row ahead: the loads of a row would wait for them. */
    const SCALAR *next = count ? ROW(edges[0]) + k : NULL;
    for (int s = 0; s < vectors; s++) total[s] = BROADCAST(0);
    for (;; stop = stop + run < count ? stop + run : count) {
        for (int s = 0; s < vectors; s++) sum[s] = BROADCAST(0);
        for (; e < stop; e++) {
            const SCALAR *row = next;
            VECTOR weight = BROADCAST(weights[e]);
            if (e + 1 < count) next = ROW(edges[e + 1]) + k;
            for (int s = 0; s < vectors; s++)
                sum[s] = MUL_ADD(weight, LOAD(row + s * LANES), sum[s]);
        }
        if (!run) break;
        for (int s = 0; s < vectors; s++) total[s] = sum[s] = ADD(total[s], sum[s]);
        if (e == count) break;
    }
    for (int s = 0; s < vectors; s++) {
        odd = MUL_ADD(sum[s], BROADCAST(0), odd);
        STORE_OR_STREAM(result + k + s * LANES, sum[s], stream);
    }
    return odd;
}

/* The sum of one list in a strip. */
TARGET static ALWAYS_INLINE VECTOR NAME(add_list)(const SCALAR *strip, const SCALAR *const *at,
                                                  int64_t wide, const int64_t *edges,
                                                  const SCALAR *weights, int64_t count,
                                                  int64_t run, SCALAR *result, int stream,
                                                  VECTOR odd) {
    int64_t k = 0;
#define ADD_EDGES(vectors)                                                                    \
    for (; k + vectors * LANES <= wide; k += vectors * LANES)                                 \
        odd = NAME(add_edges)(strip, at, wide, k, edges, weights, count, run, vectors, result, \
                              stream, odd)
    if (!run) ADD_EDGES(SUM_VECTORS); /* runs need registers for totals, too */
    ADD_EDGES(WIDE_VECTORS);
    ADD_EDGES(ROW_VECTORS);
#undef ADD_EDGES
    return odd;
}

/* Sums of weights[e] * row edges[e] over the edges e from starts[i] to starts[i + 1] of list i, in
 * columns from .. to: first of runs[i] edges at a time, unless that is 0 or at least their number,
 * then of these. They go to out[i]. If that is NULL, they become row inner[i] >= count, which
 * later lists can add: receivers that have several rows in common share their sum. There are
 * `filled` rows with these. */
TARGET static int NAME(sums)(const SCALAR *const *rows, int64_t count, int64_t filled,
                             const int64_t *starts, const int64_t *edges, const SCALAR *weights,
                             const int64_t *runs, const int64_t *inner, int64_t lists, SCALAR *const *out, int64_t from,
                             int64_t to, int stream) {
    if (filled < count || !are_lists(starts, lists) ||
        !in_range(edges, starts[lists], 0, filled) || !in_range(runs, lists, 0, INT64_MAX))
        return OUT_OF_RANGE;
    for (int64_t i = 0; i < lists; i++)
        if (!out[i] && (!inner || inner[i] < count || inner[i] >= filled)) return OUT_OF_RANGE;
    /* Wide enough for WIDE_VECTORS, unless the strip would exceed the second-level cache. */
    int64_t wide = WIDE_VECTORS * LANES;
    int64_t size = filled * wide * (int64_t)sizeof(SCALAR);
    if (size <= L1_BYTES || size > HALF_L2_BYTES || wide < MIN_STRIP) wide = 0;
    /* A single sum uses each row once, and short pieces of all rows in turn suit memory best. */
    if (lists == 1) wide = MIN_STRIP;
    NAME(panel) panel = NAME(new_panel)(rows, count, filled, wide);
    const SCALAR *at[IN_PLACE_ROWS];
    SCALAR spare[MAX_STRIP] ALIGNED;
    VECTOR odd = BROADCAST(0);
    if (!panel.memory) return NO_MEMORY;
    for (int64_t c = from; c < to; c += panel.wide) {
        int in_place = filled == count && NAME(in_place)(&panel, c, to, lists > 1, at);
        SCALAR *strip = in_place ? NULL : NAME(strip)(&panel, c, to, 0);
        for (int64_t i = 0; i < lists; i++) {
            const int64_t *some = edges + starts[i];
            const SCALAR *factors = weights + starts[i];
            int64_t size = starts[i + 1] - starts[i];
            int64_t run = runs[i] < size ? runs[i] : 0;
            NAME(prefetch)(&panel, i + 1, lists);
            if (i + 1 < lists && !in_place)
                NAME(prefetch_rows)(&panel, strip, edges + starts[i + 1],
                                    starts[i + 2] - starts[i + 1]);
            SCALAR *result = out[i] ? NAME(target)(out[i], c, to, panel.wide, spare)
                                    : strip + inner[i] * panel.wide;
            int past = out[i] && CAN_STREAM(result, stream);
            if (in_place)
                odd = NAME(add_list)(NULL, at, panel.wide, some, factors, size, run, result, past,
                                     odd);
            else
                odd = NAME(add_list)(strip, NULL, panel.wide, some, factors, size, run, result,
                                     past, odd);
            if (out[i]) NAME(finish)(out[i], c, to, panel.wide, spare);
        }
    }
    if (stream) FENCE();
    free(panel.memory);
    return NAME(is_zero)(odd);
}

/* share * own + rest * other, between the two: rounding can leave the interval by a unit in the last
 * place. NaN stays NaN. */
static inline SCALAR NAME(between)(SCALAR own, SCALAR other, SCALAR share, SCALAR rest) {
    SCALAR low = own < other ? own : other, high = own < other ? other : own;
    SCALAR mixed = own * share + other * rest;
    return mixed < low ? low : mixed > high ? high : mixed;
}

/* out[i] = shares[i] * own[i] + rests[i] * other[i] in columns from .. to, by the formula of
 * torch.lerp: other + share * (own - other), or own + (share - 1) * (own - other) from a half on.
 * If the difference overflows, products are added instead. A share or a rest of 0 copies the other
 * row. A result replaces the values that it is made of, so out[i] may be own[i] or other[i]. Returns
 * whether all results are finite. */
TARGET static int NAME(interpolate)(const SCALAR *const *own, const SCALAR *const *other,
                                    const SCALAR *shares, const SCALAR *rests, int64_t rows,
                                    SCALAR *const *out, int64_t from, int64_t to, int stream) {
    if (rows < 0) return OUT_OF_RANGE;
    SCALAR padded[2][MAX_STRIP] ALIGNED, mixed[MAX_STRIP] ALIGNED;
    VECTOR odd = BROADCAST(0);
    for (int64_t r = 0; r < rows; r++) {
        int near_own = shares[r] >= (SCALAR)0.5;
        int copied = shares[r] == 0 || rests[r] == 0;
        VECTOR share = BROADCAST(near_own ? shares[r] - 1 : shares[r]);
        for (int64_t c = from; c < to; c += MAX_STRIP) {
            int64_t valid = to - c < MAX_STRIP ? to - c : MAX_STRIP;
            const SCALAR *mine = NAME(whole)(own[r] + c, valid, MAX_STRIP, padded[0]);
            const SCALAR *theirs = NAME(whole)(other[r] + c, valid, MAX_STRIP, padded[1]);
            VECTOR strange = BROADCAST(0);
            for (int64_t k = 0; k < MAX_STRIP; k += LANES) {
                VECTOR a = LOAD(mine + k), b = LOAD(theirs + k);
                VECTOR result = MUL_ADD(share, SUB(a, b), near_own ? a : b);
                if (copied) result = shares[r] == 0 ? b : a;
                strange = MUL_ADD(result, BROADCAST(0), strange);
                STORE(mixed + k, result);
            }
            if (!copied && !NAME(is_zero)(strange))
                for (int64_t k = 0; k < valid; k++)
                    if (!(mixed[k] - mixed[k] == 0)) /* infinite or NaN */
                        mixed[k] = NAME(between)(mine[k], theirs[k], shares[r], rests[r]);
            int past = valid == MAX_STRIP && CAN_STREAM(out[r] + c, stream);
            if (!past) memcpy(out[r] + c, mixed, (size_t)valid * sizeof(SCALAR));
            for (int64_t k = 0; k < MAX_STRIP; k += LANES) {
                VECTOR result = LOAD(mixed + k);
                odd = MUL_ADD(result, BROADCAST(0), odd);
                if (past) STREAM(out[r] + c + k, result);
            }
        }
    }
    if (stream) FENCE();
    return NAME(is_zero)(odd);
}
