"""The arithmetic of rules: in C for models on a CPU, in torch for any device.

Rules call the functions below. These choose the backend.
"""

from equipoise.kernels import native
from equipoise.kernels._blocks import (
    TILE,
    ascending,
    block,
    chunks,
    column_blocks,
    compute_dtype,
    gather,
    may_share_memory,
    new_output,
)
from equipoise.kernels._distances import cosines, distances, norms_of, sharpened, within
from equipoise.kernels._distances_dense import central_rows
from equipoise.kernels._exact import power_of_two
from equipoise.kernels._message_distances import (
    TINY,
    exact_message_distances,
    message_distances,
)
from equipoise.kernels._norms import are_finite, norms
from equipoise.kernels._order_statistics import trimmed_mean
from equipoise.kernels._received import Received
from equipoise.kernels._weighted_sums import combine, combine_if_finite, weighted_sums
from equipoise.kernels._wiring import Group

__all__ = [
    "TILE",
    "TINY",
    "Group",
    "Received",
    "are_finite",
    "ascending",
    "block",
    "central_rows",
    "chunks",
    "column_blocks",
    "combine",
    "combine_if_finite",
    "compute_dtype",
    "cosines",
    "distances",
    "exact_message_distances",
    "gather",
    "may_share_memory",
    "message_distances",
    "native",
    "new_output",
    "norms",
    "norms_of",
    "power_of_two",
    "sharpened",
    "trimmed_mean",
    "weighted_sums",
    "within",
]
