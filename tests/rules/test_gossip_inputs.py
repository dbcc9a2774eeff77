"""The round input ``gossip``: weights of messages, by slot."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

import equipoise as eq
from tests.all_references import REFERENCES
from tests.graphs import GRAPHS, Graph, deliver, models_of, random_lies, round_inputs
from tests.reference_rounds import assert_answer, every_graph
from tests.references import reference_all

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

READERS: dict[str, Any] = {
    "Gossip": eq.Gossip(),
    "ClippedGossip": eq.ClippedGossip(),
    "CSPlus": eq.CSPlus(),
    "GTS": eq.GTS(),
    "RTC": eq.RTC(),
    "IOS": eq.IOS(),
    "SCClip": eq.SCClip(tau=0.5, contains_own=True),
    "SCClip, norm": eq.SCClip(mode="norm", contains_own=True),
}
every_reader = pytest.mark.parametrize("rule", READERS.values(), ids=READERS)

OWN = torch.zeros(1, dtype=torch.float64)
LINE = torch.tensor([[1.0], [2.0], [3.0], [8.0]], dtype=torch.float64)
ROOT = math.sqrt(5.75)
WEIGHTS = torch.tensor([0.1, 0.1, 0.2, 0.4], dtype=torch.float64)


def random_weights(inbox: eq.Inbox, seed: int) -> torch.Tensor:
    """Weights that sum to less than 1; some are equal and some are 0."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.randint(4, inbox.slots.shape, generator=generator).double()
    return shares.where(inbox.mask, math.nan) / (1 + 3 * inbox.k)


@every_reader
@every_graph
def test_reference_with_weights(rule: Any, graph: Graph) -> None:
    own = models_of(graph, 17, torch.float64)
    inbox = deliver(graph, own, random_lies(graph, own))
    inputs = round_inputs(graph, own) | {"gossip": random_weights(inbox, graph.n)}
    out = rule(own, inbox, **inputs)
    options = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    answers = reference_all(REFERENCES[type(rule).__name__], own, inbox, **options | inputs)
    for i, answer in answers.items():
        assert_answer(out.model[i], out.weights[i], answer, f"client {i}")


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (eq.Gossip(), [0.1, 0.1, 0.2, 0.4]),
        # b = 0.4 and S are the nearest of weight 0.4: tau^2 = (0.1 + 0.4 + 1.8) / 0.4.
        (
            eq.ClippedGossip(tolerated=1),
            [0.1, 0.1, 0.2 * ROOT / 3, 0.4 * ROOT / 8],
        ),
        # 2 b = 0.8 is the weight of all, so that the radius is the smallest distance.
        (eq.CSPlus(tolerated=1), [0.1, 0.05, 0.2 / 3, 0.05]),
        (eq.GTS(tolerated=1), [0.1, 0.1, 0.2, 0]),
        (eq.RTC(tolerated=1), [0.1, 0.1, 0.2 * ROOT / 3, 0]),
        # The mean 4.1 of all with own; without 8, own has 0.2 / 0.6.
        (eq.IOS(tolerated=1), [1 / 6, 1 / 6, 1 / 3, 0]),
        (eq.SCClip(tau=2.0, contains_own=True), [0.1, 0.1, 0.4 / 3, 0.1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_weights_by_hand(rule: Any, weights: list[float]) -> None:
    out = rule(OWN, LINE, gossip=WEIGHTS)
    torch.testing.assert_close(out.weights, torch.tensor(weights, dtype=torch.float64))
    torch.testing.assert_close(out.model, out.weights @ LINE)


def test_boundary_takes_part() -> None:
    """The last message that GTS keeps has the part of its weight that is left."""
    gossip = torch.tensor([0.3, 0.3, 0.1], dtype=torch.float64)
    out = eq.GTS(tolerated=1)(OWN, LINE[:3], gossip=gossip)
    torch.testing.assert_close(out.weights, torch.tensor([0.3, 0.1, 0.0], dtype=torch.float64))


@every_reader
def test_absent_weight_falls_to_own(rule: Any) -> None:
    received = LINE.clone()
    received[1] = math.nan
    out = rule(OWN + 1, received, gossip=WEIGHTS, tolerated=0)
    assert out.weights[1] == 0
    assert (out.weights <= WEIGHTS / WEIGHTS.sum()).all()


@every_reader
def test_zero_weights_keep_own(rule: Any) -> None:
    out = rule(OWN + 5, LINE, gossip=0 * WEIGHTS, tolerated=1)
    assert torch.equal(out.model, OWN + 5)
    assert not out.weights.any()


@every_reader
def test_float32_weights(rule: Any) -> None:
    """Weights of 999 messages that sum to 1 in float32, which is not exactly 1."""
    received = torch.ones(999, 2)
    gossip = torch.full((999,), 1 / 999, dtype=torch.float32)
    out = rule(torch.zeros(2), received, gossip=gossip, tolerated=0)
    assert out.weights.sum() <= 1 + 1e-6


BAD = {
    "a list": ([0.1] * 4, "found list"),
    "integers": (torch.ones(4, dtype=torch.int64), r"found int64 \(1, 4\)"),
    "too few": (torch.zeros(3), r"shape \(n, k\) = \(1, 4\), found float32 \(1, 3\)"),
    "a matrix": (torch.zeros(4, 4), r"found float32 \(1, 4, 4\)"),
    "negative": (
        torch.tensor([0.5, -0.1, 0.0, 0.0]),
        "gossip must be at least 0 and sum to at most",
    ),
    "too much": (torch.full((4,), 0.3), r"found weights from 0.3 with sums up to 1.2"),
    "NaN": (torch.tensor([0.5, math.nan, 0.0, 0.0]), "gossip must be at least 0"),
}


@pytest.mark.parametrize(("gossip", "message"), BAD.values(), ids=BAD)
def test_bad_weights(gossip: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.Gossip()(OWN, LINE, gossip=gossip)


def test_per_client_gets_rows() -> None:
    graph = GRAPHS[0]
    own = models_of(graph, 5, torch.float64)
    inbox = deliver(graph, own)
    gossip = random_weights(inbox, 3)
    rules = [eq.Gossip(), eq.NNA(tolerated=1), eq.Median()] * 4
    out = eq.PerClient(rules[: graph.n])(own, inbox, gossip=gossip)
    expected = eq.Gossip()(own, inbox, gossip=gossip)
    torch.testing.assert_close(out.model[::3], expected.model[::3])


def test_others_ignore_gossip() -> None:
    for rule in (eq.Median(), eq.SCClip(), eq.NNA(tolerated=0)):
        rule(OWN, LINE, gossip="anything")
