"""The arithmetic that rules stand on, in plain torch for any device.

Rules call these functions and nothing below them: ``norms``, ``distances``, ``sharpened``, ``within``,
``cosines``, ``message_distances``, ``combine`` and ``trimmed_mean``. This is the seam for other implementations.
"""

from equipoise.kernels.closeness import cosines, distances, message_distances, norms_of, sharpened, within
from equipoise.kernels.mixture import combine
from equipoise.kernels.order import trimmed_mean
from equipoise.kernels.size import norms

__all__ = [
    "combine",
    "cosines",
    "distances",
    "message_distances",
    "norms",
    "norms_of",
    "sharpened",
    "trimmed_mean",
    "within",
]
