"""States of a run, and callbacks that see them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.simulation import State
from tests.simulation.checkpoint_runs import (
    ROUNDS,
    Remembering,
    Wandering,
    ended,
    everything,
    trained,
)
from tests.simulation.checkpoint_runs import simulator as attacked
from tests.simulation.small_runs import simulator

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


def test_state_is_frozen() -> None:
    state = simulator(eq.Median()).state
    with pytest.raises(FrozenInstanceError):
        state.t = 3  # type: ignore[misc]
    assert "State(models=float64 (10, 7), t=0, total=5" in repr(state)


def test_assignment_rolls_back() -> None:
    run = attacked(Remembering(), trainer=Wandering())
    run.run(2)
    middle = run.state
    before = everything(run, seconds=True)
    end = ended(run)
    for _ in range(2):
        run.state = middle
        assert everything(run, seconds=True) == before
        assert ended(run) == end


def test_state_moves_to_another_run() -> None:
    first = trained()
    first.run(3)
    second = trained()
    second.state = first.state
    assert ended(second) == ended(trained())


def test_earlier_states_stay() -> None:
    run = trained()
    states = [run.state]
    run.run(on_round=lambda run: states.append(run.state))
    assert [state.t for state in states] == list(range(ROUNDS + 1))
    assert [len(state.history) for state in states] == list(range(ROUNDS + 1))
    assert len({state.models.data_ptr() for state in states}) == ROUNDS + 1
    assert states[0].trainer_state == {}
    velocities = [state.trainer_state["velocity"] for state in states[1:] if state.trainer_state]
    assert not torch.equal(velocities[0], velocities[-1])


@pytest.mark.parametrize(
    ("state", "found"),
    [(None, "NoneType"), (simulator(models=torch.ones(10, 3)).state, r"float32 \(10, 3\)")],
)
def test_foreign_states(state: Any, found: str) -> None:
    run = simulator(eq.Median())
    with pytest.raises(ValueError, match=rf"state must be a State with .*\(10, 7\), found {found}"):
        run.state = state
    assert (run.t, len(run.run())) == (0, 5)


def test_state_is_read_only_by_part() -> None:
    run = simulator(eq.Median())
    for name in ("models", "t", "total", "history"):
        with pytest.raises(AttributeError):
            setattr(run, name, None)
    assert isinstance(run.state, State)


# Callbacks


def test_on_round_sees_every_round() -> None:
    seen: list[tuple[int, int]] = []
    run = simulator(eq.Median())
    run.run(on_round=lambda run: seen.append((run.t, len(run.history))))
    assert seen == [(t, t) for t in range(1, 6)]


def test_on_round_stops_early(tmp_path: Path) -> None:
    run = simulator(eq.Balance())
    assert len(run.run(on_round=lambda run: run.t == 3, checkpoint=tmp_path / "run")) == 3
    assert (run.t, run.total) == (3, 5)
    again = simulator(eq.Balance())
    again.load(tmp_path / "run")
    assert again.t == 3
    assert run.run() == simulator(eq.Balance()).run()


def test_on_round_may_fail(tmp_path: Path) -> None:
    def fail(run: eq.Simulator) -> None:
        if run.t == 2:
            raise KeyboardInterrupt

    run = simulator(eq.Balance())
    with pytest.raises(KeyboardInterrupt):
        run.run(on_round=fail, checkpoint=tmp_path / "run")
    again = simulator(eq.Balance())
    again.load(tmp_path / "run")
    assert run.t == again.t == 2
    assert again.run() == simulator(eq.Balance()).run()


@pytest.mark.parametrize("callback", [3, eq.Simulator])
def test_on_round_is_a_function(callback: Any) -> None:
    with pytest.raises(ValueError, match="on_round must be a function, found"):
        simulator(eq.Median()).run(on_round=callback)
