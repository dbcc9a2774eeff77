"""Tensors that change in place between calls, and results written to memory near the inputs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.cases import RULES

N = 6
D = 500
GRAPH = eq.Topology.complete(N)

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


def inputs(models: Tensor) -> dict[str, Any]:
    return {
        "t": 1,
        "total": 10,
        "tolerated": 1,
        "samples": torch.arange(1, N + 1),
        "loss_of": lambda candidates, clients: candidates.square().sum(1),
        "generator": torch.Generator().manual_seed(0),
    }


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def nan_row(bank: Tensor) -> None:
    bank[2] = torch.nan


def other_models(bank: Tensor) -> None:
    bank.copy_(randn(*bank.shape, seed=1) * torch.arange(1, len(bank) + 1)[:, None])


def through_a_view(bank: Tensor) -> None:
    bank.view(-1)[:D] *= 1000


@pytest.mark.parametrize("change", [nan_row, other_models, through_a_view])
@every_rule
def test_changed_messages(rule: Any, change: Callable[[Tensor], None]) -> None:
    own = randn(N, D, seed=2)
    models = randn(N, D)
    inbox = GRAPH.deliver(models)
    rule(own, inbox, **inputs(models))
    change(models)
    found = rule(own, inbox, **inputs(models))
    expected = rule(own, GRAPH.deliver(models.clone()), **inputs(models))
    assert torch.equal(found.model, expected.model)
    assert found.model.isfinite().all()
    if expected.weights is not None:
        assert torch.equal(found.weights, expected.weights)


def test_balance_bound_after_change() -> None:
    own = randn(N, 20_000)
    models = own.clone()
    inbox = GRAPH.deliver(models)
    rule = eq.Balance(gamma=0.3, kappa=0)
    rule(own, inbox, t=0, total=1)
    models.mul_(1000)
    moved = rule(own, inbox, t=0, total=1).model - own
    assert (moved.norm(dim=1) <= 0.3 * own.norm(dim=1)).all()


@every_rule
def test_changed_slots_and_mask(rule: Any) -> None:
    own = randn(N, D, seed=2)
    slots = GRAPH.senders.clone()
    mask = torch.ones_like(slots, dtype=torch.bool)
    inbox = eq.Inbox(randn(N, D), slots, mask, GRAPH.senders)
    rule(own, inbox, **inputs(own))
    slots[0, 0] = 0
    mask[1] = False
    found = rule(own, inbox, **inputs(own))
    expected = rule(
        own, eq.Inbox(inbox.bank, slots.clone(), mask.clone(), GRAPH.senders), **inputs(own)
    )
    assert torch.equal(found.model, expected.model)
    assert torch.equal(found.model[1], own[1])


def test_slots_become_invalid() -> None:
    slots = GRAPH.senders.clone()
    inbox = eq.Inbox(randn(N, D), slots, senders=GRAPH.senders)
    slots[0, 0] = N
    with pytest.raises(ValueError, match="slots must be rows of the bank, 0 to 5, found 0 to 6"):
        eq.FedAvg()(randn(N, D), inbox)


def test_unchanged_is_cached() -> None:
    inbox = GRAPH.deliver(randn(N, D))
    assert inbox.bank_norms is inbox.bank_norms
    assert inbox.present is inbox.present
    assert inbox.of(2).bank_norms is inbox.bank_norms


def test_modified_results() -> None:
    inbox = GRAPH.deliver(randn(N, D))
    before = inbox.bank_norms.clone()
    inbox.bank_norms.zero_()
    assert torch.equal(inbox.bank_norms, before)


@every_rule
def test_inference_tensors(rule: Any) -> None:
    with torch.inference_mode():
        models = randn(N, D)
        inbox = GRAPH.deliver(models)
        own = randn(N, D, seed=2)
        rule(own, inbox, **inputs(own))
        other_models(models)
        found = rule(own, inbox, **inputs(own))
        expected = rule(own, GRAPH.deliver(models.clone()), **inputs(own))
    assert torch.equal(found.model, expected.model)


def test_out_counts_as_changed() -> None:
    out = randn(N, D)
    inbox = GRAPH.deliver(out)
    norms = inbox.bank_norms.clone()
    eq.FedAvg()(torch.zeros(N, D), GRAPH.deliver(torch.ones(N, D)), out=out)
    assert not torch.equal(inbox.bank_norms, norms)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(copied: Callable[[eq.Inbox], eq.Inbox]) -> None:
    inbox = GRAPH.deliver(randn(N, D))
    norms = inbox.bank_norms.clone()
    other = copied(inbox)
    other.bank.mul_(2)
    assert torch.equal(other.bank_norms, 2 * norms)
    assert torch.equal(inbox.bank_norms, norms)


# out


def arena(shift: int) -> tuple[Tensor, Tensor]:
    """Two vectors of ten numbers in one numpy array, ``shift`` numbers apart."""
    numbers = np.zeros(40, dtype=np.float32)
    return torch.from_numpy(numbers[:10]), torch.from_numpy(numbers[shift : shift + 10])


@pytest.mark.parametrize("shift", [0, 1, 5, 9])
def test_out_overlaps_own(shift: int) -> None:
    own, out = arena(shift)
    own.fill_(1)
    before = own.clone()
    with pytest.raises(ValueError, match="out must not share memory"):
        eq.Median()(own, torch.full((3, 10), 5.0), out=out)
    assert torch.equal(own, before)


@pytest.mark.parametrize("shift", [10, 11, 30])
def test_out_in_same_storage(shift: int) -> None:
    own, out = arena(shift)
    own.fill_(1)
    eq.Median()(own, torch.full((3, 10), 5.0), out=out)
    assert torch.equal(own, torch.ones(10))
    assert torch.equal(out, torch.full((10,), 5.0))


def test_out_overlaps_message() -> None:
    bank = np.zeros((5, 10), dtype=np.float32)
    received = torch.from_numpy(bank[:4])
    with pytest.raises(ValueError, match="out must not share memory"):
        eq.FedAvg()(torch.ones(10), received, out=torch.from_numpy(bank.reshape(-1)[39:49]))
    eq.FedAvg()(torch.ones(10), received, out=torch.from_numpy(bank[4]))


def test_out_is_update() -> None:
    update = randn(N, D)
    with pytest.raises(ValueError, match="or a round input"):
        next(eq.LEARN().exchanges(randn(N, D), t=1, update=update, out=update))
