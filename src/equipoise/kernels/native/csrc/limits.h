#ifndef EQUIPOISE_LIMITS_H
#define EQUIPOISE_LIMITS_H

/* Sizes of buffers, and the limits that callers must keep. Python asks for the latter through
 * eq_limits; calls beyond them return OUT_OF_RANGE. */
#include "networks.h"

/* Bytes of a strip that should stay in a first-level cache of 32 KiB, next to results and stack. */
#define L1_BYTES (28 << 10)
/* Two buffers of this size fit a second-level cache of 1 MiB. */
#define HALF_L2_BYTES (512 << 10)
/* Bytes of a panel that should stay in the share of a last-level cache that one core has. */
#define PANEL_BYTES (4 << 20)
/* Bytes of one row in a panel: half a page, long enough for the hardware prefetcher to set in. */
#define ROW_BYTES 2048
/* Bytes that are prefetched while rows are packed. */
#define PREFETCH_BYTES (16 << 10)

/* Columns of a strip: a multiple of ROW_VECTORS vectors of each type. */
#define MIN_STRIP 64
#define MAX_STRIP 256
/* Columns of a strip of distances, the same for any number of rows and pairs. A lane adds 16
 * (AVX-512) to 64 (16-byte vectors) squares of a strip, each with a relative rounding error of at
 * most 2^-24. Sums of equal numbers, whose errors have the same sign, hold 1e-6. */
#define PAIR_STRIP 256
/* Sums of lanes that do not wait for each other. */
#define FLUSH_SUMS 4
/* Sums of an exact measure that do not wait for each other. */
#define EXACT_SUMS 32
/* Columns after which sums of sums are added to a double: 16 more additions per lane. */
#define FLUSH_COLUMNS 4096
/* The same for sums of squares, which are added MIN_STRIP columns at a time. A smaller number is
 * affordable, since a norm has one sum where distances have one for each pair. */
#define NORM_FLUSH_COLUMNS 1024

/* Values in one selection network. Buffers on the stack have this many vectors. */
#define MAX_VALUES 512
/* Values that need no list of steps: two halves, each sorted in registers. */
#define MAX_COMPILED (2 * MAX_IN_REGISTERS)
/* Rows that are used in place, without packing: whole tiles. */
#define IN_PLACE_ROWS 24
/* How far ahead a row is prefetched while its norm is measured: beyond the end of its page. */
#define AHEAD_BYTES 8192
/* Tiles of rows that all rows are compared with at a time: 16 KiB of PAIR_STRIP float32. */
#define RIGHT_TILES 4
/* Rows that one row is compared with at a time, in a sparse graph. */
#define MAX_PARTNERS 8
/* Vectors in a strip of sums that exceeds the first-level cache. */
#define WIDE_VECTORS 8
/* The largest DENSE_RECEIVERS of all instruction sets. */
#define MIN_DENSE_RECEIVERS 6

#endif
