"""The kernels in C, where there is a library of them: for float32 and float64 on a CPU.

They are used if the environment variable ``EQUIPOISE_NATIVE`` is 1 and there was a compiler when equipoise was
installed, which ``equipoise.native_available`` tells; otherwise everything works in torch, with the same results but
for rounding. They are new, and will be the default once they have proved themselves.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from equipoise.kernels.blocks import column_blocks
from equipoise.kernels.networks import Network, middle, sorting

POINTER, INTEGER = ctypes.c_void_p, ctypes.c_int64
ARRAY = MATRIX = (POINTER, INTEGER)  # and its length, or the distance of its rows
RANGE = (INTEGER, INTEGER)
PAIRS = (*MATRIX, *MATRIX, POINTER, POINTER, INTEGER, INTEGER, POINTER)
NETWORK = (*ARRAY, POINTER)
ARGUMENTS = {
    "squares": PAIRS,
    "products": PAIRS,
    "sums": (*MATRIX, POINTER, POINTER, POINTER, INTEGER, *RANGE, *MATRIX),
    "middle": (*MATRIX, *ARRAY, INTEGER, INTEGER, *NETWORK, *RANGE, *MATRIX, POINTER),
    "leave_out": (*MATRIX, *ARRAY, *ARRAY, INTEGER, *NETWORK, *RANGE, *MATRIX, POINTER),
}
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}
LARGEST = 512  # values in one network
STRIP = 256  # columns that the library combines at a time
ALONE = 1 << 18  # elements below which threads cost more than they save


def _open() -> ctypes.CDLL | None:
    """The library beside this package, if there is one."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).parents[1] / f"_native{suffix}"
        if path.exists():
            library = ctypes.CDLL(str(path))
            for name, arguments in ARGUMENTS.items():
                for dtype in SUFFIXES.values():
                    function = getattr(library, f"eq_{name}_{dtype}")
                    function.argtypes, function.restype = arguments, None
            return library
    return None


LIBRARY = _open() if os.environ.get("EQUIPOISE_NATIVE") == "1" else None
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


def serves(*matrices: Tensor) -> bool:
    """Whether the library can take these matrices: rows of contiguous float32 or float64 in memory."""
    return available() and all(
        x.device.type == "cpu" and x.dtype in SUFFIXES and (x.shape[1] < 2 or x.stride(1) == 1) for x in matrices
    )


def squared_differences(a: Tensor, left: Tensor, b: Tensor, right: Tensor) -> Tensor:
    """(p,) float64 ``|a[left] - b[right]|^2``; fastest if ``left`` is sorted."""
    return _over_pairs("squares", a, left, b, right)


def products(a: Tensor, left: Tensor, b: Tensor, right: Tensor) -> Tensor:
    """(p,) float64 scalar products of ``a[left]`` and ``b[right]``; fastest if ``left`` is sorted."""
    return _over_pairs("products", a, left, b, right)


def _over_pairs(name: str, a: Tensor, left: Tensor, b: Tensor, right: Tensor) -> Tensor:
    left, right, d = left.contiguous(), right.contiguous(), a.shape[1]
    result = torch.empty(len(left), dtype=torch.float64)
    call = _function(name, a)

    def run(part: slice) -> None:
        mine, theirs, sums = left[part], right[part], result[part]
        call(*_matrix(a), *_matrix(b), mine.data_ptr(), theirs.data_ptr(), len(mine), d, sums.data_ptr())

    _in_threads(run, len(left), d)
    return result


def weighted_sums(bank: Tensor, n: int, receivers: Tensor, rows: Tensor, weight: Tensor, out: Tensor) -> None:
    """``out`` (n, d): sums of weighted rows of the bank, one per edge; edges are sorted by receiver."""
    starts = torch.searchsorted(receivers.contiguous(), torch.arange(n + 1))
    rows, weight, call = rows.contiguous(), weight.to(bank.dtype).contiguous(), _function("sums", bank)

    def run(part: slice) -> None:
        edges = (starts.data_ptr(), rows.data_ptr(), weight.data_ptr())
        call(*_matrix(bank), *edges, n, part.start, part.stop, *_matrix(out))

    _in_threads(run, bank.shape[1], len(rows) + n, STRIP)


def trimmed_means(bank: Tensor, rows: Tensor, trim: int, out: Tensor, receivers: Tensor) -> None:
    """``out[receivers[r]]``: mean of ``bank[rows[r]]``, without the ``trim`` smallest and largest values."""
    (count, rows, receivers), call = (
        (rows.shape[1], rows.contiguous(), receivers.contiguous()),
        _function("middle", bank),
    )
    steps, kept = _encoded(middle(count, trim))

    def run(part: slice) -> None:
        network = (steps.data_ptr(), len(steps), kept.data_ptr())
        which = (rows.data_ptr(), len(rows), count, trim)
        call(*_matrix(bank), *which, *network, part.start, part.stop, *_matrix(out), receivers.data_ptr())

    _in_threads(run, bank.shape[1], rows.numel(), STRIP)


def trimmed_means_but_one(
    bank: Tensor, rows: Tensor, left_out: Tensor, trim: int, out: Tensor, receivers: Tensor
) -> None:
    """``out[receivers[r]]``: trimmed mean of ``bank[rows]`` without ``bank[left_out[r]]``, which is one of them."""
    rows, left_out, receivers = rows.contiguous(), left_out.contiguous(), receivers.contiguous()
    call = _function("leave_out", bank)
    steps, kept = _encoded(sorting(len(rows), trim))

    def run(part: slice) -> None:
        network = (steps.data_ptr(), len(steps), kept.data_ptr())
        for some in column_blocks(len(receivers), LARGEST):
            missing, results = left_out[some], receivers[some]
            which = (rows.data_ptr(), len(rows), missing.data_ptr(), len(missing), trim)
            call(*_matrix(bank), *which, *network, part.start, part.stop, *_matrix(out), results.data_ptr())

    _in_threads(run, bank.shape[1], len(steps) + len(receivers), STRIP)


@lru_cache(maxsize=256)
def _encoded(network: Network) -> tuple[Tensor, Tensor]:
    steps = [(step.i, step.j, step.low + 2 * step.high) for step in network.steps]
    return torch.tensor(steps, dtype=torch.int32).reshape(-1, 3), torch.tensor(network.kept, dtype=torch.int32)


def _function(name: str, x: Tensor) -> Callable[..., None]:
    function: Callable[..., None] = getattr(LIBRARY, f"eq_{name}_{SUFFIXES[x.dtype]}")
    return function


def _matrix(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.stride(0)


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="equipoise")


def _in_threads(run: Callable[[slice], None], size: int, cost: int, step: int = 1) -> None:
    """Run over ``range(size)``, in as many parts as torch has threads; ctypes lets go of the interpreter meanwhile.

    Parts start at multiples of ``step``, so that no column is computed in another way because there are threads.
    """
    threads = min(torch.get_num_threads(), size)
    if threads < 2 or size * cost < ALONE:
        if size:
            run(slice(0, size))
        return
    width = -(-size // (threads * step)) * step
    for done in [_pool(threads).submit(run, part) for part in column_blocks(size, width)]:
        done.result()
