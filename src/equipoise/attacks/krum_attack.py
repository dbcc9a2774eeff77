"""The attack on Krum: the farthest lie along a direction that Krum would still choose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_options
from equipoise.attacks._client_facts import Scope
from equipoise.attacks._krum_contest import KrumContest
from equipoise.attacks._neighborhoods import Neighborhoods
from equipoise.attacks._perturbation import slopes
from equipoise.attacks._statistics import Observed, UncheckedLies, forge_widened
from equipoise.attacks.knowledge import Knowledge, Space
from equipoise.rules import Krum, without_warnings

# Two messages are equally far from each other, so Krum cannot prefer one of them.
NO_CHOICE = 2


@dataclass(frozen=True)
class KrumAttack:
    r"""Send :math:`b - \lambda s`, with :math:`\lambda` halved until Krum chooses it.

    Fang et al., *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, USENIX
    Security 2020, in two forms.

    ``form="group"`` is the code of the BALANCE paper's group: :math:`b = 0`, :math:`s` is the sign
    of Krum's choice before the attack, and :math:`\lambda` starts at 1. Applied to models, as that
    paper's results suggest, Krum hardly ever chooses it, :math:`\lambda` ends at :math:`2^{-17}`,
    and the message is almost the zero model. Krum has no choice between two messages, as in a ring:
    a victim with at most two neighbors receives the negated model of each malicious one, without
    noise. ``form="fang"`` is the original: :math:`b` is the victim's model before this round,
    :math:`s` the sign of the change that Krum would make to it, and :math:`\lambda` starts at

    .. math:: \min_i \frac{\sum_{l \in \text{nearest}_q(i)} \|w_l - w_i\|}{(m - 2f - 1) \sqrt d} +
              \max_l \frac{\|w_l - b\|}{\sqrt d}, \qquad q = m - f - 2

    over the benign among :math:`m` neighbors, f of them malicious; :math:`m - 2f - 1` and :math:`q`
    are at least 1 here.

    Args:
        form: ``"group"`` or ``"fang"``.
        noise: all but the malicious client of the lowest id add noise up to this norm, 0.01 in both
            sources, so that their messages differ. The search for :math:`\lambda` ignores it.
        scope: observe the neighbors of each victim, ``"receiver"``, or all clients, ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[1.0], [2.0], [2.1], [2.2]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(4), malicious=[3])
    >>> eq.attacks.KrumAttack(scope="global").forge(known).rows < 0
    tensor([[True]])
    """

    # Krum's choice before the attack is among the models of benign and malicious neighbors.
    uses_malicious_models: ClassVar[bool] = True

    form: Literal["group", "fang"] = "group"
    noise: float = 0.01
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise must be a finite number >= 0, found {self.noise}")

    @forge_widened
    def forge(self, known: Knowledge) -> UncheckedLies:
        """Return one row per victim, or one for all; with noise, one per edge."""
        everyone = Observed.of(known, self, self.scope, self.space, include_malicious=True)
        benign = Observed.of(known, self, self.scope, self.space)
        base = self._base(known, benign)
        # Krum's choice before the attack, among the models of benign and malicious neighbors. No
        # warnings: the attack exceeds Krum's guarantee on purpose.
        with without_warnings():
            tolerated = everyone.neighborhoods.malicious_degree
            chosen = Krum()(everyone.mean(), everyone.inbox, tolerated=tolerated).model
        if self.form == "fang":
            # Both are relative to a center, and the two centers differ.
            direction = chosen.sub_(base).add_(everyone.center - benign.center).sign_()
        else:
            direction = chosen.add_(everyone.center).sign_()
        first = _first_senders(benign.neighborhoods, len(known.models))
        strength = self._strength(benign, base, direction, first).to(base.dtype)
        rows = torch.addcmul(base, direction, -strength[:, None]).add_(benign.center)
        if self.noise == 0:
            lies = benign.lies_per_victim(rows)
        else:
            lies = self._with_noise(known, benign, rows)
        return lies if self.form == "fang" else self._with_negations(known, benign, lies)

    def _base(self, known: Knowledge, benign: Observed) -> Tensor:
        """(a, d) the start b of the lie, minus the center."""
        if self.form == "group" or self.space == "update":
            # b = 0, seen from the center.
            return -benign.center.expand(benign.inbox.n, -1)
        previous = known.require_previous(self)
        if self.scope == "receiver":
            return previous[known.victims] - benign.center
        # One lie for all victims starts from the mean of all benign models.
        return previous[known.finite_benign].mean(0, keepdim=True) - benign.center

    def _strength(
        self, benign: Observed, base: Tensor, direction: Tensor, first_senders: Tensor
    ) -> Tensor:
        """(a,) lambda: the first halved strength that Krum chooses, or that is too small."""
        inbox = benign.inbox
        them = benign.neighborhoods
        distances = kernels.distances(base, inbox)[0]
        step = kernels.norms(direction).square()
        along = slopes(direction, base, inbox)
        result = torch.ones(inbox.n, dtype=torch.float64, device=base.device)
        # Groups of victims with equally many messages, so that each fits into dense tensors.
        for group, squares in kernels.message_distances(base, inbox):
            victims = group.receivers
            places = (victims[:, None], group.columns)
            contest = KrumContest(
                squares,
                from_base=distances[places].square(),
                slope=along[places],
                step=step[victims],
                malicious_degree=them.malicious_degree[victims],
                lies_win_ties=first_senders[victims, None] < inbox.senders[places],
                alone=them.alone[victims],
            )
            start = contest.upper_bound(base.shape[1]) if self.form == "fang" else result[victims]
            result[victims] = contest.strength(start)
        return result

    def _with_noise(self, known: Knowledge, benign: Observed, rows: Tensor) -> UncheckedLies:
        """Add noise to the rows of all but the first malicious sender to each victim."""
        edge_rows = benign.neighborhoods.edge_rows
        # A uniform direction from a cube, scaled to a uniform length.
        noise = known.rand(len(edge_rows), rows.shape[1]).sub_(0.5)
        length = self.noise * known.rand(len(edge_rows)) / kernels.norms(noise).to(rows.dtype)
        # Edges are sorted by victim, then by sender.
        length[1:] *= edge_rows[1:] == edge_rows[:-1]
        length[:1] = 0
        return benign.lies_per_edge(noise.mul_(length[:, None]).add_(rows[edge_rows]))

    def _with_negations(
        self, known: Knowledge, benign: Observed, lies: UncheckedLies
    ) -> UncheckedLies:
        """Replace lies to victims with at most two neighbors by the senders' negated vectors."""
        them = benign.neighborhoods
        # A victim that observes itself has no benign neighbor.
        degree = them.counts.masked_fill(them.alone, 0) + them.malicious_degree
        negated = (degree <= NO_CHOICE)[them.edge_rows] & known._facts.finite[them.senders]
        if not negated.any():
            return lies
        senders = them.senders[negated]
        edge_rows = them.edge_rows[negated]
        rows = -known.models[senders]
        if benign.origin is not None:
            # Negate the sender's update, and add it to the victim's model.
            rows += known.require_previous(self)[senders] + benign.origin[edge_rows]
        negations = UncheckedLies(rows, senders, them.receivers[edge_rows])
        kept = ~negated
        if not self.noise:  # lies are one per victim then, not one per edge
            kept = torch.zeros_like(them.alone).index_fill(0, them.edge_rows[kept], True)
        joined = (torch.cat([old[kept], new]) for old, new in zip(lies, negations, strict=True))
        return UncheckedLies(*joined)


def _first_senders(them: Neighborhoods, n: int) -> Tensor:
    """(a,) the lowest id of a malicious sender to each victim; lower ids win ties."""
    lowest = torch.full_like(them.receivers, n)
    return lowest.scatter_reduce(0, them.edge_rows, them.senders, "amin")
