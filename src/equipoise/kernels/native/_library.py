"""The library of the kernels in C: where it is, whether it is used, and how its functions are called."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

POINTER, INTEGER, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
ARRAY, RANGE = (POINTER, INTEGER), (INTEGER, INTEGER)
NETWORK = (*ARRAY, POINTER)
ARGUMENTS = {
    "measure": (*ARRAY, INTEGER, POINTER, POINTER, INTEGER, FLAG, *RANGE, POINTER, POINTER),
    "norms": (*ARRAY, *RANGE, POINTER),
    "sums": (*ARRAY, POINTER, POINTER, POINTER, INTEGER, POINTER, *RANGE, FLAG),
    "dense_sums": (*ARRAY, *ARRAY, POINTER, *RANGE, FLAG),
    "sums_but_one": (*ARRAY, ctypes.c_double, *ARRAY, POINTER, *RANGE, FLAG),
    "middle": (*ARRAY, POINTER, POINTER, *ARRAY, *NETWORK, POINTER, *RANGE, FLAG),
    "middle_but_one": (*ARRAY, *ARRAY, INTEGER, *NETWORK, POINTER, *RANGE, FLAG),
    "conv_pool": (POINTER,) * 6,
    "conv_pool_back": (POINTER,) * 8,
}
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}
ALONE = 1 << 18  # elements below which threads cost more than they save


def _open() -> ctypes.CDLL | None:
    """The library beside this package, if there is one."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).parent / f"_kernels{suffix}"
        if path.exists():
            try:
                return _declared(ctypes.CDLL(str(path)))
            except (OSError, AttributeError) as error:  # damaged, or of another version
                warnings.warn(f"{error}: the kernels in C are not used; install equipoise again", stacklevel=2)
    return None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library, with the arguments of its functions."""
    for name, arguments in ARGUMENTS.items():
        for dtype in SUFFIXES.values():
            getattr(library, f"eq_{name}_{dtype}").argtypes = arguments
    return library


LIBRARY = None if os.environ.get("EQUIPOISE_NATIVE") == "0" else _open()
_enabled = True


def available() -> bool:
    """Whether there is a library, and it is to be used."""
    return LIBRARY is not None and _enabled


@contextmanager
def disabled() -> Iterator[None]:
    """Use torch in this block, to compare."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def function(name: str, x: Tensor) -> Callable[..., int]:
    """The function of this name for the type of ``x``."""
    function: Callable[..., int] = getattr(LIBRARY, f"eq_{name}_{SUFFIXES[x.dtype]}")
    return function


def tile_rows() -> int:
    """Rows of a tile in which all pairs are measured, with the instructions of this CPU."""
    rows: int = LIBRARY.eq_tile_rows()  # type: ignore[union-attr]
    return rows


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="equipoise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind in the parent


def in_threads(run: Callable[[int], int], parts: int, cost: int) -> list[int]:
    """Run all parts, on as many threads as torch has, this one among them; whoever is free takes the next part.

    ctypes lets go of the interpreter meanwhile.
    """
    threads, todo = min(torch.get_num_threads(), parts) if cost >= ALONE else 1, iter(range(parts))

    def work() -> list[int]:
        return [run(part) for part in todo]

    others = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        done = work()
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)  # also after Ctrl-C: they write to memory that would be gone
    done += [code for other in begun for code in other.result()]
    if any(code < 0 for code in done):
        raise MemoryError("the native kernels found no memory for a strip of the models")
    return done
