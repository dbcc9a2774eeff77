"""Find what a trainer without ``state_dict`` remembers, which no checkpoint can hold."""

from __future__ import annotations

import io
import random
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MOST = 50_000  # objects to look at: enough for the data of 10,000 clients, which takes about 0.2 s
SHOWN = 3  # names in a warning
ADVICE = (
    "A run that is resumed may differ from one that was never interrupted. Give the trainer "
    "state_dict() and load_state_dict(state), or stateless = True if this does not influence "
    "the training"
)


class HiddenState:
    """Compares what a trainer can reach before and after its first call.

    Nothing in the source of a function tells whether it is stateless. But most trainers that
    remember something, such as the moments of Adam, a learning rate schedule or a random generator,
    change it in every call. Changes in later calls, or inside C objects, are not found.
    """

    def __init__(self) -> None:
        self.changed: list[str] = []
        """What the first call changed, by name."""
        self._watching = True
        self._reported = False

    @contextmanager
    def watched(self, trainer: object) -> Iterator[None]:
        """Call the trainer in this block; the first time, note what that changes."""
        if not self._watching or has_state_dict(trainer) or is_stateless(trainer):
            yield
            return
        before = _reachable(trainer)
        yield
        after = _reachable(trainer)
        self.changed = [name for name in before | after if before.get(name) != after.get(name)]
        self._watching = False

    def report(self, trainer: object) -> None:
        """Warn, once, that checkpoints do not hold the state of the trainer."""
        if self.changed and not self._reported and not is_stateless(trainer):
            self._reported = True
            warnings.warn(
                "checkpoints cannot hold what the trainer remembers: it has no state_dict, and its "
                f"first call changed {_few(self.changed)}. {ADVICE}",
                stacklevel=4,
            )

    def report_loss(self, trainer: object, path: object, unsaved: list[str]) -> None:
        """Warn that a checkpoint does not hold the state that the trainer had."""
        self.changed = unsaved or self.changed
        if self.changed and not is_stateless(trainer):
            self._reported = True
            warnings.warn(
                f"{path} does not hold what its trainer remembered, which has no state_dict: "
                f"{_few(self.changed)}. {ADVICE}",
                stacklevel=4,
            )


def has_state_dict(trainer: object) -> bool:
    """Whether a checkpoint can hold the state of the trainer."""
    return hasattr(trainer, "state_dict") and hasattr(trainer, "load_state_dict")


def is_stateless(trainer: object) -> bool:
    """Whether the trainer is declared to remember nothing that matters."""
    return getattr(trainer, "stateless", False) is True


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


@dataclass(slots=True)
class _Mark:
    """A value that differs when the content of an object does, apart from its parts."""

    value: Any
    holder: Any = field(default=None, compare=False)  # kept, so that no other object gets its id


def _mark(x: Any) -> _Mark:
    if x is None or isinstance(x, bool | int | str | bytes):
        return _Mark(x)
    if isinstance(x, float | complex):
        return _Mark(repr(x))  # NaN does not equal itself
    if isinstance(x, list | tuple | dict | set | frozenset | deque):
        return _Mark((type(x), len(x)))
    if isinstance(x, nn.Parameter):
        return _Mark(None)  # written from the models in every call, as `unflatten` does
    if isinstance(x, Tensor):
        return _Mark((id(x), None if x.is_inference() else x._version), x)
    if isinstance(x, np.ndarray):
        content = None if x.dtype.hasobject else zlib.crc32(np.ascontiguousarray(x).data)
        return _Mark((id(x), content), x)
    if isinstance(x, torch.Generator):
        return _Mark(x.get_state().numpy().tobytes())
    if isinstance(x, np.random.Generator):
        return _Mark(str(x.bit_generator.state))
    if isinstance(x, random.Random):
        return _Mark(x.getstate())
    if isinstance(x, Iterator) and not isinstance(x, io.IOBase):
        return _Mark(object())  # an iterator that outlives a call is there to be advanced
    return _Mark(type(x) if hasattr(x, "__dict__") else id(x), x)


def _reachable(trainer: object) -> dict[str, _Mark]:
    """Marks of all that a trainer can change, by name."""
    numpy = np.random.get_state(legacy=False)["state"]
    seen = {
        "torch.default_generator": _mark(torch.default_generator),
        "numpy.random": _Mark((numpy["key"].tobytes(), numpy["pos"])),
        "random": _Mark(random.getstate()),
    }
    home = _home(trainer)
    known: set[int] = set()
    waiting: list[tuple[str, Any]] = [("trainer", trainer)]
    while waiting and len(seen) < MOST:
        name, x = waiting.pop()
        if id(x) in known and not isinstance(x, int | float):  # equal numbers may be one object
            continue
        known.add(id(x))
        try:
            seen[name] = _mark(x)
            waiting += _parts(name, x, home)
        except Exception:  # an odd object of the user must not end a run
            continue
    return seen


def _home(trainer: Any) -> str | None:
    """The module of the trainer: functions of other modules are not looked into."""
    while isinstance(trainer, partial):
        trainer = trainer.func
    home: str | None = getattr(trainer, "__module__", None)
    return home


def _parts(name: str, x: Any, home: str | None) -> Iterable[tuple[str, Any]]:
    """What an object holds, by name."""
    if isinstance(x, Tensor | np.ndarray | ModuleType | BuiltinFunctionType | type):
        return []
    if isinstance(x, FunctionType):
        return _held_by_function(name, x) if x.__module__ == home else []
    if isinstance(x, MethodType):
        return [(f"{name}.__self__", x.__self__), (f"{name}.__func__", x.__func__)]
    if isinstance(x, partial):
        return [(f"{name}.{part}", getattr(x, part)) for part in ("func", "args", "keywords")]
    if isinstance(x, list | tuple | dict | deque) and len(x) > MOST:
        return []
    if isinstance(x, dict):
        keys = [key if isinstance(key, str) else i for i, key in enumerate(x)]
        return [(f"{name}[{key}]", y) for key, y in zip(keys, x.values(), strict=True)]
    if isinstance(x, list | tuple | deque):
        return [(f"{name}[{i}]", y) for i, y in enumerate(x)]
    parts = [(f"{name}.{attribute}", y) for attribute, y in getattr(x, "__dict__", {}).items()]
    for ancestor in type(x).__mro__:
        slots = getattr(ancestor, "__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(x, slot) and not slot.startswith("__"):
                parts.append((f"{name}.{slot}", getattr(x, slot)))
        if ancestor.__module__ == home:
            methods = [y for y in vars(ancestor).values() if isinstance(y, FunctionType)]
            parts += [(f"{name}.{method.__name__}()", method) for method in methods]
    return parts


def _held_by_function(name: str, function: FunctionType) -> list[tuple[str, Any]]:
    """Defaults, attributes, and the variables of enclosing functions and the module that it uses."""
    own = ("__defaults__", "__kwdefaults__", "__dict__")
    parts = [(f"{name}.{part}", getattr(function, part)) for part in own]
    enclosing = function.__code__.co_freevars
    for variable, cell in zip(enclosing, function.__closure__ or (), strict=True):
        try:
            parts.append((f"{name}.{variable}", cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    if function.__globals__.get("__name__") == function.__module__:
        for variable in sorted(_names(function.__code__)):
            if variable in function.__globals__:
                parts.append((f"{name}.{variable}", function.__globals__[variable]))
    return parts


def _names(code: CodeType) -> set[str]:
    """All names that a function and the functions in it refer to."""
    inner = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*inner)
