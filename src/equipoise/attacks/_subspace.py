"""A round in few coordinates, for attacks that ask a rule many times.

The models of n clients span at most n dimensions. Turned into those, they keep all lengths and angles, and a rule that
looks at nothing else says of n numbers for each client what it would say of millions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.attacks.knowledge import Knowledge
from equipoise.kernels import TILE, column_blocks

SPREAD = 1e3  # largest ratio of norms: the digits of short models are lost next to long ones
SAVING = 4  # coordinates have to become this many times fewer


def turned(known: Knowledge) -> Knowledge | None:
    """The same round in coordinates (n, n) in float64, or None where that is not exact, or no gain."""
    models, liars = known.models, known.liars
    n, d = models.shape
    sparse = n > 16 * known.topology.k  # products of all clients cost more than the rule, which looks at neighbours
    if sparse or d < SAVING * n or models.dtype not in (torch.float32, torch.float64) or not known.sane[~liars].all():
        return None
    sizes = kernels.norms(models)[~liars]
    if not 0 < sizes.max() <= SPREAD * sizes.min():
        return None
    return known._about(_coordinates(models.masked_fill(liars[:, None], 0)))


def _coordinates(models: Tensor) -> Tensor:
    """(n, n) rows whose scalar products are those of the models."""
    n, d = models.shape
    gram = torch.zeros(n, n, dtype=torch.float64, device=models.device)
    for part in column_blocks(d, max(256, TILE // n)):
        block = models[:, part].double()
        gram.addmm_(block, block.T)
    values, vectors = torch.linalg.eigh(gram)
    rows: Tensor = vectors * values.clamp_min(0).sqrt()
    return rows
