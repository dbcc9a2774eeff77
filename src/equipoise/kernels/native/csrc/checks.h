/* Checks of arguments, so that no caller can make a kernel write or read beyond an array. */
#include "limits.h"
#include "platform.h"

/* Whether all `count` indices are in low .. high - 1. */
static int in_range(const int64_t *indices, int64_t count, int64_t low, int64_t high) {
    int valid = 1;
    for (int64_t i = 0; i < count; i++) valid &= (indices[i] >= low) & (indices[i] < high);
    return valid;
}

/* Whether starts (count + 1) are the starts of lists that follow each other, and the last end. */
static int are_lists(const int64_t *starts, int64_t count) {
    if (count < 0 || starts[0] < 0) return 0;
    for (int64_t i = 0; i < count; i++)
        if (starts[i + 1] < starts[i]) return 0;
    return 1;
}

/* Whether the steps of a network, and the places that it keeps, are among `count` values. */
static int is_network(const int32_t *steps, int64_t step_count, const int32_t *kept,
                      int64_t kept_count, int64_t count) {
    int valid = step_count >= 0 && kept_count >= 0;
    for (int64_t i = 0; valid && i < step_count; i++, steps += 3)
        valid = steps[0] >= 0 && steps[0] < count && steps[1] >= 0 && steps[1] < count;
    for (int64_t i = 0; valid && i < kept_count; i++) valid = kept[i] >= 0 && kept[i] < count;
    return valid;
}

/* Whether each receiver has a network: a compiled one, or the one that is given. */
static int can_select(const int64_t *starts, const int64_t *trims, int64_t receivers,
                      const int32_t *steps, int64_t step_count, const int32_t *kept,
                      int64_t kept_count) {
    int64_t listed = 0; /* values of the given network, once it is checked */
    for (int64_t r = 0; r < receivers; r++) {
        int64_t count = starts[r + 1] - starts[r], left = count - 2 * trims[r];
        if (count > MAX_VALUES || trims[r] < 0 || left < 1) return 0;
        if (count <= MAX_COMPILED) continue;
        if (left != kept_count || (listed && listed != count)) return 0;
        if (!listed && !is_network(steps, step_count, kept, kept_count, count)) return 0;
        listed = count;
    }
    return 1;
}
