"""States of runs in files, from which runs can be resumed.

Checksums reveal damage. The parts are also checked against each other, so that an edited file does
not load either.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from array import array
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.identity import identity, without_addresses
from equipoise._utils.validation import check_count, describe
from equipoise.simulation._archive import (
    ABOUT,
    open_archive,
    read_arrays,
    write_archive,
)
from equipoise.simulation._settings import Settings
from equipoise.simulation.history import History
from equipoise.simulation.record import Round
from equipoise.simulation.state import State
from equipoise.topology import Topology

CHECKPOINT_FORMAT = 3  # format 2 had other digests of graphs and tensors
SHOWN_CHARACTERS = 100  # characters of a setting in an error


def exists(path: str | Path, settings: Settings) -> bool:
    """Whether there is a file to resume from."""
    return Path(path).exists()


def save(path: str | Path, state: State, settings: Settings) -> None:
    """Write a state of a run with these settings."""
    # Do not save a state that could not be loaded: it would replace a valid checkpoint.
    check_consistent(state.t, state.total, state.history, state.models)
    check_trainer_methods(settings.trainer)
    packed, numbers = pack_history(state.history)
    tensors = {"models": state.models, "numbers": numbers}
    tensors |= with_prefix("trainer", {} if state.trainer_state is None else state.trainer_state)
    tensors |= with_prefix("rule", {} if state.rule_state is None else state.rule_state)
    about = {
        "format": CHECKPOINT_FORMAT,
        "settings": identity_of(settings, state),
        "t": state.t,
        "history": packed,
        "stateful": state.rule_state is not None,
    }
    write_archive(path, about, tensors)


def load(path: str | Path, state: State, settings: Settings) -> State:
    """The state in a file, if it fits a run with these settings whose present state is given."""
    identity, found = _read(path, state.models.device)
    check_same_run(path, identity, identity_of(settings, state))
    # A run that was made without a total takes over the one that its rounds were computed with.
    total = state.total or found.total
    if total is not None and found.t > total:
        expected = f"a checkpoint of at most total = {total} rounds"
        raise ValueError(f"{path} must be {expected}, found {found.t}")
    if found.trainer_state and not hasattr(settings.trainer, "load_state_dict"):
        names = ", ".join(found.trainer_state)
        expected = "a checkpoint of the same run"
        raise ValueError(f"{path} must be {expected}, found one of a trainer with a state, {names}")
    # The name is a label, not part of the identity: a resumed run may have another one.
    found.history.name = state.history.name
    found.history.seed = state.history.seed
    return State(
        models=found.models,
        t=found.t,
        total=total,
        rule_state=found.rule_state,
        trainer_state=found.trainer_state,
        history=found.history,
    )


def warn_of_unsaved_state(trainer: object) -> None:
    """Warn if a trainer may remember something that a checkpoint cannot hold."""
    if hasattr(trainer, "state_dict") or getattr(trainer, "stateless", False) is True:
        return
    warnings.warn(
        "trainer has no state_dict, so a checkpoint does not hold anything that it remembers from "
        "round to round: a resumed run may differ from an uninterrupted one. Give the trainer "
        "state_dict() and load_state_dict(state), or set stateless = True on it if the models and "
        "the round determine what it returns",
        stacklevel=3,
    )


# The identity of a run


def identity_of(settings: Settings, state: State) -> dict[str, Any]:
    """The settings that two runs must share to reach the same models, as texts."""
    names = (
        "topology",
        "rule",
        "attack",
        "alpha",
        "tolerated",
        "keep_nonfinite",
        "seed",
        "trainer",
    )
    shape = (settings.n, state.models.shape[1])
    # Left out unless it is given, so that files without it still load.
    gossip = {} if settings.gossip is None else {"gossip": _written(settings.gossip)}
    return (
        {
            "models": describe(torch.empty(shape, dtype=state.models.dtype, device="meta")),
            "malicious": list(state.history.malicious),
            "total": state.total,
            "samples": _written(getattr(settings.trainer, "samples", None)),
            "data": settings.part.all_fingerprint(settings.trainer),
        }
        | {name: _written(getattr(settings, name)) for name in names}
        | gossip
    )


def _written(setting: object) -> str:
    """The repr of a setting without addresses in memory, or a digest of a tensor."""
    if isinstance(setting, Tensor):
        return identity(setting)
    if isinstance(setting, Topology):
        return f"{setting}, senders {identity(setting.senders)}"
    # Addresses differ between processes, which would make every function another setting. A repr
    # and not more of it: the attributes of a trainer may change from round to round.
    return without_addresses(repr(setting))


def check_same_run(path: str | Path, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raise unless two identities are those of one run, and name what differs."""
    # A forged file may lack a setting, so names come from both.
    names = [name for name in mine | theirs if theirs.get(name) != mine.get(name)]
    # A total that is not known yet fits every other.
    if mine["total"] is None or theirs["total"] is None:
        names = [name for name in names if name != "total"]
    if names:
        found = "; ".join(_contrast(name, theirs.get(name), mine.get(name)) for name in names)
        raise ValueError(f"{path} must be a checkpoint of the same run, found {found}")


def _contrast(name: str, theirs: object, mine: object) -> str:
    """Two values of a setting; long texts are shown from shortly before they differ."""
    texts = [str(theirs), str(mine)]
    if max(map(len, texts)) > SHOWN_CHARACTERS:
        pairs = enumerate(zip(*texts, strict=False))
        same = next((i for i, (x, y) in pairs if x != y), 0)
        start = max(0, same - SHOWN_CHARACTERS // 4)
        texts = [f"...{text[start : start + SHOWN_CHARACTERS]}..." for text in texts]
    return f"{name} {texts[0]} instead of {texts[1]}"


# Consistency of the parts


def check_consistent(
    t: int, total: int | None, history: History, models: Tensor, clients: Tensor | None = None
) -> None:
    """Raise unless these can be the parts of one run after t rounds.

    The models are those of some clients, if given, or of all.
    """
    check_count("t", t, 0, total)
    if len(history) != t:
        expected = f"one record for each of the t = {t} rounds"
        raise ValueError(f"history must hold {expected}, found {len(history)}")
    for i, record in enumerate(history):
        if record.t != i:
            found = f"round {record.t} in place of {i}"
            raise ValueError(f"history must hold consecutive rounds, found {found}")
    # A benign model may have diverged, but then the history says so.
    broken = (~kernels.are_finite(models)).nonzero().flatten()
    broken = broken if clients is None else clients.to(broken.device)[broken]
    unexplained = set(broken.tolist()).difference(history.malicious, history.diverged)
    if unexplained:
        found = f"client {min(unexplained)}"
        raise ValueError(f"models must be finite unless the history says otherwise, found {found}")


def check_trainer_methods(trainer: object) -> None:
    """Raise if the trainer can save its state but not restore it, or the reverse."""
    methods = [name for name in ("state_dict", "load_state_dict") if hasattr(trainer, name)]
    if len(methods) == 1:
        expected = "both state_dict and load_state_dict, or neither"
        raise ValueError(f"trainer must have {expected}, found {methods[0]}")


def with_prefix(prefix: str, state: object) -> dict[str, Tensor]:
    """A state with the names that its tensors have in an archive."""
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        found = type(state).__name__
        if isinstance(state, dict):
            found = f"a dict of {', '.join(sorted({type(x).__name__ for x in state.values()}))}"
        expected = "a dict of tensors to be saved"
        raise ValueError(f"state of the {prefix} must be {expected}, found {found}")
    if not all(isinstance(name, str) and name.isprintable() for name in state):
        expected = "plain strings as keys to be saved"
        raise ValueError(f"state of the {prefix} must have {expected}, found {list(state)}")
    return {f"{prefix}/{name}": x for name, x in state.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one prefix, under their own names."""
    start = f"{prefix}/"
    return {name.removeprefix(start): x for name, x in tensors.items() if name.startswith(start)}


# Histories


def pack_history(history: History) -> tuple[dict[str, Any], Tensor]:
    """The rounds without numbers, and all numbers in one row.

    Each round refers to one of a few layouts, which hold names. Writing numbers as text would
    dominate the time that it takes to save a long run.
    """
    layouts: dict[tuple[tuple[str, ...], ...], int] = {}
    rounds = []
    # 8 bytes per number; a list of floats takes 32.
    numbers = array("d")
    for record in history:
        layout = tuple(record.clients), tuple(record.values), tuple(record.seconds)
        rounds.append([record.t, layouts.setdefault(layout, len(layouts)), record.diverged])
        values = chain(record.values.values(), record.seconds.values())
        numbers.extend(chain(*record.clients.values(), values))
    return {"layouts": list(layouts), "rounds": rounds}, torch.from_numpy(np.array(numbers))


def _unpack(packed: dict[str, Any], numbers: Tensor, n: int) -> Iterator[Round]:
    left = iter(numbers.tolist())
    for t, layout, diverged in packed["rounds"]:
        metrics, names, phases = packed["layouts"][layout]
        clients = {name: tuple(islice(left, n)) for name in metrics}
        values = {name: next(left) for name in names}
        seconds = {name: next(left) for name in phases}
        yield Round(t, clients, values, seconds, diverged)


def unpack_history(
    packed: dict[str, Any], numbers: Tensor, n: int, malicious: list[int]
) -> History:
    """The history that `pack_history` took apart, if it is one."""
    used = [packed["layouts"][layout] for _, layout, _ in packed["rounds"]]
    sizes = [n * len(metrics) + len(values) + len(phases) for metrics, values, phases in used]
    # Before unpacking: islice would yield fewer numbers than clients without an error.
    needed = sum(sizes)
    if (numbers.dtype, numbers.shape) != (torch.float64, (needed,)):
        raise ValueError(f"numbers {describe(numbers)} instead of float64 {(needed,)}")
    history = History(n, malicious, rounds=_unpack(packed, numbers, n))
    # One comparison for all that a forged file may hold instead, such as a name twice.
    if json.loads(json.dumps(pack_history(history)[0])) != packed:
        raise ValueError("rounds that would not be written like this")
    return history


# Reading


def _read(path: str | Path, device: torch.device) -> tuple[dict[str, Any], State]:
    with open(path, "rb") as file:
        try:
            with open_archive(file) as archive:
                return _content(archive, device)
        except Exception as error:  # zipfile and numpy meet damage with a dozen types of exceptions
            expected = f"a checkpoint of format {CHECKPOINT_FORMAT}"
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{path} must be {expected}, found another file, or a damaged one: {reason}"
            ) from error


def _content(archive: zipfile.ZipFile, device: torch.device) -> tuple[dict[str, Any], State]:
    """The identity of the run and the state in an archive, if its parts fit together."""
    about = json.loads(archive.read(ABOUT))
    if about["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"format {about['format']}, which this version does not read")
    tensors = read_arrays(archive, about["dtypes"], device)
    t = about["t"]
    stateful = about["stateful"]
    identity = about["settings"]
    models = tensors.pop("models")
    if identity["models"] != describe(models):
        raise ValueError(f"models {describe(models)} instead of {identity['models']}")
    numbers = tensors.pop("numbers")
    history = unpack_history(about["history"], numbers, len(models), identity["malicious"])
    total = identity["total"]
    if total is not None:
        check_count("total", total, 1)
    check_consistent(t, total, history, models)
    # A forged file may hold another type, which would count as true or false below.
    if not isinstance(stateful, bool):
        raise ValueError(f"stateful {stateful!r}")
    prefixes = ("trainer/", "rule/") if stateful else ("trainer/",)
    if unknown := [name for name in tensors if not name.startswith(prefixes)]:
        raise ValueError(f"arrays of unknown use, {', '.join(unknown)}")
    rule_state = without_prefix("rule", tensors) if stateful else None
    trainer_state = without_prefix("trainer", tensors)
    return identity, State(models, t, total, rule_state, trainer_state, history)
