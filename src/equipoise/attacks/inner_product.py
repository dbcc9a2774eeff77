"""Inner product manipulation: a negative multiple of the benign mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise._utils.validation import check_options
from equipoise.attacks._client_facts import Scope
from equipoise.attacks._statistics import Observed, UncheckedLies, forge_by_columns
from equipoise.attacks.knowledge import Knowledge, Space


@dataclass(frozen=True)
class IPM:
    r"""Inner product manipulation: a negative fraction of the mean, :math:`m_i = -\epsilon \mu_i`.

    Xie et al., *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation*,
    UAI 2019. It works on updates, so that averages move against the descent direction; on models it
    would negate the weights, which is a different attack.

    Args:
        epsilon: the fraction, 0.1 as in He et al. (2022); large values are easy to detect.
        scope: observe the benign neighbors of each victim, ``"receiver"``, or all benign clients,
            ``"global"``.
        space: craft the ``"update"`` since the last round, or the ``"model"``.

    >>> before, models = torch.zeros(3, 1), torch.tensor([[1.0], [3.0], [9.0]])
    >>> graph = eq.Topology.complete(3)
    >>> known = eq.attacks.Knowledge(models, graph, malicious=[2], previous=before)
    >>> eq.attacks.IPM(epsilon=0.5, scope="global").forge(known).rows
    tensor([[-1.]])
    """

    uses_malicious_models: ClassVar[bool] = False

    epsilon: float = 0.1
    scope: Scope = "receiver"
    space: Space = "update"

    def __post_init__(self) -> None:
        check_options(self)

    @forge_by_columns
    def forge(self, known: Knowledge) -> UncheckedLies:
        """Return one row per victim, or one for all."""
        benign = Observed.of(known, self, self.scope, self.space)
        # Observed vectors are relative to the center; the lie scales the whole mean.
        mean = benign.mean().add_(benign.center)
        # In update space this adds the victim's model before the round.
        return benign.lies_per_victim(mean.mul_(-self.epsilon))


@dataclass(frozen=True)
class SignFlip(IPM):
    r"""The negated benign mean, :math:`m_i = -\mu_i`: IPM at :math:`\epsilon = 1`.

    Li et al., *RSA: Byzantine-Robust Stochastic Aggregation Methods*, AAAI 2019.

    >>> before, models = torch.zeros(3, 1), torch.tensor([[1.0], [3.0], [9.0]])
    >>> graph = eq.Topology.complete(3)
    >>> known = eq.attacks.Knowledge(models, graph, malicious=[2], previous=before)
    >>> eq.attacks.SignFlip(scope="global").forge(known).rows
    tensor([[-2.]])
    """

    epsilon: float = 1.0  # the lie is as long as the mean, so its norm does not give it away
