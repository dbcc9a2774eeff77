"""Open C libraries, declare their functions, and call these from several threads."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

POINTER = ctypes.c_void_p
INTEGER = ctypes.c_int64
FLAG = ctypes.c_int
ARRAY = (POINTER, INTEGER)
COLUMN_RANGE = (INTEGER, INTEGER)
NETWORK = (*ARRAY, *ARRAY)
PAIRS = (POINTER, POINTER, INTEGER)
SIGNATURES = {
    "measure": (*ARRAY, INTEGER, INTEGER, *PAIRS, FLAG, *COLUMN_RANGE, POINTER, POINTER),
    "exact": (*ARRAY, *PAIRS, POINTER, POINTER, FLAG, *COLUMN_RANGE, POINTER),
    "norms": (*ARRAY, *COLUMN_RANGE, POINTER),
    "sums": (*ARRAY, INTEGER, *[POINTER] * 5, INTEGER, POINTER, *COLUMN_RANGE, FLAG),
    "dense_sums": (*ARRAY, *[POINTER] * 3, INTEGER, POINTER, *COLUMN_RANGE, FLAG),
    "interpolate": (*[POINTER] * 4, INTEGER, POINTER, *COLUMN_RANGE, FLAG),
    "middle": (*ARRAY, POINTER, POINTER, *ARRAY, *NETWORK, POINTER, *COLUMN_RANGE, FLAG),
    "nearest": (*ARRAY, POINTER, *[INTEGER] * 3, *NETWORK, POINTER, *COLUMN_RANGE, FLAG),
    "middle_but_one": (*ARRAY, *ARRAY, INTEGER, *NETWORK, POINTER, *COLUMN_RANGE, FLAG),
}
EDGES = (
    *(POINTER, POINTER, POINTER),  # slots, weights, senders
    *(INTEGER, INTEGER, INTEGER),  # their shape, rows of the bank
    *(POINTER, INTEGER),  # weights of own models, row of the first one
    *(POINTER, POINTER, POINTER, POINTER, POINTER),  # starts, rows, weights, senders, range
)
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}

# Elements below which handing work to other threads costs more than it saves.
SINGLE_THREADED = 1 << 18

NO_MEMORY = -1  # as in csrc/platform.h; any other negative code is OUT_OF_RANGE


class Limits(ctypes.Structure):
    """The limits of the C kernels. They are defined and checked in C; see csrc/limits.h."""

    max_values: int
    max_compiled: int
    min_dense_receivers: int
    max_strip: int
    flush_columns: int

    _fields_ = (
        ("max_values", INTEGER),  # values in one selection network
        ("max_compiled", INTEGER),  # values that need no list of steps
        ("min_dense_receivers", INTEGER),  # receivers that a product with a matrix of weights needs
        ("max_strip", INTEGER),  # columns that are combined at a time
        ("flush_columns", INTEGER),  # columns after which sums are added in double precision
    )


def open_library(
    stem: Path, signatures: Mapping[str, tuple[object, ...]], symbols: tuple[str, ...] = ()
) -> ctypes.CDLL | None:
    """The library at ``stem`` plus a suffix, with declared arguments; None if it does not exist.

    A library that is damaged, or of another version and so without one of the functions or
    symbols, is not used: the caller falls back to torch, and a warning says so.
    """
    for suffix in EXTENSION_SUFFIXES:
        path = stem.with_name(stem.name + suffix)
        if not path.exists():
            continue
        try:
            library = ctypes.CDLL(str(path))
            for name, arguments in signatures.items():
                for dtype in SUFFIXES.values():
                    getattr(library, f"eq_{name}_{dtype}").argtypes = arguments
            for symbol in symbols:
                Limits.in_dll(library, symbol)
        except (OSError, AttributeError, ValueError) as error:
            warnings.warn(
                f"{error}: {path.name} is not used; install equipoise again", stacklevel=2
            )
        else:
            return library
    return None


def _open() -> ctypes.CDLL | None:
    symbols = ("eq_limits", "eq_edges_by_sender")
    library = open_library(Path(__file__).with_name("_kernels"), SIGNATURES, symbols)
    if library is not None:
        library.eq_edges_by_sender.argtypes = list(EDGES)
        library.eq_edges_by_sender.restype = INTEGER
    return library


def is_requested() -> bool:
    """Whether the environment allows C libraries."""
    return os.environ.get("EQUIPOISE_NATIVE") != "0"


LIBRARY = _open() if is_requested() else None
_enabled = True


def available() -> bool:
    """Whether the C kernels exist and are in use."""
    return LIBRARY is not None and _enabled


@contextmanager
def disabled() -> Iterator[None]:
    """Compute in torch inside of this block, for comparisons."""
    global _enabled
    before = _enabled
    _enabled = False
    try:
        yield
    finally:
        _enabled = before


@cache
def limits() -> Limits:
    """The limits of the C kernels, which must be available."""
    assert LIBRARY is not None
    return Limits.in_dll(LIBRARY, "eq_limits")


def function(name: str, x: Tensor, library: ctypes.CDLL | None = None) -> Callable[..., int]:
    """The function of this name for the dtype of ``x``."""
    found: Callable[..., int] = getattr(library or LIBRARY, f"eq_{name}_{SUFFIXES[x.dtype]}")
    return found


def tile_rows() -> int:
    """Rows of a tile in which all pairs are measured; depends on the instructions of the CPU."""
    rows: int = LIBRARY.eq_tile_rows()  # type: ignore[union-attr]
    return rows


def list_edges(*arguments: int) -> int:
    """Call ``eq_edges_by_sender``, see csrc/edges.h, and return the number of edges."""
    return checked(LIBRARY.eq_edges_by_sender(*arguments))  # type: ignore[union-attr]


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="equipoise")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: a child that waited for them would wait for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def in_threads(run: Callable[[int], int], parts: int, cost: int) -> list[int]:
    """Run all parts on as many threads as torch uses, and return their codes.

    The calling thread takes part. Parts are taken one by one, so that no thread waits for one that
    the system does not run. ctypes releases the interpreter lock during a call.

    Raises:
        MemoryError: A kernel could not allocate memory.
        ValueError: A kernel was called beyond one of its limits.
    """
    threads = min(torch.get_num_threads(), parts) if cost >= SINGLE_THREADED else 1
    if threads == 1:
        return [checked(run(part)) for part in range(parts)]
    remaining = iter(range(parts))

    def work() -> list[int]:
        return [run(part) for part in remaining]

    others = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        codes = work()
    finally:
        begun = [other for other in others if not other.cancel()]
        # Also after Ctrl-C: kernels that still run write to memory that would be freed.
        wait(begun)
    codes += [code for other in begun for code in other.result()]
    return [checked(code) for code in codes]


def checked(code: int) -> int:
    """The code that a kernel returned, unless it is that of an error."""
    if code == NO_MEMORY:
        raise MemoryError("the C kernels could not allocate memory for a strip of the models")
    if code < 0:
        raise ValueError("the C kernels were called with an index or a size beyond their limits")
    return code
