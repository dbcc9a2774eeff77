"""A resumed run equals an uninterrupted one bit by bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import equipoise as eq
from equipoise.simulation import checkpoints
from tests.simulation.checkpoint_runs import (
    ROUNDS,
    RUNS,
    ended,
    every_kind,
    everything,
    pull,
    simulator,
    trained,
    undisturbed,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@every_kind
@pytest.mark.parametrize("cut", range(ROUNDS + 1))
def test_resume_from_any_round(make: Callable[[], eq.Simulator], cut: int, path: Path) -> None:
    first = make()
    for _ in range(cut):
        first.step()
    first.save(path)
    second = make()
    second.load(path)
    assert everything(second, seconds=True) == everything(first, seconds=True)
    assert second.t == cut
    assert ended(second) == undisturbed(make)


@pytest.mark.filterwarnings("ignore::equipoise.GuaranteeWarning")
@every_kind
def test_resume_every_round(make: Callable[[], eq.Simulator], path: Path) -> None:
    for rounds in range(1, ROUNDS + 1):
        run = make()
        assert len(run.run(rounds, checkpoint=path)) == rounds
    assert everything(run) == undisturbed(make)


def test_load_into_used_simulator(path: Path) -> None:
    for make in (trained, RUNS["a rule with a state"]):
        used = make()
        make().save(path)
        used.run()
        used.load(path)
        assert everything(used) == everything(make())
        assert ended(used) == ended(make())


def test_aligned_models(path: Path) -> None:
    """The last digits of a sum may depend on the alignment of its terms."""
    run = trained()
    run.run(2)
    for _ in range(5):
        run.save(path)
        run.load(path)
        assert run.models.data_ptr() % 64 == 0


def test_name_after_resuming(path: Path) -> None:
    simulator(name="then").run(2, checkpoint=path)
    assert simulator(name="now").run(checkpoint=path).name == "now"


def test_numpy_reads_checkpoints(path: Path) -> None:
    run = trained()
    run.run(2, checkpoint=path)
    with np.load(path, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["models"], run.models.numpy())
        assert set(archive) == {"about.json", "models", "numbers", "trainer/velocity"}


def test_rounds_count_from_the_start(path: Path) -> None:
    assert len(simulator().run(2, checkpoint=path)) == 2
    assert len(simulator().run(3, checkpoint=path)) == 3
    run = simulator()
    run.load(path)
    assert len(run.run(1)) == 4
    assert len(simulator().run(checkpoint=path)) == ROUNDS


def test_finished_run(path: Path) -> None:
    def fails(models: Tensor, t: int) -> Tensor:
        raise AssertionError("a round too many")

    whole = simulator()
    whole.run(checkpoint=path)
    before, fails.__qualname__ = os.stat(path), pull.__qualname__
    again = simulator(trainer=fails)
    assert again.run(ROUNDS, checkpoint=path) == whole.history
    assert everything(again) == everything(whole)
    assert os.stat(path) == before


def test_saved_total_is_used(path: Path) -> None:
    simulator().run(2, checkpoint=path)
    run = simulator(total=None)
    run.load(path)
    assert run.total == ROUNDS
    assert ended(run) == ended(simulator())
    assert ended(simulator(total=None), rounds=ROUNDS, checkpoint=path) == ended(simulator())


def test_no_saved_total(path: Path) -> None:
    run, whole = simulator(eq.FedAvg(), total=None), simulator(eq.FedAvg())
    run.step()
    run.save(path)
    assert ended(simulator(eq.FedAvg()), checkpoint=path) == ended(whole)


def test_run_cannot_grow(path: Path) -> None:
    """BALANCE accepts less and less until total: the first rounds would have been others."""
    simulator(total=None).run(2, checkpoint=path)
    longer = simulator(total=None)
    with pytest.raises(
        ValueError,
        match=r"run\.npz must be a checkpoint of the same run, found total 2 instead of 4$",
    ):
        longer.run(4, checkpoint=path)
    assert (longer.total, longer.t, len(longer.history)) == (None, 0, 0)


def test_fewer_rounds_than_saved(path: Path) -> None:
    simulator().run(4, checkpoint=path)
    run = simulator()
    with pytest.raises(ValueError, match=r"rounds must be at least the 4 of .*run\.npz, found 3"):
        run.run(3, checkpoint=path)
    assert everything(run) == everything(simulator())


@pytest.mark.parametrize("every", [0, -1, 1.5, None])
def test_save_every_is_a_count(every: Any, path: Path) -> None:
    with pytest.raises(
        ValueError, match=f"save_every must be an integer at least 1, found {every}"
    ):
        simulator().run(checkpoint=path, save_every=every)


def test_when_it_is_saved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    save = checkpoints.save
    monkeypatch.setattr(
        checkpoints,
        "save",
        lambda path, state, run: (saved.append(state.t), save(path, state, run)),
    )
    simulator().run(checkpoint=path, save_every=2)
    assert saved == [0, 2, 4, 5]
    simulator().run(checkpoint=path)
    assert saved == [0, 2, 4, 5]
