"""Runs that are taken up again: everything that changes from round to round, as data without code.

A checkpoint is a zip archive of ``about.json`` and of arrays, which ``numpy.load`` reads as well, each with a checksum.
Checksums reveal damage. The parts are also checked against each other, so that an edited file does
not load either.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import warnings
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.atomic_write import atomic_write
from equipoise._utils.validation import check_count, describe
from equipoise.simulation.history import History
from equipoise.simulation.record import Round
from equipoise.topology import Topology

if TYPE_CHECKING:
    from equipoise.simulation.simulator import Simulator

FORMAT = 2  # format 1 had no fingerprint of the training data
ABOUT = "about.json"
SHOWN = 100  # characters of a setting in an error


class Kept:
    """A run that is kept in a file, if one is given: taken up from there, saved now and then, and when it ends."""

    def __init__(self, simulator: Simulator, path: str | Path | None, every: int) -> None:
        check_count("save_every", every, 1)
        self.simulator, self.path, self.every = simulator, path, every
        self._saved: int | None = None

    def resume(self, end: int) -> None:
        """Go on from the file, towards round ``end``.

        A new file is written right away: that it cannot be written is better known before there is work to lose.
        """
        if self.path is not None and Path(self.path).exists():
            load(self.path, self.simulator)
            self._saved = self.simulator.t
            if self.simulator.t > end:
                raise ValueError(f"rounds must be at least the {self.simulator.t} of {self.path}, found {end}")
        self._save()

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    def advance(self) -> None:
        """Note that a round is done."""
        if self.simulator.t % self.every == 0:
            self._save()

    def _save(self) -> None:
        if self.path is not None and self._saved != self.simulator.t:
            save(self.path, self.simulator)
            self._saved = self.simulator.t


def warn_of_unsaved_state(trainer: object) -> None:
    """Warn that a checkpoint does not hold what a trainer without ``state_dict`` remembers."""
    if hasattr(trainer, "state_dict") or getattr(trainer, "stateless", False) is True:
        return
    warnings.warn(
        "trainer has no state_dict, so a checkpoint does not hold anything that it remembers from round to round: "
        "a resumed run may differ from an uninterrupted one. Give the trainer state_dict() and "
        "load_state_dict(state), or set stateless = True on it if the models and the round determine what it returns",
        stacklevel=3,
    )


def save(path: str | Path, simulator: Simulator) -> None:
    """Write a checkpoint. Atomic: an interrupted write keeps the previous checkpoint."""
    _check_consistent(simulator.t, simulator.total, simulator.history, simulator.models)
    history, numbers = _packed(simulator.history)
    trainer = _trainer_state(simulator.trainer)
    tensors = {"models": simulator.models, "numbers": numbers}
    tensors |= _prefixed("trainer", trainer) | _prefixed("rule", {} if simulator.state is None else simulator.state)
    about = {
        "format": FORMAT,
        "settings": _settings(simulator),
        "t": simulator.t,
        "history": history,
        "stateful": simulator.state is not None,
        "dtypes": {name: _name_of(tensor.dtype) for name, tensor in tensors.items()},
    }
    with atomic_write(path, "checkpoint") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(ABOUT, json.dumps(about))
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _as_array(tensor), allow_pickle=False)


def load(path: str | Path, simulator: Simulator) -> None:
    """Bring a simulator to the state of a checkpoint.

    The caller restores the simulator if this fails: a checkpoint may be damaged, or of another run.
    """
    found = _read(path, simulator.models.device)
    _check_same_run(path, found.settings, _settings(simulator))
    total = simulator.total or found.settings["total"]
    if total is not None and found.t > total:
        expected = f"a checkpoint of at most total = {total} rounds"
        raise ValueError(f"{path} must be {expected}, found {found.t}")
    _restore(path, simulator.trainer, found.trainer)
    found.history.name = simulator.history.name
    simulator.models, simulator.t, simulator.state = found.models, found.t, found.state
    simulator.history, simulator.total = found.history, total


@dataclass(frozen=True, eq=False)
class _Content:
    """What a checkpoint holds."""

    settings: dict[str, Any]
    t: int
    history: History
    models: Tensor
    trainer: dict[str, Tensor]
    state: dict[str, Tensor] | None


# Which run it is


def _settings(simulator: Simulator) -> dict[str, Any]:
    """What two runs must have in common to come to the same models, as far as it can be written down."""
    names = ("topology", "rule", "attack", "alpha", "tolerated", "keep_nonfinite", "seed", "trainer")
    return {
        "models": describe(simulator.models),
        "malicious": list(simulator.history.malicious),
        "total": simulator.total,
        "samples": _written(getattr(simulator.trainer, "samples", None)),
        "data": _fingerprint(simulator.trainer),
    } | {name: _written(getattr(simulator, name)) for name in names}


def _fingerprint(trainer: object) -> str | None:
    """A digest of the training data, if the trainer offers one."""
    if not hasattr(trainer, "fingerprint"):
        return None
    found = trainer.fingerprint()
    if not isinstance(found, str):
        raise ValueError(f"trainer.fingerprint() must return a string, found {describe(found)}")
    return found


def _written(setting: object) -> str:
    """How a setting is shown, with a checksum of what is in a tensor, and not where in memory it happens to be."""
    if isinstance(setting, Tensor):
        return f"{describe(setting)} with checksum {zlib.crc32(_as_array(setting).tobytes()):08x}"
    if isinstance(setting, Topology):
        return f"{setting}, senders {_written(setting.senders)}"
    return re.sub(" at 0x[0-9A-Fa-f]+", "", repr(setting))


def _check_same_run(path: str | Path, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    names = [name for name in mine | theirs if theirs.get(name) != mine.get(name)]
    if mine["total"] is None or theirs["total"] is None:
        names = [name for name in names if name != "total"]
    if names:
        pairs = [(name, str(theirs.get(name)), str(mine.get(name))) for name in names]
        found = "; ".join(f"{name} {_contrast(their, my)}" for name, their, my in pairs)
        raise ValueError(f"{path} must be a checkpoint of the same run, found {found}")


def _contrast(theirs: str, mine: str) -> str:
    """Two texts; long ones from shortly before they differ."""
    if max(len(theirs), len(mine)) > SHOWN:
        same = next((i for i, (x, y) in enumerate(zip(theirs, mine, strict=False)) if x != y), 0)
        start = max(0, same - SHOWN // 4)
        theirs, mine = (f"...{text[start : start + SHOWN]}..." for text in (theirs, mine))
    return f"{theirs} instead of {mine}"


# What changes from round to round


def _check_consistent(t: int, total: int | None, history: History, models: Tensor) -> None:
    """Raise unless these can be the parts of one run after t rounds."""
    check_count("t", t, 0, total)
    if len(history) != t:
        expected = f"one record for each of the t = {t} rounds"
        raise ValueError(f"history must hold {expected}, found {len(history)}")
    for i, one in enumerate(history):
        if one.t != i:
            found = f"round {one.t} in place of {i}"
            raise ValueError(f"history must hold consecutive rounds, found {found}")
    # A benign model may have diverged, but then the history says so.
    broken = (~kernels.are_finite(models)).nonzero().flatten().tolist()
    unexplained = set(broken).difference(history.malicious, history.diverged)
    if unexplained:
        found = f"client {min(unexplained)}"
        raise ValueError(f"models must be finite unless the history says otherwise, found {found}")


def _prefixed(prefix: str, state: object) -> dict[str, Tensor]:
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise ValueError(f"state of the {prefix} must be a dict of tensors to be saved, found {_outline(state)}")
    if not all(isinstance(name, str) and name.isprintable() for name in state):
        raise ValueError(f"state of the {prefix} must have plain strings as keys to be saved, found {list(state)}")
    return {f"{prefix}/{name}": x for name, x in state.items()}


def _trainer_state(trainer: object) -> object:
    methods = [name for name in ("state_dict", "load_state_dict") if hasattr(trainer, name)]
    if len(methods) == 1:
        expected = "both state_dict and load_state_dict, or neither"
        raise ValueError(f"trainer must have {expected}, found {methods[0]}")
    return trainer.state_dict() if hasattr(trainer, "state_dict") else {}


def _outline(state: object) -> str:
    if not isinstance(state, dict):
        return type(state).__name__
    return f"a dict of {', '.join(sorted({type(x).__name__ for x in state.values()}))}"


def _part(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}/"): x for name, x in tensors.items() if name.startswith(f"{prefix}/")}


def _restore(path: str | Path, trainer: object, state: dict[str, Tensor]) -> None:
    if hasattr(trainer, "load_state_dict"):
        try:
            trainer.load_state_dict(state)
        except Exception as error:
            raise ValueError(f"{path} must be a checkpoint of the same run, found another trainer: {error}") from error
    elif state:
        raise ValueError(
            f"{path} must be a checkpoint of the same run, found one of a trainer with a state, {', '.join(state)}"
        )


def _packed(history: History) -> tuple[dict[str, Any], Tensor]:
    """The rounds, without numbers: each refers to one of a few layouts, which hold names. And all numbers in a row.

    Numbers as text would take most of the time that it takes to save a long run.
    """
    layouts: dict[tuple[tuple[str, ...], ...], int] = {}
    rounds, numbers = [], array("d")
    for one in history:
        layout = tuple(one.clients), tuple(one.values), tuple(one.seconds)
        rounds.append([one.t, layouts.setdefault(layout, len(layouts)), one.diverged])
        numbers.extend(chain(*one.clients.values(), one.values.values(), one.seconds.values()))
    return {"layouts": list(layouts), "rounds": rounds}, torch.from_numpy(np.array(numbers))


def _unpacked(packed: dict[str, Any], numbers: Tensor, n: int) -> Iterator[Round]:
    left = iter(numbers.tolist())
    for t, layout, diverged in packed["rounds"]:
        metrics, values, phases = packed["layouts"][layout]
        clients = {name: tuple(islice(left, n)) for name in metrics}
        yield Round(t, clients, {name: next(left) for name in values}, {name: next(left) for name in phases}, diverged)


# Files


def _read(path: str | Path, device: torch.device) -> _Content:
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                _check_plain(archive, os.fstat(file.fileno()).st_size)
                return _content(archive, device)
        except Exception as error:  # zipfile and numpy meet damage with a dozen types of exceptions
            raise ValueError(
                f"{path} must be a checkpoint of format {FORMAT}, found another file, or a damaged one: "
                f"{type(error).__name__}: {error}"
            ) from error


def _check_plain(archive: zipfile.ZipFile, size: int) -> None:
    """Raise if members are compressed or overlap: reading them must take no more than the file."""
    members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("compressed members")
    if sum(member.file_size for member in members) > size:
        raise ValueError("members that are larger than the file")


def _content(archive: zipfile.ZipFile, device: torch.device) -> _Content:
    about = json.loads(archive.read(ABOUT))
    if about["format"] != FORMAT:
        raise ValueError(f"format {about['format']}, which this version does not read")
    members = [ABOUT, *(f"{name}.npy" for name in about["dtypes"])]
    if sorted(archive.namelist()) != sorted(members):
        raise ValueError(f"members {sorted(archive.namelist())} instead of {sorted(members)}")
    tensors = {name: _tensor(archive, name, dtype, device) for name, dtype in about["dtypes"].items()}
    t = about["t"]
    stateful = about["stateful"]
    settings = about["settings"]
    models = tensors.pop("models")
    if settings["models"] != describe(models):
        raise ValueError(f"models {describe(models)} instead of {settings['models']}")
    history = _history(about["history"], tensors.pop("numbers"), len(models), settings["malicious"])
    if settings["total"] is not None:
        check_count("total", settings["total"], 1)
    _check_consistent(t, settings["total"], history, models)
    if not isinstance(stateful, bool):
        raise ValueError(f"stateful {stateful!r}")
    prefixes = ("trainer/", "rule/") if stateful else ("trainer/",)
    if unknown := [name for name in tensors if not name.startswith(prefixes)]:
        raise ValueError(f"arrays of unknown use, {', '.join(unknown)}")
    state = _part("rule", tensors) if stateful else None
    return _Content(settings, t, history, models, _part("trainer", tensors), state)


def _history(packed: dict[str, Any], numbers: Tensor, n: int, malicious: list[int]) -> History:
    used = [packed["layouts"][layout] for _, layout, _ in packed["rounds"]]
    needed = sum(n * len(metrics) + len(values) + len(phases) for metrics, values, phases in used)
    if (numbers.dtype, numbers.shape) != (torch.float64, (needed,)):
        raise ValueError(f"numbers {describe(numbers)} instead of float64 {(needed,)}")
    history = History(n, malicious, rounds=_unpacked(packed, numbers, n))
    if json.loads(json.dumps(_packed(history)[0])) != packed:
        raise ValueError("rounds that would not be written like this")
    return history


def _tensor(archive: zipfile.ZipFile, name: str, dtype: str, device: torch.device) -> Tensor:
    data = io.BytesIO(archive.read(f"{name}.npy"))  # the whole of it, so that its checksum is looked at
    _check_size(data, name)
    tensor = torch.from_numpy(np.lib.format.read_array(data, allow_pickle=False))
    tensor = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
    if _name_of(tensor.dtype) != dtype:
        raise ValueError(f"{name} of dtype {_name_of(tensor.dtype)} instead of {dtype}")
    # A copy in torch's memory: the last digits of a sum may depend on how its terms are aligned.
    return tensor.to(device, copy=True)


def _check_size(data: io.BytesIO, name: str) -> None:
    """Raise unless an array is as large as its header says: numpy first allocates that much."""
    np.lib.format.read_magic(data)
    shape, _, kind = np.lib.format.read_array_header_1_0(data)
    size = len(data.getbuffer()) - data.tell()
    if math.prod(shape) * kind.itemsize != size:
        raise ValueError(f"{name} of shape {shape} in {size} bytes")
    data.seek(0)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _as_array(tensor: Tensor) -> Any:
    """The same bits in numpy, which has no bfloat16."""
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
