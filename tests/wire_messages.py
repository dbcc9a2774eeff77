"""Messages as they arrive from a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def freed(model: Tensor) -> Tensor:
    model.untyped_storage().resize_(0)
    return model


class Override(Tensor):
    """Claims to be anything."""

    @classmethod
    def __torch_function__(cls, *_: object) -> Any:
        raise RuntimeError

    def numel(self) -> int:
        return 2


class Disguised:
    """Is a tensor, says isinstance."""

    __class__ = Tensor  # type: ignore[assignment]


class Raises:
    def __getattribute__(self, _: str) -> Any:
        raise ValueError("x" * 10_000)

    def __len__(self) -> int:
        raise OSError

    __array__ = __buffer__ = __repr__ = __str__ = __len__  # type: ignore[assignment]
