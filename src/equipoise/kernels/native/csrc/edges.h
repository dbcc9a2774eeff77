/* The rows that each receiver adds, from the slots of its messages. */
#include "platform.h"

#define OWN_SENDER INT64_MAX

typedef struct {
    int64_t sender, slot, row;
    double weight;
} weighted_row;

/* By sender, and of one sender by slot. */
static int compare_senders(const void *a, const void *b) {
    const weighted_row *one = a, *other = b;
    if (one->sender != other->sender) return one->sender < other->sender ? -1 : 1;
    return (one->slot > other->slot) - (one->slot < other->slot);
}

/* The messages of receiver i are rows slots[i, s] of senders[i, s] with weights[i, s], and its own
 * model is row own_row + i with own_weights[i]. Writes the rows of weight other than 0 of all
 * receivers: its messages by ascending sender, and then its own model, whose sender is OWN_SENDER.
 * starts[i] is the first of receiver i. This order is known to a client on its own, too, so that
 * its sums have the same bits. `range` becomes the smallest and the largest absolute weight.
 * Returns the number of edges. */
EXPORT int64_t eq_edges_by_sender(const int64_t *slots, const double *weights,
                                  const int64_t *senders, int64_t receivers, int64_t k,
                                  int64_t bank_rows, const double *own_weights, int64_t own_row,
                                  int64_t *starts, int64_t *rows, double *values, int64_t *sent_by,
                                  double *range) {
    if (receivers < 0 || k < 0 || own_row < 0) return OUT_OF_RANGE;
    weighted_row *list = malloc((size_t)(k + 1) * sizeof(weighted_row));
    if (!list) return NO_MEMORY;
    int64_t end = 0;
    range[0] = DBL_MAX;
    range[1] = 0;
    for (int64_t i = 0; i < receivers; i++, slots += k, weights += k, senders += k) {
        int64_t count = 0;
        int ascending = 1;
        for (int64_t s = 0; s <= k; s++) {
            double weight = s < k ? weights[s] : own_weights[i];
            if (weight == 0) continue;
            int64_t row = s < k ? slots[s] : own_row + i;
            int64_t sender = s < k ? senders[s] : OWN_SENDER;
            if (s < k && (row < 0 || row >= bank_rows)) {
                free(list);
                return OUT_OF_RANGE;
            }
            double size = weight < 0 ? -weight : weight;
            if (!(size >= range[0])) range[0] = size; /* NaN reaches both */
            if (!(size <= range[1])) range[1] = size;
            ascending &= !count || list[count - 1].sender <= sender;
            list[count++] = (weighted_row){sender, s, row, weight};
        }
        if (!ascending) qsort(list, (size_t)count, sizeof(weighted_row), compare_senders);
        starts[i] = end;
        for (int64_t s = 0; s < count; s++, end++) {
            rows[end] = list[s].row;
            values[end] = list[s].weight;
            sent_by[end] = list[s].sender;
        }
    }
    starts[receivers] = end;
    free(list);
    return end;
}
