"""The arithmetic of rules: in C for models on a CPU, in torch for any device.

Rules call the functions below. These choose the backend.
"""

from equipoise.kernels import native
from equipoise.kernels._around_median import mean_around_median
from equipoise.kernels._blocks import (
    TILE,
    block,
    chunks,
    column_blocks,
    compute_dtype,
    first_row,
    gather,
    may_share_memory,
    new_output,
    row_sums,
    same_rows,
)
from equipoise.kernels._centered_products import CenteredProducts, centered_products
from equipoise.kernels._count_sketch import count_sketch
from equipoise.kernels._decisions import NEAR_TIE, decide, exact_distances
from equipoise.kernels._distances import (
    close_messages,
    cosines,
    distances,
    norms_of,
    within,
)
from equipoise.kernels._distances_dense import central_rows
from equipoise.kernels._edge_index import Group
from equipoise.kernels._farthest import without_farthest
from equipoise.kernels._krum_selection import krum_selection
from equipoise.kernels._message_distances import message_distances
from equipoise.kernels._nearest_messages import nearest_messages
from equipoise.kernels._nearest_sums import nearest_sums
from equipoise.kernels._norms import all_finite, are_finite, norms, squared_spread
from equipoise.kernels._order_statistics import trimmed_mean
from equipoise.kernels._overflow import (
    clip_factors,
    interpolate,
    undo_infinite_norms,
    undo_infinite_values,
)
from equipoise.kernels._ranks import exact_near_ranks, rank_with_ties, value_at_rank
from equipoise.kernels._received_messages import ReceivedMessages
from equipoise.kernels._weighted_order_statistics import weighted_trimmed_mean
from equipoise.kernels._weighted_sums import combine, combine_if_finite, weighted_sums

__all__ = [
    "NEAR_TIE",
    "TILE",
    "CenteredProducts",
    "Group",
    "ReceivedMessages",
    "all_finite",
    "are_finite",
    "block",
    "centered_products",
    "central_rows",
    "chunks",
    "clip_factors",
    "close_messages",
    "column_blocks",
    "combine",
    "combine_if_finite",
    "compute_dtype",
    "cosines",
    "count_sketch",
    "decide",
    "distances",
    "exact_distances",
    "exact_near_ranks",
    "first_row",
    "gather",
    "interpolate",
    "krum_selection",
    "may_share_memory",
    "mean_around_median",
    "message_distances",
    "native",
    "nearest_messages",
    "nearest_sums",
    "new_output",
    "norms",
    "norms_of",
    "rank_with_ties",
    "row_sums",
    "same_rows",
    "squared_spread",
    "trimmed_mean",
    "undo_infinite_norms",
    "undo_infinite_values",
    "value_at_rank",
    "weighted_sums",
    "weighted_trimmed_mean",
    "within",
    "without_farthest",
]
