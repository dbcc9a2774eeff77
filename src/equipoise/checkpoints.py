"""Runs that are taken up again: everything that changes from round to round, as data without code."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equipoise.history import History

if TYPE_CHECKING:
    from equipoise.simulator import Simulator

FORMAT = 1
ABOUT = "about.json"


def save(path: str | Path, simulator: Simulator) -> None:
    """Write a checkpoint: first under another name, so that a run which is killed meanwhile leaves the one before."""
    path = Path(path)
    tensors = {"models": simulator.models} | _tensors("trainer", _state_of(simulator.trainer))
    tensors |= _tensors("rule", simulator.state)
    about = _settings(simulator) | {"format": FORMAT, "t": simulator.t, "history": simulator.history.to_dict()}
    about["dtypes"] = {name: str(x.dtype).removeprefix("torch.") for name, x in tensors.items()}
    about["rule_state"] = simulator.state is not None
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            _write(file, tensors, about)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | Path, simulator: Simulator) -> None:
    """Bring a simulator to the state of a checkpoint; it stays as it is if that is damaged, or of another run."""
    tensors, about = _read(Path(path))
    ours = _settings(simulator)
    for name, mine in ours.items():
        if mine is not None and about.get(name) is not None and about[name] != mine:
            raise ValueError(
                f"{path} must be a checkpoint of the same run, found {name} {about[name]} instead of {mine}"
            )
    history = History.from_dict(about["history"])
    device = simulator.models.device
    if about["rule_state"]:
        simulator.state = _part("rule", tensors, device)
    state = _part("trainer", tensors, device)
    if state or _state_of(simulator.trainer):
        simulator.trainer.load_state_dict(state)  # type: ignore[attr-defined]
    simulator.models, simulator.t, simulator.history = tensors["models"].to(device), about["t"], history
    simulator.total = simulator.total or about["total"]


def _settings(simulator: Simulator) -> dict[str, Any]:
    """What two runs must have in common, as far as it can be written down."""
    shown = {"rule": simulator.rule, "attack": simulator.attack, "alpha": simulator.alpha}
    return {
        "shape": list(simulator.models.shape),
        "malicious": list(simulator.history.malicious),
        "seed": simulator.seed,
        "total": simulator.total,
    } | {name: _repr(setting) for name, setting in shown.items()}


def _repr(setting: object) -> str | None:
    """How a setting is written, or None if that says where it lies in memory."""
    return None if " at 0x" in repr(setting) else repr(setting)


def _state_of(trainer: Any) -> dict[str, Tensor]:
    return trainer.state_dict() if hasattr(trainer, "state_dict") else {}


def _tensors(prefix: str, state: Any) -> dict[str, Tensor]:
    """A state as named tensors; only None and dicts of tensors can be saved."""
    if state is None:
        return {}
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise ValueError(f"state of the {prefix} must be a dict of tensors to be saved, found {type(state).__name__}")
    return {f"{prefix}/{name}": x for name, x in state.items()}


def _part(prefix: str, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}/"): x.to(device) for name, x in tensors.items() if name.startswith(f"{prefix}/")
    }


def _write(file: Any, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(ABOUT, json.dumps(about, allow_nan=False))
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _bits(tensor).numpy(), allow_pickle=False)


def _bits(tensor: Tensor) -> Tensor:
    """What numpy can hold, bit by bit: it has no bfloat16."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(archive.read(ABOUT))
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}")
            return {name: _tensor(archive, name, dtype) for name, dtype in about["dtypes"].items()}, about
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must be a checkpoint of format {FORMAT}, found it damaged: {error}") from error


def _tensor(archive: zipfile.ZipFile, name: str, dtype: str) -> Tensor:
    with archive.open(f"{name}.npy") as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
    return torch.from_numpy(array).view(getattr(torch, dtype))
