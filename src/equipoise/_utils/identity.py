"""Texts that identify values: equal for equal values in every process, different otherwise.

The repr of an object may hold an address, which differs between processes, or leave out the content
of a tensor. Here tensors and code appear by a digest of their content.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise._utils.validation import describe

DIGITS = 16  # hexadecimal: among a million values, two have the same digest with odds of 1 in 10^7
ADDRESS = re.compile(" at 0x[0-9A-Fa-f]+")
PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice)


def identity(value: object) -> str:
    """A text that is equal for equal values in every process.

    Functions and classes are identified by their name; those that do not belong to an installed
    package also by their source, and by the functions and values that it names.

    >>> from equipoise._utils.identity import identity
    >>> identity(eq.attacks.Dissensus(epsilon=3.0))
    "equipoise.attacks.dissensus.Dissensus(epsilon=3.0, weights='uniform')"
    >>> identity({"x": torch.zeros(2)})
    "{'x': float32 (2,) with digest af5570f5a1810b7a}"

    Raises:
        ValueError: nothing but its address in memory identifies the value.
    """
    return _Identities().of(value)


def digest(content: str | bytes) -> str:
    """A short digest of a text or of bytes.

    >>> from equipoise._utils.identity import digest
    >>> digest("text")
    '982d9e3eb996f559'
    """
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def without_addresses(text: str) -> str:
    """A repr without addresses in memory.

    >>> from equipoise._utils.identity import without_addresses
    >>> without_addresses("<function f at 0x7f00c0de>")
    '<function f>'
    """
    return ADDRESS.sub("", text)


class _Identities:
    """One traversal of a value, which may refer to itself: a function may call itself."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def of(self, value: Any) -> str:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, PLAIN):
            return repr(value)
        if id(value) in self._open:
            return f"<{type(value).__qualname__} {getattr(value, '__qualname__', '')}>"
        self._open.add(id(value))
        try:
            return self._of_object(value)
        finally:
            self._open.discard(id(value))

    def _of_object(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{describe(value)} with digest {_tensor_digest(value)}"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            content = digest(np.ascontiguousarray(value).tobytes())
            return f"{value.dtype} {value.shape} with digest {content}"
        if isinstance(value, Path):
            return repr(str(value))
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type):
            return self._of_type(value)
        if callable(value) and (text := self._of_function(value)):
            return text
        if isinstance(value, nn.Module):
            content = self.of(dict(value.state_dict()))
            return f"{self._of_type(type(value))} {value!r} {content}"
        # `LocalSGD`, and every trainer that can tell which data it has.
        if hasattr(value, "fingerprint"):
            text = without_addresses(repr(value))
            return f"{self._of_type(type(value))} {text} {value.fingerprint()}"
        if is_dataclass(value):
            arguments = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
            return self._call(self._of_type(type(value)), arguments)
        if isinstance(value, Mapping):
            return f"{{{', '.join(sorted(self._pairs(value.items(), ': ')))}}}"
        if isinstance(value, AbstractSet):
            return f"{{{', '.join(sorted(map(self.of, value)))}}}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}({', '.join(map(self.of, value))})"
        return self._of_other(value)

    def _of_other(self, value: Any) -> str:
        """A value of any other class: what a copy of it would have, or a repr without address."""
        name = self._of_type(type(value))
        # Not vars(value): a class leaves out of a copy what changes with every use, as caches do.
        if isinstance(state := value.__getstate__(), dict):
            return self._call(name, state)
        text = repr(value)
        if ADDRESS.search(text):
            expected = "a value that more than its address in memory identifies"
            raise ValueError(f"expected {expected}, found {text}")
        return f"{name} {text}"

    def _of_type(self, kind: type) -> str:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if _is_installed(kind.__module__):
            return name
        methods = [x for x in vars(kind).values() if isinstance(x, FunctionType)]
        parts = [_source(kind) or "", *map(self.of, methods), *map(self.of, kind.__bases__)]
        return f"{name} with digest {digest(' '.join(parts))}"

    def _of_function(self, function: Any) -> str:
        """A function, or an empty text for another object that can be called."""
        if isinstance(function, functools.partial):
            call = (function.func, function.args, function.keywords)
            return f"partial{self.of(call)}"
        if isinstance(function, MethodType):
            return f"{self.of(function.__func__)} of {self.of(function.__self__)}"
        # A function under a decorator, such as functools.cache.
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType):
            name = getattr(function, "__qualname__", None)
            return f"{getattr(function, '__module__', None)}.{name}" if name else ""
        name = f"{inner.__module__}.{inner.__qualname__}"
        if _is_installed(inner.__module__):
            return f"{name}{self._closure(inner)}"
        source = _source(inner)
        # The source of a lambda is its line, which may hold several of them.
        if source is None or inner.__name__ == "<lambda>":
            source = self._of_code(inner.__code__)
        parts = [
            source,
            self.of(inner.__defaults__),
            self.of(inner.__kwdefaults__),
            self._closure(inner),
            *self._of_globals(inner),
        ]
        return f"{name} with digest {digest(' '.join(parts))}"

    def _closure(self, function: FunctionType) -> str:
        cells = function.__closure__ or ()
        # A cell is empty while the enclosing function still runs.
        return "".join(f" of {self._leniently(cell.cell_contents)}" for cell in cells)

    def _of_globals(self, function: FunctionType) -> Iterator[str]:
        """The functions and values that the source names: with others it computes something else.

        A name of an attribute may be that of an unrelated global. That does no harm.
        """
        yield from self._of_named(function.__globals__, _names(function.__code__))

    def _of_named(self, space: Mapping[str, Any], names: set[str]) -> Iterator[str]:
        for name in sorted(names & space.keys()):
            value = space[name]
            yield f"{name}: {self._leniently(value)}"
            # As in ``settings.rate``. Modules may import each other.
            if isinstance(value, ModuleType) and not _is_installed(value.__name__):
                yield from self._of_named(vars(value), names - {name})

    def _leniently(self, value: Any) -> str:
        """Only the type of a value that nothing identifies, such as a lock or a logger."""
        try:
            return self.of(value)
        except ValueError:
            return type(value).__qualname__

    def _of_code(self, code: CodeType) -> str:
        """Compiled code, for a function whose source is not known, as after ``python -c``."""
        inner = [self._of_code(x) if isinstance(x, CodeType) else repr(x) for x in code.co_consts]
        return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {inner}"

    def _call(self, function: str, arguments: Mapping[str, Any]) -> str:
        return f"{function}({', '.join(self._pairs(arguments.items(), '='))})"

    def _pairs(self, items: Iterable[tuple[Any, Any]], between: str) -> Iterator[str]:
        for key, value in items:
            # The names of arguments as they are written in a call.
            name = key if between == "=" else self.of(key)
            yield f"{name}{between}{self.of(value)}"


def _tensor_digest(tensor: Tensor) -> str:
    if tensor.layout != torch.strided or tensor.is_nested:
        tensor = tensor.to_dense()
    # Bytes: numpy has no bfloat16.
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return digest(flat.view(torch.uint8).numpy().tobytes())


def _names(code: CodeType) -> set[str]:
    """The names in a function and in the functions inside it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _source(thing: Any) -> str | None:
    try:
        return inspect.getsource(thing)
    # TypeError: a class that was defined in an interactive session.
    except (OSError, TypeError):
        return None


@functools.cache
def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python, to equipoise or to an installed package.

    Their code changes with their version only.
    """
    if module is None:
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("equipoise", "torch"):
        return top != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        # `__main__` of a notebook has no file. Built-in modules are named above.
        return False
    return any(Path(file).is_relative_to(folder) for folder in _package_folders())


@functools.cache
def _package_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return (paths["purelib"], paths["platlib"], *site.getsitepackages())
