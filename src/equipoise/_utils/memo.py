"""A cache of values computed from tensors, which notices if a tensor is modified in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

ValueT = TypeVar("ValueT")


class Memo:
    """Caches values by name until a tensor that they depend on is modified in place.

    torch counts the in-place changes of a tensor and of all its views in ``Tensor._version``. A
    cached value that is itself a tensor is also dropped if it is modified.

    Tensors made under ``torch.inference_mode`` have no such count, so values that depend on them
    are not cached. With ``trusting=True`` they are: use it only while no other code can modify
    the tensors.

    A deep copy or an unpickled copy starts empty: the counts of copied tensors restart at 0.
    """

    def __init__(self, *, trusting: bool = False) -> None:
        self._trusting = trusting
        self._entries: dict[str, tuple[Any, list[tuple[Tensor, int]]]] = {}

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        # Not trusting, even if this one is: a copy may reach code that modifies the tensors.
        return Memo, ()

    def get(self, name: str, sources: tuple[Tensor, ...], compute: Callable[[], ValueT]) -> ValueT:
        """The cached value of this name, or else one computed now from the source tensors."""
        known = self.known(name)
        return self.put(name, sources, compute()) if known is None else known

    def known(self, name: str) -> Any:
        """The cached value of this name, or None."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        value, versions = entry
        for tensor, version in versions:
            if tensor._version != version:
                # With a default, because another thread may have dropped the entry.
                self._entries.pop(name, None)
                return None
        return value

    def put(self, name: str, sources: tuple[Tensor, ...], value: ValueT) -> ValueT:
        """Cache a value that was computed from the source tensors, and return it."""
        # Reading the count of an inference tensor raises.
        versions = [(tensor, tensor._version) for tensor in sources if not tensor.is_inference()]
        if len(versions) < len(sources) and not self._trusting:
            return value
        # A cached tensor is handed out, so it may be modified as well.
        if isinstance(value, Tensor) and not value.is_inference():
            versions.append((value, value._version))
        self._entries[name] = (value, versions)
        return value
