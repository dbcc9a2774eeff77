"""A little is enough: lies that hide among the benign models."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

from equipoise._utils.validation import check_options
from equipoise.attacks._client_facts import Scope
from equipoise.attacks._statistics import Observed, UncheckedLies, forge_by_columns
from equipoise.attacks.knowledge import Knowledge, Space


@dataclass(frozen=True)
class LIE:
    r"""The benign mean, moved by some standard deviations in every coordinate.

    .. math:: m_i = \mu_i - z \sigma_i, \qquad z = \Phi^{-1}\Bigl(\frac{n - f - s}{n - f}\Bigr),
              \qquad s = \lfloor n / 2 + 1 \rfloor - f

    Baruch et al., *A Little Is Enough: Circumventing Defenses For Distributed Learning*, NeurIPS
    2019. The mean and the population standard deviation are those of the victim's benign neighbors.
    :math:`z` depends on all n clients, f of them malicious, because a small neighborhood gives 0 or
    less (10 neighbors, 2 of them malicious: 0).

    Args:
        z: number of standard deviations; computed as above by default.
        sign: -1 as in the paper, or 1 as in some implementations.
        scope: observe the benign neighbors of each victim, ``"receiver"``, or all benign clients,
            ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[1.0], [3.0], [9.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.LIE(z=1.0, scope="global").forge(known).rows
    tensor([[1.]])
    """

    uses_malicious_models: ClassVar[bool] = False

    z: float | None = None  # it depends on n and f, which only a round has
    sign: Literal[-1, 1] = -1
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        if self.sign not in (-1, 1):
            raise ValueError(f"sign must be -1 or 1, found {self.sign!r}")

    @forge_by_columns
    def forge(self, known: Knowledge) -> UncheckedLies:
        """Return one row per victim, or one for all."""
        benign = Observed.of(known, self, self.scope, self.space)
        # From all clients, because a small neighborhood would give 0 or less.
        z = lie_z_max(len(known.models), known.malicious_count) if self.z is None else self.z
        mean = benign.mean()
        # A deviation does not depend on the center; the mean does.
        rows = mean.add_(benign.deviation(mean), alpha=self.sign * z)
        return benign.lies_per_victim(rows.add_(benign.center))


def lie_z_max(n: int, malicious: int) -> float:
    """Return the largest z of `LIE` that still looks benign; 0 if there is no such z.

    >>> round(eq.attacks.lie_z_max(20, 4), 3)
    0.157
    """
    # s: the benign clients that malicious ones need on their side for a majority.
    supporters = n // 2 + 1 - malicious
    share = (n - malicious - supporters) / max(1, n - malicious)
    # Outside of (0, 1), malicious clients are a majority and need not hide.
    return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0
