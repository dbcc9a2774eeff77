"""Runs, their state and their records."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import attacks
from equipoise.simulation._evaluation import is_evaluated
from tests.simulation.small_runs import (
    GRAPH,
    MALICIOUS,
    ROUNDS,
    D,
    N,
    noisy,
    pull,
    simulator,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


def test_runs_share_no_momentum() -> None:
    """What a trainer remembers belongs to a run."""
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    model = nn.Linear(2, 3)
    trainer = eq.LocalSGD(model, nn.functional.cross_entropy, [(x, y)] * 3, lr=0.1, momentum=0.9)
    models = [
        eq.Simulator(
            trainer, eq.Topology.complete(3), eq.Median(), eq.flatten(model).repeat(3, 1), total=4
        )
        for _ in range(2)
    ]
    for one in models:
        one.run()
    assert torch.equal(models[0].models, models[1].models)


class Counter(nn.Module):
    """A trainer that is a module, whose state_dict is not a copy but the buffer itself."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, models: Tensor, t: int) -> Tensor:
        self.count += 1
        return models + self.count


def test_module_rolls_back() -> None:
    def interrupted(models: Tensor) -> Tensor:
        if not seen:
            seen.append(True)
            raise KeyboardInterrupt
        return models[:, 0]

    seen: list[bool] = []
    trainer = Counter()
    run = eq.Simulator(
        trainer,
        eq.Topology.complete(3),
        None,
        torch.zeros(3, 1),
        total=3,
        metrics={"first": interrupted},
    )
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert (trainer.count, run.t) == (0, 0)
    run.run()
    assert run.models.flatten().tolist() == [6.0] * 3


def test_trainer_without_loading() -> None:
    class Forgetful:
        def __call__(self, models: Tensor, t: int) -> Tensor:
            raise KeyboardInterrupt

        def state_dict(self) -> dict[str, Tensor]:
            return {}

    with pytest.raises(KeyboardInterrupt):
        simulator(eq.Median(), trainer=Forgetful()).run()


def test_failed_run_keeps_total() -> None:
    run = simulator(eq.Median(), total=None, metrics={"wrong": lambda models: 1})
    with pytest.raises(ValueError, match=r"metrics\['wrong'\] must return"):
        run.run(3)
    run.metrics = {}
    assert len(run.run(4)) == 4
    assert run.total == 4


def test_mask_is_copied() -> None:
    mask = torch.zeros(N, dtype=torch.bool)
    mask[MALICIOUS] = True
    run = noisy(eq.Median(), malicious=mask)
    mask.logical_not_()
    assert run.malicious.nonzero().flatten().tolist() == MALICIOUS


def test_numpy_numbers(tmp_path: Path) -> None:
    run = simulator(eq.Median(), total=None, evaluate_every=np.int64(2), seed=np.int64(3))
    run.run(np.int64(4), checkpoint=tmp_path / "run")
    assert [one.t for one in run.history.evaluated] == [1, 3]
    again = simulator(eq.Median(), total=np.int64(4), evaluate_every=2, seed=3)
    again.load(tmp_path / "run")
    assert torch.equal(again.models, run.models)


def test_rounds_with_new_checkpoint(tmp_path: Path) -> None:
    run = simulator(eq.Median(), total=9)
    run.run(4)
    assert len(run.run(3, checkpoint=tmp_path / "run")) == 7
    assert (
        len(run.run(8, checkpoint=tmp_path / "run")) == 8
    )  # of a file that is there, from the start


def test_trainer_writes_in_place() -> None:
    """Attacks and roll-backs need the models before training."""

    def trainer(models: Tensor, t: int) -> Tensor:
        models += 1
        return models

    with pytest.raises(ValueError, match="trainer modified models in place; clone it first"):
        simulator(eq.Median(), trainer=trainer).step()


def test_isolated_clients() -> None:
    """Three benign strangers among others, who believe each other."""
    models = torch.ones(N, D, dtype=torch.float64)
    strangers = [i for i in range(N) if i not in MALICIOUS][:3]
    models[strangers] *= torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64)[:, None]
    run = simulator(
        eq.Balance(),
        trainer=lambda models, t: models,
        topology=eq.Topology.complete(N),
        models=models,
    )
    history = run.run()
    summary = history.summary()
    assert (summary["isolated"], summary["alone"]) == (3, 0)
    assert "3 benign clients accepted no message in the last round: check initial models" in str(
        history
    )
    assert "isolated" not in simulator(eq.Median()).run().summary()
    assert simulator(eq.FedAvg()).run().summary()["isolated"] == 0


def test_depends_on_seed_only() -> None:
    def run(seed: int, torch_seed: int) -> eq.History:
        torch.manual_seed(torch_seed)
        return noisy(
            eq.FedAvg(), topology=eq.EachRound(lambda t, g: GRAPH.drop(0.3, g)), seed=seed
        ).run()

    assert run(1, torch_seed=3) == run(1, torch_seed=4)
    assert run(1, torch_seed=3) != run(2, torch_seed=3)


def test_steps_equal_run() -> None:
    whole, steps = noisy(eq.Balance()), noisy(eq.Balance())
    history = whole.run()
    for t in range(ROUNDS):
        assert steps.step() == history[t]
    assert torch.equal(whole.models, steps.models)


def test_a_run_in_two_parts() -> None:
    run = noisy(eq.Balance())
    run.run(2)
    assert (run.t, len(run.history)) == (2, 2)
    run.run()
    assert run.history == noisy(eq.Balance()).run()


def test_evaluate_every() -> None:
    assert [one.t for one in simulator(eq.FedAvg(), evaluate_every=2).run().evaluated] == [1, 3, 4]
    assert [one.t for one in simulator(eq.FedAvg(), evaluate_every={0, 3}).run().evaluated] == [
        0,
        3,
        4,
    ]


@pytest.mark.parametrize(
    ("total", "step"), [(1, 1), (99, 1), (100, 1), (101, 2), (200, 2), (250, 3), (1001, 11)]
)
def test_default_evaluations(total: int, step: int) -> None:
    expected = sorted({0, *range(step - 1, total, step), total - 1})
    assert [t for t in range(total) if is_evaluated(t, None, total)] == expected
    assert len(expected) <= 102


def test_long_run_by_default() -> None:
    run = simulator(total=250)
    run.run(7)
    assert [one.t for one in run.history.evaluated] == [0, 2, 5]
    assert run.run().evaluated[-1].t == 249
    assert len(run.history.evaluated) == 85


def test_steps_without_total() -> None:
    run = simulator(total=None)
    assert all(run.step().clients for _ in range(102))


def test_diverging_run() -> None:
    run = simulator(eq.FedAvg(), attack=attacks.NonFinite(), keep_nonfinite=True)
    history = run.run()
    hit = [i for i in range(N) if i not in MALICIOUS and GRAPH.malicious_neighbors(MALICIOUS)[i]]
    assert [client for client, t in history.diverged.items() if t == 0] == hit
    assert math.isnan(history.worst("distance")[1][-1])
    assert "diverged             8, the first in round 0" in str(history)


def test_note_on_isolation(capsys: pytest.CaptureFixture[str]) -> None:
    strangers = torch.randn(N, D, dtype=torch.float64)
    run = simulator(eq.Balance(gamma=0.01), models=strangers)
    history = run.run(progress=True)
    assert "no message accepted" in capsys.readouterr().err
    assert history.summary()["alone"] == len(history)
    (line,) = [line for line in str(history).splitlines() if line.startswith("alone")]
    assert (
        "5 of 5 rounds, in which benign clients accepted no message: check initial models" in line
    )
    assert simulator(eq.FedAvg(), models=strangers).run().summary()["alone"] == 0


def test_inputs_are_unchanged() -> None:
    start = torch.ones(N, D, dtype=torch.float64)
    noisy(eq.FedAvg(), models=start).run()
    assert (start == 1).all()


def test_failed_round_rolls_back() -> None:
    def fails(models: Tensor, t: int) -> Tensor:
        if t == 3 and broken:
            raise KeyboardInterrupt
        return pull(models, t)

    broken = [True]
    run = noisy(eq.Balance(), trainer=fails)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert (run.t, len(run.history)) == (3, 3)
    broken.clear()
    assert run.run() == noisy(eq.Balance()).run()


def test_progress_shows_error(capsys: pytest.CaptureFixture[str]) -> None:
    history = noisy(eq.Balance()).run(progress=False)
    assert capsys.readouterr().err == ""
    noisy(eq.Balance()).run(progress=True)
    shown = capsys.readouterr().err
    assert "5/5" in shown
    assert f"worst distance {history.worst('distance')[1][-1]:.4g}" in shown
