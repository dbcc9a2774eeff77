"""Tensors with unusual layouts, and own models that are zero, tiny, huge or non-finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.rules import WeightedRule, uniform
from equipoise.testing._laws import with_bank
from tests.graphs import deliver, models_of, regular, round_inputs
from tests.hostile import HONEST, INPUTS, OWN, D, assert_agrees, every_rule, loss_of, reference
from tests.rule_specific_laws import scale

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


def strided(x: Tensor) -> Tensor:
    """The same numbers, every second in memory and in another order of dimensions."""
    wide = torch.full((*x.shape, 2), torch.nan)
    wide[..., 0] = x
    return wide[..., 0]


@every_rule
@pytest.mark.parametrize(
    "layout", [strided, lambda x: x.t().contiguous().t() if x.dim() == 2 else x.flip(0).flip(0)]
)
def test_layout(rule: Any, layout: Any) -> None:
    out = rule(layout(OWN), layout(HONEST), **INPUTS)
    expected = rule(OWN, HONEST, **INPUTS)
    torch.testing.assert_close(out.model, expected.model)
    assert out.model.is_contiguous()
    if expected.weights is not None:
        torch.testing.assert_close(out.weights, expected.weights)


@every_rule
def test_layout_in_batch(rule: Any) -> None:
    graph = regular(6, 3)
    own = models_of(graph, D, torch.float32)
    inbox = deliver(graph, own)
    inputs = round_inputs(graph, own)
    expected = rule(own, inbox, **inputs)
    out = rule(strided(own), with_bank(inbox, own.t().contiguous().t()), **inputs)
    torch.testing.assert_close(out.model, expected.model)


@every_rule
def test_received_may_alias_own(rule: Any) -> None:
    """Own is a row of what was received, in the same memory."""
    stack = torch.cat([OWN[None], HONEST])
    before = stack.clone()
    out = rule(stack[0], stack, **INPUTS)
    assert torch.equal(stack, before)
    assert_agrees(out, reference(rule, OWN.clone(), before))
    out.model.fill_(7.0)
    assert torch.equal(stack, before)


@every_rule
def test_result_is_no_alias(rule: Any) -> None:
    """Writing to the aggregate never writes to a message or to own."""
    for received in (HONEST[:1].clone(), HONEST[:0]):
        own = OWN.clone()
        before = received.clone()
        rule(own, received, **INPUTS).model.fill_(7.0)
        assert torch.equal(received, before)
        assert torch.equal(own, OWN)


@every_rule
def test_autograd_is_off(rule: Any) -> None:
    own = OWN.clone().requires_grad_()
    received = HONEST.clone().requires_grad_()
    out = rule(own, received, **INPUTS)
    assert not out.model.requires_grad
    assert out.weights is None or not out.weights.requires_grad
    assert own.grad is None
    assert received.grad is None
    assert torch.is_grad_enabled()
    assert_agrees(out, reference(rule, OWN, HONEST))


@every_rule
def test_expanded_own(rule: Any) -> None:
    """All clients may share one model in memory."""
    graph = regular(6, 3)
    models = models_of(graph, D, torch.float32)
    own = OWN.expand(6, D)
    inbox = deliver(graph, models)
    inputs = round_inputs(graph, models)
    torch.testing.assert_close(
        rule(own, inbox, **inputs).model, rule(own.clone(), inbox, **inputs).model
    )


@every_rule
def test_zero_own(rule: Any) -> None:
    own = torch.zeros(D)
    received = torch.cat([HONEST, torch.zeros(1, D)])
    assert_agrees(rule(own, received, **INPUTS), reference(rule, own, received))


SCALES = [(torch.float32, exponent) for exponent in (-120, -100, 90, 120)] + [
    (torch.float64, exponent) for exponent in (-1000, -700, 700, 1000)
]


@every_rule
@pytest.mark.parametrize(("dtype", "exponent"), SCALES)
def test_tiny_and_huge_own(rule: Any, dtype: torch.dtype, exponent: int) -> None:
    """Squares under- and overflow; nothing else may change."""
    own = OWN[None].to(dtype)
    inbox = eq.Inbox(HONEST.to(dtype), torch.arange(4)[None])
    indifferent = {"loss_of": lambda models, clients: torch.zeros(len(models))}
    scale(rule, own, inbox, 2.0**exponent, **INPUTS | indifferent)


@every_rule
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_own_must_be_finite(rule: Any, value: float) -> None:
    own = OWN.clone()
    own[2] = value
    with pytest.raises(ValueError, match="own"):
        rule(own, HONEST, **INPUTS)


@every_rule
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nonfinite_client_is_isolated(rule: Any, value: float) -> None:
    """In a batch, an own model that is not finite is that client's trouble."""
    graph = regular(10, 4)
    own = models_of(graph, 17, torch.float32)
    inbox = deliver(graph, own)
    inputs = round_inputs(graph, own)
    broken = own.clone()
    broken[3, 5] = value
    out = rule(broken, inbox, **inputs)
    expected = rule(own, inbox, **inputs)
    others = torch.arange(10) != 3
    torch.testing.assert_close(out.model[others], expected.model[others])
    if expected.weights is not None:
        torch.testing.assert_close(out.weights[others], expected.weights[others])


@every_rule
def test_nonfinite_client_is_absent(rule: Any) -> None:
    """The neighbors of a client whose model is not finite receive no message from it."""
    graph = regular(10, 4)
    own = models_of(graph, 17, torch.float32)
    own[3, 5] = torch.nan
    inbox = deliver(graph, own)
    inputs = round_inputs(graph, own.nan_to_num(0.0))
    shared = eq.Inbox(own, inbox.slots.where(inbox.mask, 0), inbox.mask, inbox.senders)
    spoken = eq.Inbox(own, shared.slots, inbox.mask & (inbox.senders != 3), inbox.senders)
    out = rule(own, shared, **inputs)
    expected = rule(own.nan_to_num(0.0), spoken, **inputs)
    others = torch.arange(10) != 3
    assert out.model[others].isfinite().all()
    torch.testing.assert_close(out.model[others], expected.model[others])


@every_rule
def test_empty_bank(rule: Any) -> None:
    mask = torch.zeros(1, 2, dtype=torch.bool)
    inbox = eq.Inbox(torch.zeros(0, D), torch.zeros(1, 2, dtype=torch.int64), mask)
    inputs: Any = {"t": 0, "total": 3, "tolerated": 1, "loss_of": loss_of, "samples": torch.ones(1)}
    assert torch.equal(rule(OWN, inbox, **inputs).model, OWN)


@every_rule
def test_transposed_out(rule: Any) -> None:
    graph = regular(6, 3)
    models = models_of(graph, D, torch.float32, 0)
    inputs: Any = round_inputs(graph, models)
    expected = rule(models, deliver(graph, models), **inputs).model
    out = torch.empty(D, graph.n).T
    rule(models, deliver(graph, models), out=out, **inputs)
    torch.testing.assert_close(out, expected)


def test_negated_view() -> None:
    received = torch.tensor([[1 + 1j], [1 + 2j]]).conj().imag
    assert received.is_neg()
    assert eq.FedAvg()(torch.zeros(1), received).model.tolist() == [-1.5]


def test_negative_view() -> None:
    z = torch.complex(torch.zeros(6, 9000), 1 + 0.01 * torch.randn(6, 9000))
    own = z.imag
    negated = z.conj().imag
    graph = eq.Topology.complete(6)
    out = eq.Balance(gamma=0.5, kappa=0.0)(own, eq.Inbox(negated, graph.senders))
    assert not out.weights.any()
    assert torch.equal(out.model, own)


def test_autocast_is_off() -> None:
    """Under autocast, products of models in bfloat16 would have relative errors of 1 / 500."""
    seen: list[bool] = []

    class Asking(WeightedRule):
        def weigh(self, own: Tensor, inbox: eq.Inbox, **_: Any) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return uniform(inbox.present)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        Asking()(OWN, HONEST)
        assert torch.is_autocast_enabled("cpu")
    assert seen == [False]
