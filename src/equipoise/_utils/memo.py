"""Values computed from tensors, kept until one of these tensors is modified in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

ValueT = TypeVar("ValueT")


class Memo:
    """Remembers values by name, and forgets a value after a tensor that it depends on was modified in place.

    torch counts the in-place changes of a tensor and of all its views in ``Tensor._version``. A value that is itself a
    tensor is forgotten too if somebody modifies it. Tensors made under ``torch.inference_mode`` have no such count, so
    nothing that depends on them is kept, except with ``trusting=True``, for as long as nobody writes to them.

    A copy, by ``deepcopy`` or pickle, starts empty: the counts of copied tensors start again at 0.
    """

    def __init__(self, *, trusting: bool = False) -> None:
        self._trusting = trusting
        self._entries: dict[str, tuple[Any, list[tuple[Tensor, int]]]] = {}

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        return Memo, ()

    def get(self, name: str, sources: tuple[Tensor, ...], compute: Callable[[], ValueT]) -> ValueT:
        """The value of this name: the one that is known, or else computed now from the source tensors."""
        known = self.known(name)
        return self.put(name, sources, compute()) if known is None else known

    def known(self, name: str) -> Any:
        """The value of this name, or None if it is not known, or not any longer."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        value, versions = entry
        for tensor, version in versions:
            if tensor._version != version:
                self._entries.pop(name, None)
                return None
        return value

    def put(self, name: str, sources: tuple[Tensor, ...], value: ValueT) -> ValueT:
        """Remember a value that was computed from the source tensors, and return it."""
        if not self._trusting and any(tensor.is_inference() for tensor in sources):
            return value
        tensors: tuple[Tensor, ...] = (*sources, value) if isinstance(value, Tensor) else sources
        versions = [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]
        self._entries[name] = (value, versions)
        return value
