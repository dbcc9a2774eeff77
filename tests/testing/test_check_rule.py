"""Every law catches a wrong rule and shows the smallest case."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.testing import LAWS, MULTI_EXCHANGE_LAWS, check_attack, check_rule


def takes_the_first_message(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    inbox = received if isinstance(received, eq.Inbox) else eq.Inbox.of_one(received)
    order = inbox.present.int().argsort(1, descending=True, stable=True)
    first = torch.atleast_2d(own).clone()
    heard = inbox.counts > 0
    first[heard] = (
        inbox.bank[inbox.slots.gather(1, order[:, :1])[heard, 0]] if inbox.k else first[heard]
    )
    return eq.Aggregated(first.view_as(own))


def hears_nothing_as_zero(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    out = eq.FedAvg()(own, received)
    return eq.Aggregated(out.model.where(out.weights.sum(-1, keepdim=True) > 0, 0.0), out.weights)


def accepts_nan(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    inbox = received if isinstance(received, eq.Inbox) else eq.Inbox.of_one(received)
    naive = eq.Inbox(inbox.bank.nan_to_num(1.0, 1.0, -1.0), inbox.slots, inbox.mask, inbox.senders)
    return eq.Median()(own, naive)


def mixes_all_clients(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    if own.dim() == 1:
        return eq.Median()(own, received)
    return eq.Aggregated(eq.Median()(own, received).model.median(0).values.expand_as(own).clone())


def reads_hidden_slots(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    inbox = received if isinstance(received, eq.Inbox) else eq.Inbox.of_one(received)
    unmasked: Any = None
    return eq.FedAvg()(own, eq.Inbox(inbox.bank, inbox.slots, unmasked, inbox.slots))


def knows_no_tensors(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    return eq.Median()(own, received.of(torch.arange(received.n)))


def returns_own_itself(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    out = eq.Median()(own, received)
    return eq.Aggregated(own) if torch.equal(out.model, own) else out


def works_in_float32(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    return eq.Aggregated(eq.Median()(own, received).model.float())


def overflows(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    return eq.Aggregated(eq.Median()(own, received).model * 2.0**100 / 2.0**100)


def doubts_all(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    out = eq.FedAvg()(own, received)
    return eq.Aggregated(own.clone(), torch.zeros_like(out.weights))


def boasts(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    out = eq.Krum(tolerated=0)(own, received)
    return eq.Aggregated(out.model, out.weights / 2)


def drifts(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    out = eq.Median()(own, received)
    return eq.Aggregated(out.model.where(out.model != own, out.model + 1))


def forgets_gradients(own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
    torch.set_grad_enabled(False)
    return eq.Median()(own, received)


class Remembers:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, own: Tensor, received: Any, **inputs: Any) -> eq.Aggregated:
        self.calls += 1
        return eq.Median()(own, received)


WRONG_RULES: dict[Callable[..., eq.Aggregated], str] = {
    mixes_all_clients: "batch",
    knows_no_tensors: "tensor",
    reads_hidden_slots: "padding",
    takes_the_first_message: "slot_order",
    hears_nothing_as_zero: "starvation",
    accepts_nan: "nonfinite",
    drifts: "consensus",
    doubts_all: "agreement",
    Remembers(): "purity",
    returns_own_itself: "purity",
    forgets_gradients: "purity",
    works_in_float32: "kept",
    overflows: "hostile",
    boasts: "weights_explain",
}


def name_of(wrong: Any) -> str:
    return getattr(wrong, "__name__", type(wrong).__name__)


@pytest.mark.parametrize(("rule", "law"), WRONG_RULES.items(), ids=map(name_of, WRONG_RULES))
def test_wrong_rule(rule: Any, law: str) -> None:
    with pytest.raises(
        AssertionError, match=f"(?s)breaks the law '{law}'.*The smallest case"
    ) as caught:
        check_rule(rule, laws=[law], examples=200)
    assert name_of(rule) in str(caught.value)
    assert LAWS[law].statement in str(caught.value)


def test_every_law_is_covered() -> None:
    assert set(WRONG_RULES.values()) == LAWS.keys()


def test_all_laws() -> None:
    with pytest.raises(AssertionError, match="breaks the law 'starvation'"):
        check_rule(hears_nothing_as_zero, examples=20)


def test_grad_mode_is_restored() -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)breaks the law 'purity'.*Found: grad mode was changed"
    ):
        check_rule(forgets_gradients, examples=5)
    assert torch.is_grad_enabled()


def test_smallest_case() -> None:
    """One client without a message is the least that starves."""
    with pytest.raises(AssertionError) as caught:
        check_rule(hears_nothing_as_zero, laws=["starvation"])
    message = str(caught.value)
    assert (
        "The law: Without messages, or with only non-finite ones, the aggregate is the own model.\n"
        in message
    )
    assert "Found: models: tensor([[0.]]), expected tensor([[" in message
    assert re.search(
        r"torch.float32, n = 1, k = 0, d = 1\nclient 0: own \[-?[\d.]+\]\nt = 0\ntotal = 1\n",
        message,
    )


def test_case_shows_messages() -> None:
    with pytest.raises(
        AssertionError,
        match=r"(?s)client \d: own \[.*    from client \d: \[.*loss_of = squared distance to",
    ):
        check_rule(boasts, laws=["weights_explain"])


def test_case_shows_exception() -> None:
    with pytest.raises(
        AssertionError, match=r"Found: raised AttributeError: 'Tensor' object has no attribute 'of'"
    ):
        check_rule(knows_no_tensors, laws=["tensor"])


class Impatient:
    """A rule that talks twice, and takes the first answer for granted."""

    def exchanges(self, own: Tensor, **inputs: Any) -> Any:
        yield own
        yield own
        return eq.Aggregated(own.float() + 1)


@pytest.mark.parametrize("law", ["starvation", "kept"])
def test_wrong_multi_exchange(law: str) -> None:
    with pytest.raises(AssertionError, match=f"Impatient.* breaks the law '{law}'"):
        check_rule(Impatient(), laws=[law])


def test_multi_exchange_laws() -> None:
    assert LAWS.keys() - MULTI_EXCHANGE_LAWS.keys() == {
        "tensor",
        "consensus",
        "agreement",
        "weights_explain",
    }
    with pytest.raises(ValueError, match=r"laws must be of batch, .*, found 'agreement'"):
        check_rule(eq.LEARN(), laws=["agreement"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"laws": ["batsh"]}, "laws must be of batch, tensor, padding, "),
        ({"laws": "batch"}, "laws must be a list of names, found the string 'batch'"),
        ({"skip": ["typo"]}, "skip must be of batch, tensor, padding, "),
        ({"examples": 0}, "examples must be an integer at least 1, found 0"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    for check, subject in ((check_rule, eq.Median()), (check_attack, eq.attacks.Zero())):
        with pytest.raises(ValueError, match=re.escape(message.partition(" of ")[0])) as caught:
            check(subject, **arguments)  # type: ignore[operator]
        assert check is check_attack or str(caught.value).startswith(message)


def test_invalid_subjects() -> None:
    with pytest.raises(
        ValueError, match="rule must be callable or have a method exchanges, found str"
    ):
        check_rule("Median")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="attack must have a method forge or a method poison, found Median"
    ):
        check_attack(eq.Median())  # type: ignore[arg-type]


def test_skip() -> None:
    check_rule(Remembers(), skip=LAWS.keys() - {"batch", "kept"}, examples=5)
