"""The attack on trimmed means: beyond the benign extremes, against the benign direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise._utils.validation import check_flag, check_options
from equipoise.attacks._client_facts import Scope
from equipoise.attacks._neighborhoods import Neighborhoods
from equipoise.attacks._statistics import Observed, UncheckedLies, forge_by_columns
from equipoise.attacks.knowledge import Knowledge, Space


@dataclass(frozen=True)
class TrimAttack:
    r"""Every coordinate lies beyond the extreme value, against the direction of benign training.

    Fang et al., *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, USENIX
    Security 2020, in two forms. Let :math:`x` be the smallest value of a coordinate if its
    direction :math:`s` is positive, and the largest if it is negative, and let :math:`r` be between
    1 and ``factor``. The lie is

    .. math:: x / r \text{ if } s x > 0, \qquad x r \text{ if } s x < 0

    ``form="group"`` is the code of the BALANCE paper's group: :math:`s` is the sign of the sum of
    all neighbors' vectors, including those of malicious clients before the attack, and so are the
    extremes. Applied to models, as that paper's results suggest, it shrinks their weights. If
    :math:`s = 0`, the lie is 0. ``form="fang"`` is the original: :math:`s` is the sign of the
    benign clients' mean update, and extremes are over benign clients; if :math:`s = 0`, the lie is
    their mean.

    Args:
        form: ``"group"`` or ``"fang"``.
        factor: the largest :math:`r`.
        random: each malicious client draws its own :math:`r` (for ``"fang"``, its own position
            between x and the far end) for every coordinate, uniformly, each round. Otherwise all of
            them send the far end.
        scope: observe the neighbors of each victim, ``"receiver"``, or all clients, ``"global"``.
        space: craft the ``"model"``, or the ``"update"`` since the last round.

    >>> models = torch.tensor([[1.0], [3.0], [2.0]])
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(3), malicious=[2])
    >>> eq.attacks.TrimAttack(random=False, scope="global").forge(known).rows
    tensor([[0.5000]])
    """

    form: Literal["group", "fang"] = "group"
    factor: float = 2.0
    random: bool = True
    scope: Scope = "receiver"
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        check_flag("random", self.random)
        if not self.factor >= 1:
            raise ValueError(f"factor must be a number >= 1, found {self.factor}")

    @property
    def uses_malicious_models(self) -> bool:
        """Whether the lies depend on the models of malicious clients: in ``form="group"``."""
        return self.form == "group"

    @forge_by_columns
    def forge(self, known: Knowledge) -> UncheckedLies:
        """Return one row per edge, or, if not random, one per victim or one for all."""
        is_group = self.form == "group"
        observed = Observed.of(known, self, self.scope, self.space, include_malicious=is_group)
        mean = observed.mean().add_(observed.center)
        # s. In update space, the mean is the mean update.
        if is_group or self.space == "update":
            sign = mean.sign()
        else:
            sign = self._mean_update(known).sign_()
        extreme = observed.signed_minimum(sign)
        if is_group:
            rows = self._beyond_extreme(known, observed.neighborhoods, sign, extreme)
        else:
            rows = self._toward_far_end(known, observed.neighborhoods, sign, extreme, mean)
        return observed.lies_per_edge(rows) if self.random else observed.lies_per_victim(rows)

    def _mean_update(self, known: Knowledge) -> Tensor:
        """(a, d) mean of the benign updates, not centered: only its sign counts."""
        benign = known._neighborhoods(self.scope)
        previous = known.require_previous(self).index_select(0, benign.clients)
        updates = known.models.index_select(0, benign.clients).sub_(previous)
        return benign.mean(updates)

    def _beyond_extreme(
        self, known: Knowledge, them: Neighborhoods, sign: Tensor, extreme: Tensor
    ) -> Tensor:
        """Multiply s x by r if it is negative and divide it if positive; times s.

        The two parts are computed without a mask, which would take longer than the arithmetic.
        """
        # 1 where s x < 0 and 0 where s x > 0. It is 0.5 where s x = 0, but then both parts are 0.
        is_negative = extreme.sign().mul_(-0.5).add_(0.5)
        # From s x back to x, because s^2 = 1; 0 where s = 0.
        extreme.mul_(sign)
        multiplied = is_negative.mul_(extreme)
        divided = extreme.sub_(multiplied)
        if not self.random:
            return multiplied.mul_(self.factor).add_(divided, alpha=1 / self.factor)
        # One r per malicious client and coordinate: a client sends all victims the same factor.
        r = known.rand(known.malicious_count, extreme.shape[1], low=1.0, high=self.factor)
        rows = multiplied.index_select(0, them.edge_rows)  # (e, d)
        rows.mul_(r.index_select(0, them.sender_ranks))
        divided = divided.index_select(0, them.edge_rows)
        return rows.addcmul_(divided, r.reciprocal_().index_select(0, them.sender_ranks))

    def _toward_far_end(
        self, known: Knowledge, them: Neighborhoods, sign: Tensor, extreme: Tensor, mean: Tensor
    ) -> Tensor:
        """Move from the extreme to its far end, or a share of the way; the mean if s = 0."""
        # For s x > 0 the quotient is smaller, for s x < 0 the product.
        far = torch.minimum(extreme / self.factor, extreme * self.factor)
        way = far.sub_(extreme).mul_(sign)
        # |s| is 0 or 1: an exact choice between the mean and the extreme.
        near = torch.lerp(mean, extreme.mul_(sign), sign.abs_())
        if not self.random:
            return near.add_(way)
        # As above, one share per malicious client and coordinate.
        share = known.rand(known.malicious_count, extreme.shape[1])
        share = share.index_select(0, them.sender_ranks)
        way = way.index_select(0, them.edge_rows)
        return near.index_select(0, them.edge_rows).addcmul_(way, share)
