"""Runs in several processes resume from checkpoints, with any number of processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from tests.simulation.sharding.pool import Pool
from tests.simulation.sharding.small_shards import Setting, played

pytestmark = pytest.mark.skipif(not eq.native_available, reason="bits are those of the C kernels")

SETTING = Setting(rule="median", attack="late-noise", momentum=0.9, rounds=6, n=11)


def part_of_run(group: Any, setting: Setting, path: str, rounds: int) -> list[str]:
    simulator = setting.simulator(group, group.size())
    simulator.run(rounds, checkpoint=path, save_every=2)
    return sorted(x.name for x in Path(path).iterdir())


def resumed(group: Any, setting: Setting, path: str) -> tuple[Tensor, list[eq.Round]]:
    simulator = setting.simulator(group, group.size())
    simulator.load(path)
    assert simulator.t == 3
    history = simulator.run()
    return simulator.all_models(), list(history)


def error_of(group: Any, setting: Setting, path: str) -> str:
    with pytest.raises(ValueError, match="checkpoint") as caught:
        setting.simulator(group, group.size()).load(path)
    return str(caught.value)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (3, 1), (4, 3)])
@pytest.mark.parametrize("partition", ["contiguous", "scattered"])
def test_other_number_of_ranks(
    pool: Pool, tmp_path: Path, before: int, after: int, partition: str
) -> None:
    setting = Setting(**{**vars(SETTING), "partition": partition})
    path = str(tmp_path / "run")
    saved = pool.call(part_of_run, setting, path, 3, ranks=before)
    assert saved[0] == ["round-00000003"]  # the ones before were removed
    models, rounds = played(None, setting)
    (found, history), *_ = pool.call(resumed, setting, path, ranks=after)
    torch.testing.assert_close(found, models, rtol=0, atol=0)
    assert history == rounds


def error_of_full_disk(group: Any, setting: Setting, path: str) -> str:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    simulator = setting.simulator(group, group.size())
    with pytest.MonkeyPatch.context() as patch:
        if group.rank() == 1:
            patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="rank") as caught:
            simulator.save(path)
    return str(caught.value)


def test_full_disk_is_named_by_all_ranks(pool: Pool, tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    pool.call(part_of_run, SETTING, path, 3, ranks=2)
    for text in pool.call(error_of_full_disk, SETTING, path, ranks=2):
        assert text.startswith("rank 1 failed while it saved a checkpoint: OSError(28, 'no space")
    pool.call(resumed, SETTING, path, ranks=2)


def test_incomplete_folder_is_ignored(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "run"
    pool.call(part_of_run, SETTING, str(path), 3, ranks=2)
    (path / "round-00000005").mkdir()  # its metadata was never written
    pool.call(resumed, SETTING, str(path), ranks=2)


def test_checkpoint_of_another_run(pool: Pool, tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    pool.call(part_of_run, SETTING, path, 3, ranks=2)
    other = Setting(**{**vars(SETTING), "seed": 1})
    for text in pool.call(error_of, other, path, ranks=2):
        assert "must be a checkpoint of the same run" in text


def test_empty_folder(pool: Pool, tmp_path: Path) -> None:
    for text in pool.call(error_of, SETTING, str(tmp_path), ranks=2):
        assert "must hold a complete checkpoint, found none" in text
