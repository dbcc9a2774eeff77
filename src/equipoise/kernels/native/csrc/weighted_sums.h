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

/* out[i] = sum of weights[i, r] * rows[r] in columns from .. to. Receivers share the loads of a
 * row, DENSE_RECEIVERS at a time; the last group overlaps the one before. */
TARGET static int NAME(dense_sums)(const SCALAR *const *rows, int64_t count, const SCALAR *weights,
                                   int64_t receivers, SCALAR *const *out, int64_t from, int64_t to,
                                   int stream) {
    if (count < 0 || receivers < MIN_DENSE_RECEIVERS) return OUT_OF_RANGE;
    NAME(panel) panel = NAME(new_panel)(rows, count, count, 0);
    SCALAR spare[DENSE_RECEIVERS][MAX_STRIP] ALIGNED;
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

/* The sum of a single receiver uses each row once, so only the incomplete vectors at the end are
 * worth packing: returns their first column. Not shared with the loop of `sums`, which would
 * become slower. */
TARGET static int64_t NAME(sum_in_place)(const SCALAR *const *rows, const int64_t *edges,
                                         const SCALAR *weights, int64_t count, SCALAR *out,
                                         int64_t from, int64_t to, int stream, VECTOR *odd) {
    int past = CAN_STREAM(out + from, stream);
    for (; from + SUM_VECTORS * LANES <= to; from += SUM_VECTORS * LANES) {
        VECTOR sum[SUM_VECTORS];
        for (int s = 0; s < SUM_VECTORS; s++) sum[s] = BROADCAST(0);
        for (int64_t e = 0; e < count; e++)
            for (int s = 0; s < SUM_VECTORS; s++)
                sum[s] = MUL_ADD(BROADCAST(weights[e]), LOAD(rows[edges[e]] + from + s * LANES),
                                 sum[s]);
        for (int s = 0; s < SUM_VECTORS; s++) {
            *odd = MUL_ADD(sum[s], BROADCAST(0), *odd);
            STORE_OR_STREAM(out + from + s * LANES, sum[s], past);
        }
    }
    return from;
}

/* out[i] = sum of weights[e] * rows[edges[e]] over the edges e from starts[i] to starts[i + 1] of
 * receiver i, in columns from .. to. */
TARGET static int NAME(sums)(const SCALAR *const *rows, int64_t count, const int64_t *starts,
                             const int64_t *edges, const SCALAR *weights, int64_t receivers,
                             SCALAR *const *out, int64_t from, int64_t to, int stream) {
    if (!are_lists(starts, receivers) || !in_range(edges, starts[receivers], 0, count))
        return OUT_OF_RANGE;
    VECTOR odd = BROADCAST(0);
    if (receivers == 1)
        from = NAME(sum_in_place)(rows, edges, weights, starts[1], out[0], from, to, stream, &odd);
    NAME(panel) panel = NAME(new_panel)(rows, count, count, 0);
    SCALAR spare[MAX_STRIP] ALIGNED;
    if (!panel.memory) return NO_MEMORY;
    for (int64_t c = from; c < to; c += panel.wide) {
        const SCALAR *strip = NAME(strip)(&panel, c, to, 0);
        for (int64_t i = 0; i < receivers; i++) {
            NAME(prefetch)(&panel, i + 1, receivers);
            if (i + 1 < receivers)
                NAME(prefetch_rows)(&panel, strip, edges + starts[i + 1],
                                    starts[i + 2] - starts[i + 1]);
            SCALAR *result = NAME(target)(out[i], c, to, panel.wide, spare);
            int past = CAN_STREAM(result, stream);
            for (int64_t k = 0; k < panel.wide; k += SUM_VECTORS * LANES) {
                VECTOR sum[SUM_VECTORS];
                for (int s = 0; s < SUM_VECTORS; s++) sum[s] = BROADCAST(0);
                for (int64_t e = starts[i]; e < starts[i + 1]; e++) {
                    const SCALAR *row = strip + edges[e] * panel.wide + k;
                    VECTOR weight = BROADCAST(weights[e]);
                    for (int s = 0; s < SUM_VECTORS; s++)
                        sum[s] = MUL_ADD(weight, LOAD(row + s * LANES), sum[s]);
                }
                for (int s = 0; s < SUM_VECTORS; s++) {
                    odd = MUL_ADD(sum[s], BROADCAST(0), odd);
                    STORE_OR_STREAM(result + k + s * LANES, sum[s], past);
                }
            }
            NAME(finish)(out[i], c, to, panel.wide, spare);
        }
    }
    if (stream) FENCE();
    free(panel.memory);
    return NAME(is_zero)(odd);
}

/* sums[ahead ..] = sums + share * row */
TARGET static inline void NAME(add_row)(const SCALAR *row, VECTOR share, int64_t wide, SCALAR *sums,
                                        int64_t ahead) {
    for (int64_t k = 0; k < wide; k += LANES)
        STORE(sums + ahead + k, MUL_ADD(share, LOAD(row + k), LOAD(sums + k)));
}

/* out[i] = share * the sum of all rows except rows[left_out[i]], or of all if that is -1. Receivers
 * are sorted by left_out in descending order. Sums of the rows before the one left out meet sums of
 * the rows after it. Subtracting it from the sum of all rows instead would let a huge message
 * cancel the digits of the others, in the sums of receivers that did not even get it. */
TARGET static int NAME(sums_but_one)(const SCALAR *const *rows, int64_t count, SCALAR share,
                                     const int64_t *left_out, int64_t receivers, SCALAR *const *out,
                                     int64_t from, int64_t to, int stream) {
    if (count < 0 || receivers < 0 || !in_range(left_out, receivers, -1, count))
        return OUT_OF_RANGE;
    for (int64_t i = 1; i < receivers; i++)
        if (left_out[i] > left_out[i - 1]) return OUT_OF_RANGE;
    NAME(panel) panel = NAME(new_panel)(rows, count, count, 0);
    int64_t wide = panel.wide;
    SCALAR *sums = allocate((count + 3) * wide * (int64_t)sizeof(SCALAR));
    SCALAR *after = sums + (count + 1) * wide;
    VECTOR part = BROADCAST(share), odd = BROADCAST(0);
    int failed = !panel.memory || !sums;
    for (int64_t c = from; !failed && c < to; c += wide) {
        const SCALAR *strip = NAME(strip)(&panel, c, to, 0);
        memset(sums, 0, (size_t)wide * sizeof(SCALAR));
        memset(after, 0, (size_t)wide * sizeof(SCALAR));
        for (int64_t r = 0; r < count; r++)
            NAME(add_row)(strip + r * wide, part, wide, sums + r * wide, wide);
        for (int64_t r = count - 1, i = 0; r >= -1; r--) { /* sums[r] are of the rows before r */
            const SCALAR *before = sums + (r < 0 ? count : r) * wide;
            NAME(prefetch)(&panel, count - r, count + 1);
            if (r < 0) memset(after, 0, (size_t)wide * sizeof(SCALAR));
            for (; i < receivers && left_out[i] == r; i++) {
                SCALAR *result = NAME(target)(out[i], c, to, wide, after + wide);
                int past = CAN_STREAM(result, stream);
                for (int64_t k = 0; k < wide; k += LANES) {
                    VECTOR sum = ADD(LOAD(before + k), LOAD(after + k));
                    odd = MUL_ADD(sum, BROADCAST(0), odd);
                    STORE_OR_STREAM(result + k, sum, past);
                }
                NAME(finish)(out[i], c, to, wide, after + wide);
            }
            if (r >= 0) NAME(add_row)(strip + r * wide, part, wide, after, 0);
        }
    }
    if (stream) FENCE();
    free(panel.memory);
    free(sums);
    return failed ? NO_MEMORY : NAME(is_zero)(odd);
}
