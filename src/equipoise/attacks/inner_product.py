"""Attacks that send the mean of the benign vectors the wrong way."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise._utils.validation import check_options
from equipoise.attacks._statistics import Crowd, Told, by_columns
from equipoise.attacks.knowledge import Knowledge, Scope, Space


@dataclass(frozen=True)
class IPM:
    r"""Inner product manipulation: minus a fraction of the benign mean, :math:`m_i = -\epsilon \mu_i`.

    Xie et al., *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation*, UAI 2019. On
    updates, so that averages move against the descent direction; on models it would negate weights, quite another
    attack.

    Args:
        epsilon: the fraction, 0.1 as in He et al. (2022); large values are easy to see.
        scope: look at the benign neighbours of each victim, ``"receiver"``, or at all benign clients, ``"global"``.
        space: craft the ``"update"`` since the last round, or the ``"model"``.

    >>> before, models = torch.zeros(3, 1), torch.tensor([[1.0], [3.0], [9.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2], previous=before)
    >>> eq.attacks.IPM(epsilon=0.5, scope="global").forge(known).rows
    tensor([[-1.]])
    """

    epsilon: float = 0.1
    scope: Scope = "receiver"
    space: Space = "update"

    def __post_init__(self) -> None:
        check_options(self)

    @by_columns
    def forge(self, known: Knowledge) -> Told:
        """One row per victim, or one for all."""
        crowd = Crowd.of(known, self, self.scope, self.space)
        return crowd.lies(crowd.mean().add_(crowd.centre).mul_(-self.epsilon))


@dataclass(frozen=True)
class SignFlip(IPM):
    r"""Minus the benign mean, :math:`m_i = -\mu_i`: IPM at :math:`\epsilon = 1`.

    Li et al., *RSA: Byzantine-Robust Stochastic Aggregation Methods*, AAAI 2019.

    >>> before, models = torch.zeros(3, 1), torch.tensor([[1.0], [3.0], [9.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2], previous=before)
    >>> eq.attacks.SignFlip(scope="global").forge(known).rows
    tensor([[-2.]])
    """

    epsilon: float = 1.0
