"""Another rule for each group of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise._utils.formatting import call
from equipoise._utils.validation import check_inputs, describe
from equipoise.messages import Inbox
from equipoise.parameters import Groups
from equipoise.rules.aggregator import Aggregator
from equipoise.rules.base import Rule, as_batch, needs_of
from equipoise.topology import NotChecked
from equipoise.types import Aggregated, RoundInputs


@dataclass(frozen=True)
class PerGroup(Rule):
    """Each group of parameters is aggregated with a rule of its own.

    Distances, norms and acceptance then concern one group: a lie about the head does not hide
    behind the norm of the backbone. A message with a NaN or an infinity in any group is absent from
    all.

    ``weights`` is None, because a message may have another weight in each group; `of_groups`
    returns the results of all groups. A group of several pieces is copied for its rule, which takes
    as much memory as its part of the messages.

    A rule that compares with the norm of own, such as `Balance`, rejects every change of a group
    that is zero. LoRA starts with B = 0: make A and B one group, ``{"adapter": ["*.lora_A.*",
    "*.lora_B.*"]}``, whose norm is that of A at first.

    Args:
        groups: the groups, made by `equipoise.groups`.
        rules: the rule of each group by name, or one rule that each group is aggregated with. None
            keeps the values of own, as for statistics of normalization layers.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    >>> groups = eq.groups(model, {"norm": torch.nn.BatchNorm1d}, rest="body", buffers=True)
    >>> rule = eq.PerGroup(groups, {"norm": None, "body": eq.Median()})
    >>> rule(torch.zeros(7), torch.ones(3, 7)).model
    tensor([1., 1., 1., 0., 0., 0., 0.])
    """

    guarantee: ClassVar[NotChecked] = NotChecked("judge the rules of the groups one by one")

    groups: Groups
    rules: tuple[Aggregator | None, ...]

    def __init__(self, groups: Groups, rules: Aggregator | Mapping[str, Aggregator | None]) -> None:
        if not isinstance(groups, Groups):
            expected = "made by equipoise.groups"
            raise ValueError(f"groups must be {expected}, found {describe(groups)}")
        by_name = rules if isinstance(rules, Mapping) else dict.fromkeys(groups, rules)
        if set(by_name) != set(groups):
            expected = f"one rule for each of {', '.join(groups)}"
            raise ValueError(f"rules must be {expected}, found {', '.join(by_name)}")
        for name, rule in by_name.items():
            _check_rule(name, rule)
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "rules", tuple(by_name[name] for name in groups))
        if (
            len({getattr(rule, "contains_own", False) for rule in self.rules if rule is not None})
            > 1
        ):
            raise ValueError(
                "rules must all contain own, or none of them, because all groups are mixed with "
                "the same alpha"
            )

    def __repr__(self) -> str:
        rules = dict(zip(self.groups, self.rules, strict=True))
        return call("PerGroup", groups=self.groups, rules=rules)

    @property
    def _given_rules(self) -> list[Aggregator]:
        return [rule for rule in self.rules if rule is not None]

    @property
    def needs(self) -> tuple[str, ...] | None:
        """The round inputs that any of the rules reads; None if one rule declares nothing."""
        return needs_of(self._given_rules)

    @property
    def contains_own(self) -> bool:
        """Whether the aggregates of the rules contain own."""
        return any(getattr(rule, "contains_own", False) for rule in self._given_rules)

    def aggregate(
        self,
        own: Tensor,
        inbox: Inbox,
        *,
        out: Tensor | None = None,
        state: dict[str, Tensor] | None = None,
        **inputs: Any,
    ) -> Aggregated:
        """Aggregate the groups, one after the other."""
        model = own.clone() if out is None else out.copy_(own)
        states: dict[str, Tensor] = {}
        for name, result in self._results(own, inbox, state, inputs):
            model[:, self.groups[name]] = result.model
            states |= {f"{name}/{key}": value for key, value in (result.state or {}).items()}
        return Aggregated(model, None, states or None)

    @torch.no_grad()
    def of_groups(
        self, own: Tensor, received: Tensor | Inbox, **inputs: Unpack[RoundInputs]
    ) -> dict[str, Aggregated]:
        """The results of all groups that have a rule, with the weights of the messages in each.

        >>> groups = eq.groups(torch.nn.Linear(1, 1))
        >>> rule = eq.PerGroup(groups, eq.Balance(gamma=0.5, kappa=0))
        >>> results = rule.of_groups(torch.ones(2), torch.tensor([[1.0, 9.0]]))
        >>> results["weight"].weights, results["bias"].weights
        (tensor([1.]), tensor([0.]))
        """
        check_inputs(type(self).__name__, inputs)
        _, inbox = as_batch(own, received)
        given = {name: value for name, value in inputs.items() if name not in ("out", "state")}
        return dict(self._results(own, inbox, inputs.get("state"), given))

    def _results(
        self,
        own: Tensor,
        inbox: Inbox,
        state: dict[str, Tensor] | None,
        inputs: Mapping[str, Any],
    ) -> Iterator[tuple[str, Aggregated]]:
        """The result of each group that has a rule."""
        if own.shape[-1] != self.groups.d:
            expected = f"the d={self.groups.d} of groups"
            raise ValueError(f"own must have {expected}, found d={own.shape[-1]}")
        for name, rule in zip(self.groups, self.rules, strict=True):
            if rule is None:
                continue
            index = self.groups[name]
            # A message that is not finite in another group is absent here, too.
            part = replace(inbox, bank=inbox.bank[:, index], mask=inbox.present)
            given = dict(inputs)
            if isinstance(given.get("update"), Tensor):
                given["update"] = given["update"][..., index]
            if state is not None:
                start = f"{name}/"
                given["state"] = {
                    key.removeprefix(start): value
                    for key, value in state.items()
                    if key.startswith(start)
                } or None
            yield name, rule(own[..., index], part, **given)

    def _check_given(self, inputs: Mapping[str, Any]) -> None:
        """Each rule checks its own inputs, and is named by the error."""


def _check_rule(name: str, rule: object) -> None:
    if rule is None:
        return
    if isinstance(rule, type) or not callable(rule):
        found = f"the class {rule.__name__}" if isinstance(rule, type) else type(rule).__name__
        expected = "rules with one exchange a round, or None"
        raise ValueError(f"rules must be {expected}, found {found} for group {name!r}")
    if "loss_of" in (getattr(rule, "needs", None) or ()):
        raise ValueError(
            f"rules must not need loss_of, which concerns whole models, found {rule!r} for group "
            f"{name!r}"
        )
