"""Damaged and foreign files are refused, and change nothing."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from tests.simulation.checkpoint_runs import (
    N,
    Remembering,
    edited,
    everything,
    refused,
    simulator,
    trained,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")


def test_truncated_files(small: Path) -> None:
    run = trained()
    run.step()
    before = everything(run, seconds=True)
    for length in reversed(range(small.stat().st_size)):
        os.truncate(small, length)
        with pytest.raises(ValueError, match="format 3, found another file, or a damaged one"):
            run.load(small)
        assert everything(run, seconds=True) == before


def overwrite(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(position)
        file.write(data)


def test_damaged_bytes(small: Path) -> None:
    """What says nothing is, for example, the date in an archive."""
    content, chance, run, unnoticed = small.read_bytes(), random.Random(0), trained(), 0
    run.load(small)
    saved = everything(run, seconds=True)
    for position in range(0, len(content), 2):
        length = chance.choice([1, 1, 1, 30])
        overwrite(
            small,
            position,
            bytes(x ^ (1 << chance.randrange(8)) for x in content[position : position + length]),
        )
        with suppress(ValueError):
            run.load(small)
            unnoticed += 1
        assert everything(run, seconds=True) == saved
        overwrite(small, position, content[position : position + length])
    assert unnoticed < len(content) / 20


def test_shrunken_array(path: Path) -> None:
    """Then its checksum, at the end of what it was, must be looked at all the same."""

    def make() -> eq.Simulator:
        return simulator(
            Remembering(), trainer=lambda models, t: 0.9 * models, models=torch.ones(N, 2000)
        )

    make().run(2, checkpoint=path)
    content = path.read_bytes()
    overwrite(path, content.index(b"(6, 2000)", content.index(b"rule/sum.npy")), b"(6, 1000)")
    with pytest.raises(
        ValueError, match=r"found another file, or a damaged one: BadZipFile: Bad CRC-32.*rule/sum"
    ):
        make().load(path)


class Payload:
    """What runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def pickled_array(payload: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([payload], dtype=object), allow_pickle=True)
    return file.getvalue()


def test_nothing_is_ever_unpickled(small: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    array = pickled_array(Payload(marker))
    np.load(io.BytesIO(array), allow_pickle=True)
    assert marker.is_dir()
    marker.rmdir()

    edited(small, models=array)
    refused(small, r"models of shape \(1,\) in \d+ bytes")
    edited(small, models=pickle.dumps(Payload(marker)))
    refused(small, "the magic string is not correct")
    small.write_bytes(pickle.dumps(Payload(marker)))
    refused(small, "not a zip file")
    torch.save({"models": Payload(marker)}, small)
    refused(small, "no item named 'about.json'")
    assert not marker.exists()


def test_other_files(path: Path) -> None:
    files: dict[str, Callable[[], object]] = {
        "not a zip file": lambda: path.write_bytes(b""),
        "File is not": lambda: path.write_text("round,client\n"),
        "no item named 'about.json'": lambda: np.savez(path, models=np.ones((N, 15))),
        "about.json": lambda: torch.save(torch.ones(N, 15), path),
        "JSONDecodeError": lambda: zipfile.ZipFile(path, "w").writestr("about.json", "models"),
    }
    for match, write in files.items():
        write()
        refused(path, match)


def test_an_older_format_is_named(small: Path) -> None:
    edited(small, about=lambda about: about | {"format": 1})
    refused(small, "of format 3, .*: ValueError: format 1, which this version does not read")
