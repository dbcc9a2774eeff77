"""Checkpoints of runs whose trainer remembers something from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq

N = 5
D = 3
GOALS = torch.linspace(-1, 1, N * D).reshape(N, D)
WARNING = "trainer has no state_dict.*a resumed run may differ"


class ForgetfulAdam:
    """Trains all clients as one parameter: Adam treats each number on its own."""

    def __init__(self) -> None:
        self.parameter = nn.Parameter(torch.zeros(N, D))
        self.optimizer = torch.optim.Adam([self.parameter], lr=0.1)

    def __call__(self, models: Tensor, t: int) -> Tensor:
        self.parameter.data.copy_(models)
        self.optimizer.zero_grad()
        (self.parameter - GOALS).square().sum().backward()
        self.optimizer.step()
        return self.parameter.detach().clone()


class Adam(ForgetfulAdam):
    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.optimizer.state[self.parameter])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.optimizer.state[self.parameter] = {name: x.clone() for name, x in state.items()}


def simulator(trainer: Any) -> eq.Simulator:
    return eq.Simulator(trainer, eq.Topology.complete(N), eq.Median(), torch.zeros(N, D), total=9)


def test_adam_resumes_exactly(tmp_path: Path) -> None:
    whole = simulator(Adam())
    whole.run()
    for rounds in (2, 3, 9):
        part = simulator(Adam())
        part.run(rounds, checkpoint=tmp_path / "run")
    assert torch.equal(part.models, whole.models)
    assert part.history == whole.history


def test_warns_without_state_dict(tmp_path: Path) -> None:
    whole = simulator(ForgetfulAdam())
    whole.run()
    with pytest.warns(UserWarning, match=WARNING):
        simulator(ForgetfulAdam()).run(2, checkpoint=tmp_path / "run")
    part = simulator(ForgetfulAdam())
    with pytest.warns(UserWarning, match=WARNING):
        part.run(9, checkpoint=tmp_path / "run")
    assert not torch.equal(part.models, whole.models)


def test_save_and_load_warn(tmp_path: Path) -> None:
    run = simulator(ForgetfulAdam())
    with pytest.warns(UserWarning, match=WARNING) as saving:
        run.save(tmp_path / "run")
    with pytest.warns(UserWarning, match=WARNING) as loading:
        run.load(tmp_path / "run")
    assert saving[0].filename == __file__
    assert loading[0].filename == __file__


def test_no_warning_by_default() -> None:
    simulator(ForgetfulAdam()).run(2)


def test_stateless_trainer(tmp_path: Path) -> None:
    def train(models: Tensor, t: int) -> Tensor:
        return models + 1

    train.stateless = True  # type: ignore[attr-defined]
    for rounds in (3, 6):
        part = simulator(train)
        part.run(rounds, checkpoint=tmp_path / "run")
    whole = simulator(train)
    whole.run(6)
    assert torch.equal(part.models, whole.models)


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
@pytest.mark.filterwarnings("ignore:trainer has no state_dict")
def test_half_a_state_dict(method: str, tmp_path: Path) -> None:
    def train(models: Tensor, t: int) -> Tensor:
        return models

    setattr(train, method, dict)
    run = simulator(train)
    with pytest.raises(ValueError, match=f"must have both .*, or neither, found {method}"):
        run.run(3, checkpoint=tmp_path / "run")
    assert run.t == 0
    assert not (tmp_path / "run").exists()
