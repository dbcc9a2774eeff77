/* The rows that each receiver adds, from the slots of its messages. */
#include "platform.h"

typedef struct {
    int64_t row;
    double weight;
} weighted_row;

/* Ascending rows; equal ones in the order of their weights, so that these are always added in the
 * same order. */
static int compare_rows(const void *a, const void *b) {
    const weighted_row *one = a, *other = b;
    if (one->row != other->row) return one->row < other->row ? -1 : 1;
    return (one->weight > other->weight) - (one->weight < other->weight);
}

/* The messages of receiver i are rows slots[i, s] with weights[i, s], and its own model is row
 * own_row + i with own_weights[i]. Writes the rows of weight other than 0 of all receivers,
 * ascending and each once, with the sums of their weights; starts[i] is the first of receiver i.
 * The order does not depend on that of the slots, nor on other receivers. `range` becomes the
 * smallest and the largest absolute weight. Returns the number of edges. */
EXPORT int64_t eq_edges(const int64_t *slots, const double *weights, int64_t receivers, int64_t k,
                        int64_t bank_rows, const double *own_weights, int64_t own_row,
                        int64_t *starts, int64_t *rows, double *values, double *range) {
    if (receivers < 0 || k < 0 || own_row < 0) return OUT_OF_RANGE;
    weighted_row *list = malloc((size_t)(k + 1) * sizeof(weighted_row));
    if (!list) return NO_MEMORY;
    int64_t end = 0;
    range[0] = DBL_MAX;
    range[1] = 0;
    for (int64_t i = 0; i < receivers; i++, slots += k, weights += k) {
        int64_t count = 0;
        int ascending = 1;
        for (int64_t s = 0; s <= k; s++) {
            double weight = s < k ? weights[s] : own_weights[i];
            if (weight == 0) continue;
            int64_t row = s < k ? slots[s] : own_row + i;
            if (s < k && (row < 0 || row >= bank_rows)) {
                free(list);
                return OUT_OF_RANGE;
            }
            double size = weight < 0 ? -weight : weight;
            if (!(size >= range[0])) range[0] = size; /* NaN reaches both */
            if (!(size <= range[1])) range[1] = size;
            ascending &= !count || list[count - 1].row < row;
            list[count++] = (weighted_row){row, weight};
        }
        if (!ascending) qsort(list, (size_t)count, sizeof(weighted_row), compare_rows);
        starts[i] = end;
        for (int64_t s = 0; s < count; s++) {
            int repeated = s && list[s].row == list[s - 1].row;
            rows[end - repeated] = list[s].row;
            values[end - repeated] = list[s].weight + (repeated ? values[end - 1] : 0);
            end += !repeated;
        }
    }
    starts[receivers] = end;
    free(list);
    return end;
}
