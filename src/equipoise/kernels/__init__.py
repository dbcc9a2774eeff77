"""The arithmetic that rules stand on: in C for models on a CPU, in torch for any device.

Rules call the functions below and nothing beneath them. Which of the two does the work is decided in here.
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
from equipoise.kernels.mixture import combine, combine_if_finite
from equipoise.kernels.order import trimmed_mean
from equipoise.kernels.size import are_finite, norms

__all__ = [
    "are_finite",
    "combine",
    "combine_if_finite",
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
