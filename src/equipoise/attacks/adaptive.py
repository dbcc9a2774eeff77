"""The attack that asks the victim's own rule how far it may go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_options
from equipoise.attacks._statistics import Crowd, Perturbation, perturbation
from equipoise.attacks._subspace import turned
from equipoise.attacks.knowledge import Knowledge, Scope
from equipoise.messages import Lies
from equipoise.rules import Aggregator, without_warnings
from equipoise.types import Aggregated

BISECTIONS = 30
PRECISION = 1e-4
FARTHEST = 2.0**12
GRID = (
    *(2.0**k for k in range(12, 0, -1)),
    *(k / 8 for k in range(12, 0, -1)),
    *(2.0**-k for k in range(4, 20, 3)),
    0.0,
)


@dataclass(frozen=True)
class Adaptive:
    r"""The benign mean, moved along a perturbation as far as the victim's rule goes along.

    .. math:: m_i = \mu_i - \gamma_i p_i

    Shejwalkar and Houmansadr, *Manipulating the Byzantine*, NDSS 2021, which the BALANCE paper tailors to BALANCE.

    ``mode="max"`` finds the largest :math:`\gamma_i` that is accepted, by bisection on the rule itself: all malicious
    messages of the victim have weight, or, for a rule that takes one message, one of them does. A rule without weights
    accepts something of everything: there it is the smallest :math:`\gamma_i` that does the largest damage of a grid,
    :math:`\|\mathrm{AGG}_i - \mu_i\|`, to 1 part in 1,000; with `PerClient`, each victim's rule decides which of the
    two. A rule that rejects nothing gets :math:`\gamma_i = 2^{12} \|\mu_i\| / \|p_i\|`. Where the mean itself is
    rejected, the search starts from the point of the ray that is closest to the victim's model, then looks at a grid of
    31 strengths; if none of them is accepted, the mean is sent.

    ``mode="literal"`` is the search in the authors' code, with their success oracle: larger damage than at the
    *previous*
    test, so the first test always succeeds. Against BALANCE it never moves from ``start``, and the message is rejected:
    that, not ``"max"``, fits the results of the BALANCE paper.

    With ``centre="own"`` the victim's own model takes the place of the mean, which the paper does not try. Against
    BALANCE it is the stronger attack: nothing of what the rule lets through is spent on the way to the mean. The lie is
    own, shortened by :math:`\gamma \exp(-\kappa t / T)`; round by round models shrink, and with them the ball in which
    others are believed.

    Args:
        mode: ``"max"`` or ``"literal"``.
        perturbation: p is the ``"unit"`` vector of the mean, its ``"sign"``, or the standard deviation ``"std"``.
        scope: look at the benign neighbours of each victim, ``"receiver"``, or at all benign clients, ``"global"``;
            then all victims must go along.
        start: where the literal search starts.
        tolerance: where the literal search ends.
        rule: the rule to tailor the attack to; the victims' rule if not given. The BALANCE paper tailors it to BALANCE,
            whatever rule is attacked.
        centre: start from the ``"mean"`` of benign models, or from the victim's ``"own"``; the latter for each victim,
            ``scope="receiver"``.

    >>> models = torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    >>> graph, rule = eq.Topology.complete(3), eq.Balance(0.3, kappa=0)
    >>> known = eq.attacks.Knowledge(models, graph, malicious=[2], rule=rule)
    >>> lies = eq.attacks.Adaptive().forge(known)
    >>> (models[:2] - lies.rows).norm(dim=1).round(decimals=2)  # 0.3 * 5
    tensor([1.5000, 1.5000])
    """

    mode: Literal["max", "literal"] = "max"
    perturbation: Perturbation = "unit"
    scope: Scope = "receiver"
    start: float = 10.0
    tolerance: float = 1e-5
    rule: Aggregator | None = None
    centre: Literal["mean", "own"] = "mean"

    def __post_init__(self) -> None:
        check_options(self)
        if self.rule is not None:
            _plain(self.rule)
        if self.centre == "own" and self.scope == "global":
            raise ValueError("scope must be 'receiver' for centre='own', found 'global'")
        if not (self.start > 0 and self.tolerance > 0):
            raise ValueError(f"start and tolerance must be > 0, found {self.start} and {self.tolerance}")

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """One row per victim, or one for all."""
        if known.is_hopeless:
            return None
        trial = Trial(known, self)
        few = turned(known) if self.perturbation == "unit" and getattr(trial.rule, "isotropic", False) else None
        if few is None:
            return trial.lies(self._search(trial))
        short = Trial(few, self)
        gamma = self._search(short)
        if self.mode == "max" and not torch.equal(trial.believed(gamma), short.believed(gamma)):
            gamma = self._search(trial)  # the rounding of lies decides
        return trial.lies(gamma)

    def _search(self, trial: Trial) -> Tensor:
        return trial.largest() if self.mode == "max" else trial.literal(self.start, self.tolerance)


class Trial:
    """One attack on one round: what the rule makes of lies of given strength."""

    def __init__(self, known: Knowledge, attack: Adaptive) -> None:
        self.known, self.rule = known, _plain(attack.rule or known.rule)
        self.crowd = Crowd.of(known.widened(), attack, attack.scope)
        mean = self.crowd.mean() if attack.centre == "mean" else self._own()
        self.direction = perturbation(attack.perturbation, self.crowd, mean)
        self.mean = mean.add_(self.crowd.centre)

    def _own(self) -> Tensor:
        """(a, d) the models of victims, less the centre."""
        own = self.known.widened().models[self.crowd.roster.receivers]
        return own.to(self.crowd.centre.dtype) - self.crowd.centre

    def lies(self, gamma: Tensor) -> Lies:
        """The lies of strength gamma (a,)."""
        rows = torch.addcmul(self.mean, self.direction, gamma.to(self.mean.dtype)[:, None], value=-1)
        return Lies(*self.crowd.lies(rows.to(self.known.models.dtype)))

    def literal(self, gamma: float, tolerance: float) -> Tensor:
        """(a,) the search of the authors' code."""
        tested, step = self.mean.new_full((len(self.mean),), gamma, dtype=torch.float64), gamma
        succeeded, damage = torch.zeros_like(tested), torch.full_like(tested, -1)
        while ((succeeded - tested).abs() > tolerance).any() and step > tolerance / 4:
            found = self.damage(self.outcome(tested))
            better = found > damage
            going_on = (succeeded - tested).abs() > tolerance
            succeeded = torch.where(better & going_on, tested, succeeded)
            moved = torch.where(better, tested + step / 2, tested - step / 2)
            tested, damage, step = torch.where(going_on, moved, tested), found, step / 2
        return succeeded

    def largest(self) -> Tensor:
        """(a,) the largest strength that is accepted, or that does the largest damage where there are no weights."""
        unit = _per_unit(self.mean, self.direction)
        harmless = self.outcome(torch.zeros_like(unit))
        weighed = self.weighed(harmless)
        if not weighed.any():
            return self._most_harmful(unit)
        accepted = self._most_accepted(unit.where(weighed, 0.0), self.accepted(harmless))
        return accepted if weighed.all() else accepted.where(weighed, self._most_harmful(unit))

    def _most_accepted(self, unit: Tensor, good: Tensor) -> Tensor:
        """(a,) the largest strength that is accepted; ``good`` is whether the mean is. Where unit is 0, it is 0."""
        start = torch.zeros_like(unit)
        if not good.all():
            closest = self._closest()
            nearby = self.believed(closest)
            start, good = closest.where(nearby & ~good, 0.0), good | nearby
        return self._bisected(*self._bracket(start, good, unit), self.accepted)[0]

    def _most_harmful(self, unit: Tensor) -> Tensor:
        """(a,) the smallest strength that does nearly the largest damage on the grid; 0 may be the worst."""
        found = torch.stack([self.damage(self.outcome(unit * step)) for step in GRID])
        enough = found.amax(0) * (1 - 1e-3)
        nearest = len(GRID) - 1 - (found >= enough).flip(0).to(torch.int8).argmax(0)
        grid = found.new_tensor([*GRID, 0.0])
        low, high = unit * grid[nearest + 1], unit * grid[nearest]
        return self._bisected(low, high, lambda out: self.damage(out) < enough)[1]

    def _closest(self) -> Tensor:
        """(a,) the strength that brings the lie closest to the victim's own, the mean one's if there is one crowd.

        Rules that accept what is close to own accept this, or nothing on the way.
        """
        own = self.known.models[self.known.victims].to(self.mean.dtype)
        own = own if len(own) == len(self.mean) else own.mean(0, keepdim=True)
        along = ((self.mean - own) * self.direction).sum(1, dtype=torch.float64)
        size = kernels.norms(self.direction).square()
        return (along / size).where(size > 0, 0.0).clamp_min(0)

    def _bracket(self, start: Tensor, good: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
        """(a,) an accepted strength and a rejected one, for all victims at once.

        Outwards from a good start, which is accepted; from far away inwards where there is none, and 0 if there, too,
        nothing is.
        """
        low, high = start, torch.zeros_like(unit)
        step, rising, searching = unit / 64, good & (unit > 0), ~good
        for farther, nearer in zip((FARTHEST, *GRID), GRID, strict=False):
            tested = torch.where(good, start + step, unit * nearer)
            yes = self.believed(tested)
            found, rising = searching & yes, rising & yes & (step < unit * FARTHEST)
            low = torch.where(found | (good & yes & (tested > low)), tested, low)
            high = torch.where(found, unit * farther, high)
            step, searching = torch.where(rising, step * 2, step), searching & ~found
            if not (rising | searching).any():
                break
        return low, torch.where(good, torch.maximum(low, start + step), high)

    def _bisected(self, low: Tensor, high: Tensor, goes_on: Callable[[Aggregated], Tensor]) -> tuple[Tensor, Tensor]:
        for _ in range(BISECTIONS):
            if not (high - low > PRECISION * high).any():
                break
            middle = (low + high) / 2
            up = goes_on(self.outcome(middle))
            low, high = torch.where(up, middle, low), torch.where(up, high, middle)
        return low, high

    def outcome(self, gamma: Tensor) -> Aggregated:
        """What the rule returns for all clients, of the noise that it will draw for the victims."""
        known = self.known
        inbox = known.topology.deliver(known.models, self.lies(gamma), known.liars)
        inputs: Any = {name: value for name, value in known.inputs.items() if name != "out"}  # not ours to write to
        if inputs.get("generator") is not None:
            inputs["generator"] = inputs["generator"].clone_state()
        with without_warnings():  # clients are warned when they aggregate, not when an attack tries their rule
            return self.rule(known.models, inbox, **inputs)

    def believed(self, gamma: Tensor) -> Tensor:
        """(a,) whether victims take lies of this strength."""
        return self.accepted(self.outcome(gamma))

    def weighed(self, out: Aggregated) -> Tensor:
        """(a,) whose rules have weights; for one crowd, whether one of the victims' has."""
        if out.weights is None:
            return torch.zeros(len(self.mean), dtype=torch.bool, device=self.mean.device)
        yes = _have_weights(out.weights[self.known.victims])
        return yes if len(self.mean) == len(yes) else yes.any()[None]

    def accepted(self, out: Aggregated) -> Tensor:
        """(a,) whether victims take all lies, or, if they take just one message, a lie; for one crowd, all victims.

        Rules without weights take something of everything.
        """
        known, topology = self.known, self.known.topology.to(self.known.models.device)
        assert out.weights is not None
        weights = out.weights[known.victims]
        taken = (weights > 0) | ~_have_weights(weights)[:, None]
        lied = (topology.mask & known.liars[topology.senders.clamp_min(0)])[known.victims]
        yes = (taken | ~lied).all(1) | ((taken.sum(1) == 1) & (taken & lied).any(1))
        return yes if len(self.mean) == len(yes) else yes.all()[None]

    def damage(self, out: Aggregated) -> Tensor:
        """(a,) how far the aggregates are from the mean of the crowd; for one crowd, the largest."""
        means = self.mean.expand(len(self.known.victims), -1)
        apart = kernels.norms(out.model[self.known.victims] - means)
        return apart if len(self.mean) == len(apart) else apart.amax()[None]


def _have_weights(weights: Tensor) -> Tensor:
    """(a,) whose weights (a, k) are some: those of a rule without are NaN where another client's rule has some."""
    return ~weights.isnan().all(1)


def _per_unit(mean: Tensor, direction: Tensor) -> Tensor:
    """(a,) how much of a direction is as long as the mean."""
    length = kernels.norms(direction)
    return (kernels.norms(mean) / length).where(length > 0, 0.0)


def _plain(rule: object) -> Aggregator:
    if isinstance(rule, type) or not isinstance(rule, Aggregator):
        named = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
        found = "None" if rule is None else named
        raise ValueError(
            f"rule must be a rule that talks once a round, given to Adaptive or to Knowledge, found {found}; "
            "for LEARN give TrimmedMean, its last step"
        )
    return rule
