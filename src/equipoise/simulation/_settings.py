"""Everything about a run that stays the same from round to round."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.attacks import Attack
from equipoise.rules import Aggregator, MultiExchange, default_alpha
from equipoise.simulation._evaluation import MetricFunction
from equipoise.simulation._round_inputs import expected_malicious
from equipoise.simulation._sharding import Part
from equipoise.simulation._validation import check_rule_setting, check_topology
from equipoise.simulation.each_round import EachRound
from equipoise.topology import Topology
from equipoise.topology.gossip_weights import GossipKind
from equipoise.training import Trainer

RuleLike = Aggregator | MultiExchange


# No __eq__: comparing tensors does not yield one truth value.
@dataclass(eq=False, repr=False)
class Settings:
    """The settings of a `Simulator`, which documents them; some depend on the round."""

    trainer: Trainer
    topology: Topology | Callable[[int], Topology] | EachRound[Topology]
    rule: RuleLike | EachRound[RuleLike] | None
    attack: Attack | None
    malicious: Tensor
    idle: Tensor
    alpha: float | Tensor | Callable[[int], float | Tensor] | EachRound[float | Tensor] | None
    metrics: dict[str, MetricFunction]
    evaluate_every: int | Container[int] | None
    tolerated: int | Tensor | None
    gossip: GossipKind | Callable[[Topology], Tensor] | None
    loss_of: Callable[[int], Callable[..., Tensor]] | None
    keep_nonfinite: bool
    seed: int
    part: Part

    @property
    def attackers(self) -> Tensor:
        """(n,) the malicious clients; without an attack, they behave like the others."""
        return self.malicious if self.attack is not None else torch.zeros_like(self.malicious)

    @cached_property
    def has_malicious(self) -> bool:
        """Whether there are malicious clients; cached, as reading it waits for a GPU."""
        return bool(self.malicious.any())

    @cached_property
    def trained(self) -> Tensor | None:
        """The ids of the clients that are trained, in all processes; None stands for all."""
        return (~self.idle).nonzero().flatten() if self.idle.any() else None

    @property
    def n(self) -> int:
        """Number of clients, of all processes."""
        return len(self.malicious)

    def topology_at(self, t: int) -> Topology:
        """The graph of round t."""
        # Checked in every round: a function may return a graph of another size.
        return check_topology(self._at(t, "topology"), self.n)

    def rule_at(self, t: int) -> RuleLike | None:
        """The rule of round t. A rule is a function itself, so a function is not a schedule."""
        if not isinstance(self.rule, EachRound):
            return self.rule
        rule = self.rule.at(t, seed=self.seed, name="rule")
        check_rule_setting(rule, self.n)  # the constructor cannot check a rule that is drawn later
        return rule

    def alpha_at(self, t: int, rule: RuleLike | None) -> float | Tensor:
        """The weight of a client's own model in round t, whose rule is given."""
        if self.alpha is None:
            return default_alpha(rule)
        alpha: float | Tensor = self._at(t, "alpha")
        return alpha

    def _at(self, t: int, name: str) -> Any:
        setting = getattr(self, name)
        if isinstance(setting, EachRound):
            return setting.at(t, seed=self.seed, name=name)
        # Neither a topology nor a number nor a tensor can be called.
        return setting(t) if callable(setting) else setting

    def tolerated_by(self, rule: RuleLike, malicious_neighbors: Tensor) -> int | Tensor:
        """How many malicious neighbors the clients expect, given the true numbers (n,)."""
        if self.tolerated is not None:
            return self.tolerated
        return expected_malicious(rule, malicious_neighbors)
