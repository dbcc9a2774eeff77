"""One architecture, run with the parameters of many clients."""

from equipoise.training._ensemble._functional import ELEMENTWISE, is_exactly
from equipoise.training._ensemble._losses import BatchLoss, Reduction
from equipoise.training._ensemble._model_checks import (
    check_trainable,
    evaluation_traits,
    outputs_of,
    watched_generators,
)
from equipoise.training._ensemble._stacked import Backend, Stacked, channels_last
from equipoise.training._ensemble._threads import run_each

__all__ = [
    "ELEMENTWISE",
    "Backend",
    "BatchLoss",
    "Reduction",
    "Stacked",
    "channels_last",
    "check_trainable",
    "evaluation_traits",
    "is_exactly",
    "outputs_of",
    "run_each",
    "watched_generators",
]
