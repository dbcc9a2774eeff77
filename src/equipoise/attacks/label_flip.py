"""Flipped labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import cast

import torch
from torch import Tensor

from equipoise._utils.validation import check_count, check_integers, is_finite

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LabelFlip:
    r"""Train on wrong labels.

    .. math:: y \mapsto \mathrm{mapping}(y) \qquad \text{or} \qquad y \mapsto y + \mathrm{offset}

    Tolpegin et al., *Data Poisoning Attacks Against Federated Learning Systems*, ESORICS 2020. The
    BALANCE paper (Fang et al., CCS 2024, appendix D) uses ``LabelFlip({3: 5})`` for MNIST,
    Fashion-MNIST and HAR, ``LabelFlip({0: 1, 1: 0})`` for CelebA and ``LabelFlip(offset=5)`` for
    regression. It does not state whether the classes of HAR count from 0 or, as in the original
    files, from 1; here they count from 0, as everywhere. Other flips are mappings too:
    ``{c: 9 - c for c in range(10)}`` is that of FLTrust.

    Args:
        mapping: the new label of every label that changes. All change at once, so ``{0: 1, 1: 0}``
            swaps two labels.
        offset: a number to add to every label. Give either this or a mapping.

    >>> attack = eq.attacks.LabelFlip({3: 5})
    >>> x, y = attack.poison(torch.zeros(4, 2), torch.tensor([3, 4, 5, 3]))
    >>> y
    tensor([5, 4, 5, 5])
    """

    mapping: Mapping[int, int] | Pairs | None = None
    offset: float | None = None

    def __post_init__(self) -> None:
        if (self.mapping is None) == (self.offset is None):
            found = "neither" if self.mapping is None else "both"
            raise ValueError(f"mapping or offset must be given, one of the two, found {found}")
        if self.offset is not None and not is_finite(self.offset):
            raise ValueError(f"offset must be a finite number, found {self.offset!r}")
        if self.mapping is not None:
            object.__setattr__(self, "mapping", _as_pairs(self.mapping))

    @torch.no_grad()
    def poison(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the examples unchanged, with wrong labels.

        A mapping requires integer labels; an offset works for any labels.
        """
        if self.offset is None:
            return x, _replace(y, cast(Pairs, self.mapping))
        return x, _shift(y, self.offset)


def check_fits(name: str, label: int, dtype: torch.dtype) -> None:
    """Raise unless the dtype can hold the label; torch would wrap it around silently."""
    check_count(name, label, torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _replace(y: Tensor, pairs: Pairs) -> Tensor:
    check_integers("y", y)
    flipped = y.clone()
    for old, new in pairs:
        check_fits("every label of mapping", old, y.dtype)
        check_fits("every label of mapping", new, y.dtype)
        flipped[y == old] = new  # compare with y, not with flipped: all labels change at once
    return flipped


def _shift(y: Tensor, offset: float) -> Tensor:
    if isinstance(y, Tensor) and y.is_floating_point():
        # Regression: targets are real numbers.
        return y + offset
    check_integers("y", y)
    step = math.floor(offset)
    # A fraction would be cut off when the sum returns to the dtype of the labels.
    if step != offset:
        raise ValueError(f"offset must be a whole number for integer labels, found {offset}")
    # Adding is monotone, so the extremes stand for all labels.
    for extreme in (y.min(), y.max()) if y.numel() else ():
        check_fits("y + offset", int(extreme) + step, y.dtype)
    # Through int64: a negative offset does not fit into an unsigned dtype.
    return (y.long() + step).to(y.dtype)


def _as_pairs(mapping: Mapping[int, int] | Iterable[tuple[int, int]]) -> Pairs:
    """Return the (old, new) labels, sorted. Unlike a dictionary, they can be hashed."""
    try:
        listed = mapping.items() if isinstance(mapping, Mapping) else mapping
        # index, not int, which would cut 3.7 down to the label 3.
        pairs = sorted((index(old), index(new)) for old, new in listed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"mapping must be from integer labels to integer labels, found {mapping!r:.100}"
        ) from error
    # Sorted, so equal labels are adjacent. Pairs may repeat a label, unlike a dictionary.
    for (old, _), (again, _) in pairwise(pairs):
        if old == again:
            raise ValueError(f"mapping must name every label once, found {old} more than once")
    return tuple(pairs)
