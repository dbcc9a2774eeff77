"""Memory for models that is used again when no tensor refers to it any more."""

from __future__ import annotations

import math
import sys
from threading import Lock

import numpy as np
import torch
from torch import Tensor

# References to an array that no tensor uses: the list, the loop variable and the argument of
# `getrefcount`.
UNUSED = 3

# An array serves requests of at least this share of its size.
USED_SHARE = 0.25


class RecycledMemory:
    """Hands out uninitialized tensors, in memory of earlier ones that are no longer in use.

    New memory is slow: the system clears every page when it is first touched, which takes longer
    than a pass over the models. On a CPU, numpy allocates the memory, and a tensor keeps its numpy
    array alive. So the reference count of an array tells whether a tensor, or a view of one, still
    needs it: code that keeps a tensor of an earlier round keeps its values as well. Other devices
    have an allocator that recycles memory itself. Several threads may share this object.

    >>> from equipoise._utils.recycled_memory import RecycledMemory
    >>> memory = RecycledMemory()
    >>> like = torch.zeros(1)
    >>> first = memory.take(like, 2, 3)
    >>> second = memory.take(like, 2, 3)
    >>> address = first.data_ptr()
    >>> second.data_ptr() == address
    False
    >>> del first
    >>> memory.take(like, 2, 3).data_ptr() == address
    True
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[RecycledMemory], tuple[()]]:
        # A copy starts empty: the tensors of the original do not refer to copied arrays.
        return RecycledMemory, ()

    def take(self, like: Tensor, *shape: int) -> Tensor:
        """An uninitialized tensor of this shape, with the dtype and device of ``like``."""
        size = math.prod(shape) * like.element_size()
        if like.device.type != "cpu" or size == 0:
            return like.new_empty(shape)
        # Two threads must not find the same array unused.
        with self._lock:
            return torch.from_numpy(self._find(size)[:size]).view(like.dtype).view(shape)

    def _find(self, size: int) -> np.ndarray:
        unused = [array for array in self._arrays if sys.getrefcount(array) == UNUSED]
        fitting = [array for array in unused if USED_SHARE * array.nbytes <= size <= array.nbytes]
        if fitting:
            return min(fitting, key=lambda array: array.nbytes)
        # The unused arrays have other sizes, which may never be asked for again.
        self._arrays = [x for x in self._arrays if not any(x is other for other in unused)]
        # numpy requests huge pages, and first touching these takes a quarter of the time.
        self._arrays.append(np.empty(size, dtype=np.uint8))
        return self._arrays[-1]
