"""Rules for groups of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch import nn

import equipoise as eq
from equipoise.testing import RuleRound, rounds
from tests.cases import RULES

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

# Whole models, as UBAR's losses are of, are no groups.
GROUPED = {name: rule for name, rule in RULES.items() if not isinstance(rule, eq.UBAR)}


def halves(d: int) -> eq.parameters.Groups:
    """The elements at even and odd places, as two groups, or as one for d = 1."""
    model = nn.ParameterDict({f"p{i:04}": nn.Parameter(torch.zeros(1)) for i in range(d)})
    if d == 1:
        return eq.groups(model, {"even": "*"})
    odd = [name for name in model if int(name[1:]) % 2]
    return eq.groups(model, {"odd": odd}, rest="even")


@pytest.mark.parametrize("name", GROUPED)
@given(case=rounds())
def test_one_group_is_the_rule(name: str, case: RuleRound) -> None:
    model = nn.ParameterDict({"all": nn.Parameter(torch.zeros(case.own.shape[1]))})
    rule = GROUPED[name]
    found = eq.PerGroup(eq.groups(model), rule)(case.own, case.inbox, **case.inputs)
    assert torch.equal(found.model, rule(case.own, case.inbox, **case.inputs).model)


@given(case=rounds())
def test_groups_are_independent(case: RuleRound) -> None:
    groups = halves(case.own.shape[1])
    rule = eq.PerGroup(groups, eq.Balance())
    found = rule(case.own, case.inbox, **case.inputs).model
    for name in groups:
        index = groups[name]
        bank = case.inbox.bank[:, index]
        inbox = eq.Inbox(bank, case.inbox.slots, case.inbox.present, case.inbox.senders)
        alone = eq.Balance()(case.own[:, index], inbox, **case.inputs).model
        assert torch.equal(found[:, index], alone)


def body_and_head() -> eq.parameters.Groups:
    return eq.groups(nn.ModuleDict({"body": nn.Linear(3, 1), "head": nn.Linear(1, 1)}))


class TestPerGroup:
    def test_each_group_has_its_rule(self) -> None:
        groups = eq.groups(nn.Linear(2, 1))
        rule = eq.PerGroup(groups, {"weight": eq.Median(), "bias": eq.FedAvg()})
        received = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [9.0, 9.0, 9.0]])
        assert rule(torch.zeros(3), received).model.tolist() == [2.0, 2.0, 4.0]

    def test_none_keeps_own(self) -> None:
        groups = eq.groups(nn.Linear(2, 1))
        rule = eq.PerGroup(groups, {"weight": None, "bias": eq.FedAvg()})
        assert rule(torch.zeros(3), torch.ones(2, 3)).model.tolist() == [0.0, 0.0, 1.0]

    def test_a_lie_does_not_hide_behind_another_group(self) -> None:
        groups = eq.groups(nn.Linear(100, 1))
        own = torch.ones(101)
        lie = own.clone()
        lie[100] = 3.0  # 0.2 of the norm of the whole model, and twice the bias
        assert eq.Balance(kappa=0)(own, lie[None]).weights.tolist() == [1.0]
        rule = eq.PerGroup(groups, eq.Balance(kappa=0))
        assert torch.equal(rule(own, lie[None]).model, own)

    def test_nan_in_one_group_makes_a_message_absent(self) -> None:
        groups = eq.groups(nn.Linear(1, 1))
        received = torch.tensor([[1.0, torch.nan], [3.0, 3.0]])
        rule = eq.PerGroup(groups, eq.FedAvg())
        assert rule(torch.zeros(2), received).model.tolist() == [3.0, 3.0]

    def test_results_of_groups_have_weights(self) -> None:
        groups = eq.groups(nn.Linear(1, 1))
        rule = eq.PerGroup(groups, {"weight": eq.Balance(kappa=0), "bias": None})
        results = rule.of_groups(torch.ones(2), torch.tensor([[1.0, 9.0], [9.0, 1.0]]))
        assert list(results) == ["weight"]
        assert results["weight"].weights.tolist() == [1.0, 0.0]  # type: ignore[union-attr]

    def test_updates_are_split(self) -> None:
        seen = []

        def rule(own: torch.Tensor, received: eq.Inbox, **inputs: Any) -> eq.Aggregated:
            seen.append(inputs["update"].tolist())
            return eq.Aggregated(own)

        eq.PerGroup(eq.groups(nn.Linear(2, 1)), rule)(
            torch.zeros(3), torch.zeros(1, 3), update=torch.tensor([1.0, 2.0, 3.0])
        )
        assert seen == [[[1.0, 2.0]], [[3.0]]]

    def test_states_are_kept_apart(self) -> None:
        def counting(own: torch.Tensor, received: eq.Inbox, **inputs: Any) -> eq.Aggregated:
            before = inputs.get("state") or {"sum": torch.zeros_like(own)}
            return eq.Aggregated(own, state={"sum": before["sum"] + own})

        rule = eq.PerGroup(eq.groups(nn.Linear(2, 1)), counting)
        own = torch.tensor([1.0, 2.0, 3.0])
        state = rule(own, torch.zeros(1, 3)).state
        state = rule(own, torch.zeros(1, 3), state=state).state
        assert state["weight/sum"].tolist() == [[2.0, 4.0]]
        assert state["bias/sum"].tolist() == [[6.0]]

    def test_out_is_filled(self) -> None:
        rule = eq.PerGroup(body_and_head(), eq.FedAvg())
        out = torch.empty(6)
        assert rule(torch.zeros(6), torch.ones(2, 6), out=out).model.data_ptr() == out.data_ptr()
        assert torch.equal(out, torch.ones(6))

    def test_works_per_client(self) -> None:
        rule = eq.PerClient([eq.PerGroup(body_and_head(), eq.Median()), eq.FedAvg()])
        inbox = eq.Inbox(torch.ones(2, 6), torch.tensor([[1], [0]]))
        assert torch.equal(rule(torch.zeros(2, 6), inbox).model, torch.ones(2, 6))

    def test_needs_are_those_of_all_rules(self) -> None:
        groups = eq.groups(nn.Linear(2, 1))
        rule = eq.PerGroup(groups, {"weight": eq.Balance(), "bias": eq.Krum(tolerated=1)})
        assert rule.needs == ("t", "total", "tolerated")

    def test_other_vector_is_an_error(self) -> None:
        rule = eq.PerGroup(body_and_head(), eq.FedAvg())
        with pytest.raises(ValueError, match="own must have the d=6 of groups, found d=5"):
            rule(torch.zeros(5), torch.ones(2, 5))

    @pytest.mark.parametrize(
        ("rules", "message"),
        [
            ({"weight": eq.FedAvg()}, "one rule for each of weight, bias, found weight"),
            (eq.Balance, "found the class Balance for group 'weight'"),
            (eq.LEARN(), "found LEARN for group 'weight'"),
            (eq.UBAR(), "must not need loss_of"),
        ],
    )
    def test_wrong_rules(self, rules: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            eq.PerGroup(eq.groups(nn.Linear(2, 1)), rules)

    def test_groups_must_be_groups(self) -> None:
        with pytest.raises(
            ValueError, match=r"groups must be made by equipoise\.groups, found dict"
        ):
            eq.PerGroup({"a": slice(0, 1)}, eq.FedAvg())  # type: ignore[arg-type]


class TestZeroGroups:
    """LoRA's B is zero at first: BALANCE alone accepts nobody there."""

    def models(self) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        model = nn.ParameterDict(
            {"lora_A": nn.Parameter(torch.ones(4)), "lora_B": nn.Parameter(torch.zeros(4))}
        )
        own = eq.flatten(model)
        trained = own.clone()
        trained[4:] = 0.1  # a neighbor whose B has been trained
        return model, own, trained[None]

    def test_a_group_of_zeros_accepts_nobody(self) -> None:
        model, own, received = self.models()
        rule = eq.PerGroup(eq.groups(model), eq.Balance())
        found = rule.of_groups(own, received, t=0, total=10)
        assert found["lora_A"].weights.tolist() == [1.0]  # type: ignore[union-attr]
        assert found["lora_B"].weights.tolist() == [0.0]  # type: ignore[union-attr]

    def test_a_joint_group_accepts_its_neighbors(self) -> None:
        model, own, received = self.models()
        groups = eq.groups(model, {"adapter": ["lora_A", "lora_B"]})
        rule = eq.PerGroup(groups, eq.Balance())
        assert torch.equal(rule(own, received, t=0, total=10).model, received[0])

    def test_a_joint_group_bounds_lies(self) -> None:
        model, own, received = self.models()
        lie = received + 1.0
        rule = eq.PerGroup(eq.groups(model, {"adapter": ["lora_*"]}), eq.Balance())
        assert torch.equal(rule(own, lie, t=0, total=10).model, own)
