"""Local training of many clients, and running many models at once."""

from equipoise.training._ensemble import (
    Stacked,
    channels_last,
    outputs_of,
    run_each,
    watched_generators,
)
from equipoise.training._fused import FusedSequential
from equipoise.training.lazy_clients import LazyClients
from equipoise.training.local_sgd import LocalSGD
from equipoise.training.trainer import Trainer

__all__ = [
    "FusedSequential",
    "LazyClients",
    "LocalSGD",
    "Stacked",
    "Trainer",
    "channels_last",
    "outputs_of",
    "run_each",
    "watched_generators",
]
