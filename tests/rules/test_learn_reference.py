"""LEARN against its reference in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.cases import LEARNS
from tests.graphs import (
    Graph,
    complete,
    degrees,
    deliver,
    every_degree,
    models_of,
    random_lies,
    regular,
    round_inputs,
)
from tests.reference_rounds import assert_answer, both_dtypes, every_graph
from tests.references import Answer, array, learn, messages_of

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


every_learn = pytest.mark.parametrize("rule", LEARNS.values(), ids=LEARNS)


def learns_exchange(graph: Graph, dtype: torch.dtype, seed: int) -> Any:
    """Deliver messages; each third client lies, differently in each exchange."""
    exchanges = 0

    def exchange(sent: Tensor) -> eq.Inbox:
        nonlocal exchanges
        exchanges += 1
        return deliver(
            graph,
            sent,
            random_lies(graph, models_of(graph, sent.shape[1], dtype), seed + exchanges),
        )

    return exchange


@every_learn
@every_graph
@both_dtypes
@pytest.mark.parametrize(("d", "t"), [(1, 3), (3, 0), (17, 6)])
def test_learn(rule: Any, graph: Graph, d: int, t: int, dtype: torch.dtype) -> None:
    own = models_of(graph, d, dtype)
    inputs = round_inputs(graph, own, seed=d)
    assert_learn_agrees(rule, graph, own, inputs["update"], inputs["tolerated"], t)


@every_learn
@pytest.mark.parametrize(
    "graph", [regular(20, 10), complete(40), regular(100, 4)], ids=lambda graph: graph.name
)
def test_learn_large(rule: Any, graph: Graph) -> None:
    own = models_of(graph, 2000, torch.float32)
    inputs = round_inputs(graph, own)
    assert_learn_agrees(rule, graph, own, inputs["update"], degrees(graph) // 3, t=2, honest=True)


@every_learn
@both_dtypes
def test_learn_with_self_loops(rule: Any, dtype: torch.dtype) -> None:
    """Some clients have self-loops; one of them has no other neighbor."""
    plain = every_degree(9)
    loops = tuple((client, client) for client in (0, 2, 5, 6))
    graph = Graph("some self-loops", plain.n, (*plain.edges, *loops))
    own = models_of(graph, 17, dtype)
    update = round_inputs(graph, own)["update"]
    for honest in (True, False):
        assert_learn_agrees(rule, graph, own, update, degrees(graph) // 3, t=3, honest=honest)


def assert_learn_agrees(
    rule: Any,
    graph: Graph,
    own: Tensor,
    update: Tensor,
    tolerated: Tensor,
    t: int,
    honest: bool = False,
) -> None:
    def connect() -> Any:
        return (
            (lambda sent: deliver(graph, sent))
            if honest
            else learns_exchange(graph, own.dtype, seed=t)
        )

    listen = connect()

    def hear(sent: np.ndarray) -> list[Any]:
        inbox = listen(torch.from_numpy(sent))
        return [messages_of(inbox, i) for i in range(graph.n)]

    intermediate, answers = learn(
        array(own),
        array(update),
        hear,
        t=t,
        tolerated=tolerated.tolist(),
        own_update=rule.own_update,
        alpha=rule.alpha,
    )
    found, out = eq.run_exchanges(rule, own, connect(), update=update, t=t, tolerated=tolerated)
    for i, answer in enumerate(answers):
        magnitude = np.abs(intermediate[i]) + np.abs(array(own[i])) + np.abs(array(update[i]))
        assert_answer(
            found[i], None, Answer(intermediate[i], None, magnitude), f"client {i}, intermediate"
        )
        assert_answer(
            out.model[i],
            None,
            answer._replace(magnitude=answer.magnitude + magnitude),
            f"client {i}",
        )
