"""What an attacker, or a mistake, may pass to a rule, and what comes of it."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise._utils.rng import stream
from equipoise.kernels.native import _library as library
from equipoise.rules import WeightedRule, uniform
from equipoise.testing._laws import with_bank
from equipoise.testing._rule_cases import scale
from tests.cases import LEARNS, RULES
from tests.graphs import deliver, models_of, regular, round_inputs
from tests.references import REFERENCES, Answer, array, reference_one

# What is promised of hostile messages holds beyond every guarantee, too; warnings have tests in test_guarantees.py.
pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

D = 6
OWN = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.25])
HONEST = OWN + 0.1 * torch.tensor(
    [
        [1.0, 2.0, -1.0, 0.0, 1.0, 3.0],
        [-2.0, 1.0, 1.0, 1.0, -1.0, 0.0],
        [0.0, -1.0, 2.0, -3.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 2.0, 2.0, -2.0],
    ]
)

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
every_learn = pytest.mark.parametrize("rule", LEARNS.values(), ids=LEARNS)

FINITE = {
    "3e38": torch.full((D,), 3e38),
    "-3e38": torch.full((D,), -3e38),
    "one 3e38": torch.tensor([0.0, 0.0, 3e38, 0.0, 0.0, 0.0]),
    "1e30": torch.full((D,), 1e30),
    "aligned 1e30": OWN * 1e30,
    "subnormal": torch.full((D,), 1e-40),
    "aligned subnormal": OWN * 1e-40,
    "zeros": torch.zeros(D),
    "negative zeros": -torch.zeros(D),
    "copy": OWN.clone(),
    "negated": -OWN,
}
ABSENT = {
    "nan": torch.full((D,), torch.nan),
    "one nan": torch.tensor([1.0, -2.0, torch.nan, 3.0, -1.0, 0.25]),
    "inf": torch.full((D,), torch.inf),
    "-inf": torch.full((D,), -torch.inf),
    "inf and nan": torch.tensor([torch.inf, torch.nan, -torch.inf, 0.0, 0.0, 0.0]),
}


def loss_of(models: Tensor, clients: Tensor | None = None) -> Tensor:
    """Prefers models a little beyond own."""
    return (models.double() - 1.05 * OWN.double()).square().sum(-1)


INPUTS: dict[str, Any] = {
    "t": 2,
    "total": 8,
    "tolerated": 1,
    "samples": torch.tensor([3, 1, 4, 1, 5, 9]),
    "loss_of": loss_of,
}


def reference(rule: Any, own: Tensor, received: Tensor, **inputs: Any) -> Answer:
    options = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    inputs = options | INPUTS | {"loss_of": lambda models: array(loss_of(torch.from_numpy(models)))} | inputs
    one = eq.Inbox(received.detach(), torch.arange(len(received))[None])
    return reference_one(REFERENCES[type(rule).__name__], own, one, 0, **inputs)


def assert_agrees(out: eq.Aggregated, answer: Answer) -> None:
    assert out.model.isfinite().all()
    allowed = 1e-5 * np.maximum(np.abs(answer.model), answer.magnitude) + 1e-44
    assert (np.abs(array(out.model) - answer.model) <= allowed).all(), f"{out.model}, expected {answer.model}"
    if answer.weights is None:
        assert out.weights is None
    else:
        np.testing.assert_array_equal(array(out.weights) != 0, answer.weights != 0)
        np.testing.assert_allclose(array(out.weights), answer.weights, rtol=1e-5, atol=1e-42)


# Hostile messages


@every_rule
@pytest.mark.parametrize("position", [0, 4])
@pytest.mark.parametrize("message", FINITE.values(), ids=FINITE)
def test_a_finite_message(rule: Any, message: Tensor, position: int) -> None:
    received = torch.cat([HONEST[:position], message[None], HONEST[position:]])
    assert_agrees(rule(OWN, received, **INPUTS), reference(rule, OWN, received))


@every_rule
@pytest.mark.parametrize("message", FINITE.values(), ids=FINITE)
def test_nothing_but_a_finite_message(rule: Any, message: Tensor) -> None:
    received = message.expand(3, D)
    assert_agrees(rule(OWN, received, **INPUTS), reference(rule, OWN, received))


@every_rule
@pytest.mark.parametrize("position", [0, 4])
@pytest.mark.parametrize("message", ABSENT.values(), ids=ABSENT)
def test_an_unreadable_message_is_absent(rule: Any, message: Tensor, position: int) -> None:
    received = torch.cat([HONEST[:position], message[None], HONEST[position:]])
    inputs = INPUTS | {"samples": torch.ones(5)}
    out, without = rule(OWN, received, **inputs), rule(OWN, HONEST, **inputs)
    torch.testing.assert_close(out.model, without.model)
    if without.weights is not None:
        assert out.weights[position] == 0
        torch.testing.assert_close(torch.cat([out.weights[:position], out.weights[position + 1 :]]), without.weights)


@every_rule
def test_nothing_but_unreadable_messages(rule: Any) -> None:
    received = torch.stack([*ABSENT.values()])
    out = rule(OWN, received, **INPUTS)
    assert torch.equal(out.model, OWN)
    assert out.weights is None or not out.weights.any()


REJECTING = {
    name: RULES[name] for name in RULES if isinstance(RULES[name], eq.Balance | eq.BalanceMedian | eq.Krum | eq.UBAR)
}


@pytest.mark.parametrize("rule", REJECTING.values(), ids=REJECTING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e30, 3e38, -3e38])
@pytest.mark.parametrize("d", [1, 5000])
def test_huge_messages_are_rejected(rule: Any, dtype: torch.dtype, size: float, d: int) -> None:
    """No overflow decides: a message at 3e38 is far, not at infinity and not at NaN."""
    own = torch.ones(d, dtype=dtype)
    received = torch.stack([torch.full_like(own, value) for value in (size, 1.05, 1.06, 1.07, 1.08)])
    out = rule(own, received, **INPUTS | {"loss_of": lambda models: (models[:, 0].double() - 1.1).abs()})
    assert out.weights[0] == 0
    assert out.weights.sum() == pytest.approx(1)
    assert 1.05 - 1e-5 <= out.model.min() <= out.model.max() <= 1.08 + 1e-5


@every_rule
def test_the_largest_float64_messages(rule: Any) -> None:
    """Messages whose squares overflow float64 too are neither NaN nor accepted by rules that reject."""
    own, honest = OWN.double(), HONEST.double()
    received = torch.cat([torch.full((1, D), 1e300, dtype=torch.float64), honest])
    out = rule(own, received, **INPUTS)
    assert out.model.isfinite().all()
    if isinstance(rule, eq.Balance | eq.BalanceMedian | eq.Krum | eq.UBAR):
        assert out.weights[0] == 0
        received[0] = 1e100  # as far as the reference can go
        torch.testing.assert_close(out.model, torch.from_numpy(reference(rule, own, received).model))


def test_krum_compares_distances_whose_squares_overflow() -> None:
    """Two attackers where none is expected: they are far from four, the honest only from two."""
    received = torch.cat([torch.full((2, D), 1e300, dtype=torch.float64), HONEST.double()])
    out = eq.Krum(tolerated=0)(OWN.double(), received)
    assert not out.weights[:2].any()


@pytest.mark.parametrize("huge", [1e6, 1e150, 1e160, 1e300, 1.7e308])
def test_a_message_far_away_hides_no_distances_from_krum(huge: float) -> None:
    """Three malicious clients of ten: a poison, a message that is far away, and a near copy of the winner."""
    generator = torch.Generator().manual_seed(0)
    benign = 1 + 0.01 * torch.randn(7, 50, generator=generator, dtype=torch.float64)
    poison, far = torch.full((2, 50), -100.0, dtype=torch.float64)
    far[0] = huge
    rule = eq.Krum(tolerated=3)
    copy = rule(benign[0], torch.cat([torch.stack([poison, far, poison * 2]), benign])).model
    copy[0] += 1e-12
    out = rule(benign[0], torch.cat([torch.stack([poison, far, copy]), benign]))
    assert (out.model - copy).norm() < 1e-9


@pytest.mark.parametrize(
    ("size", "other"), [(-1040, 0), (-1000, 1), (-565, 1), (-565, 2.0**1000), (565, 2.0**1000), (1021, 2.0**1000)]
)
@pytest.mark.parametrize("position", [0, 5])
def test_krum_decides_as_fractions_do_whatever_the_size(size: int, other: float, position: int) -> None:
    """Small integers times a power of two have exact squares, many of them equal, and a stranger beside them."""
    generator = torch.Generator().manual_seed(size)
    for small in torch.randint(-3, 4, (30, 5, 2), generator=generator):
        messages = [[Fraction(2) ** size * int(value) for value in row] for row in small]
        messages.insert(position, [Fraction(other), Fraction(0)])
        received = torch.tensor([[float(value) for value in row] for row in messages], dtype=torch.float64)
        out = eq.Krum(tolerated=1)(received[0], received)
        assert torch.equal(out.model, received[chosen_by_fractions(messages, nearest=3)])


def chosen_by_fractions(messages: list[list[Fraction]], nearest: int) -> int:
    apart = [[sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction(0)) for b in messages] for a in messages]
    scores = [sum(sorted(row)[1 : nearest + 1]) for row in apart]
    return scores.index(min(scores))


def test_krum_sees_differences_that_are_tiny_beside_what_messages_share() -> None:
    received = torch.tensor([[1.0, 5e-170], [1.0, 0.0], [1.0, 1e-170], [1.0, 3e-170]], dtype=torch.float64)
    assert eq.Krum(tolerated=0)(received[0], received).weights.tolist() == [0, 0, 1, 0]


def test_unreadable_messages_can_be_let_through() -> None:
    received = torch.stack([OWN, ABSENT["one nan"]])
    slots = torch.tensor([[0, 1]])
    assert eq.FedAvg()(OWN, eq.Inbox(received, slots, keep_nonfinite=True)).model.isnan().tolist() == [
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
def test_messages_off_the_wire(rule: Any) -> None:
    """What is not a model of the right size is absent; the others count as they are."""
    inbox = eq.Inbox.collect(WIRE, like=OWN)
    good = [0, 3, 9, 10]
    assert inbox.mask[0].nonzero().flatten().tolist() == good
    inputs = INPUTS | {"samples": torch.ones(len(WIRE))}
    out, expected = rule(OWN, inbox, **inputs), rule(OWN, HONEST, **inputs)
    torch.testing.assert_close(out.model, expected.model)
    if expected.weights is not None:
        torch.testing.assert_close(out.weights[good], expected.weights)
        assert out.weights.sum() == pytest.approx(expected.weights.sum())


@every_rule
def test_nothing_came_off_the_wire(rule: Any) -> None:
    out = rule(OWN, eq.Inbox.collect([], like=OWN), **INPUTS)
    assert torch.equal(out.model, OWN)
    assert out.weights is None or out.weights.shape == (0,)


@every_rule
def test_nothing_but_rubbish_came_off_the_wire(rule: Any) -> None:
    inbox = eq.Inbox.collect([b"x", None, OWN[:1]], like=OWN)
    assert inbox.bank.shape == (0, D)
    out = rule(OWN, inbox, **INPUTS)
    assert torch.equal(out.model, OWN)
    assert out.weights is None or out.weights.tolist() == [0, 0, 0]


def test_a_message_too_large_for_own_dtype_is_absent() -> None:
    """1e300 is infinite in float32, whatever it was on the wire."""
    inbox = eq.Inbox.collect([HONEST[0], torch.full((D,), 1e300, dtype=torch.float64)], like=OWN)
    out = eq.FedAvg()(OWN, inbox)
    assert torch.equal(out.model, HONEST[0])
    assert out.weights.tolist() == [1, 0]


def test_senders_off_the_wire_break_ties() -> None:
    inbox = eq.Inbox.collect([HONEST[0], HONEST[1]], like=OWN, senders=[9, 4])
    assert torch.equal(eq.Krum(tolerated=0)(OWN, inbox).model, HONEST[1])


@every_rule
def test_hidden_slots_mean_nothing(rule: Any) -> None:
    """Where the mask is False, slots may be no rows at all."""
    slots = torch.tensor([[99, 0, 1, -7, 2, 3]])
    mask = (slots >= 0) & (slots < 4)
    inbox = eq.Inbox(HONEST, slots, mask, torch.tensor([[-1, 0, 1, -1, 2, 3]]))
    out, expected = rule(OWN, inbox, **INPUTS), rule(OWN, HONEST, **INPUTS)
    torch.testing.assert_close(out.model, expected.model)
    if expected.weights is not None:
        torch.testing.assert_close(out.weights[mask[0]], expected.weights)
        assert not out.weights[~mask[0]].any()


# Tensors as they come


def strided(x: Tensor) -> Tensor:
    """The same numbers, every second in memory and in another order of dimensions."""
    wide = torch.full((*x.shape, 2), torch.nan)
    wide[..., 0] = x
    return wide[..., 0]


@every_rule
@pytest.mark.parametrize("layout", [strided, lambda x: x.t().contiguous().t() if x.dim() == 2 else x.flip(0).flip(0)])
def test_layout_means_nothing(rule: Any, layout: Any) -> None:
    out = rule(layout(OWN), layout(HONEST), **INPUTS)
    expected = rule(OWN, HONEST, **INPUTS)
    torch.testing.assert_close(out.model, expected.model)
    assert out.model.is_contiguous()
    if expected.weights is not None:
        torch.testing.assert_close(out.weights, expected.weights)


@every_rule
def test_layout_means_nothing_in_a_batch(rule: Any) -> None:
    graph = regular(6, 3)
    own = models_of(graph, D, torch.float32)
    inbox, inputs = deliver(graph, own), round_inputs(graph, own)
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
def test_one_message_does_not_alias_the_result(rule: Any) -> None:
    """Writing to the aggregate never writes to a message or to own."""
    for received in (HONEST[:1].clone(), HONEST[:0]):
        own, before = OWN.clone(), received.clone()
        rule(own, received, **INPUTS).model.fill_(7.0)
        assert torch.equal(received, before)
        assert torch.equal(own, OWN)


@every_rule
def test_autograd_is_off(rule: Any) -> None:
    own, received = OWN.clone().requires_grad_(), HONEST.clone().requires_grad_()
    out = rule(own, received, **INPUTS)
    assert not out.model.requires_grad
    assert out.weights is None or not out.weights.requires_grad
    assert own.grad is None
    assert received.grad is None
    assert torch.is_grad_enabled()
    assert_agrees(out, reference(rule, OWN, HONEST))


@every_rule
def test_expanded_and_read_only_own(rule: Any) -> None:
    """All clients may share one model in memory."""
    graph = regular(6, 3)
    models = models_of(graph, D, torch.float32)
    own = OWN.expand(6, D)
    inbox, inputs = deliver(graph, models), round_inputs(graph, models)
    torch.testing.assert_close(rule(own, inbox, **inputs).model, rule(own.clone(), inbox, **inputs).model)


# Own models out of the ordinary


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
    own, inbox = OWN[None].to(dtype), eq.Inbox(HONEST.to(dtype), torch.arange(4)[None])
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
def test_a_broken_client_harms_no_other(rule: Any, value: float) -> None:
    """In a batch, an own model that is not finite is that client's trouble."""
    graph = regular(10, 4)
    own = models_of(graph, 17, torch.float32)
    inbox, inputs = deliver(graph, own), round_inputs(graph, own)
    broken = own.clone()
    broken[3, 5] = value
    out, expected = rule(broken, inbox, **inputs), rule(own, inbox, **inputs)
    others = torch.arange(10) != 3
    torch.testing.assert_close(out.model[others], expected.model[others])
    if expected.weights is not None:
        torch.testing.assert_close(out.weights[others], expected.weights[others])


@every_rule
def test_a_broken_client_is_not_heard(rule: Any) -> None:
    """Where the broken model is also what that client sends, its neighbours do without."""
    graph = regular(10, 4)
    own = models_of(graph, 17, torch.float32)
    own[3, 5] = torch.nan
    inbox, inputs = deliver(graph, own), round_inputs(graph, own.nan_to_num(0.0))
    shared = eq.Inbox(own, inbox.slots.where(inbox.mask, 0), inbox.mask, inbox.senders)
    spoken = eq.Inbox(own, shared.slots, inbox.mask & (inbox.senders != 3), inbox.senders)
    out, expected = rule(own, shared, **inputs), rule(own.nan_to_num(0.0), spoken, **inputs)
    others = torch.arange(10) != 3
    assert out.model[others].isfinite().all()
    torch.testing.assert_close(out.model[others], expected.model[others])


# Wrong arguments


WRONG_SHAPES = {
    "another d": (OWN, HONEST[:, :4], "received|own"),
    "a list": (OWN, list(HONEST), "received"),
    "one message without k": (OWN, HONEST[0], "received"),
    "three dimensions": (OWN, HONEST[None], "received"),
    "integers": (OWN, HONEST.long(), "received"),
    "integer own": (OWN.long(), HONEST, "own"),
    "own with three dimensions": (HONEST[None], HONEST, "own"),
    "own of no dimension": (OWN[0], HONEST, "own"),
    "another dtype": (OWN.double(), HONEST, "own|received|dtype"),
    "own is a list": (OWN.tolist(), HONEST, "own"),
    "received is None": (OWN, None, "received"),
    "many own, one inbox": (HONEST, eq.Inbox(HONEST, torch.tensor([[0, 1]])), "own"),
    "one own, many inboxes": (OWN, eq.Inbox(HONEST, torch.tensor([[0, 1], [2, 3]])), "own"),
    "many own, a stack": (HONEST, HONEST, "received|own|[Ii]nbox"),
    "bank of another d": (HONEST, eq.Inbox(HONEST[:, :4], torch.arange(4)[:, None]), "own"),
    "bank of another dtype": (HONEST, eq.Inbox(HONEST.double(), torch.arange(4)[:, None]), "own|dtype"),
}


@every_rule
@pytest.mark.parametrize("wrong", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_wrong_shapes(rule: Any, wrong: tuple[Any, Any, str]) -> None:
    own, received, match = wrong
    with pytest.raises(ValueError, match=match):
        rule(own, received, **INPUTS)


MISSING = {
    "t": (eq.Balance(), {"total": 8}, r"\bt\b"),
    "total": (eq.Balance(), {"t": 2}, "total"),
    "krum's tolerated": (eq.Krum(), {}, "tolerated"),
    "trimmed mean's tolerated": (eq.TrimmedMean(), {}, "tolerated"),
    "ubar's tolerated": (eq.UBAR(), {"loss_of": loss_of}, "tolerated"),
    "loss_of": (eq.UBAR(tolerated=1), {}, "loss_of"),
    "samples": (eq.FedAvg(weighted=True), {}, "samples"),
}


@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING)
def test_missing_inputs(missing: tuple[Any, dict[str, Any], str]) -> None:
    rule, inputs, name = missing
    with pytest.raises(TypeError, match=name):
        rule(OWN, HONEST, **inputs)


@pytest.mark.parametrize("name", ["update", "t", "tolerated"])
def test_missing_inputs_of_learn(name: str) -> None:
    inputs = {"update": 0.1 * OWN, "t": 1, "tolerated": 1}
    del inputs[name]
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        eq.run_exchanges(eq.LEARN(), OWN, lambda sent: HONEST, **inputs)


@every_learn
def test_learn_is_not_a_plain_rule(rule: Any) -> None:
    assert not callable(rule)


WRONG_INPUTS = {
    "t is total": (eq.Balance(), {"t": 8}, r"\bt\b"),
    "t beyond total": (eq.Balance(), {"t": 9}, r"\bt\b"),
    "t negative": (eq.Balance(), {"t": -1}, r"\bt\b"),
    "krum: negative": (eq.Krum(), {"tolerated": -1}, "tolerated"),
    "krum: negative for one": (eq.Krum(), {"tolerated": torch.tensor([-1])}, "tolerated"),
    "krum: too many": (eq.Krum(), {"tolerated": torch.tensor([1, 2])}, "tolerated"),
    "krum: two dimensions": (eq.Krum(), {"tolerated": torch.tensor([[1]])}, "tolerated"),
    "krum: fractions": (eq.Krum(), {"tolerated": torch.tensor([0.5])}, "tolerated"),
    "trimmed mean: negative": (eq.TrimmedMean(), {"tolerated": -1}, "tolerated"),
    "trimmed mean: too many": (eq.TrimmedMean(), {"tolerated": torch.tensor([1, 2])}, "tolerated"),
    "ubar: negative": (eq.UBAR(), {"tolerated": -1}, "tolerated"),
    "ubar: wrong number of losses": (eq.UBAR(), {"loss_of": lambda models: torch.zeros(1)}, "loss_of"),
}


@pytest.mark.parametrize("wrong", WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_wrong_inputs(wrong: tuple[Any, dict[str, Any], str]) -> None:
    rule, inputs, name = wrong
    with pytest.raises(ValueError, match=name):
        rule(OWN, HONEST, **INPUTS | inputs)


WRONG_OPTIONS = {
    "gamma negative": (lambda: eq.Balance(gamma=-0.1), "gamma"),
    "gamma NaN": (lambda: eq.Balance(gamma=float("nan")), "gamma"),
    "gamma infinite": (lambda: eq.Balance(gamma=float("inf")), "gamma"),
    "kappa negative": (lambda: eq.Balance(kappa=-1.0), "kappa"),
    "kappa NaN": (lambda: eq.Balance(kappa=float("nan")), "kappa"),
    "kappa infinite": (lambda: eq.Balance(kappa=float("inf")), "kappa"),
    "median's gamma negative": (lambda: eq.BalanceMedian(gamma=-0.1), "gamma"),
    "median's gamma NaN": (lambda: eq.BalanceMedian(gamma=float("nan")), "gamma"),
    "krum's tolerated": (lambda: eq.Krum(tolerated=-1)(OWN, HONEST), "tolerated"),
    "trimmed mean's tolerated": (lambda: eq.TrimmedMean(tolerated=-1)(OWN, HONEST), "tolerated"),
    "ubar's tolerated": (lambda: eq.UBAR(tolerated=-1)(OWN, HONEST, loss_of=loss_of), "tolerated"),
    "learn's tolerated": (
        lambda: eq.run_exchanges(eq.LEARN(tolerated=-1), OWN, lambda sent: HONEST, update=OWN, t=1),
        "tolerated",
    ),
    "empty": (lambda: eq.UBAR(empty="worst"), "empty"),
    "tau": (lambda: eq.SCClip(tau="mean"), "tau"),
    "tau negative": (lambda: eq.SCClip(tau=-1.0), "tau"),
    "tau NaN": (lambda: eq.SCClip(tau=float("nan")), "tau"),
    "mode": (lambda: eq.SCClip(mode="angle"), "mode"),
    "own_update": (lambda: eq.LEARN(own_update="doubled"), "own_update"),
    "alpha": (lambda: eq.LEARN(own_update="mixed", alpha=1.5), "alpha"),
}


@pytest.mark.parametrize("wrong", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_wrong_options(wrong: tuple[Any, str]) -> None:
    build, name = wrong
    with pytest.raises(ValueError, match=name):
        build()


def test_per_client_needs_a_rule_for_every_client() -> None:
    inbox = eq.Inbox(HONEST, torch.tensor([[1], [0], [3], [2]]))
    with pytest.raises(ValueError, match="rules"):
        eq.PerClient([eq.FedAvg(), eq.Median()])(HONEST, inbox)


@pytest.mark.parametrize(
    ("rule", "most"), [(eq.Krum(strict=True), 0), (eq.TrimmedMean(strict=True), 1)], ids=["krum", "trimmed-mean"]
)
def test_strict_rules_refuse_what_they_cannot_tolerate(rule: Any, most: int) -> None:
    """Of four messages Krum tolerates 4 >= 2 f + 3, so f = 0; the trimmed mean 2 f < 4, so f = 1."""
    lenient = dataclasses.replace(rule, strict=False)
    assert torch.equal(rule(OWN, HONEST, tolerated=most).model, lenient(OWN, HONEST, tolerated=most).model)
    with pytest.raises(ValueError, match="tolerated"):
        rule(OWN, HONEST, tolerated=most + 1)
    assert lenient(OWN, HONEST, tolerated=most + 1).model.isfinite().all()


@pytest.mark.parametrize("rule", [eq.Krum(strict=True), eq.TrimmedMean(strict=True)], ids=["krum", "trimmed-mean"])
def test_strict_counts_neighbours_not_what_can_be_read(rule: Any) -> None:
    """An attacker that sends NaN cannot make its receiver raise; a client without neighbours need not tolerate any."""
    received = torch.cat([HONEST, ABSENT["nan"][None]])
    assert rule(OWN, received, tolerated=1).model.isfinite().all()
    assert torch.equal(rule(OWN, HONEST[:0], tolerated=1).model, OWN)


@pytest.mark.parametrize("rule", [eq.Krum(strict=True), eq.TrimmedMean(strict=True)], ids=["krum", "trimmed-mean"])
def test_strict_in_a_batch(rule: Any) -> None:
    slots = torch.tensor([[1, 2, 3, 0, 1]] * 4)
    mask = torch.tensor([[True] * 5, [True] * 5, [True] + [False] * 4, [False] * 5])
    inbox = eq.Inbox(HONEST, slots, mask)
    with pytest.raises(ValueError, match="client 2"):
        rule(HONEST, inbox, tolerated=1)
    fair = eq.Inbox(HONEST, slots, mask & (torch.arange(4) != 2)[:, None])
    assert torch.equal(rule(HONEST, fair, tolerated=torch.tensor([1, 1, 0, 0])).model[2:], HONEST[2:])


@pytest.mark.parametrize("count", [1, torch.tensor(1), torch.tensor([1])], ids=["int", "scalar", "vector"])
def test_tolerated_may_be_a_number_or_a_tensor(count: Any) -> None:
    expected = eq.TrimmedMean(tolerated=1)(OWN, HONEST).model
    assert torch.equal(eq.TrimmedMean()(OWN, HONEST, tolerated=count).model, expected)
    assert not torch.equal(eq.TrimmedMean(tolerated=0)(OWN, HONEST).model, expected)


@every_rule
def test_rules_ignore_what_they_do_not_need(rule: Any) -> None:
    out = rule(OWN, HONEST, **INPUTS, update=OWN, generator=torch.Generator(), state=None)
    assert torch.equal(out.model, rule(OWN, HONEST, **INPUTS).model)


# LEARN


@every_learn
@pytest.mark.parametrize("message", ABSENT.values(), ids=ABSENT)
def test_learn_does_not_hear_unreadable_messages(rule: Any, message: Tensor) -> None:
    inputs = {"update": 0.1 * OWN, "t": 3, "tolerated": 1}
    with_it = eq.run_exchanges(rule, OWN, lambda sent: torch.cat([message[None], HONEST]), **inputs)
    without = eq.run_exchanges(rule, OWN, lambda sent: HONEST, **inputs)
    torch.testing.assert_close(with_it[0], without[0])
    torch.testing.assert_close(with_it[1].model, without[1].model)


@every_learn
@pytest.mark.parametrize("message", FINITE.values(), ids=FINITE)
def test_learn_trims_hostile_messages(rule: Any, message: Tensor) -> None:
    """With one tolerated of five, everything stays between what the others sent, own update included or not."""
    heard = torch.cat([message[None], HONEST])
    intermediate, out = eq.run_exchanges(rule, OWN, lambda sent: heard, update=OWN, t=3, tolerated=1)
    everything = torch.cat([HONEST, OWN[None]])
    for model in (intermediate, out.model):
        assert (model >= everything.min(0).values - 1e-5).all()
        assert (model <= everything.max(0).values + 1e-5).all()


def test_learn_keeps_update_and_own() -> None:
    own, update = OWN.clone(), (0.1 * OWN).clone()
    eq.run_exchanges(eq.LEARN(tolerated=1), own, lambda sent: HONEST, update=update, t=5)
    assert torch.equal(own, OWN)
    assert torch.equal(update, 0.1 * OWN)


def test_learn_needs_an_update_shaped_like_own() -> None:
    with pytest.raises(ValueError, match="update"):
        eq.run_exchanges(eq.LEARN(tolerated=1), OWN, lambda sent: HONEST, update=OWN[:3], t=5)


# What a caller may give by mistake


@pytest.mark.parametrize("kind", ["sparse", "nested"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_not_dense_are_errors_that_say_so(kind: str) -> None:
    received = HONEST.to_sparse() if kind == "sparse" else torch.nested.nested_tensor(list(HONEST))
    with pytest.raises(ValueError, match=f"received must be a floating-point tensor of shape .*{kind}"):
        eq.FedAvg()(OWN, received)
    with pytest.raises(ValueError, match=f"bank must be a floating-point tensor of shape .*{kind}"):
        eq.Inbox(received, torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=f"model must be a floating-point tensor of shape .*{kind}"):
        eq.mix(HONEST, received)


@every_rule
def test_an_empty_bank_is_an_inbox_without_messages(rule: Any) -> None:
    mask = torch.zeros(1, 2, dtype=torch.bool)
    inbox = eq.Inbox(torch.zeros(0, D), torch.zeros(1, 2, dtype=torch.int64), mask)
    inputs: Any = {"t": 0, "total": 3, "tolerated": 1, "loss_of": loss_of, "samples": torch.ones(1)}
    assert torch.equal(rule(OWN, inbox, **inputs).model, OWN)


@every_rule
def test_a_transposed_output_is_as_good_as_any(rule: Any) -> None:
    graph = regular(6, 3)
    models = models_of(graph, D, torch.float32, 0)
    inputs: Any = round_inputs(graph, models)
    expected = rule(models, deliver(graph, models), **inputs).model
    out = torch.empty(D, graph.n).T
    rule(models, deliver(graph, models), out=out, **inputs)
    torch.testing.assert_close(out, expected)


def test_an_output_needs_memory_for_every_number() -> None:
    with pytest.raises(ValueError, match="out must have memory for every number, found a tensor that was expanded"):
        eq.Median()(OWN, HONEST, out=torch.empty(1).expand(D))


def test_norm_clipping_by_an_own_that_is_not_finite_takes_nothing() -> None:
    models = torch.stack([torch.full((D,), torch.nan), *HONEST[:2]])
    out = eq.SCClip(mode="norm")(models, eq.Topology.complete(3).deliver(HONEST[:3]))
    assert out.model[0].isnan().all()
    assert out.weights is not None
    assert out.weights[0].tolist() == [0.0, 0.0]


def test_senders_are_ids() -> None:
    with pytest.raises(ValueError, match="senders must be an integer from 0 to 9223372036854775807, found -1"):
        eq.Inbox.collect(HONEST, like=OWN, senders=[-1, 0, 1, 2])
    with pytest.raises(ValueError, match=r"senders must be an integer from 0 to 9223372036854775807, found 0\.5"):
        eq.Inbox.collect(HONEST, like=OWN, senders=[0.5, 0, 1, 2])  # type: ignore[list-item]
    slots = torch.arange(2)[None]
    with pytest.raises(ValueError, match="senders must be ids of clients, at least 0, found -2"):
        eq.Inbox(HONEST, slots, senders=slots - 2)


@pytest.mark.parametrize("one", [1, np.int64(1), torch.tensor(1), torch.tensor([1])], ids=repr)
def test_one_receiver_however_it_is_named(one: Any) -> None:
    inbox = eq.Topology.ring(4).deliver(HONEST)
    assert inbox.of(one).senders.tolist() == [[0, 2]]


@pytest.mark.parametrize("receivers", [-1, 4, [0, 9]])
def test_receivers_that_are_not_there(receivers: Any) -> None:
    with pytest.raises(ValueError, match="receivers must be from 0 to 3, found"):
        eq.Topology.ring(4).deliver(HONEST).of(receivers)


def test_a_missing_loss_is_missing_also_if_it_is_given_as_none() -> None:
    with pytest.raises(TypeError, match="UBAR needs loss_of"):
        eq.UBAR(0)(OWN, HONEST, loss_of=None)  # type: ignore[arg-type]
    inbox = eq.Topology.complete(4).deliver(HONEST)
    with pytest.raises(TypeError, match="UBAR needs loss_of"):
        eq.PerClient([eq.UBAR(0)] * 4)(HONEST, inbox, loss_of=None)  # type: ignore[arg-type]


def test_learn_counts_rounds_in_numbers_of_numpy_too() -> None:
    found = [
        eq.run_exchanges(eq.LEARN(1), OWN, lambda sent: HONEST, t=t, update=0.1 * OWN)[1].model
        for t in (3, np.int64(3))
    ]
    assert torch.equal(*found)
    with pytest.raises(ValueError, match=r"t must be an integer at least 0, found 1\.5"):
        eq.run_exchanges(eq.LEARN(1), OWN, lambda sent: HONEST, t=1.5, update=OWN)  # type: ignore[arg-type]


def test_learn_keeps_own_where_what_was_agreed_on_is_too_large_to_be_added() -> None:
    own, update = torch.tensor([1.0, 2.0]).half(), torch.tensor([-20.0, 0.0]).half()
    lie = torch.full((1, 2), 65504.0).half()
    rule = eq.LEARN(tolerated=1, own_update="excluded")
    model, out = eq.run_exchanges(rule, own, lambda sent: lie, t=1, update=update)
    assert model.tolist() == [1.0, 65504.0]
    assert out.model.isfinite().all()


def test_per_client_says_what_it_cannot_do() -> None:
    class Remembering(eq.FedAvg):
        def __call__(self, own: Any, received: Any, **inputs: Any) -> eq.Aggregated:  # type: ignore[override,misc]
            return dataclasses.replace(eq.FedAvg()(own, received), state={"round": OWN})

    graph = eq.Topology.complete(4)
    with pytest.raises(ValueError, match=r"rules must hold no state in PerClient, found \{'round'"):
        eq.PerClient([Remembering()] * 4)(HONEST, graph.deliver(HONEST))
    with pytest.raises(ValueError, match="rules must be rules that talk once a round, found the class Median"):
        eq.PerClient([eq.Median])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="rules must be at least one to draw from, found none"):
        eq.PerClient.drawn([], 3)
    with pytest.raises(ValueError, match=r"generator must be a torch.Generator, found int"):
        eq.PerClient.drawn([eq.Median()], 3, 5)  # type: ignore[arg-type]


def test_numbers_that_are_none() -> None:
    for make, name in (
        (lambda: eq.SCClip(tau=None), "tau"),  # type: ignore[arg-type]
        (lambda: eq.LEARN(alpha="x"), "alpha"),  # type: ignore[arg-type]
        (lambda: eq.draw_malicious(10, ".2"), "share"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            make()


def test_a_negated_view_is_read_as_it_is() -> None:
    received = torch.tensor([[1 + 1j], [1 + 2j]]).conj().imag
    assert received.is_neg()
    assert eq.FedAvg()(torch.zeros(1), received).model.tolist() == [-1.5]


def test_a_probability_that_is_almost_nothing() -> None:
    assert eq.Topology.erdos_renyi(5, 1e-17, connected=False, seed=0).degrees.sum() == 0


def test_modules_that_share_memory_cannot_hold_two_models() -> None:
    first, second = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    second.weight = torch.nn.Parameter(first.weight.data)
    with pytest.raises(ValueError, match="modules must not share parameters, found parameter 'weight' of modules"):
        eq.unstack_models(torch.zeros(2, 3), [first, second])


# What reading found: numbers beyond what kernels were made for


@pytest.mark.parametrize("count", [510, 511, 512, 513])
def test_learn_with_as_many_messages_as_the_kernels_sort(count: int) -> None:
    """Own is one more."""
    own, update = torch.randn(300), torch.randn(300)
    received = torch.randn(count, 300)
    expected = torch.cat([received, update[None]]).double().sort(0).values[100:-100].mean(0)
    sent: list[Tensor] = []
    eq.run_exchanges(eq.LEARN(tolerated=100), own, lambda x: (sent.append(x), received)[1], t=1, update=update)
    torch.testing.assert_close(sent[1], (own + (expected.float() - update)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", [eq.Median(), eq.TrimmedMean(tolerated=1)], ids=lambda rule: type(rule).__name__)
def test_a_huge_value_concerns_only_those_who_hear_it(rule: Any) -> None:
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
def test_a_message_too_short_to_be_lengthened_is_rejected(rule: Any, short: float) -> None:
    own = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    out = rule(own, torch.stack([own * 1.01, own * short]))
    assert out.weights.tolist() == [1, 0]
    torch.testing.assert_close(out.model, own)


def test_the_mean_of_many_clients_is_that_of_each_where_norms_overflow() -> None:
    bank = torch.tensor([[1.5e308, 1.5e308], [1, 1], [2, 2], [torch.nan, 0]], dtype=torch.float64)
    inbox = eq.Inbox(bank, torch.tensor([[0, 1, 2], [3, 1, 2]]))
    own = torch.zeros(2, 2, dtype=torch.float64)
    assert eq.FedAvg()(own, inbox).model.tolist() == [[1.5, 1.5]] * 2
    assert eq.FedAvg()(own[0], bank[:3]).model.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("native", [True, False])
def test_the_closest_of_equally_close_messages_is_that_of_the_lowest_id(native: bool) -> None:
    """UBAR where nobody is better than own; float32 sums would tell the two apart."""
    own, rule = torch.ones(70_000), eq.UBAR(tolerated=0, empty="closest")
    for case in range(8):
        generator = stream(0, "moves", case)
        move = (torch.randn(70_000, generator=generator) * 1024).round() / 1024  # whose squares have exact sums
        moved = own + move[torch.randperm(70_000, generator=generator)]
        received = torch.stack([own + move, moved, own + 5 * move])
        with nullcontext() if native else library.disabled():
            out = rule(own, received, loss_of=lambda models: torch.ones(len(models)))
        assert out.weights.tolist() == [1, 0, 0]


def test_a_negative_view_is_another_model() -> None:
    z = torch.complex(torch.zeros(6, 9000), 1 + 0.01 * torch.randn(6, 9000))
    own, negated, graph = z.imag, z.conj().imag, eq.Topology.complete(6)
    out = eq.Balance(gamma=0.5, kappa=0.0)(own, eq.Inbox(negated, graph.senders))
    assert not out.weights.any()
    assert torch.equal(out.model, own)


def test_out_of_learn_may_not_be_own() -> None:
    own = torch.ones(3)
    with pytest.raises(ValueError, match="out must have memory of its own"):
        eq.run_exchanges(eq.LEARN(tolerated=0), own, lambda sent: sent[None] * 5, t=0, update=own.clone(), out=own)
    assert own.tolist() == [1, 1, 1]


def test_rows_of_out_may_not_overlap() -> None:
    own, out = torch.ones(2, 10), torch.zeros(30).as_strided((2, 10), (2, 1))
    with pytest.raises(ValueError, match=r"out must have memory for every number, found .* strides \(2, 1\)"):
        eq.Median()(own, eq.Topology.complete(2).deliver(own), out=out)
    turned = torch.zeros(10, 2).T
    assert torch.equal(eq.Median()(own, eq.Topology.complete(2).deliver(own), out=turned).model, own)


@pytest.mark.parametrize(
    "which", [torch.tensor([0.0]), torch.tensor([True]), torch.tensor([True] * 5)], ids=["float", "short", "long"]
)
def test_receivers_are_ids_or_a_mask(which: Tensor) -> None:
    inbox = eq.Topology.ring(4).deliver(HONEST)
    with pytest.raises(ValueError, match=r"receivers must be ids of receivers, 0 to 3, or a bool mask of shape \(4,\)"):
        inbox.of(which)
    bytes_ = torch.tensor([0, 1, 2, 3], dtype=torch.uint8)
    assert torch.equal(inbox.of(bytes_).slots, inbox.slots)


@pytest.mark.parametrize("value", ["1", 1 + 0j, 2**70, 0.5, True], ids=repr)
def test_tolerated_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"tolerated must be whole numbers >= 0, found "):
        eq.Krum()(OWN, HONEST, tolerated=value)


def test_rules_step_out_of_autocast() -> None:
    """A training loop may be under it; products of models in bfloat16 would be off by a part in five hundred."""
    seen: list[bool] = []

    class Asking(WeightedRule):
        def weigh(self, own: Tensor, inbox: eq.Inbox, **_: Any) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return uniform(inbox.present)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        Asking()(OWN, HONEST)
        assert torch.is_autocast_enabled("cpu")
    assert seen == [False]


@pytest.mark.parametrize("native", [True, False])
def test_who_has_no_finite_update_agrees_on_none(native: bool) -> None:
    own, update = torch.randn(6, 4), torch.randn(6, 4)
    update[2] = torch.nan
    graph, sent = eq.Topology.ring(6), list[Tensor]()

    def exchange(messages: Tensor) -> eq.Inbox:
        sent.append(messages.clone())
        return graph.deliver(messages)

    with nullcontext() if native else library.disabled():
        eq.run_exchanges(eq.LEARN(tolerated=1), own, exchange, t=3, update=update)
    assert all(messages[2].isnan().all() for messages in sent[:2])
    assert all(messages[[0, 1, 3, 4, 5]].isfinite().all() for messages in sent)
    torch.testing.assert_close(sent[1][3], torch.stack([update[3], update[4]]).mean(0))


def test_progress_is_a_function() -> None:
    with pytest.raises(ValueError, match=r"progress must be a function of t and total, found 0\.5"):
        eq.Balance(progress=0.5)  # type: ignore[arg-type]
