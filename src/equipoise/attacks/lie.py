"""A little is enough: lies that hide among the benign models."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from equipoise._utils.validation import check_options
from equipoise.attacks._statistics import Crowd, Told, by_columns
from equipoise.attacks.knowledge import Knowledge, Scope, Space


@dataclass(frozen=True)
class LIE:
    r"""The mean of the benign models, moved by a few standard deviations in every coordinate.

    .. math:: m_i = \mu_i - z \sigma_i, \qquad z = \Phi^{-1}\Bigl(\frac{n - f - s}{n - f}\Bigr), \qquad
              s = \lfloor n / 2 + 1 \rfloor - f

    Baruch et al., *A Little Is Enough: Circumventing Defenses For Distributed Learning*, NeurIPS 2019. Mean and
    standard deviation (of the population) are over the benign neighbours of the victim; :math:`z` is computed from
    all n clients, f of them malicious, because a small neighbourhood gives 0 or less (10 neighbours, 2 of them
    malicious: 0).

    Args:
        z: number of standard deviations; computed as above if not given.
        sign: -1 as in the paper, or 1 as in some implementations.
        scope: look at the benign neighbours of each victim, ``"receiver"``, or at all benign clients, ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[1.0], [3.0], [9.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.LIE(z=1.0, scope="global").forge(known).rows
    tensor([[1.]])
    """

    z: float | None = None
    sign: Literal[-1, 1] = -1
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        if self.sign not in (-1, 1):
            raise ValueError(f"sign must be -1 or 1, found {self.sign!r}")

    @by_columns
    def forge(self, known: Knowledge) -> Told:
        """One row per victim, or one for all."""
        crowd = Crowd.of(known, self, self.scope, self.space)
        z = hidden_deviations(len(known.models), known.malicious_count) if self.z is None else self.z
        mean = crowd.mean()
        return crowd.lies(mean.add_(crowd.deviation(mean), alpha=self.sign * z).add_(crowd.centre))


def hidden_deviations(n: int, malicious: int) -> float:
    """How many standard deviations a minority can move and still look like the majority; 0 if it is none.

    >>> round(eq.attacks.hidden_deviations(20, 4), 3)
    0.157
    """
    supporters = n // 2 + 1 - malicious
    share = (n - malicious - supporters) / max(1, n - malicious)
    return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0
