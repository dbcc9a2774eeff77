"""Checkpoints of runs with other settings or data are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import attacks
from tests.simulation.checkpoint_runs import (
    GRAPH,
    N,
    Wandering,
    X,
    Y,
    edited,
    ended,
    everything,
    sgd,
    simulator,
    trained,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


def test_too_many_saved_rounds(path: Path) -> None:
    run = simulator(eq.FedAvg(), total=None)
    for _ in range(4):
        run.step()
    run.save(path)
    short = simulator(eq.FedAvg(), total=3)
    with pytest.raises(ValueError, match=r"run\.npz must be .* at most total = 3 rounds, found 4"):
        short.load(path)
    assert everything(short) == everything(simulator(eq.FedAvg(), total=3))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"seed": 1}, "seed 0 instead of 1$"),
        ({"total": 7}, "total 5 instead of 7$"),
        ({"malicious": [0]}, r"malicious \[0, 3\] instead of \[0\]$"),
        ({"malicious": []}, r"malicious \[0, 3\] instead of \[\]$"),
        ({"rule": eq.Median()}, r"rule FedAvg\(.*\) instead of Median\(.*\)$"),
        ({"rule": None}, r"rule FedAvg\(.*\) instead of None$"),
        ({"attack": None}, r"attack Window\(.* instead of None.*$"),
        (
            {"attack": attacks.Window(attacks.LabelFlip({0: 1, 1: 2, 2: 0}), 1, 4)},
            r"attack Window.*stop=3\) instead of Window.*stop=4\)$",
        ),
        ({"alpha": 0.4}, "alpha 0.5 instead of 0.4$"),
        ({"alpha": torch.full((N,), 0.5)}, r"alpha 0.5 instead of float32 \(6,\) with digest"),
        ({"tolerated": 1}, "tolerated None instead of 1$"),
        ({"keep_nonfinite": True}, "keep_nonfinite False instead of True$"),
        (
            {"topology": eq.Topology.regular(N, 4, seed=2)},
            r"topology Topology\(n=6.* instead of .*Topology\(n=6",
        ),
        ({"topology": lambda t: GRAPH}, r"topology Topology\(n=6.* instead of <function <lambda>>"),
        ({"trainer": sgd(0.0)}, "trainer .*momentum=0.9.* instead of .*momentum=0.0"),
        ({"trainer": sgd(lr=0.2)}, "trainer .*lr=0.1.* instead of .*lr=0.2"),
        ({"trainer": sgd(lr=lambda t: 0.1)}, "trainer .*lr=0.1.* instead of .*lr=<lambda>"),
        ({"trainer": sgd(seed=1)}, "trainer .*seed=0.* instead of .*seed=1"),
        ({"trainer": sgd(reduction="sum")}, "trainer .*'mean'.* instead of .*'sum'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_other_settings(options: dict[str, Any], found: str, small: Path) -> None:
    run, content = trained(**options), small.read_bytes()
    before = everything(run)
    for attempt in (run.load, lambda path: run.run(checkpoint=path)):
        with pytest.raises(
            ValueError, match=rf"run\.npz must be a checkpoint of the same run, found {found}"
        ):
            attempt(small)
        assert everything(run) == before
        assert small.read_bytes() == content


def test_all_differences_are_named(small: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"found malicious \[0, 3\] instead of \[0\]; alpha 0.5 instead of 1; seed 0",
    ):
        trained(malicious=[0], alpha=1, seed=2).load(small)


def test_other_momentum(path: Path) -> None:
    trained(trainer=sgd(0.0)).run(2, checkpoint=path)
    with pytest.raises(
        ValueError, match=r"found trainer .*momentum=0\.0.* instead of .*momentum=0\.9"
    ):
        trained().run(checkpoint=path)


def untrained(models: Tensor) -> eq.Simulator:
    options = {
        "trainer": lambda models, t: models,
        "topology": eq.Topology.complete(len(models)),
        "models": models,
    }
    return simulator(**options | {"malicious": [0]})


def test_other_sizes(path: Path) -> None:
    untrained(torch.ones(6, 5)).run(2, checkpoint=path)
    for n, d in ((7, 5), (6, 4), (5, 6)):
        with pytest.raises(
            ValueError, match=rf"found models float32 \(6, 5\) instead of float32 \({n}, {d}\)"
        ):
            untrained(torch.ones(n, d)).run(checkpoint=path)


def test_other_dtype(path: Path) -> None:
    untrained(torch.ones(6, 5)).run(2, checkpoint=path)
    with pytest.raises(
        ValueError, match=r"found models float32 \(6, 5\) instead of float64 \(6, 5\)$"
    ):
        untrained(torch.ones(6, 5, dtype=torch.float64)).run(checkpoint=path)


def test_other_data(small: Path) -> None:
    clients = [(x[:8], y[:8]) for x, y in zip(X, Y, strict=True)]
    model = eq.models.logistic_regression(4, 3)
    other = eq.LocalSGD(
        model, nn.functional.cross_entropy, clients, lr=0.1, batch_size=3, momentum=0.9
    )
    message = r"found samples int64 \(6,\) with digest \w+ instead of .*; data \w+ instead of"
    with pytest.raises(ValueError, match=message):
        trained(trainer=other).load(small)


@pytest.mark.parametrize("change", ["pixel", "label", "order", "owners"])
def test_other_data_of_equal_sizes(change: str, small: Path) -> None:
    x, y = X.clone(), Y.clone()
    if change == "pixel":
        x[5, 8, 3] = x[5, 8, 3].nextafter(torch.tensor(9.0))
    elif change == "label":
        y[5, 8] = (y[5, 8] + 1) % 3
    elif change == "order":
        x[2], y[2] = X[2].flip(0), Y[2].flip(0)
    else:
        x, y = X.roll(1, 0), Y.roll(1, 0)
    run = trained(trainer=sgd(data=(x, y)))
    before = everything(run)
    with pytest.raises(ValueError, match=r"the same run, found data \w{32} instead of \w{32}$"):
        run.run(checkpoint=small)
    assert everything(run) == before
    same = trained(trainer=sgd(data=(X.clone(), Y.clone())))
    assert ended(same, checkpoint=small) == ended(trained())


def test_custom_fingerprint(path: Path) -> None:
    class Fingerprinted:
        def __init__(self, found: Any) -> None:
            self.found = found

        def __call__(self, models: Tensor, t: int) -> Tensor:
            return 0.9 * models

        def fingerprint(self) -> Any:
            return self.found

        __repr__ = object.__repr__

    simulator(trainer=Fingerprinted("one")).run(2, checkpoint=path)
    assert simulator(trainer=Fingerprinted("one")).run(3, checkpoint=path)
    with pytest.raises(ValueError, match="of the same run, found data one instead of other"):
        simulator(trainer=Fingerprinted("other")).run(checkpoint=path)
    with pytest.raises(ValueError, match=r"fingerprint\(\) must return a string, found int"):
        simulator(trainer=Fingerprinted(7)).save(path)


def test_other_alpha_in_last_digit(path: Path) -> None:
    alpha = torch.full((N,), 0.5, dtype=torch.float64)
    simulator(alpha=alpha).run(2, checkpoint=path)
    simulator(alpha=alpha.clone()).run(3, checkpoint=path)
    with pytest.raises(ValueError, match=r"found alpha float64 \(6,\) with digest"):
        simulator(alpha=alpha.nextafter(torch.ones(()).double())).run(checkpoint=path)


def test_long_settings_are_cut(path: Path) -> None:
    rules = [eq.Balance(gamma=0.1 * i) for i in range(1, N + 1)]
    simulator(eq.PerClient(rules)).run(2, checkpoint=path)
    with pytest.raises(ValueError, match=r"found rule .*") as error:
        simulator(eq.PerClient([*rules[:-1], eq.Krum()])).load(path)
    assert "instead of ..." in str(error.value)
    assert "Krum" in str(error.value)
    assert len(str(error.value)) < 500


def test_lost_trainer_state(path: Path) -> None:
    simulator(trainer=Wandering()).run(2, checkpoint=path)
    edited(
        path,
        about=lambda about: (
            about | {"settings": about["settings"] | {"trainer": "<function pull>"}}
        ),
    )
    run = simulator()
    with pytest.raises(
        ValueError,
        match=r"run\.npz must be .* the same run, found one of a trainer with a state, places",
    ):
        run.load(path)
    assert everything(run) == everything(simulator())


def test_trainer_refuses_state(path: Path) -> None:
    class Picky(Wandering):
        def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
            super().load_state_dict(state)
            if picky:
                picky.clear()
                raise KeyError("velocity")

    picky: list[bool] = []
    simulator(trainer=Picky()).run(2, checkpoint=path)
    fresh = simulator(trainer=Picky())
    before = everything(fresh)
    picky.append(True)
    with pytest.raises(
        ValueError, match=r"run\.npz must be .* the same run, found another trainer: 'velocity'"
    ):
        fresh.load(path)
    assert everything(fresh) == before
