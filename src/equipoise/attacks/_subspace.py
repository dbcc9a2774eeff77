"""A round in the subspace that its models span, for attacks that query a rule many times.

The models of n clients span at most n dimensions. In coordinates of that subspace they keep all
lengths and angles. An isotropic rule depends on nothing else, so n numbers per client give the same
answer as millions of parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.attacks.knowledge import Knowledge
from equipoise.kernels import TILE, column_blocks

# Largest ratio of norms. The eigenvalues are exact to the float64 epsilon of the largest, so
# lengths to its square root: 1.5e-8 of the longest model, hence 1.5e-5 of the shortest.
MAX_NORM_RATIO = 1e3
# The subspace must be this many times smaller than the models, to pay for its eigenvectors.
MIN_REDUCTION = 4
# Beyond this many clients per neighbor, the products of all pairs cost more than they save.
MAX_CLIENTS_PER_NEIGHBOR = 16


def in_subspace(known: Knowledge) -> Knowledge | None:
    """Return the round in coordinates (n, n), float64; None if that is inexact or no faster."""
    models = known.models
    benign = ~known.malicious_mask
    n, d = models.shape
    if n > MAX_CLIENTS_PER_NEIGHBOR * known.topology.k or d < MIN_REDUCTION * n:
        return None
    if models.dtype not in (torch.float32, torch.float64) or not known.finite_benign[benign].all():
        return None
    lengths = kernels.norms(models)[benign]
    if not 0 < lengths.max() <= MAX_NORM_RATIO * lengths.min():
        return None
    return known._with_vectors(_coordinates(models.masked_fill(known.malicious_mask[:, None], 0)))


def _coordinates(models: Tensor) -> Tensor:
    """(n, n) rows with the scalar products of the models."""
    n, d = models.shape
    gram = torch.zeros(n, n, dtype=torch.float64, device=models.device)
    for part in column_blocks(d, max(256, TILE // n)):
        columns = models[:, part].double()
        gram.addmm_(columns, columns.T)
    values, vectors = torch.linalg.eigh(gram)
    # A Gram matrix has no negative eigenvalues but for rounding.
    rows: Tensor = vectors * values.clamp_min(0).sqrt()
    return rows
