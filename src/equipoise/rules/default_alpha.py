"""The share of own in a mixture, unless the caller chooses another."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.rules.per_client import PerClient


def default_alpha(rule: object) -> float | Tensor:
    """The ``alpha`` that suits a rule: 0 if its aggregate already contains own, otherwise 0.5.

    This is the default of `Simulator`. For a `PerClient` whose rules differ in this, it is a tensor
    with one number per client.

    >>> eq.default_alpha(eq.Balance()), eq.default_alpha(eq.NNA())
    (0.5, 0.0)
    >>> eq.default_alpha(eq.PerClient([eq.Balance(), eq.NNA()]))
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    if isinstance(rule, PerClient):
        shares = [_share(one) for one in rule.rules]
        if len(set(shares)) > 1:
            return torch.tensor(shares, dtype=torch.float64, device="cpu")
    return _share(rule)


def _share(rule: object) -> float:
    return 0.0 if getattr(rule, "contains_own", False) else 0.5
