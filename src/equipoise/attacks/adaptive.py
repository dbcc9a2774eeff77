"""The attack that queries the victim's rule for the largest strength that it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from equipoise._utils.validation import check_choice, check_options
from equipoise.attacks._client_facts import Scope
from equipoise.attacks._perturbation import (
    PERTURBATIONS,
    Perturbation,
    perturbation_of,
    unit_rows,
)
from equipoise.attacks._rule_queries import RuleQueries, require_single_exchange
from equipoise.attacks._statistics import Observed
from equipoise.attacks._strength_search import largest_strength, literal_strength
from equipoise.attacks._subspace import in_subspace
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies
from equipoise.rules import Aggregator


@dataclass(frozen=True)
class Adaptive:
    r"""The benign mean, moved along a perturbation as far as the victim's rule accepts it.

    .. math:: m_i = \mu_i - \gamma_i p_i

    Shejwalkar and Houmansadr, *Manipulating the Byzantine*, NDSS 2021. The BALANCE paper tailors it
    to BALANCE.

    ``mode="max"`` finds the largest accepted :math:`\gamma_i` by bisection on the rule itself. A
    lie is accepted if all malicious messages to the victim have weight, or, for a rule that selects
    one message, if one of them does. A rule without weights accepts a part of every message. There,
    the attack takes the smallest :math:`\gamma_i` that does the largest damage of a grid,
    :math:`\|\mathrm{AGG}_i - \mu_i\|`, to 1 part in 1,000. With `PerClient`, each victim's rule
    decides between the two. A rule that rejects nothing gets :math:`\gamma_i = 2^{12} \|\mu_i\| /
    \|p_i\|`. If the mean itself is rejected, the search starts from the point of the ray that is
    closest to the victim's model, then tries a grid of 31 strengths; if none of them is accepted,
    the attack sends the mean.

    ``mode="literal"`` is the search in the authors' code, with their success oracle: larger damage
    than at the *previous* test, so the first test always succeeds. Against BALANCE it never moves
    from ``start``, and the message is rejected. That, not ``"max"``, fits the results of the
    BALANCE paper.

    With ``center="own"`` the victim's own model replaces the mean, which the paper does not try.
    Against BALANCE it is the stronger attack: no part of the accepted distance is spent on the way
    to the mean. There are three directions:

    - ``"unit"`` shrinks. The lie is the victim's model, shortened by :math:`\gamma \exp(-\kappa t
      / T)`. Models shrink round by round, and with them the radius within which BALANCE accepts
      messages.
    - ``"own_update"`` undoes training: it leads back along the victim's last update.
    - ``"mean_update"`` ascends: the mean update of benign clients leads down their loss, and the
      lie leads up. After a single step of gradient descent it is along the gradient.

    Args:
        mode: ``"max"`` or ``"literal"``.
        perturbation: p is the ``"unit"`` vector of the mean, its ``"sign"``, the standard deviation
            ``"std"``, or the unit vector of the benign ``"mean_update"`` or of the victim's
            ``"own_update"``. The last requires ``scope="receiver"``.
        scope: observe the benign neighbors of each victim, ``"receiver"``, or all benign clients,
            ``"global"``; then all victims must accept the lie.
        start: first strength of the literal search.
        tolerance: precision of the literal search.
        rule: the rule to query; the victims' rule by default. The BALANCE paper queries BALANCE,
            whichever rule it attacks.
        center: start from the ``"mean"`` of benign models, or from the victim's ``"own"``, which
            requires ``scope="receiver"``.

    >>> models = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    >>> graph, rule = eq.Topology.complete(3), eq.Balance(0.3, kappa=0)
    >>> known = eq.attacks.Knowledge(models, graph, malicious=[2], rule=rule)
    >>> lies = eq.attacks.Adaptive().forge(known)
    >>> (models[:2] - lies.rows).norm(dim=1).round(decimals=2)  # 0.3 * 5
    tensor([1.5000, 1.5000])
    """

    # The rule is asked about all clients at once. Its answer for a victim may depend on models that
    # the victim does not receive, if only in rounding, and a rule may be any function.
    uses_malicious_models: ClassVar[bool] = True

    mode: Literal["max", "literal"] = "max"
    perturbation: Perturbation | Literal["own_update", "mean_update"] = "unit"
    scope: Scope = "receiver"
    start: float = 10.0
    tolerance: float = 1e-5
    rule: Aggregator | None = None
    center: Literal["mean", "own"] = "mean"

    def __post_init__(self) -> None:
        check_options(self)
        allowed = (*PERTURBATIONS, "own_update", "mean_update")
        check_choice("perturbation", self.perturbation, allowed)
        if self.rule is not None:
            require_single_exchange(self.rule)
        # A single lie cannot start from the own model of each victim, or follow its update.
        if self.scope == "global":
            if self.center == "own":
                raise ValueError("scope must be 'receiver' for center='own', found 'global'")
            if self.perturbation == "own_update":
                raise ValueError(
                    "scope must be 'receiver' for perturbation='own_update', found 'global'"
                )
        # Otherwise the literal search would not end before its step underflows, if at all.
        if not (self.start > 0 and self.tolerance > 0):
            raise ValueError(
                f"start and tolerance must be > 0, found {self.start} and {self.tolerance}"
            )

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """Return one row per victim, or one for all."""
        if not known._is_feasible:
            return None
        queries = self._queries(known)
        projected = None
        # The other perturbations depend on the coordinates, other rules may do so.
        if self.perturbation == "unit" and getattr(queries.rule, "isotropic", False):
            projected = in_subspace(known)
        if projected is None:
            return queries.lies(self._gamma(queries))
        # Search with n numbers per client; only the final lies have d of them.
        small = self._queries(projected)
        gamma = self._gamma(small)
        if self.mode == "max":
            # Lies in the dtype of the models are rounded, which may decide at the limit.
            accepted = queries.accepted(queries.outcome(gamma))
            if not torch.equal(accepted, small.accepted(small.outcome(gamma))):
                # The rule decides differently on the full models, so search there.
                gamma = self._gamma(queries)
        return queries.lies(gamma)

    def _queries(self, known: Knowledge) -> RuleQueries:
        rule = require_single_exchange(self.rule or known.rule)
        # Statistics in the dtype of the arithmetic; the rule is queried in that of the models.
        wide = known._widened()
        benign = Observed.of(wide, self, self.scope)
        if self.center == "mean":
            start = benign.mean()
        else:
            # Relative to the center, as the mean is.
            own = wide.models[benign.neighborhoods.receivers]
            start = own.to(benign.center.dtype) - benign.center
        direction = self._direction(wide, benign, start)
        return RuleQueries(known, rule, benign, start.add_(benign.center), direction)

    def _direction(self, wide: Knowledge, benign: Observed, start: Tensor) -> Tensor:
        """(a, d) the perturbation, for a start that is given minus the center."""
        if self.perturbation == "own_update":
            victims = benign.neighborhoods.receivers
            return unit_rows(wide.models[victims] - wide.require_previous(self)[victims])
        if self.perturbation == "mean_update":
            updates = Observed.of(wide, self, self.scope, "update")
            return unit_rows(updates.mean().add_(updates.center))
        return perturbation_of(self.perturbation, benign, start)

    def _gamma(self, queries: RuleQueries) -> Tensor:
        """(a,) the strength of each lie."""
        if self.mode == "literal":
            return literal_strength(queries, self.start, self.tolerance)
        return largest_strength(queries)
