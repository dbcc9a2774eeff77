"""An attack with the strength that does the most harm to each victim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_count, describe
from equipoise.attacks._rule_queries import RuleQueries, require_single_exchange
from equipoise.attacks._statistics import Observed
from equipoise.attacks._strength_search import most_damage
from equipoise.attacks.attack import MessageAttack
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies

STRENGTHS = ("epsilon", "z")


@dataclass(frozen=True)
class Tuned:
    r"""Another attack, whose strength is searched for each victim in each round.

    .. math:: m_i = w_i + s_i (l_i - l_i^0), \qquad
              s_i = \arg\max_{s \ge 0} \|\mathrm{AGG}_i(s) - \mu_i\|

    where :math:`l_i` is the lie of the attack, :math:`l_i^0` its lie at strength 0, and
    :math:`\mu_i` the mean of the victim's benign neighbors. All lies start from the victim's own
    model, which `Dissensus` and `Spectral` do anyway; `LIE` and `IPM` only give the direction, the
    standard deviation and the negative mean. :math:`s_i` multiplies the strength of the attack,
    whose sign counts: ``Tuned(IPM(epsilon=-1.0))`` searches along the positive mean.

    Gaucher, Dieuleveut and Hendrikx, *Unified Breakdown Analysis for Byzantine Robust Gossip*, ICML
    2025, compare gossip rules under attacks of this form. The search doubles its step, from
    :math:`s = 1`, while the damage grows, then tries shorter and shorter steps to both sides of the
    best strength. If the damage has several maxima, it finds one of them.

    The attack queries the victims' rule ``queries`` times per round, for all victims at once. It
    needs a rule with one exchange per round.

    Args:
        attack: an attack whose lies are linear in its strength, ``epsilon`` or ``z``: `LIE`, `IPM`,
            `SignFlip`, `Dissensus`, `Isolation` or `Spectral`.
        queries: number of strengths to try.

    >>> models = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    >>> rule = eq.GTS(tolerated=1)
    >>> known = eq.attacks.Knowledge(models, eq.Topology.complete(4), malicious=[3], rule=rule)
    >>> eq.attacks.Tuned(eq.attacks.Dissensus()).forge(known).rows  # a larger lie is left out
    tensor([[-1.9887],
            [ 1.0000],
            [ 3.9887]])
    """

    # It asks the rule about all clients at once, as `Adaptive` does.
    uses_malicious_models: ClassVar[bool] = True

    attack: MessageAttack
    queries: int = 16

    def __post_init__(self) -> None:
        check_count("queries", self.queries, 1)
        is_attack = isinstance(self.attack, MessageAttack) and not isinstance(self.attack, type)
        if not is_attack or _unarmed(self.attack) is None:
            expected = "an attack on messages with a strength, epsilon or z, such as Dissensus()"
            raise ValueError(f"attack must be {expected}, found {describe(self.attack)}")

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """Return one row per victim."""
        if not known._is_feasible:
            return None
        rule = require_single_exchange(known.rule)
        # Lies in the dtype of the arithmetic; the rule is queried in that of the models.
        wide = known._widened()
        benign = Observed.of(wide, self, "receiver")
        goal = benign.mean().add_(benign.center)
        # Queries subtract the direction.
        direction = _per_victim(_unarmed(self.attack), wide) - _per_victim(self.attack, wide)
        queries = RuleQueries(known, rule, benign, wide.models[known.victims], direction)

        def damage(strength: Tensor) -> Tensor:
            return kernels.norms(queries.outcome(strength).model[known.victims] - goal)

        nothing = torch.zeros(len(goal), dtype=torch.float64, device=goal.device)
        return queries.lies(most_damage(damage, nothing, self.queries))


def _unarmed(attack: Any) -> Any | None:
    """Return the attack at strength 0, or None if it has no strength."""
    name = next((name for name in STRENGTHS if hasattr(attack, name)), None)
    return None if name is None else replace(attack, **{name: 0.0})


def _per_victim(attack: Any, known: Knowledge) -> Tensor:
    """(v, d) the lie to each victim."""
    lies = attack.forge(known)
    assert lies is not None  # there is a victim, and a benign model to learn from
    # An attack of scope "global" has one lie for all.
    rows: Tensor = lies.rows.expand(len(known.victims), -1)
    return rows
