"""Every rule agrees with its slow reference, on every kind of graph and at every size.

The same messages must be accepted. Averages may differ by rounding: 1e-5 in float32 and 1e-9 in
float64, relative to the mean absolute value of the averaged terms. That allows for any order of
summation, but not for a lost term.
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
from tests.all_references import REFERENCES
from tests.cases import RULES
from tests.graphs import (
    GRAPHS,
    LARGE_GRAPHS,
    Graph,
    complete,
    degrees,
    deliver,
    models_of,
    random_lies,
    regular,
    round_inputs,
)
from tests.reference_rounds import assert_answer, both_dtypes, every_graph
from tests.references import Answer, reference_all

pytestmark = pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")


# Of weights. On a line, the median of an even number is one of many points: where the steps start
# decides. Eigenvectors of nearly equal eigenvalues amplify rounding, step after step.
# Steps from one weight to the next amplify the errors of distances, of up to 1e-6.
RELATIVE_ERRORS = {"GeometricMedian": 5e-5, "CAF": 1e-3, "CenteredClip": 1e-4}


every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@functools.cache
def prepared(
    graph: Graph, d: int, dtype: torch.dtype, seed: int = 0, lies: bool = True
) -> tuple[Any, ...]:
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
    answers = reference_all(
        REFERENCES[type(rule).__name__], own, inbox, receivers, **options_of(rule) | inputs
    )
    assert out.model.dtype == own.dtype
    assert out.model.shape == own.shape
    for i, answer in answers.items():
        weights = None if out.weights is None else out.weights[i]
        rtol = RELATIVE_ERRORS.get(type(rule).__name__, 1e-5)
        assert_answer(out.model[i], weights, answer, f"client {i}", rtol)
    return answers


@every_rule
@every_graph
@pytest.mark.parametrize(
    ("d", "dtype"),
    [
        (1, torch.float32),
        pytest.param(2, torch.float64, marks=pytest.mark.exhaustive),
        (3, torch.float32),
        pytest.param(17, torch.float32, marks=pytest.mark.exhaustive),
        (17, torch.float64),
    ],
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
@pytest.mark.parametrize(
    "graph", [regular(20, 10), complete(40), regular(200, 4)], ids=lambda graph: graph.name
)
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
    "gts": eq.GTS(),
    "rtc": eq.RTC(),
    "nna": eq.NNA(),
    "ios": eq.IOS(),
    "faba": eq.FABA(),
    "bridge-k": eq.Bridge("K"),
}


@functools.cache
def near_consensus(graph: Graph, d: int, scene: str) -> tuple[Any, ...]:
    """Models within 1e-4 of their norm: all, all but one huge model, or in three clusters."""
    generator = torch.Generator().manual_seed(d)
    camps = torch.arange(graph.n) % (3 if scene == "three camps" else 1)
    spread = 1e-4 * (0.5 + torch.rand(graph.n, 1, generator=generator))
    own = torch.randn(3, d, generator=generator)[camps] + spread * torch.randn(
        graph.n, d, generator=generator
    )
    own[2] *= 1e4 if scene == "one giant" else 1.0
    tolerated = degrees(graph) * 3 // 4 if scene == "three camps" else degrees(graph) // 4
    targets = own.double() + 1e-4 * torch.randn(own.shape, generator=generator, dtype=torch.float64)
    return (
        own,
        deliver(graph, own),
        {"t": 1, "total": 4, "tolerated": tolerated, "loss_of": Distance(targets)},
    )


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
    assert any(len(np.unique(answer.weights)) > 1 for answer in answers.values()), (
        "nothing was decided"
    )


@functools.cache
def repeated(graph: Graph, d: int, seed: int) -> tuple[Any, ...]:
    """Clients in groups of three have the same model."""
    common = models_of(graph, d, torch.float32, seed)
    noise = models_of(graph, d, torch.float32, seed + 50)
    own = (common[:1] + noise)[torch.arange(graph.n) // 3]
    inputs = round_inputs(graph, own, seed) | {"tolerated": degrees(graph) // 3}
    return own, deliver(graph, own, seed=seed), inputs


@every_rule
@pytest.mark.parametrize(
    "graph", [regular(10, 4), regular(20, 10), complete(40)], ids=lambda graph: graph.name
)
@pytest.mark.parametrize(("d", "seed"), [(3, 0), (2000, 0), (2000, 2), (5000, 1)])
def test_identical_messages(rule: Any, graph: Graph, d: int, seed: int) -> None:
    """Exact ties go to the lowest id, and a threshold accepts all equal messages or none."""
    own, inbox, inputs = repeated(graph, d, seed)
    assert_agrees(
        rule, own, inbox, range(0, graph.n, 1 if graph.n == 10 else graph.n // 5), **inputs
    )


@every_rule
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(rule: Any, dtype: torch.dtype) -> None:
    """Messages are widened first, so decisions are those of float64."""
    graph = regular(10, 4)
    own = models_of(graph, 33, dtype)
    assert_agrees(rule, own, deliver(graph, own), **round_inputs(graph, own))


@every_rule
@pytest.mark.parametrize("graph", [regular(10, 4), GRAPHS[6]], ids=lambda graph: graph.name)
def test_one_client(rule: Any, graph: Graph) -> None:
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
            REFERENCES[type(rule).__name__],
            models[i : i + 1],
            inbox,
            **options_of(rule) | mine | {"loss_of": judge},
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
            assert_agrees(
                rule, own, deliver(complete(n), own), {0, n // 2, n - 1}, tolerated=tolerated
            )


@every_graph
def test_per_client(graph: Graph) -> None:
    """A mixture of all rules: every client gets what its rule gives."""
    own = models_of(graph, 17, torch.float32)
    inbox = deliver(graph, own, random_lies(graph, own))
    inputs = round_inputs(graph, own)
    rules = [list(RULES.values())[i % len(RULES)] for i in range(graph.n)]
    out = eq.PerClient(rules)(own, inbox, **inputs)
    for i, rule in enumerate(rules):
        answer = reference_all(
            REFERENCES[type(rule).__name__], own, inbox, [i], **options_of(rule) | inputs
        )[i]
        if answer.weights is None:
            assert out.weights is None or out.weights[i].isnan().all()
        assert_answer(
            out.model[i], None if answer.weights is None else out.weights[i], answer, f"client {i}"
        )
