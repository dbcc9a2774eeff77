"""Hostile messages: huge, tiny, malformed or non-finite."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise._utils.rng import stream
from equipoise.kernels.native import _library as library
from tests.cases import RULES
from tests.hostile import (
    ABSENT,
    FINITE,
    HONEST,
    INPUTS,
    OWN,
    D,
    assert_agrees,
    every_rule,
    reference,
)

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


@every_rule
@pytest.mark.parametrize("position", [0, 4])
@pytest.mark.parametrize("message", FINITE.values(), ids=FINITE)
def test_finite_message(rule: Any, message: Tensor, position: int) -> None:
    received = torch.cat([HONEST[:position], message[None], HONEST[position:]])
    assert_agrees(rule(OWN, received, **INPUTS), reference(rule, OWN, received))


@every_rule
@pytest.mark.parametrize("message", FINITE.values(), ids=FINITE)
def test_single_finite_message(rule: Any, message: Tensor) -> None:
    received = message.expand(3, D)
    assert_agrees(rule(OWN, received, **INPUTS), reference(rule, OWN, received))


@every_rule
@pytest.mark.parametrize("position", [0, 4])
@pytest.mark.parametrize("message", ABSENT.values(), ids=ABSENT)
def test_nonfinite_is_absent(rule: Any, message: Tensor, position: int) -> None:
    received = torch.cat([HONEST[:position], message[None], HONEST[position:]])
    inputs = INPUTS | {"samples": torch.ones(5)}
    out = rule(OWN, received, **inputs)
    without = rule(OWN, HONEST, **inputs)
    torch.testing.assert_close(out.model, without.model)
    if without.weights is not None:
        assert out.weights[position] == 0
        torch.testing.assert_close(
            torch.cat([out.weights[:position], out.weights[position + 1 :]]), without.weights
        )


@every_rule
def test_only_nonfinite(rule: Any) -> None:
    received = torch.stack([*ABSENT.values()])
    out = rule(OWN, received, **INPUTS)
    assert torch.equal(out.model, OWN)
    assert out.weights is None or not out.weights.any()


REJECTING = {
    name: RULES[name]
    for name in RULES
    if isinstance(RULES[name], eq.Balance | eq.BalanceMedian | eq.Krum | eq.UBAR)
}


@pytest.mark.parametrize("rule", REJECTING.values(), ids=REJECTING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e30, 3e38, -3e38])
@pytest.mark.parametrize("d", [1, 5000])
def test_huge_is_rejected(rule: Any, dtype: torch.dtype, size: float, d: int) -> None:
    """No overflow decides: a message at 3e38 is far, not at infinity and not at NaN."""
    own = torch.ones(d, dtype=dtype)
    received = torch.stack(
        [torch.full_like(own, value) for value in (size, 1.05, 1.06, 1.07, 1.08)]
    )
    out = rule(
        own, received, **INPUTS | {"loss_of": lambda models: (models[:, 0].double() - 1.1).abs()}
    )
    assert out.weights[0] == 0
    assert out.weights.sum() == pytest.approx(1)
    assert 1.05 - 1e-5 <= out.model.min() <= out.model.max() <= 1.08 + 1e-5


@every_rule
def test_largest_float64(rule: Any) -> None:
    """Squares overflow float64; the aggregate is not NaN, and rules that reject reject them."""
    own = OWN.double()
    honest = HONEST.double()
    received = torch.cat([torch.full((1, D), 1e300, dtype=torch.float64), honest])
    out = rule(own, received, **INPUTS)
    assert out.model.isfinite().all()
    if isinstance(rule, eq.Balance | eq.BalanceMedian | eq.Krum | eq.UBAR):
        assert out.weights[0] == 0
        received[0] = 1e100  # as far as the reference can go
        torch.testing.assert_close(
            out.model, torch.from_numpy(reference(rule, own, received).model)
        )


def test_keep_nonfinite() -> None:
    received = torch.stack([OWN, ABSENT["one nan"]])
    slots = torch.tensor([[0, 1]])
    assert eq.FedAvg()(
        OWN, eq.Inbox(received, slots, keep_nonfinite=True)
    ).model.isnan().tolist() == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert torch.equal(eq.FedAvg()(OWN, eq.Inbox(received, slots)).model, OWN)


WIRE = [
    HONEST[0],
    "gossip",
    None,
    HONEST[1].double(),
    OWN[:3],
    torch.arange(D),
    torch.zeros(D, dtype=torch.bool),
    torch.zeros(D, dtype=torch.complex64),
    torch.empty(D, device="meta"),
    HONEST[2].reshape(2, 3),
    HONEST[3].clone().requires_grad_(),
    torch.tensor(1.0),
    torch.zeros(0),
    HONEST[0].tolist(),
    torch.eye(D).to_sparse()[0],
    np.zeros(D, dtype=np.int32),
    b"too short",
]


@every_rule
def test_collected_messages(rule: Any) -> None:
    """What is not a model of the right size is absent; the others count as they are."""
    inbox = eq.Inbox.collect(WIRE, like=OWN)
    good = [0, 3, 9, 10]
    assert inbox.mask[0].nonzero().flatten().tolist() == good
    inputs = INPUTS | {"samples": torch.ones(len(WIRE))}
    out = rule(OWN, inbox, **inputs)
    expected = rule(OWN, HONEST, **inputs)
    torch.testing.assert_close(out.model, expected.model)
    if expected.weights is not None:
        torch.testing.assert_close(out.weights[good], expected.weights)
        assert out.weights.sum() == pytest.approx(expected.weights.sum())


@every_rule
def test_no_collected_message(rule: Any) -> None:
    out = rule(OWN, eq.Inbox.collect([], like=OWN), **INPUTS)
    assert torch.equal(out.model, OWN)
    assert out.weights is None or out.weights.shape == (0,)


@every_rule
def test_only_malformed(rule: Any) -> None:
    inbox = eq.Inbox.collect([b"x", None, OWN[:1]], like=OWN)
    assert inbox.bank.shape == (0, D)
    out = rule(OWN, inbox, **INPUTS)
    assert torch.equal(out.model, OWN)
    assert out.weights is None or out.weights.tolist() == [0, 0, 0]


def test_too_large_for_dtype() -> None:
    """1e300 is finite in float64 and infinite in float32."""
    inbox = eq.Inbox.collect([HONEST[0], torch.full((D,), 1e300, dtype=torch.float64)], like=OWN)
    out = eq.FedAvg()(OWN, inbox)
    assert torch.equal(out.model, HONEST[0])
    assert out.weights.tolist() == [1, 0]


def test_ties_by_sender() -> None:
    inbox = eq.Inbox.collect([HONEST[0], HONEST[1]], like=OWN, senders=[9, 4])
    assert torch.equal(eq.Krum(tolerated=0)(OWN, inbox).model, HONEST[1])


@every_rule
def test_masked_slots_ignored(rule: Any) -> None:
    """Where the mask is False, slots may be no rows at all."""
    slots = torch.tensor([[99, 0, 1, -7, 2, 3]])
    mask = (slots >= 0) & (slots < 4)
    inbox = eq.Inbox(HONEST, slots, mask, torch.tensor([[-1, 0, 1, -1, 2, 3]]))
    out = rule(OWN, inbox, **INPUTS)
    expected = rule(OWN, HONEST, **INPUTS)
    torch.testing.assert_close(out.model, expected.model)
    if expected.weights is not None:
        torch.testing.assert_close(out.weights[mask[0]], expected.weights)
        assert not out.weights[~mask[0]].any()


def test_clip_to_nonfinite_own() -> None:
    models = torch.stack([torch.full((D,), torch.nan), *HONEST[:2]])
    out = eq.SCClip(mode="norm")(models, eq.Topology.complete(3).deliver(HONEST[:3]))
    assert out.model[0].isnan().all()
    assert out.weights is not None
    assert out.weights[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "rule", [eq.Median(), eq.TrimmedMean(tolerated=1)], ids=lambda rule: type(rule).__name__
)
def test_huge_value_stays_local(rule: Any) -> None:
    """In float64, of clients that share their work and of clients that do not."""
    clique = [(i, j) for i in range(4) for j in range(4) if i != j]
    others = [(1, 4), (2, 4), (3, 4), (1, 5), (2, 5), (3, 5), (4, 5), (4, 6), (5, 6)]
    graph = eq.Topology.from_edges(7, [*clique, *others], directed=True)
    models = 1 + 0.01 * torch.randn(7, 5, dtype=torch.float64, generator=stream(0, "models"))
    models[0, 1] = 1e160
    out = rule(models, graph.deliver(models), out=torch.full_like(models, -777.0)).model
    for i in range(7):
        torch.testing.assert_close(out[i], rule(models[i], models[graph.neighbors(i)]).model)


@pytest.mark.parametrize("short", [1e-310, 5e-324])
@pytest.mark.parametrize("rule", [eq.FLTrust(), eq.FLTrust(weighted=False)], ids=repr)
def test_too_short_to_rescale(rule: Any, short: float) -> None:
    own = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    out = rule(own, torch.stack([own * 1.01, own * short]))
    assert out.weights.tolist() == [1, 0]
    torch.testing.assert_close(out.model, own)


def test_mean_batch_equals_loop() -> None:
    bank = torch.tensor([[1.5e308, 1.5e308], [1, 1], [2, 2], [torch.nan, 0]], dtype=torch.float64)
    inbox = eq.Inbox(bank, torch.tensor([[0, 1, 2], [3, 1, 2]]))
    own = torch.zeros(2, 2, dtype=torch.float64)
    assert eq.FedAvg()(own, inbox).model.tolist() == [[1.5, 1.5]] * 2
    assert eq.FedAvg()(own[0], bank[:3]).model.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("native", [True, False])
def test_tie_to_lowest_id(native: bool) -> None:
    """UBAR without a better model; float32 sums would break the tie."""
    own = torch.ones(70_000)
    rule = eq.UBAR(tolerated=0, empty="closest")
    for case in range(8):
        generator = stream(0, "moves", case)
        move = (
            torch.randn(70_000, generator=generator) * 1024
        ).round() / 1024  # whose squares have exact sums
        moved = own + move[torch.randperm(70_000, generator=generator)]
        received = torch.stack([own + move, moved, own + 5 * move])
        with nullcontext() if native else library.disabled():
            out = rule(own, received, loss_of=lambda models: torch.ones(len(models)))
        assert out.weights.tolist() == [1, 0, 0]
