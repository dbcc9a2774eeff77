"""Rules that talk once and several times, driven alike."""

from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq


def test_one_exchange() -> None:
    rule = eq.Balance()
    own = torch.tensor([3.0, 4.0])
    received = torch.tensor([[3.0, 4.5], [9.0, 9.0]])
    sent: list[Tensor] = []

    def exchange(messages: Tensor) -> Tensor:
        sent.append(messages)
        return received

    mixed_with, out = eq.run_exchanges(rule, own, exchange, t=0, total=2)
    assert len(sent) == 1
    assert sent[0] is own
    assert mixed_with is own
    assert torch.equal(out.model, rule(own, received, t=0, total=2).model)


def test_multi_exchange_unchanged() -> None:
    rule = eq.LEARN(tolerated=1)
    assert eq.as_multi_exchange(rule) is rule
    assert isinstance(rule, eq.MultiExchange)
    assert isinstance(eq.Median(), eq.Aggregator)


@pytest.mark.parametrize(
    ("t", "exchanges"), [(0, 1), (1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (2**20, 22)]
)
def test_learn_exchange_count(t: int, exchanges: int) -> None:
    """ceil(log2(t + 1)) exchanges of updates and one of models."""
    count = 0

    def exchange(messages: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return messages.expand(3, -1)

    own = torch.tensor([1.0, 2.0])
    update = torch.tensor([0.5, 0.25])
    mixed_with, out = eq.run_exchanges(eq.LEARN(tolerated=1), own, exchange, t=t, update=update)
    assert count == exchanges
    torch.testing.assert_close(mixed_with, own)
    torch.testing.assert_close(out.model, own)


def test_learn_missing_inputs() -> None:
    with pytest.raises(TypeError, match=r"LEARN needs t and update: pass t=\.\.\., update=\.\.\."):
        eq.run_exchanges(eq.LEARN(), torch.zeros(1), lambda sent: sent[None])
    with pytest.raises(TypeError, match="needs tolerated"):
        eq.run_exchanges(
            eq.LEARN(), torch.zeros(1), lambda sent: sent[None], t=0, update=torch.zeros(1)
        )
    with pytest.raises(
        ValueError, match=r"update must be like own, float32 \(1,\), found float32 \(2,\)"
    ):
        eq.run_exchanges(
            eq.LEARN(1), torch.zeros(1), lambda sent: sent[None], t=0, update=torch.zeros(2)
        )
    with pytest.raises(ValueError, match="t must be an integer at least 0, found -1"):
        eq.run_exchanges(
            eq.LEARN(1), torch.zeros(1), lambda sent: sent[None], t=-1, update=torch.zeros(1)
        )
    with pytest.raises(
        ValueError, match="own_update must be 'included', 'excluded' or 'mixed', found 'maybe'"
    ):
        eq.LEARN(own_update="maybe")  # type: ignore[arg-type]


def test_learn_strict_with_own() -> None:
    own = torch.zeros(1)
    update = torch.zeros(1)
    for own_update, degree, fine in [
        ("included", 3, True),
        ("included", 2, False),
        ("excluded", 2, False),
    ]:
        rule = eq.LEARN(tolerated=1, own_update=own_update, strict=True)  # type: ignore[arg-type]
        if fine:
            eq.run_exchanges(
                rule, own, lambda sent, k=degree: sent.expand(k, -1), t=1, update=update
            )
        else:
            with pytest.raises(ValueError, match=r"tolerated must be at most \d for client 0"):
                eq.run_exchanges(
                    rule, own, lambda sent, k=degree: sent.expand(k, -1), t=1, update=update
                )


@pytest.mark.parametrize("lies", [False, True], ids=["honest", "lies"])
def test_learn_counts_own_once(lies: bool) -> None:
    """With self-loops the updates agreed on are those without: N_i and {i} are united as sets."""
    graph = eq.Topology.regular(10, 4, seed=1)
    own, update, said = torch.randn(3, 10, 5, generator=torch.Generator().manual_seed(0)).unbind()
    found = []
    for topology in (graph, graph.with_self_loops()):

        def exchange(sent: Tensor, topology: eq.Topology = topology) -> eq.Inbox:
            return topology.deliver(sent, said if lies else None, malicious=[3, 4])

        found.append(eq.run_exchanges(eq.LEARN(tolerated=1), own, exchange, t=5, update=update)[0])
    assert torch.equal(*found)


class Talk:
    """A rule that talks several times, by a function."""

    def __init__(self, exchanges: Any) -> None:
        self.exchanges = exchanges


def silent(own: Tensor, **_: Any) -> Any:
    return eq.Aggregated(own)
    yield own


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            lambda own, received, **_: own,
            r"<lambda> must return an Aggregated, found float32 \(2,\); Aggregated\(model\)",
        ),
        (lambda own, received, **_: None, "<lambda> must return an Aggregated, found NoneType"),
        (
            lambda own, received, **_: eq.Aggregated(own, [1.0]),
            "weights of <lambda> must be a tensor or None, found list",
        ),
        (
            Talk(lambda own, **_: eq.Aggregated(own)),
            "Talk.exchanges must return a generator, found Aggregated; use yield",
        ),
        (Talk(silent), "Talk.exchanges must yield the messages to send, found nothing"),
    ],
    ids=["tensor", "None", "list of weights", "no generator", "silent"],
)
def test_broken_protocol(rule: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        eq.run_exchanges(rule, torch.zeros(2), lambda sent: sent[None])
