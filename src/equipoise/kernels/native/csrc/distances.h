/* Template: norms, distances and scalar products. */

/* Sums of products, or of squared differences, of `lefts` rows with `rights` others, lane by lane,
 * added to totals. */
TARGET static ALWAYS_INLINE void NAME(tile)(const SCALAR *const *left, int lefts,
                                            const SCALAR *const *right, int rights, int64_t wide,
                                            int differ, SCALAR *totals) {
    VECTOR sums[TILE_ROWS * TILE_ROWS > MAX_PARTNERS ? TILE_ROWS * TILE_ROWS : MAX_PARTNERS];
    for (int p = 0; p < lefts * rights; p++) sums[p] = BROADCAST(0);
    for (int64_t c = 0; c < wide; c += LANES) {
        VECTOR mine[TILE_ROWS];
        for (int i = 0; i < lefts; i++) mine[i] = LOAD(left[i] + c);
        for (int j = 0; j < rights; j++) {
            VECTOR theirs = LOAD(right[j] + c);
            for (int i = 0; i < lefts; i++) {
                VECTOR one = mine[i], other = theirs;
                if (differ) one = other = SUB(one, other);
                sums[i * rights + j] = MUL_ADD(one, other, sums[i * rights + j]);
            }
        }
    }
    for (int p = 0; p < lefts * rights; p++, totals += LANES)
        STORE(totals, ADD(LOAD(totals), sums[p]));
}

/* Adds totals of lanes to sums of double precision, and sets them to zero. */
TARGET static void NAME(flush)(SCALAR *totals, int64_t pairs, double *out) {
    for (int64_t p = 0; p < pairs; p++) {
        double sums[FLUSH_SUMS] = {0};
        for (int lane = 0; lane < LANES; lane++)
            sums[lane % FLUSH_SUMS] += (double)totals[p * LANES + lane];
        for (int half = FLUSH_SUMS / 2; half; half /= 2)
            for (int s = 0; s < half; s++) sums[s] += sums[s + half];
        out[p] += sums[0];
    }
    memset(totals, 0, (size_t)(pairs * LANES) * sizeof(SCALAR));
}

/* Pairs with the same left row are taken several at a time. */
TARGET static ALWAYS_INLINE void NAME(pairs_of_strip)(
    const SCALAR *strip, const SCALAR *const *at, NAME(panel) *panel, const int64_t *left,
    const int64_t *right, int64_t pairs, int64_t columns, int differ, SCALAR *totals) {
    int64_t wide = panel->wide;
    for (int64_t p = 0; p < pairs;) {
        const SCALAR *mine = ROW(left[p]), *others[MAX_PARTNERS];
        SCALAR *sums = totals + p * LANES;
        int many = 0;
        NAME(prefetch)(panel, p + 1, pairs);
        for (; many < MAX_PARTNERS && p + many < pairs && left[p + many] == left[p]; many++)
            others[many] = ROW(right[p + many]);
        p += many;
#define CASE(rights) \
    case rights: NAME(tile)(&mine, 1, others, rights, columns, differ, sums); break;
        switch (many) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
    }
}

/* All pairs of the rows of the first `tiles` tiles with all rows from their own tile, or from the
 * tile `others`, on. Rows are filled up to whole tiles. Some right rows at a time meet all left
 * rows, so that they stay in the first-level cache. */
TARGET static ALWAYS_INLINE void NAME(tiles_of_strip)(const SCALAR *strip, const SCALAR *const *at,
                                                      NAME(panel) *panel, int64_t tiles,
                                                      int64_t others, int64_t columns, int differ,
                                                      SCALAR *totals) {
    int64_t wide = panel->wide, size = panel->filled / TILE_ROWS;
    for (int64_t from = 0; from < size; from += RIGHT_TILES) {
        SCALAR *sums = totals; /* of the first pair of a row of tiles */
        for (int64_t i = 0; i < tiles; i++) {
            int64_t first = i < others ? others : i;
            const SCALAR *left[TILE_ROWS], *right[TILE_ROWS];
            for (int r = 0; r < TILE_ROWS; r++) left[r] = ROW(i * TILE_ROWS + r);
            NAME(prefetch)(panel, from * tiles + i + 1, size * tiles);
            for (int64_t j = from < first ? first : from; j < size && j < from + RIGHT_TILES; j++) {
                for (int r = 0; r < TILE_ROWS; r++) right[r] = ROW(j * TILE_ROWS + r);
                NAME(tile)(left, TILE_ROWS, right, TILE_ROWS, columns, differ,
                           sums + (j - first) * TILE_ROWS * TILE_ROWS * LANES);
            }
            sums += (size - first) * TILE_ROWS * TILE_ROWS * LANES;
        }
    }
}

/* Adds the squares of some rows to totals, MIN_STRIP columns at a time. Rows are interleaved, since
 * the additions of a single row would wait for each other. */
TARGET static ALWAYS_INLINE void NAME(add_squares)(const SCALAR *const *rows, int count,
                                                   int64_t columns, SCALAR *totals) {
    VECTOR sums[4], total[4];
    for (int r = 0; r < count; r++) total[r] = LOAD(totals + r * LANES);
    for (int64_t c = 0; c < columns; c += MIN_STRIP) {
        for (int r = 0; r < count; r++) sums[r] = BROADCAST(0);
        for (int64_t k = c; k < c + MIN_STRIP; k += LANES)
            for (int r = 0; r < count; r++) {
                VECTOR value = LOAD(rows[r] + k);
                sums[r] = MUL_ADD(value, value, sums[r]);
            }
        for (int r = 0; r < count; r++) total[r] = ADD(total[r], sums[r]);
    }
    for (int r = 0; r < count; r++) STORE(totals + r * LANES, total[r]);
}

/* Adds the squares of a strip, `done` columns after the first, to totals, and these to norms. The
 * order of additions is the same for any strip width and with any other measurements: MIN_STRIP
 * columns at a time, flushed every NORM_FLUSH_COLUMNS, of which PAIR_STRIP is a divisor. Otherwise
 * the results of a rule would depend on the rules that used the same inbox before. */
TARGET static ALWAYS_INLINE void NAME(squares_of_strip)(
    const SCALAR *strip, const SCALAR *const *at, int64_t count, int64_t wide, int64_t columns,
    int64_t done, SCALAR *totals, double *norms) {
    for (int64_t r = 0; r < count; r += 4) {
        const SCALAR *rows[4];
        int some = count - r < 4 ? (int)(count - r) : 4;
        for (int s = 0; s < some; s++) rows[s] = ROW(r + s);
        if (some == 4) NAME(add_squares)(rows, 4, columns, totals + r * LANES);
        else for (int s = 0; s < some; s++)
            NAME(add_squares)(rows + s, 1, columns, totals + (r + s) * LANES);
    }
    if ((done + columns) % NORM_FLUSH_COLUMNS == 0) NAME(flush)(totals, count, norms);
}

/* Whether the pairs fit the rows: indices in range, or as many pairs as the tiles have. */
static int NAME(can_measure)(int64_t count, int64_t tiles, int64_t others, const int64_t *left,
                             const int64_t *right, int64_t pairs) {
    if (count < 0 || tiles < 0 || others < 0 || pairs < 0) return 0;
    if (!tiles) return in_range(left, pairs, 0, count) && in_range(right, pairs, 0, count);
    int64_t size = (count + TILE_ROWS - 1) / TILE_ROWS, found = 0;
    if (tiles > size || others > size) return 0;
    for (int64_t i = 0; i < tiles; i++) found += size - (i < others ? others : i);
    return pairs == TILE_ROWS * TILE_ROWS * found;
}

/* out[p] += |rows[left[p]] - rows[right[p]]|^2, or the scalar product unless `differ`, and
 * norms[r] += |rows[r]|^2, in columns from .. to. With `tiles`, the pairs are those of so many
 * tiles of rows with all tiles from theirs, or from the tile `others`, on.
 *
 * The sum of a pair does not depend on other pairs: strips always have PAIR_STRIP columns. */
TARGET static int NAME(measure)(const SCALAR *const *rows, int64_t count, int64_t tiles,
                                int64_t others, const int64_t *left, const int64_t *right,
                                int64_t pairs, int differ, int64_t from, int64_t to, double *out,
                                double *norms) {
    if (!NAME(can_measure)(count, tiles, others, left, right, pairs)) return OUT_OF_RANGE;
    int64_t filled = tiles ? (count + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS : count;
    int64_t since_flush = 0;
    const SCALAR *at[IN_PLACE_ROWS];
    NAME(panel) panel = NAME(new_panel)(rows, count, filled, PAIR_STRIP);
    SCALAR *totals = allocate((pairs + count) * LANES * (int64_t)sizeof(SCALAR));
    SCALAR *squares = totals + pairs * LANES;
    int failed = !panel.memory || !totals;
    if (!failed) memset(totals, 0, (size_t)((pairs + count) * LANES) * sizeof(SCALAR));
    for (int64_t c = from; !failed && c < to; c += panel.wide) {
        int in_place = NAME(in_place)(&panel, c, to, pairs > count, at);
        const SCALAR *strip = in_place ? NULL : NAME(strip)(&panel, c, to, 0);
        /* The columns that exist. Zeros up to a whole MIN_STRIP add nothing. */
        int64_t columns = to - c < PAIR_STRIP ? (to - c + MIN_STRIP - 1) / MIN_STRIP * MIN_STRIP
                                              : PAIR_STRIP;
        /* One call for each constant, so that the compiler specializes the loops. */
#define SQUARES(at) \
    NAME(squares_of_strip)(strip, at, count, panel.wide, columns, c - from, squares, norms)
#define PAIRS(at, differ) \
    NAME(pairs_of_strip)(strip, at, &panel, left, right, pairs, columns, differ, totals)
#define TILES(at, differ) \
    NAME(tiles_of_strip)(strip, at, &panel, tiles, others, columns, differ, totals)
        if (in_place) SQUARES(at);
        else SQUARES(NULL);
        if (tiles && in_place && differ) TILES(at, 1);
        else if (tiles && in_place) TILES(at, 0);
        else if (tiles && differ) TILES(NULL, 1);
        else if (tiles) TILES(NULL, 0);
        else if (in_place && differ) PAIRS(at, 1);
        else if (in_place) PAIRS(at, 0);
        else if (differ) PAIRS(NULL, 1);
        else PAIRS(NULL, 0);
#undef SQUARES
#undef PAIRS
#undef TILES
        since_flush += panel.wide;
        if (since_flush < FLUSH_COLUMNS && c + panel.wide < to) continue;
        NAME(flush)(totals, pairs, out);
        since_flush = 0;
    }
    if (!failed) NAME(flush)(squares, count, norms);
    free(panel.memory);
    free(totals);
    return failed ? NO_MEMORY : 0;
}

/* out[p] += |x - y|^2 for x and y the rows left[p] and right[p], or their scalar product unless
 * `differ`, in double precision. Both rows are first multiplied by before[p, 0] and before[p, 1],
 * and the difference by after[p]. */
TARGET static int NAME(exact)(const SCALAR *const *rows, int64_t count, const int64_t *left,
                              const int64_t *right, int64_t pairs, const double *before,
                              const double *after, int differ, int64_t from, int64_t to,
                              double *out) {
    if (count < 0 || pairs < 0 || !in_range(left, pairs, 0, count) ||
        !in_range(right, pairs, 0, count))
        return OUT_OF_RANGE;
    for (int64_t p = 0; p < pairs; p++) {
        const SCALAR *x = rows[left[p]], *y = rows[right[p]];
        double x_scale = before[2 * p], y_scale = before[2 * p + 1], scale = after[p];
        double sums[EXACT_SUMS] = {0}, total = 0;
        int64_t c = from;
#define TERM(c, sum)                                                                \
    do {                                                                            \
        double one = (double)x[c] * x_scale, other = (double)y[c] * y_scale;        \
        if (differ) one = other = (one - other) * scale;                            \
        sum += one * other;                                                         \
    } while (0)
        for (; c + EXACT_SUMS <= to; c += EXACT_SUMS)
            for (int s = 0; s < EXACT_SUMS; s++) TERM(c + s, sums[s]);
        for (; c < to; c++) TERM(c, total);
#undef TERM
        for (int s = 0; s < EXACT_SUMS; s++) total += sums[s];
        out[p] += total;
    }
    return 0;
}

/* norms[r] += |rows[r]|^2 in columns from .. to, without packing, in the order of `measure`. */
TARGET static int NAME(norms)(const SCALAR *const *rows, int64_t count, int64_t from, int64_t to,
                              double *norms) {
    SCALAR packed[MIN_STRIP] ALIGNED, totals[4 * LANES];
    for (int64_t r = 0; r < count; r += 4) {
        int some = count - r < 4 ? (int)(count - r) : 4;
        memset(totals, 0, sizeof(totals));
        for (int64_t c = from; c < to; c += MIN_STRIP) {
            const SCALAR *at[4];
            for (int s = 0; s < some; s++) {
                at[s] = rows[r + s] + c;
                for (int64_t k = 0; k < MIN_STRIP; k += LINE_SCALARS)
                    PREFETCH(at[s] + AHEAD_BYTES / (int64_t)sizeof(SCALAR) + k);
            }
            if (some == 4 && to - c >= MIN_STRIP) NAME(add_squares)(at, 4, MIN_STRIP, totals);
            else for (int s = 0; s < some; s++) {
                if (to - c < MIN_STRIP) {
                    NAME(pack)(at[s], at[s], to - c, MIN_STRIP, 0, packed, BROADCAST(0));
                    at[s] = packed;
                }
                NAME(add_squares)(at + s, 1, MIN_STRIP, totals + s * LANES);
            }
            if ((c + MIN_STRIP - from) % NORM_FLUSH_COLUMNS == 0)
                NAME(flush)(totals, some, norms + r);
        }
        NAME(flush)(totals, some, norms + r);
    }
    return 0;
}
