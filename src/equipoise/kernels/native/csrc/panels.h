/* Template: rows side by side, where they stay in the cache while all receivers use them.
 *
 * A panel has `width` columns of all rows, in strips of `wide` columns, one strip after the other.
 * Packing pays: rows that are a power of two apart would compete for the same cache lines, and the
 * end of a row need not be a special case. */
#define LINE_SCALARS (64 / (int64_t)sizeof(SCALAR))

typedef struct {
    SCALAR *memory;
    const SCALAR *const *rows;
    int64_t count;      /* rows */
    int64_t filled;     /* rows in memory, those beyond count being zero */
    int64_t wide;       /* columns of a strip */
    int64_t width;      /* columns of the panel */
    int64_t start;      /* first column in memory */
    int64_t next;       /* first column of the strip that is prefetched */
    int64_t prefetched; /* number of its rows that are */
    int finite;         /* whether all packed keys are of finite values */
    int scattered;      /* whether rows can be used in place */
} NAME(panel);

/* Whether there are few rows, and these do not compete for the same lines of the first-level cache,
 * as rows that are a power of two apart do: addresses 4 KiB apart share the 8 to 12 lines of a set. */
static int NAME(are_scattered)(const SCALAR *const *rows, int64_t count) {
    int bins[4] = {0}, most = 0;
    if (count > IN_PLACE_ROWS) return 0;
    for (int64_t r = 0; r < count; r++) {
        int used = ++bins[(uintptr_t)rows[r] / 1024 % 4];
        most = used > most ? used : most;
    }
    return most <= 8 || count <= 8;
}

/* By default, a strip of few rows fits the first-level cache. */
static NAME(panel) NAME(new_panel)(const SCALAR *const *rows, int64_t count, int64_t filled,
                                   int64_t wide) {
    int64_t size = (filled > 0 ? filled : 1) * (int64_t)sizeof(SCALAR);
    int64_t fitting = L1_BYTES / size / MIN_STRIP * MIN_STRIP;
    if (!wide) wide = fitting < MIN_STRIP ? MIN_STRIP : fitting < MAX_STRIP ? fitting : MAX_STRIP;
    int64_t strips = PANEL_BYTES / (size * wide);
    int64_t most = ROW_BYTES / (wide * (int64_t)sizeof(SCALAR));
    int64_t width = wide * (strips < 1 ? 1 : strips < most ? strips : most);
    NAME(panel) panel = {
        .memory = allocate(size * width), .rows = rows, .count = count, .filled = filled,
        .wide = wide, .width = width, .start = -width, .prefetched = count, .finite = 1,
        .scattered = filled <= IN_PLACE_ROWS && NAME(are_scattered)(rows, count),
    };
    if (panel.memory) memset(panel.memory, 0, (size_t)(filled * width) * sizeof(SCALAR));
    return panel;
}

/* Whether lanes that were multiplied by zero are zero: those of NaN and infinity are NaN. */
TARGET static inline int NAME(is_zero)(VECTOR v) {
    SCALAR lanes[LANES], all = 0;
    STORE(lanes, v);
    for (int lane = 0; lane < LANES; lane++) all += lanes[lane];
    return all == 0;
}

/* Packs values, or their keys. With keys, `odd` becomes NaN at the first value that is not finite.
 * For doubles, values above 1e158 count as well: the norm of such a model may overflow. */
#define MARK_ODD(v, odd) \
    MUL_ADD(MUL(v, BROADCAST(sizeof(SCALAR) == 8 ? (SCALAR)1e150 : 1)), BROADCAST(0), odd)
#define PACK(to, from)                     \
    do {                                   \
        VECTOR value = LOAD(from);         \
        if (keys) {                        \
            KEY_STORE(to, TO_KEY(value));  \
            odd = MARK_ODD(value, odd);    \
        } else {                           \
            STORE(to, value);              \
        }                                  \
    } while (0)
TARGET static inline VECTOR NAME(pack)(const SCALAR *row, const SCALAR *next, int64_t valid,
                                       int64_t wide, int keys, SCALAR *strip, VECTOR odd) {
    int64_t c = 0;
    for (; c + LINE_SCALARS <= valid; c += LINE_SCALARS) {
        PREFETCH(next + c);
        for (int64_t s = c; s < c + LINE_SCALARS; s += LANES) PACK(strip + s, row + s);
    }
    if (c == wide) return odd;
    SCALAR rest[LINE_SCALARS] ALIGNED;
    memset(rest, 0, sizeof(rest));
    memcpy(rest, row + c, (size_t)(valid - c) * sizeof(SCALAR));
    for (int64_t s = 0; s < LINE_SCALARS; s += LANES) PACK(strip + c + s, rest + s);
    memset(strip + c + LINE_SCALARS, 0, (size_t)(wide - c - LINE_SCALARS) * sizeof(SCALAR));
    return odd;
}
#undef PACK
#undef MARK_ODD

/* Packs columns from .. to of all rows, but no more than fit, and zeros beyond them. While a row is
 * packed, PREFETCH_BYTES of later rows are prefetched to hide the latency of memory. */
TARGET static void NAME(fill)(NAME(panel) *panel, int64_t from, int64_t to, int keys) {
    VECTOR odd = BROADCAST(0);
    int64_t stop = to - from < panel->width ? to : from + panel->width;
    int64_t wide = panel->wide;
    int64_t last = panel->count - 1;
    int64_t ahead = PREFETCH_BYTES / (panel->width * (int64_t)sizeof(SCALAR));
    for (int64_t r = 0; r <= last; r++) {
        const SCALAR *row = panel->rows[r];
        const SCALAR *next = panel->rows[last - r < ahead ? last : r + ahead];
        SCALAR *strip = panel->memory + r * wide;
        for (int64_t c = from; c < stop; c += wide, strip += panel->filled * wide) {
            int64_t valid = stop - c < wide ? stop - c : wide;
            odd = NAME(pack)(row + c, next + c, valid, wide, keys, strip, odd);
        }
    }
    panel->finite &= NAME(is_zero)(odd);
}

/* The strip that starts in column c, after filling the panel if need be. If two panels fit the
 * second-level cache, the strip one panel later is prefetched during the work on this one. */
TARGET static SCALAR *NAME(strip)(NAME(panel) *panel, int64_t c, int64_t to, int keys) {
    int early = panel->filled * panel->width * (int64_t)sizeof(SCALAR) <= HALF_L2_BYTES &&
                c + panel->width < to;
    if (c >= panel->start + panel->width) {
        panel->start = c;
        NAME(fill)(panel, c, to, keys);
    }
    panel->next = c + panel->width;
    panel->prefetched = early ? 0 : panel->count;
    return panel->memory + (c - panel->start) * panel->filled;
}

/* Prefetches rows in step with the work on a strip, `done` of `all`. */
TARGET static inline void NAME(prefetch)(NAME(panel) *panel, int64_t done, int64_t all) {
    for (; panel->prefetched * all < done * panel->count; panel->prefetched++)
        for (int64_t k = 0; k < panel->wide; k += LINE_SCALARS)
            PREFETCH(panel->rows[panel->prefetched] + panel->next + k);
}

/* Prefetches rows for the next receiver if a strip exceeds the second-level cache. */
TARGET static inline void NAME(prefetch_rows)(const NAME(panel) *panel, const SCALAR *strip,
                                              const int64_t *rows, int64_t count) {
    if (panel->filled * panel->wide * (int64_t)sizeof(SCALAR) <= HALF_L2_BYTES) return;
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < panel->wide; k += LINE_SCALARS)
            PREFETCH_L1(strip + rows[i] * panel->wide + k);
}

/* Few rows are used in place, except for the incomplete strip at their end: a strip of them fits
 * the first-level cache without packing. Returns whether `at` holds their addresses. If rows are
 * used once, nothing is prefetched: the CPU follows so few rows by itself, and faster if they come
 * from memory. If they are used `often`, the next strip is prefetched meanwhile, since each row
 * waits for its first lines. Those that are not aligned are packed: half of the vectors of AVX2 and
 * all vectors of AVX-512 lie in two cache lines there, and take two loads each. */
TARGET static inline int NAME(in_place)(NAME(panel) *panel, int64_t c, int64_t to, int often,
                                        const SCALAR **at) {
    if (!panel->scattered || to - c < panel->wide) return 0;
    for (int64_t r = panel->count; r < panel->filled; r++) at[r] = panel->memory + r * panel->wide;
    for (int64_t r = 0; r < panel->count; r++) {
        at[r] = panel->rows[r] + c;
        if (!often || (uintptr_t)at[r] % 64 == 0) continue;
        SCALAR *packed = panel->memory + r * panel->wide;
        for (int64_t k = 0; k < panel->wide; k += LANES) STORE(packed + k, LOAD(at[r] + k));
        at[r] = packed;
    }
    panel->next = c + panel->wide;
    panel->prefetched = often ? 0 : panel->count;
    return 1;
}

/* The `wide` columns at `row`, of which `valid` exist: in place, or followed by zeros in `padded`. */
TARGET static inline const SCALAR *NAME(whole)(const SCALAR *row, int64_t valid, int64_t wide,
                                               SCALAR *padded) {
    if (valid >= wide) return row;
    memset(padded, 0, (size_t)wide * sizeof(SCALAR));
    memcpy(padded, row, (size_t)valid * sizeof(SCALAR));
    return padded;
}

/* Row r of a strip, or its address in place. */
#define ROW(r) (at ? at[r] : strip + (r) * wide)

/* Results of a strip go straight to their row if all columns exist, otherwise through `spare`. */
TARGET static inline SCALAR *NAME(target)(SCALAR *row, int64_t from, int64_t to, int64_t wide,
                                          SCALAR *spare) {
    return to - from < wide ? spare : row + from;
}

TARGET static inline void NAME(finish)(SCALAR *row, int64_t from, int64_t to, int64_t wide,
                                       const SCALAR *spare) {
    if (to - from < wide) memcpy(row + from, spare, (size_t)(to - from) * sizeof(SCALAR));
}

/* Streaming stores bypass the caches. They need aligned addresses. */
#define STORE_OR_STREAM(p, v, stream) do { if (stream) STREAM(p, v); else STORE(p, v); } while (0)
#define CAN_STREAM(p, stream) ((stream) && (uintptr_t)(p) % (LANES * sizeof(SCALAR)) == 0)
