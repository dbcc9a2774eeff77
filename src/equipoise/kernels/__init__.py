"""The arithmetic that rules stand on, in plain torch for any device.

Rules call the functions below and nothing beneath them. This is the seam for other implementations.
"""

from equipoise.kernels.closeness import (
    cosines,
    distances,
    exact_message_distances,
    message_distances,
    norms_of,
    sharpened,
    within,
)
from equipoise.kernels.mixture import combine
from equipoise.kernels.order import trimmed_mean
from equipoise.kernels.size import are_finite, norms

__all__ = [
    "are_finite",
    "combine",
    "cosines",
    "distances",
    "exact_message_distances",
    "message_distances",
    "norms",
    "norms_of",
    "sharpened",
    "trimmed_mean",
    "within",
]
