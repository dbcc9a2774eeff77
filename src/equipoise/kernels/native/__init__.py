"""The kernels in C, for models on a CPU.

They are used if a compiler was available when equipoise was installed, unless the environment
variable ``EQUIPOISE_NATIVE`` is 0; `equipoise.native_available` tells. Otherwise all arithmetic is
done in torch, with the same results up to rounding. float16 and bfloat16 are computed in float32,
some columns at a time.

Functions take several matrices, whose rows are numbered consecutively: row ``len(a) + i`` of
``(a, b)`` is ``b[i]``.
"""

from equipoise.kernels.native._calls import HALVES, Floats, Integers, serves
from equipoise.kernels.native._distance_calls import exact_measure, measure, squared_norms
from equipoise.kernels.native._library import (
    SUFFIXES,
    available,
    disabled,
    function,
    in_threads,
    is_requested,
    limits,
    open_library,
)
from equipoise.kernels.native._order_statistic_calls import (
    largest_around_median,
    means_around_median,
    trimmed_means,
    trimmed_means_but_one,
)
from equipoise.kernels.native._weighted_sum_calls import (
    SumLists,
    WeightedEdges,
    dense_sums,
    interpolate,
    list_sums,
    weighted_edges,
)

__all__ = [
    "HALVES",
    "SUFFIXES",
    "Floats",
    "Integers",
    "SumLists",
    "WeightedEdges",
    "available",
    "dense_sums",
    "disabled",
    "exact_measure",
    "function",
    "in_threads",
    "interpolate",
    "is_requested",
    "largest_around_median",
    "limits",
    "list_sums",
    "means_around_median",
    "measure",
    "open_library",
    "serves",
    "squared_norms",
    "trimmed_means",
    "trimmed_means_but_one",
    "weighted_edges",
]
