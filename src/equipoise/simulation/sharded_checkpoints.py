"""States of runs in several processes, in folders that any number of processes can resume from.

``torch.distributed.checkpoint`` writes one file per process, in a folder per saved round. A folder
without the file of metadata, which is written last, is incomplete, and does not count. The metadata
is pickled: load checkpoints of people you trust only.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as ByRows

from equipoise._utils.validation import describe
from equipoise.simulation import checkpoints
from equipoise.simulation._settings import Settings
from equipoise.simulation._sharding import Shard
from equipoise.simulation.history import History
from equipoise.simulation.state import State

METADATA = ".metadata"
ABOUT = "about"  # JSON as bytes
NUMBERS = "numbers"  # those of the history
FORMAT = 1


def exists(path: str | Path, settings: Settings) -> bool:
    """Whether there is a complete checkpoint; all ranks get the answer of the first."""
    return _last_round(path, _shard(settings)) is not None


def save(path: str | Path, state: State, settings: Settings) -> None:
    """Write the states of all ranks; the previous checkpoint is removed afterwards."""
    shard = _shard(settings)
    checkpoints.check_trainer_methods(settings.trainer)
    checkpoints.check_consistent(
        state.t, state.total, state.history, state.models, shard.ids(shard.n)
    )
    rows = {"models": state.models}
    rows |= checkpoints.with_prefix("trainer", state.trainer_state or {})
    rows |= checkpoints.with_prefix("rule", state.rule_state or {})
    packed, numbers = checkpoints.pack_history(state.history)
    about = {
        "format": FORMAT,
        "settings": checkpoints.identity_of(settings, state),
        "t": state.t,
        "history": packed,
        "stateful": state.rule_state is not None,
        "rows": list(rows),
    }
    saved: dict[str, Any] = {name: _by_rows(name, x, shard) for name, x in rows.items()}
    if shard.is_first:  # its history has the values of all clients
        text = json.dumps(about).encode()
        saved |= {ABOUT: torch.tensor(list(text), dtype=torch.uint8), NUMBERS: numbers}
    folder = Path(path) / _name(state.t)
    with _together(shard, "saved a checkpoint"):
        save_tensors(saved, checkpoint_id=folder, process_group=shard.ranks.group)
    if shard.is_first:
        for other in _rounds(path):
            if other != folder:
                shutil.rmtree(other)


def load(path: str | Path, state: State, settings: Settings) -> State:
    """The state of this rank in the last complete checkpoint, if it is one of this run."""
    shard = _shard(settings)
    t = _last_round(path, shard)
    if t is None:
        raise ValueError(f"{path} must hold a complete checkpoint, found none")
    folder = Path(path) / _name(t)
    sizes = _sizes(folder)
    small = {name: torch.empty(sizes[name], dtype=dtype) for name, dtype in _SMALL.items()}
    with _together(shard, "loaded a checkpoint"):
        load_tensors(small, checkpoint_id=folder, process_group=shard.ranks.group)
    about = json.loads(bytes(small[ABOUT].tolist()))
    if about["format"] != FORMAT:
        raise ValueError(f"{path} must have format {FORMAT}, found {about['format']}")
    checkpoints.check_same_run(path, about["settings"], checkpoints.identity_of(settings, state))
    n = shard.n
    malicious = list(state.history.malicious)
    history = checkpoints.unpack_history(about["history"], small[NUMBERS], n, malicious)
    rows = _load_rows(folder, about["rows"], sizes, state.models, shard)
    return State(
        models=rows["models"],
        t=about["t"],
        total=state.total or about["settings"]["total"],
        rule_state=checkpoints.without_prefix("rule", rows) if about["stateful"] else None,
        trainer_state=checkpoints.without_prefix("trainer", rows),
        history=_as_kept(history, state.history.name, shard),
    )


_SMALL = {ABOUT: torch.uint8, NUMBERS: torch.float64}


def _shard(settings: Settings) -> Shard:
    assert isinstance(settings.part, Shard)  # others use `checkpoints`
    return settings.part


# Folders


def _name(t: int) -> str:
    return f"round-{t:08d}"


def _rounds(path: str | Path) -> list[Path]:
    return sorted(Path(path).glob("round-*"))


def _last_round(path: str | Path, shard: Shard) -> int | None:
    """The last round with a complete checkpoint, as the first rank sees it."""
    if Path(path).is_file():
        raise ValueError(f"checkpoint must be a folder in a group, found the file {path}")
    found = 0
    if shard.is_first:
        complete = [x for x in _rounds(path) if (x / METADATA).exists()]
        found = 1 + int(complete[-1].name.rpartition("-")[2]) if complete else 0
    # The other ranks add zeros.
    (found,) = shard.all_sums([found])
    return found - 1 if found else None


def _sizes(folder: Path) -> dict[str, torch.Size]:
    metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: x.size for name, x in metadata.items() if isinstance(x, TensorStorageMetadata)}


# Rows of clients


def _chunks(n: int, ranks: int) -> Tensor:
    """(n,) the rank that writes each client: equal blocks, whoever owns the clients."""
    return torch.arange(n, device="cpu") // -(-n // ranks)


def _by_rows(name: str, rows: Tensor, shard: Shard) -> DTensor:
    """The rows of all ranks as one tensor in the order of the clients."""
    own = len(shard.ids(shard.n))
    if rows.dim() == 0 or len(rows) != own:
        expected = f"one row per client, {own}, to be saved in a group"
        raise ValueError(f"state {name} must have {expected}, found {describe(rows)}")
    mine = shard.redistribute(rows, _chunks(shard.n, shard.ranks.size))
    return _distributed(mine, shard)


def _distributed(mine: Tensor, shard: Shard) -> DTensor:
    mesh = DeviceMesh.from_group(shard.ranks.group, mine.device.type)
    shape = torch.Size([shard.n, *mine.shape[1:]])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(mine, mesh, [ByRows(0)], run_check=False, shape=shape, stride=stride)


def _load_rows(
    folder: Path, names: list[str], sizes: dict[str, torch.Size], like: Tensor, shard: Shard
) -> dict[str, Tensor]:
    owners = _chunks(shard.n, shard.ranks.size)
    count = int((owners == shard.ranks.rank).sum())
    empty = {name: like.new_zeros(count, *sizes[name][1:]) for name in names}
    wanted = {name: _distributed(x, shard) for name, x in empty.items()}
    with _together(shard, "loaded a checkpoint"):
        load_tensors(wanted, checkpoint_id=folder, process_group=shard.ranks.group)
    return {name: shard.redistribute(x.to_local(), owners, back=True) for name, x in wanted.items()}


def _as_kept(history: History, name: str, shard: Shard) -> History:
    """The history that this rank keeps: the values of clients are with the first one."""
    rounds = history if shard.is_first else [replace(x, clients={}) for x in history]
    return History(history.n, history.malicious, name, rounds=rounds)


@contextmanager
def _together(shard: Shard, doing: str) -> Iterator[None]:
    """Let torch work in all ranks, without warnings about its own internals."""
    with warnings.catch_warnings(), shard.telling_errors(), shard.ranks.naming_lost(doing):
        warnings.simplefilter("ignore")
        try:
            yield
        # It is no Exception, and all ranks get it.
        except CheckpointException as error:
            rank, (cause, _) = next(iter(error.failures.items()))
            if not isinstance(cause, Exception):  # Ctrl-C
                raise
            raise OSError(f"rank {rank} failed while it {doing}: {cause!r}") from error
