"""Every rule agrees with its slow reference, on every kind of graph and at every size.

The same messages must be accepted. Averages may differ by rounding: 1e-5 in float32 and 1e-9 in float64, relative to
the mean absolute value of what was averaged, which leaves room for any order of summation but not for a lost term.
Half precision is rounded once, at the end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.testing._rounds import Distance
from tests.cases import LEARNS, RULES
from tests.graphs import (
    GRAPHS,
    LARGE_GRAPHS,
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
from tests.references import REFERENCES, Answer, array, learn, messages_of, reference_all

# Some clients of these graphs have more malicious neighbors than rules guarantee; the numbers must agree all the same.
pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = [torch.float32, torch.float64]

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
every_learn = pytest.mark.parametrize("rule", LEARNS.values(), ids=LEARNS)
every_graph = pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@functools.cache
def prepared(graph: Graph, d: int, dtype: torch.dtype, seed: int = 0, lies: bool = True) -> tuple[Any, ...]:
    """Models, inbox and inputs of a round; shared between rules, which modify nothing."""
    own = models_of(graph, d, dtype, seed)
    inbox = deliver(graph, own, random_lies(graph, own, seed + d) if lies else None)
    return own, inbox, round_inputs(graph, own, seed + d)


def options_of(rule: Any) -> dict[str, Any]:
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}


def assert_agrees(
    rule: Any, own: Tensor, inbox: eq.Inbox, receivers: Iterable[int] | None = None, **inputs: Any
) -> dict[int, Answer]:
    out = rule(own, inbox, **inputs)
    answers = reference_all(REFERENCES[type(rule).__name__], own, inbox, receivers, **options_of(rule) | inputs)
    assert out.model.dtype == own.dtype
    assert out.model.shape == own.shape
    for i, answer in answers.items():
        assert_answer(out.model[i], None if out.weights is None else out.weights[i], answer, f"client {i}")
    return answers


def assert_answer(model: Tensor, weights: Tensor | None, answer: Answer, who: str) -> None:
    assert (weights is None) == (answer.weights is None), f"{who}: weights {weights}, expected {answer.weights}"
    if weights is not None:
        found = array(weights)
        np.testing.assert_array_equal(found != 0, answer.weights != 0, err_msg=f"{who}: accepted")
        np.testing.assert_allclose(found, answer.weights, rtol=1e-5, atol=1e-30, err_msg=f"{who}: weights")
    error = np.abs(array(model) - answer.model)
    allowed = TOLERANCE[model.dtype] * np.maximum(np.abs(answer.model), answer.magnitude) + smallest(model.dtype)
    worst = int(np.argmax(error - allowed))
    assert (error <= allowed).all(), (
        f"{who}, coordinate {worst}: {array(model)[worst]}, expected {answer.model[worst]} within {allowed[worst]}"
    )


def smallest(dtype: torch.dtype) -> float:
    """The spacing of subnormal numbers, which no relative tolerance covers."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


@every_rule
@every_graph
@pytest.mark.parametrize(
    ("d", "dtype"),
    [(1, torch.float32), (2, torch.float64), (3, torch.float32), (17, torch.float32), (17, torch.float64)],
)
def test_with_lies(rule: Any, graph: Graph, d: int, dtype: torch.dtype) -> None:
    """All graphs, a lie for every edge of every third client, any number tolerated."""
    own, inbox, inputs = prepared(graph, d, dtype)
    assert_agrees(rule, own, inbox, **inputs)


@every_rule
@pytest.mark.parametrize("seed", range(5))
def test_random_rounds(rule: Any, seed: int) -> None:
    """More draws of lies and numbers tolerated, on a graph of many degrees."""
    own, inbox, inputs = prepared(GRAPHS[seed % 8], 5, torch.float32, seed + 1)
    assert_agrees(rule, own, inbox, **inputs)


@every_rule
@both_dtypes
@pytest.mark.parametrize("d", [1000, 20000])
def test_long_models(rule: Any, d: int, dtype: torch.dtype) -> None:
    own, inbox, inputs = prepared(regular(8, 5), d, dtype)
    assert_agrees(rule, own, inbox, **inputs)


@every_rule
@pytest.mark.parametrize("graph", LARGE_GRAPHS, ids=lambda graph: graph.name)
def test_large_rounds(rule: Any, graph: Graph) -> None:
    """Large enough for every faster way of computing; a few receivers are checked."""
    own, inbox, inputs = prepared(graph, 20000, torch.float32, lies=False)
    tolerated = (degrees(graph) // 4).clamp(min=1)
    assert_agrees(rule, own, inbox, large_sample(graph), **inputs | {"tolerated": tolerated})


@every_rule
@pytest.mark.parametrize("graph", [regular(20, 10), complete(40), regular(200, 4)], ids=lambda graph: graph.name)
def test_large_rounds_with_lies(rule: Any, graph: Graph) -> None:
    own, inbox, inputs = prepared(graph, 2000, torch.float32, seed=1)
    assert_agrees(rule, own, inbox, large_sample(graph), **inputs)


def large_sample(graph: Graph) -> list[int]:
    return [0, graph.n // 2, graph.n - 1] if graph.n < 100 else [1, graph.n - 1]


CONSENSUS_RULES = {
    "balance": eq.Balance(gamma=1.5e-4, kappa=0.0),
    "balance-decaying": eq.Balance(gamma=2.4e-4, kappa=2.0),
    "balance-median": eq.BalanceMedian(),
    "krum": eq.Krum(),
    "ubar": eq.UBAR(),
    "scclip-median": eq.SCClip(tau="median"),
    "scclip-second-largest": eq.SCClip(tau="second_largest"),
}


@functools.cache
def near_consensus(graph: Graph, d: int, scene: str) -> tuple[Any, ...]:
    """Models that differ by 1e-4 of their norm: all, all but a giant at 1e4 times the norm, or within three camps."""
    generator = torch.Generator().manual_seed(d)
    camps = torch.arange(graph.n) % (3 if scene == "three camps" else 1)
    spread = 1e-4 * (0.5 + torch.rand(graph.n, 1, generator=generator))
    own = torch.randn(3, d, generator=generator)[camps] + spread * torch.randn(graph.n, d, generator=generator)
    own[2] *= 1e4 if scene == "one giant" else 1.0
    tolerated = degrees(graph) * 3 // 4 if scene == "three camps" else degrees(graph) // 4
    targets = own.double() + 1e-4 * torch.randn(own.shape, generator=generator, dtype=torch.float64)
    return own, deliver(graph, own), {"t": 1, "total": 4, "tolerated": tolerated, "loss_of": Distance(targets)}


@pytest.mark.parametrize("rule", CONSENSUS_RULES.values(), ids=CONSENSUS_RULES)
@pytest.mark.parametrize("scene", ["near", "one giant", "three camps"])
@pytest.mark.parametrize(
    ("graph", "d"),
    [
        (regular(12, 6), 17),
        (complete(9), 1000),
        (regular(20, 10), 20000),
        (complete(100), 3000),
        (regular(200, 4), 3000),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_near_consensus(rule: Any, graph: Graph, d: int, scene: str) -> None:
    """Differences far below the norm decide, and must not drown in its rounding."""
    own, inbox, inputs = near_consensus(graph, d, scene)
    receivers = range(0, graph.n, 1 if graph.n <= 20 else graph.n // 3 if inbox.k > 10 else 7)
    answers = assert_agrees(rule, own, inbox, receivers, **inputs)
    assert any(len(np.unique(answer.weights)) > 1 for answer in answers.values()), "nothing was decided"


@functools.cache
def repeated(graph: Graph, d: int, seed: int) -> tuple[Any, ...]:
    """Clients in groups of three have the same model."""
    common, noise = models_of(graph, d, torch.float32, seed), models_of(graph, d, torch.float32, seed + 50)
    own = (common[:1] + noise)[torch.arange(graph.n) // 3]
    inputs = round_inputs(graph, own, seed) | {"tolerated": degrees(graph) // 3}
    return own, deliver(graph, own, seed=seed), inputs


@every_rule
@pytest.mark.parametrize("graph", [regular(10, 4), regular(20, 10), complete(40)], ids=lambda graph: graph.name)
@pytest.mark.parametrize(("d", "seed"), [(3, 0), (2000, 0), (2000, 2), (5000, 1)])
def test_identical_messages(rule: Any, graph: Graph, d: int, seed: int) -> None:
    """Equal messages are equally far: exact ties go to the lowest id, and a threshold takes all of them or none."""
    own, inbox, inputs = repeated(graph, d, seed)
    assert_agrees(rule, own, inbox, range(0, graph.n, 1 if graph.n == 10 else graph.n // 5), **inputs)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(rule: Any, dtype: torch.dtype) -> None:
    """Messages are widened first, so decisions are those of float64."""
    graph = regular(10, 4)
    own = models_of(graph, 33, dtype)
    assert_agrees(rule, own, deliver(graph, own), **round_inputs(graph, own))


@every_rule
@pytest.mark.parametrize("graph", [regular(10, 4), GRAPHS[6]], ids=lambda graph: graph.name)
def test_one_client_in_its_own_loop(rule: Any, graph: Graph) -> None:
    """``rule(own (d,), received (k, d))`` with messages in the order of their senders."""
    models = models_of(graph, 17, torch.float32)
    lies = random_lies(graph, models)
    inputs = round_inputs(graph, models)
    for i in range(graph.n):
        rows = [lies.get((j, i), models[j]) for j in graph.senders_to(i)]
        received = torch.stack(rows) if rows else models[:0]
        inbox = eq.Inbox(received, torch.arange(len(received))[None])
        mine = inputs | {"tolerated": inputs["tolerated"][i : i + 1]}
        judge = Distance(inputs["loss_of"].targets[i : i + 1])
        answer = reference_all(
            REFERENCES[type(rule).__name__], models[i : i + 1], inbox, **options_of(rule) | mine | {"loss_of": judge}
        )[0]
        alone = {
            "tolerated": int(inputs["tolerated"][i]),
            "loss_of": lambda candidates, judge=judge: judge(
                candidates, torch.zeros(len(candidates), dtype=torch.int64)
            ),
        }
        out = rule(models[i], received, **inputs | alone)
        assert_answer(out.model, out.weights, answer, f"client {i}")


@pytest.mark.parametrize("rule", [eq.TrimmedMean(), eq.Median()], ids=["trimmed-mean", "median"])
@pytest.mark.parametrize("whole", [False, True], ids=["distinct", "with ties"])
def test_every_count(rule: Any, whole: bool) -> None:
    """Order statistics of 1 to 40 messages, and of so many that another way of sorting is taken."""
    generator = torch.Generator().manual_seed(0)
    for count in [*range(1, 41), 63, 64, 65, 600]:
        received = torch.randn(count, 7, generator=generator)
        received = (2 * received).round() if whole else received
        inbox = eq.Inbox(received, torch.arange(count)[None])
        for tolerated in {0, 1, count // 4, count // 3, count // 2 - 1, count}:
            assert_agrees(rule, torch.zeros(1, 7), inbox, tolerated=max(0, tolerated))


@pytest.mark.parametrize("rule", [eq.TrimmedMean(), eq.Median()], ids=["trimmed-mean", "median"])
@pytest.mark.parametrize("whole", [False, True], ids=["distinct", "with ties"])
def test_every_complete_graph(rule: Any, whole: bool) -> None:
    """Clients that all hear each other share their sorting; one of them sends huge numbers."""
    for n in range(1, 26):
        own = models_of(complete(n), 7, torch.float32, seed=n)
        own = (3 * own).round() if whole else own
        own[n // 2] = 3e38
        for tolerated in {0, 1, n // 4, n // 2}:
            assert_agrees(rule, own, deliver(complete(n), own), {0, n // 2, n - 1}, tolerated=tolerated)


def learns_exchange(graph: Graph, dtype: torch.dtype, seed: int) -> Any:
    """What clients say becomes what they hear: every third client lies, in its own way in every exchange."""
    exchanges = 0

    def exchange(sent: Tensor) -> eq.Inbox:
        nonlocal exchanges
        exchanges += 1
        return deliver(graph, sent, random_lies(graph, models_of(graph, sent.shape[1], dtype), seed + exchanges))

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
@pytest.mark.parametrize("graph", [regular(20, 10), complete(40), regular(100, 4)], ids=lambda graph: graph.name)
def test_learn_large(rule: Any, graph: Graph) -> None:
    own = models_of(graph, 2000, torch.float32)
    inputs = round_inputs(graph, own)
    assert_learn_agrees(rule, graph, own, inputs["update"], degrees(graph) // 3, t=2, honest=True)


@every_learn
@both_dtypes
def test_learn_with_self_loops(rule: Any, dtype: torch.dtype) -> None:
    """Some clients hear themselves, others do not; one of them hears nobody else."""
    plain = every_degree(9)
    loops = tuple((client, client) for client in (0, 2, 5, 6))
    graph = Graph("some self-loops", plain.n, (*plain.edges, *loops))
    own = models_of(graph, 17, dtype)
    update = round_inputs(graph, own)["update"]
    for honest in (True, False):
        assert_learn_agrees(rule, graph, own, update, degrees(graph) // 3, t=3, honest=honest)


def assert_learn_agrees(
    rule: Any, graph: Graph, own: Tensor, update: Tensor, tolerated: Tensor, t: int, honest: bool = False
) -> None:
    def connect() -> Any:
        return (lambda sent: deliver(graph, sent)) if honest else learns_exchange(graph, own.dtype, seed=t)

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
        assert_answer(found[i], None, Answer(intermediate[i], None, magnitude), f"client {i}, intermediate")
        assert_answer(out.model[i], None, answer._replace(magnitude=answer.magnitude + magnitude), f"client {i}")


@every_graph
def test_per_client(graph: Graph) -> None:
    """A mixture of all rules: every client gets what its rule gives."""
    own = models_of(graph, 17, torch.float32)
    inbox = deliver(graph, own, random_lies(graph, own))
    inputs = round_inputs(graph, own)
    rules = [list(RULES.values())[i % len(RULES)] for i in range(graph.n)]
    out = eq.PerClient(rules)(own, inbox, **inputs)
    for i, rule in enumerate(rules):
        answer = reference_all(REFERENCES[type(rule).__name__], own, inbox, [i], **options_of(rule) | inputs)[i]
        if answer.weights is None:
            assert out.weights is None or out.weights[i].isnan().all()
        assert_answer(out.model[i], None if answer.weights is None else out.weights[i], answer, f"client {i}")
