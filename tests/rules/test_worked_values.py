"""The table of cases worked by hand, against the rules and against their references."""

import dataclasses
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.all_references import REFERENCES
from tests.cases import Case, LearnCase
from tests.references import Message, learn, reference_one
from tests.worked_cases import CASES, LEARN

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def by_name(case: Any) -> str:
    return f"{type(case.rule).__name__}: {case.name}"


def warned(case: Case | LearnCase) -> AbstractContextManager[Any]:
    """Expect a warning if more is tolerated than the rule guarantees, and none otherwise."""
    if case.beyond:
        return pytest.warns(eq.GuaranteeWarning, match="tolerated must be at most")
    return nullcontext()


def inbox_of(case: Case, received: Tensor) -> eq.Inbox:
    count = len(received)
    senders = torch.tensor(case.senders or range(count), dtype=torch.int64).reshape(1, count)
    return eq.Inbox(
        received, torch.arange(count)[None], torch.ones(1, count, dtype=torch.bool), senders
    )


def inputs_of(case: Case) -> dict[str, Any]:
    inputs = dict(case.inputs)
    if "samples" in inputs:
        inputs["samples"] = torch.tensor(inputs["samples"])
    return inputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_one_client(case: Case, dtype: torch.dtype) -> None:
    own, received = (x.to(dtype) for x in case.tensors())
    messages = received if case.senders is None else inbox_of(case, received)
    with warned(case):
        out = case.rule(own, messages, **inputs_of(case))
    tolerance = CLOSE if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(out.model, torch.tensor(case.model, dtype=dtype), **tolerance)
    if case.weights is None:
        assert out.weights is None
    else:
        assert out.weights is not None
        assert out.weights.shape == (len(received),)
        expected = torch.tensor(case.weights, dtype=torch.float64)
        torch.testing.assert_close(out.weights.double(), expected, rtol=1e-6, atol=1e-7)
        assert torch.equal(out.weights != 0, expected != 0)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_in_a_batch(case: Case) -> None:
    """The same client twice in one call, with another one that hears nothing between them."""
    own, received = case.tensors()
    one = inbox_of(case, received)
    empty = torch.zeros_like(one.mask)
    inbox = eq.Inbox(
        one.bank,
        one.slots.repeat(3, 1),
        torch.cat([one.mask, empty, one.mask]),
        one.senders.repeat(3, 1),
    )
    inputs = inputs_of(case)
    if "loss_of" in inputs:
        inputs["loss_of"] = lambda models, clients: case.inputs["loss_of"](models)
    with warned(case):
        out = case.rule(own.expand(3, -1), inbox, **inputs)
    expected = torch.tensor(case.model, dtype=torch.float64)
    torch.testing.assert_close(out.model, torch.stack([expected, own, expected]), **CLOSE)
    if case.weights is not None:
        weights = torch.tensor(case.weights, dtype=torch.float64)
        torch.testing.assert_close(
            out.weights.double(), torch.stack([weights, 0 * weights, weights]), rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize("shared", [True, False], ids=["one bank for all", "a bank for each"])
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_in_a_large_batch(case: Case, shared: bool) -> None:
    """The same values among 3000 parameters of 30 clients: ties and thresholds stay exact."""
    own, received = (
        torch.nn.functional.pad(x, (0, 3000 - x.shape[-1])).float() for x in case.tensors()
    )
    one = inbox_of(case, received)
    n = 30
    steps = (
        torch.zeros(n, 1, dtype=torch.int64) if shared else torch.arange(n)[:, None] * len(received)
    )
    bank = received if shared else received.repeat(n, 1)
    inbox = eq.Inbox(bank, one.slots + steps, one.mask.expand(n, -1), one.senders.expand(n, -1))
    inputs = inputs_of(case)
    if "loss_of" in inputs:
        inputs["loss_of"] = lambda models, clients: case.inputs["loss_of"](models)
    with warned(case):
        out = case.rule(own.repeat(n, 1), inbox, **inputs)
    expected = torch.nn.functional.pad(
        torch.tensor(case.model), (0, 3000 - len(case.model))
    ).expand(n, -1)
    torch.testing.assert_close(out.model, expected.float(), rtol=1e-5, atol=1e-6)
    if case.weights is not None:
        torch.testing.assert_close(
            out.weights, torch.tensor(case.weights).float().expand(n, -1), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_the_reference(case: Case) -> None:
    own, received = case.tensors()
    options = {
        field.name: getattr(case.rule, field.name) for field in dataclasses.fields(case.rule)
    }
    inputs = dict(case.inputs)
    if "loss_of" in inputs:
        inputs["loss_of"] = lambda models: case.inputs["loss_of"](torch.from_numpy(models)).numpy()
    answer = reference_one(
        REFERENCES[type(case.rule).__name__], own, inbox_of(case, received), 0, **options | inputs
    )
    np.testing.assert_allclose(answer.model, case.model, rtol=1e-12, atol=1e-12)
    if case.weights is None:
        assert answer.weights is None
    else:
        np.testing.assert_allclose(answer.weights, case.weights, rtol=1e-12, atol=1e-12)


TIES = {
    "krum": (eq.Krum(tolerated=3), 1),
    "ubar": (eq.UBAR(tolerated=14, empty="own"), 6),
    "ubar-closest": (eq.UBAR(tolerated=3, empty="closest"), 1),
    "ubar-best": (eq.UBAR(tolerated=3), 1),
    "balance-median": (eq.BalanceMedian(gamma=0.5), 20),
    "balance": (eq.Balance(gamma=0.25, kappa=0.0), 20),
    "balance-just-below": (eq.Balance(gamma=math.nextafter(0.25, 0), kappa=0.0), 0),
}


@pytest.mark.parametrize(("rule", "accepted"), TIES.values(), ids=TIES)
@pytest.mark.parametrize("d", [50, 5000])
@pytest.mark.parametrize("clients", [1, 40])
def test_ties(rule: Any, accepted: int, d: int, clients: int) -> None:
    """Twenty messages along different axes, equally far from own and from each other."""
    own = torch.zeros(d)
    own[-14:], own[d // 2 : d // 2 + 2] = (
        1.0,
        1.0,
    )  # sixteen in all, so that the step 1 is exactly a quarter of the norm
    received = own + torch.eye(20, d)
    senders = torch.randperm(20, generator=torch.Generator().manual_seed(1))[None]
    inbox = eq.Inbox(
        received, *(x.expand(clients, -1) for x in (torch.arange(20)[None], senders >= 0, senders))
    )
    loss = -1.0 if rule == eq.UBAR(tolerated=14, empty="own") else 1.0

    def loss_of(models: Tensor, _: Tensor) -> Tensor:
        return loss * (models.sum(1) > 16)

    out = rule(own.repeat(clients, 1), inbox, loss_of=loss_of)
    expected = (senders < accepted) / max(1, accepted)
    torch.testing.assert_close(out.weights, expected.float().expand(clients, -1))


@pytest.mark.parametrize("d", [2, 6000])
def test_right_angle(d: int) -> None:
    """FLTrust rejects cosine 0, at any size."""
    own = torch.ones(30, d)
    other = torch.ones(30, d)
    other[:, ::2] = -1
    out = eq.FLTrust(weighted=False)(own, eq.Inbox(other, torch.arange(30)[:, None].expand(30, 8)))
    assert not out.weights.any()
    assert torch.equal(out.model, own)


OWN = torch.tensor([[10.0], [20.0], [30.0]]).double()
UPDATE = torch.tensor([[1.0], [2.0], [6.0]]).double()
OTHERS = [[1, 2], [0, 2], [0, 1]]


@pytest.mark.parametrize("case", LEARN, ids=by_name)
def test_learn(case: LearnCase) -> None:
    with warned(case):
        intermediate, out = eq.run_exchanges(
            case.rule,
            OWN,
            lambda sent: eq.Inbox(sent, torch.tensor(OTHERS)),
            update=UPDATE,
            t=case.t,
            tolerated=case.tolerated,
        )
    torch.testing.assert_close(
        intermediate[:, 0], torch.tensor(case.intermediate).double(), **CLOSE
    )
    torch.testing.assert_close(out.model[:, 0], torch.tensor(case.model).double(), **CLOSE)
    assert out.weights is None


@pytest.mark.parametrize("case", LEARN, ids=by_name)
def test_the_reference_of_learn(case: LearnCase) -> None:
    intermediate, answers = learn(
        OWN.numpy(),
        UPDATE.numpy(),
        lambda sent: [[Message(j, sent[j]) for j in OTHERS[i]] for i in range(3)],
        t=case.t,
        tolerated=[case.tolerated] * 3,
        own_update=case.rule.own_update,
        alpha=case.rule.alpha,
    )
    np.testing.assert_allclose(intermediate[:, 0], case.intermediate)
    np.testing.assert_allclose([answer.model[0] for answer in answers], case.model)


@pytest.mark.parametrize(
    ("t", "exchanges"),
    [(0, 1), (1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (1023, 11), (1024, 12)],
)
def test_learn_exchange_count(t: int, exchanges: int) -> None:
    """K = ceil(log2(t + 1)) exchanges of updates and one of models, for one client."""
    sent: list[Tensor] = []

    def exchange(message: Tensor) -> Tensor:
        sent.append(message.clone())
        return torch.stack([message, message])

    intermediate, out = eq.run_exchanges(
        eq.LEARN(tolerated=0), OWN[0], exchange, update=UPDATE[0], t=t
    )
    assert len(sent) == exchanges
    for update in sent[:-1]:
        torch.testing.assert_close(update, UPDATE[0], **CLOSE)
    for model in (sent[-1], intermediate, out.model):
        torch.testing.assert_close(model, OWN[0], **CLOSE)


def test_one_exchange() -> None:
    """`as_multi_exchange` and `run_exchanges` add nothing to a rule that talks once."""
    rule = eq.FedAvg()
    inbox = eq.Inbox(OWN, torch.tensor(OTHERS))
    sent: list[Tensor] = []

    def exchange(message: Tensor) -> eq.Inbox:
        sent.append(message)
        return inbox

    for conversed in (rule, eq.as_multi_exchange(rule)):
        intermediate, out = eq.run_exchanges(conversed, OWN, exchange)
        assert torch.equal(intermediate, OWN)
        assert torch.equal(out.model, rule(OWN, inbox).model)
        assert torch.equal(out.weights, rule(OWN, inbox).weights)
    assert len(sent) == 2
    assert all(torch.equal(message, OWN) for message in sent)


@pytest.mark.parametrize("size", [1.0, 3.0, 2.0**-40, 1e10])
def test_krum_exact_tie(size: float) -> None:
    """The scores are 27, 19, 27, 19 and 43, each of a sum of other squares."""
    received = size * torch.tensor(
        [[2, 2], [-1, 1], [-1, -1], [1, 2], [2, -2]], dtype=torch.float64
    )
    assert eq.Krum(tolerated=0)(torch.zeros(2).double(), received).weights.tolist() == [
        0,
        1,
        0,
        0,
        0,
    ]
    assert eq.Krum(tolerated=0)(torch.zeros(2), received.float()).weights.tolist() == [
        0,
        1,
        0,
        0,
        0,
    ]


def test_means_do_not_overflow() -> None:
    """The mean of the two middle values exists even where their sum does not."""
    received = torch.tensor([[3e38], [3.2e38], [3e38], [3.2e38]])
    for rule in (eq.Median(), eq.TrimmedMean(1), eq.FedAvg()):
        assert rule(torch.zeros(1), received).model.item() == pytest.approx(3.1e38)


def test_per_client() -> None:
    """Every client follows its own rule; the weights of a coordinate-wise rule are unknown, NaN."""
    bank = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
    slots = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    rules = [eq.FedAvg(), eq.Median(), eq.Krum(tolerated=0), eq.Balance(gamma=0.2, kappa=0.0)]
    out = eq.PerClient(rules)(bank, eq.Inbox(bank, slots))
    assert out.model.flatten().tolist() == pytest.approx([4.0, 5.0, 0.0, 5.0])
    nan = torch.nan
    third = 1 / 3
    expected = torch.tensor(
        [[third, third, third], [nan, nan, nan], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    )
    torch.testing.assert_close(out.weights.float(), expected, equal_nan=True)


def test_per_client_without_weights() -> None:
    bank = torch.tensor([[0.0], [1.0], [5.0]])
    out = eq.PerClient([eq.Median(), eq.TrimmedMean(0), eq.Median()])(
        bank, eq.Inbox(bank, torch.tensor(OTHERS))
    )
    assert out.weights is None
    assert out.model.flatten().tolist() == [3.0, 2.5, 0.5]
