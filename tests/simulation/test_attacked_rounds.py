"""Attacks see everything and change only their own messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import attacks
from tests.simulation.small_runs import (
    MALICIOUS,
    N,
    simulator,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


@pytest.mark.parametrize("name", ["models", "previous"])
def test_models_are_protected(name: str) -> None:
    class Negated:
        def forge(self, known: attacks.Knowledge) -> eq.Lies:
            lies = getattr(known, name)
            lies *= -1
            return eq.Lies.per_sender(lies)

    run = simulator(eq.Balance(), attack=Negated())
    with pytest.raises(ValueError, match=f"attack modified {name} in place; clone it first"):
        run.step()
    assert (run.t, len(run.history)) == (0, 0)


@pytest.mark.parametrize("name", ["models", "previous"])
@pytest.mark.parametrize("write", [np.negative, np.sort, lambda x: x + 1e-6])
def test_numpy_writes_are_noticed(name: str, write: Any) -> None:
    class Spoiling:
        def forge(self, known: attacks.Knowledge) -> None:
            values = getattr(known, name).numpy()
            values[...] = write(values)

    run = simulator(
        eq.FedAvg(),
        attack=Spoiling(),
        models=torch.randn(N, 7000),
        trainer=lambda models, t: models + 1,
        metrics={},
    )
    with pytest.raises(ValueError, match=f"attack modified {name} in place; clone it first"):
        run.step()


def test_graph_is_protected() -> None:
    class Rewiring:
        def forge(self, known: attacks.Knowledge) -> None:
            known.topology.senders.numpy()[0] = 0

    with pytest.raises(ValueError, match=r"attack modified topology\.senders in place"):
        simulator(eq.FedAvg(), attack=Rewiring(), topology=eq.Topology.complete(N)).step()


def test_small_inputs_are_copies() -> None:
    class Meddling:
        def forge(self, known: attacks.Knowledge) -> None:
            known.inputs["tolerated"].zero_()
            known.malicious[:] = True

    tolerated = torch.ones(N, dtype=torch.int64)
    run, honest = (
        simulator(eq.TrimmedMean(), attack=attack, tolerated=tolerated)
        for attack in (Meddling(), None)
    )
    run.run()
    honest.run()
    assert run.malicious.nonzero().flatten().tolist() == MALICIOUS
    assert tolerated.sum() == N
    assert torch.equal(run.models, honest.models)


def test_all_exchanges_of_learn() -> None:
    """Previous models of updates are zeros, and their origin is known."""

    class Spy:
        def forge(self, known: attacks.Knowledge) -> None:
            updates = known.origin is not None and torch.equal(known.origin, run.models)
            assert updates == bool((known.previous == 0).all())
            seen.append((known.inputs["t"], updates))

    seen: list[tuple[int, bool]] = []
    run = simulator(eq.LEARN(), attack=Spy(), total=3)
    run.run()
    assert seen == [(0, False), (1, True), (1, False), (2, True), (2, True), (2, False)]
