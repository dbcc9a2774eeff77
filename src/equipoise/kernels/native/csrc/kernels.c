/* The arithmetic of equipoise on a CPU: distances, weighted sums and order statistics of rows.
 *
 * Plain C, called through ctypes: neither the headers of Python nor those of torch are needed.
 * Every kernel is a template, compiled for each instruction set and type; the best instruction set
 * of the CPU is chosen at run time.
 *
 * Kernels walk over the columns of their rows in panels (panels.h). Rows and results are given by
 * their addresses, so that rows of several matrices can be used together. Threads divide the
 * columns: the results for a column do not depend on the column where a call starts. */
#include "checks.h"
#include "edges.h"
#include "limits.h"
#include "platform.h"

#define TEMPLATE "kernels_template.h"
#include "instruction_sets.h"

/* The limits that callers have to know, in the order of Limits in _library.py. */
EXPORT const struct {
    int64_t max_values, max_compiled, min_dense_receivers, max_strip, flush_columns;
} eq_limits = {
    MAX_VALUES, MAX_COMPILED, MIN_DENSE_RECEIVERS, MAX_STRIP, FLUSH_COLUMNS,
};

/* Rows of a tile of distances, whose sums are all in registers: TILE_ROWS of the set in use. */
EXPORT int eq_tile_rows(void) { return eq_instructions() == AVX512 ? 4 : 3; }

#define EXPORT_KERNELS(scalar, type)                                                              \
    EXPORT int eq_measure_##type(const scalar *const *rows, int64_t count, int64_t tiles,         \
                                 int64_t others, const int64_t *left, const int64_t *right,       \
                                 int64_t pairs, int differ, int64_t from, int64_t to,             \
                                 double *out, double *norms) {                                    \
        DISPATCH(measure_##type, rows, count, tiles, others, left, right, pairs, differ, from,    \
                 to, out, norms)                                                                  \
    }                                                                                             \
    EXPORT int eq_exact_##type(const scalar *const *rows, int64_t count, const int64_t *left,     \
                               const int64_t *right, int64_t pairs, const double *before,         \
                               const double *after, int differ, int64_t from, int64_t to,         \
                               double *out) {                                                     \
        DISPATCH(exact_##type, rows, count, left, right, pairs, before, after, differ, from, to,  \
                 out)                                                                             \
    }                                                                                             \
    EXPORT int eq_norms_##type(const scalar *const *rows, int64_t count, int64_t from,            \
                               int64_t to, double *out) {                                         \
        DISPATCH(norms_##type, rows, count, from, to, out)                                        \
    }                                                                                             \
    EXPORT int eq_sums_##type(const scalar *const *rows, int64_t count, int64_t filled,           \
                              const int64_t *starts, const int64_t *edges, const scalar *weights, \
                              const int64_t *runs, const int64_t *inner, int64_t lists,           \
                              scalar *const *out, int64_t from, int64_t to, int stream) {         \
        DISPATCH(sums_##type, rows, count, filled, starts, edges, weights, runs, inner, lists,    \
                 out, from, to, stream)                                                           \
    }                                                                                             \
    EXPORT int eq_dense_sums_##type(const scalar *const *rows, int64_t count,                     \
                                    const scalar *weights, const scalar *const *extra,            \
                                    const scalar *extra_weights, int64_t receivers,               \
                                    scalar *const *out, int64_t from, int64_t to, int stream) {   \
        DISPATCH(dense_sums_##type, rows, count, weights, extra, extra_weights, receivers, out,   \
                 from, to, stream)                                                                \
    }                                                                                             \
    EXPORT int eq_interpolate_##type(const scalar *const *own, const scalar *const *other,        \
                                     const scalar *shares, const scalar *rests, int64_t rows,     \
                                     scalar *const *out, int64_t from, int64_t to, int stream) {  \
        DISPATCH(interpolate_##type, own, other, shares, rests, rows, out, from, to, stream)      \
    }                                                                                             \
    EXPORT int eq_middle_##type(const scalar *const *rows, int64_t row_count,                     \
                                const int64_t *starts, const int64_t *edges,                      \
                                const int64_t *trims, int64_t receivers, const int32_t *steps,    \
                                int64_t step_count, const int32_t *kept, int64_t kept_count,      \
                                scalar *const *out, int64_t from, int64_t to, int stream) {       \
        DISPATCH(middle_##type, rows, row_count, starts, edges, trims, receivers, steps,          \
                 step_count, kept, kept_count, out, from, to, stream)                             \
    }                                                                                             \
    EXPORT int eq_nearest_##type(const scalar *const *rows, int64_t row_count,                    \
                                 const int64_t *edges, int64_t count, int64_t receivers,          \
                                 int64_t amount, const int32_t *steps, int64_t step_count,        \
                                 const int32_t *kept, int64_t kept_count, scalar *const *out,     \
                                 int64_t from, int64_t to, int stream) {                          \
        DISPATCH(nearest_##type, rows, row_count, edges, count, receivers, amount, steps,         \
                 step_count, kept, kept_count, out, from, to, stream)                             \
    }                                                                                             \
    EXPORT int eq_middle_but_one_##type(                                                          \
        const scalar *const *rows, int64_t count, const int64_t *left_out, int64_t receivers,     \
        int64_t trim, const int32_t *steps, int64_t step_count, const int32_t *kept,              \
        int64_t kept_count, scalar *const *out, int64_t from, int64_t to, int stream) {           \
        DISPATCH(middle_but_one_##type, rows, count, left_out, receivers, trim, steps,            \
                 step_count, kept, kept_count, out, from, to, stream)                             \
    }

EXPORT_KERNELS(float, f32)
EXPORT_KERNELS(double, f64)

/* Build tools expect this symbol in an extension module. The library is opened by ctypes only. */
EXPORT void *PyInit__kernels(void) { return NULL; }
