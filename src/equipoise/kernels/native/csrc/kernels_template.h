/* All kernels, for one instruction set and one type. */
#include "panels.h"

#include "distances.h"
#include "weighted_sums.h"
#include "order_statistics.h"

#undef ROW
#undef STORE_OR_STREAM
#undef CAN_STREAM
#undef LINE_SCALARS
