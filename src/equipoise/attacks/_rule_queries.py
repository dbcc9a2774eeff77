"""A rule's answers to lies of given strength."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.attacks._statistics import Observed
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Inbox, Lies
from equipoise.rules import Aggregator, without_warnings
from equipoise.types import Aggregated


@dataclass(frozen=True, eq=False)
class RuleQueries:
    """Lies along the rays ``start - gamma * direction``, and the reaction of a rule to them.

    There is one ray for each victim, or one for all: a = v or a = 1.
    """

    known: Knowledge
    rule: Aggregator
    benign: Observed
    start: Tensor  # (a, d)
    direction: Tensor  # (a, d)

    def lies(self, gamma: Tensor) -> Lies:
        """Return the lies of strength gamma (a,)."""
        strength = gamma.to(self.start.dtype)[:, None]
        rows = torch.addcmul(self.start, self.direction, strength, value=-1)
        # Rounded to the dtype of the models, as victims receive it: that may decide acceptance.
        return Lies(*self.benign.lies_per_victim(rows.to(self.known.models.dtype)))

    @cached_property
    def _inbox(self) -> Inbox:
        """The messages of the round at strength 0: queries replace only the lies in it."""
        known = self.known
        lies = self.lies(torch.zeros(len(self.start), device=self.start.device))
        return known.topology.deliver(known.models, lies, known.malicious_mask)

    def outcome(self, gamma: Tensor) -> Aggregated:
        """Return the rule's result for all clients, with the random numbers that it will draw."""
        known = self.known
        # Each lie is sent, and they are the last rows of the bank.
        rows = self.lies(gamma).rows
        inbox = self._inbox.with_bank(torch.cat([self._inbox.bank[: -len(rows)], rows]))
        # A query must not write to the output buffer of the round, nor advance its generator.
        inputs: Any = {name: value for name, value in known.inputs.items() if name != "out"}
        if inputs.get("generator") is not None:
            inputs["generator"] = inputs["generator"].clone_state()
        with without_warnings():  # the clients' own call warns
            return self.rule(known.models, inbox, **inputs)

    def has_weights(self, out: Aggregated) -> Tensor:
        """(a,) whether the victim's rule has weights; for one ray, whether any rule has."""
        if out.weights is None:
            return torch.zeros(len(self.start), dtype=torch.bool, device=self.start.device)
        weighted = _rows_with_weights(out.weights[self.known.victims])
        return weighted if len(self.start) == len(weighted) else weighted.any()[None]

    def accepted(self, out: Aggregated) -> Tensor:
        """(a,) whether the victim accepts the lie; for one ray, whether all victims do.

        A victim accepts all lies, or, if it selects a single message, one of them. A rule without
        weights accepts a part of every message.
        """
        known = self.known
        topology = known.topology.to(known.models.device)
        assert out.weights is not None  # largest_strength queries only rules with weights
        weights = out.weights[known.victims]
        used = (weights > 0) | ~_rows_with_weights(weights)[:, None]
        malicious = topology.mask & known.malicious_mask[topology.senders.clamp_min(0)]
        malicious = malicious[known.victims]
        all_lies = (used | ~malicious).all(1)  # benign messages do not matter
        selected_lie = (used.sum(1) == 1) & (used & malicious).any(1)
        accepted = all_lies | selected_lie
        return accepted if len(self.start) == len(accepted) else accepted.all()[None]

    def damage(self, out: Aggregated) -> Tensor:
        """(a,) distance of the aggregate from the start of the ray; for one ray, the largest."""
        starts = self.start.expand(len(self.known.victims), -1)
        distance = kernels.norms(out.model[self.known.victims] - starts)
        return distance if len(self.start) == len(distance) else distance.amax()[None]

    def unit(self) -> Tensor:
        """(a,) strength at which a lie has moved by the length of its start; 0 for no direction."""
        length = kernels.norms(self.direction)
        return (kernels.norms(self.start) / length).where(length > 0, 0.0)

    def closest(self) -> Tensor:
        """(a,) strength that brings the lie closest to the victim's own model.

        For one ray, closest to the victims' mean. A rule that accepts messages near the own model
        accepts this lie, or none on the ray.
        """
        own = self.known.models[self.known.victims].to(self.start.dtype)
        own = own if len(own) == len(self.start) else own.mean(0, keepdim=True)
        # The minimum of |start - gamma * direction - own|^2, where its derivative is 0.
        along = ((self.start - own) * self.direction).sum(1, dtype=torch.float64)
        square = kernels.norms(self.direction).square()
        return (along / square).where(square > 0, 0.0).clamp_min(0)  # never against the direction


def require_single_exchange(rule: object) -> Aggregator:
    """Return the rule; raise a ValueError if it is not a rule of one exchange per round."""
    if isinstance(rule, type) or not isinstance(rule, Aggregator):
        named = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
        found = "None" if rule is None else named
        raise ValueError(
            "rule must be a rule with one exchange per round, given to the attack or to Knowledge, "
            f"found {found}; for LEARN give TrimmedMean, its last step"
        )
    return rule


def _rows_with_weights(weights: Tensor) -> Tensor:
    """(v,) whether the client's rule has weights (v, k).

    In a batch where other clients' rules have weights, those of a rule without weights are NaN.
    """
    return ~weights.isnan().all(1)
