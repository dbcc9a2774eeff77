"""Saving is atomic and reports errors before there is work to lose."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.simulation.history import Round
from tests.simulation.checkpoint_runs import (
    N,
    ended,
    everything,
    leftovers,
    linux,
    simulator,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@linux
@pytest.mark.parametrize("room", [0, 100, 1500, 3000, 20_000])
def test_full_disk(room: int, path: Path) -> None:
    def make() -> eq.Simulator:
        return simulator(
            models=torch.ones(N, 1000, dtype=torch.float64), trainer=lambda models, t: 0.9 * models
        )

    make().run(2, checkpoint=path)
    run, before = make(), path.read_bytes()
    with (
        no_file_longer_than(room),
        pytest.raises(OSError, match=r"checkpoint could not be saved: .*run\.npz'"),
    ):
        run.run(checkpoint=path, save_every=1)
    assert path.read_bytes() == before
    assert leftovers(path) == []
    assert run.t == len(run.history) == 3
    assert ended(make(), checkpoint=path) == ended(make())


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere."""
    root = os.geteuid() == 0
    os.seteuid(65534) if root else None
    try:
        yield
    finally:
        os.seteuid(0) if root else None


@pytest.fixture
def read_only() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        simulator().run(2, checkpoint=Path(folder) / "run.npz")
        os.chmod(folder, 0o555)
        yield Path(folder) / "run.npz"
        os.chmod(folder, 0o755)


@linux
def test_read_only_folder(read_only: Path) -> None:
    before = read_only.read_bytes()
    with (
        unprivileged(),
        pytest.raises(
            PermissionError, match=r"checkpoint could not be saved: Permission denied: .*npz"
        ),
    ):
        simulator().run(checkpoint=read_only, save_every=1)
    assert read_only.read_bytes() == before


def test_unwritable_path(tmp_path: Path) -> None:
    def fails(models: Tensor, t: int) -> Tensor:
        raise AssertionError("work that will be lost")

    run = simulator(trainer=fails, total=None)
    with pytest.raises(
        FileNotFoundError, match=r"checkpoint could not be saved: No such file.*nowhere.run\.npz"
    ):
        run.run(3, checkpoint=tmp_path / "nowhere" / "run.npz")
    with pytest.raises(IsADirectoryError):
        run.run(3, checkpoint=tmp_path)
    assert run.total is None
    assert list(tmp_path.iterdir()) == []


def test_links_stay_links(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere / "run.npz")
    simulator().run(2, checkpoint=path)
    simulator().run(3, checkpoint=path)
    assert path.is_symlink()
    assert [file.name for file in elsewhere.iterdir()] == ["run.npz"]


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ([torch.ones(1)], "dict of tensors to be saved, found list"),
        (
            {"a": {"b": torch.ones(1)}, "c": 1},
            "dict of tensors to be saved, found a dict of dict, int",
        ),
        ({1: torch.ones(1)}, r"plain strings as keys to be saved, found \[1\]"),
        ({"a\0b": torch.ones(1)}, "plain strings as keys to be saved, found"),
    ],
)
def test_unsupported_rule_states(state: Any, found: str, path: Path) -> None:
    class Odd:
        def __call__(self, own: Tensor, received: Any, **_: Any) -> eq.Aggregated:
            return eq.Aggregated(own, None, state)

    with pytest.raises(ValueError, match=f"state of the rule must (be a|have) {found}"):
        simulator(Odd()).run(checkpoint=path)
    again = simulator(Odd())
    again.load(path)  # the one from the start
    assert everything(again) == everything(simulator(Odd()))


def test_inconsistent_state(path: Path) -> None:
    run = simulator()
    run.run(2)
    state = run.state
    run.state = replace(state, t=3)
    with pytest.raises(ValueError, match="one record for each of the t = 3 rounds, found 2"):
        run.save(path)
    run.state = state
    run.models[1, 0] = torch.nan
    with pytest.raises(ValueError, match=r"models must be finite .*, found client 1"):
        run.save(path)
    assert not path.exists()


def test_numbers_are_binary(path: Path) -> None:
    """That of 20 clients after 2,000 rounds would take longer to write than all else."""
    run = simulator(models=torch.randn(20, 10), topology=eq.Topology.ring(20), total=5000)
    for t in range(2000):
        run.history.add(
            Round(
                t,
                {"error": [0.1] * 20},
                {"bytes": 1.0, "consensus": 0.1},
                {"train": 0.1, "mix": 0.1},
            )
        )
    run.state = replace(run.state, t=2000)
    run.save(path)
    with zipfile.ZipFile(path) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    assert sizes["numbers.npy"] == pytest.approx(2000 * 24 * 8, rel=0.01)
    assert sizes["about.json"] < 2000 * 16  # which round, and which numbers it has
