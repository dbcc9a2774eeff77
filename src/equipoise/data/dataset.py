"""Training and test examples, optionally with their owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from equipoise._utils.formatting import as_call
from equipoise._utils.validation import check_count, describe


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of one learning task.

    Args:
        x: ``(N, *features)`` training inputs, float32.
        y: (N,) labels, int64, or targets of a regression, float32.
        test_x: ``(M, *features)`` test inputs, the same for each client.
        test_y: (M,) labels or targets of the test inputs.
        classes: the number of classes, 0 to ``classes - 1``; None for a regression.
        owners: (N,) the natural client of each training example, int64, numbered from 0 without
            gaps; None if the data were not collected from clients.
        name: name for tables and plots.

    >>> y, test_y = torch.tensor([0, 1, 1, 0]), torch.tensor([1, 0])
    >>> data = eq.data.Dataset(torch.rand(4, 2), y, torch.rand(2, 2), test_y, classes=2)
    >>> clients = data.split([torch.tensor([0, 1, 3]), torch.tensor([2])])
    >>> [y.tolist() for x, y in clients]
    [[0, 1, 0], [1]]
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int | None = None
    owners: Tensor | None = None
    name: str = ""

    __repr__ = as_call

    def __post_init__(self) -> None:
        if self.classes is not None:
            check_count("classes", self.classes, 1)
        # Check at construction: the error then names the field, and not a later operation on it.
        for prefix, x, y in (("", self.x, self.y), ("test_", self.test_x, self.test_y)):
            _check_inputs(f"{prefix}x", x)
            _check_answers(f"{prefix}y", y, len(x), self.classes)
        # One model serves both parts, so a test example has the features of a training example.
        if self.test_x.shape[1:] != self.x.shape[1:]:
            raise ValueError(
                f"test_x must be shaped like x, {describe(self.x)}, found {describe(self.test_x)}"
            )
        if self.owners is not None:
            _check_owners(self.owners, len(self.x))

    def split(self, parts: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the training examples (x, y) of each client, from the indices of its examples.

        The `partitions <equipoise.data.iid>` of this package use each example exactly once; your
        own need not.
        """
        # A generator of parts would be empty after the checks.
        parts = list(parts)
        for i, part in enumerate(parts):
            _check_part(f"parts[{i}]", part, len(self.x))
        return [(self.x[part], self.y[part]) for part in parts]


def hold_out(
    groups: Tensor, held: Callable[[int], int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ascending indices for training and testing.

    Of each group, ``held(size)`` random examples are for testing.

    >>> from equipoise.data.dataset import hold_out
    >>> groups = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> train, test = hold_out(groups, lambda size: size // 2, torch.Generator())
    >>> len(train), len(test), torch.cat([train, test]).sort().values.tolist()
    (3, 3, [0, 1, 2, 3, 4, 5])
    """
    sizes = groups.bincount()
    # Shuffle, then sort by group. The sort is stable, so each group stays in random order.
    shuffled = torch.randperm(len(groups), generator=generator, device="cpu")
    grouped = shuffled[groups[shuffled].argsort(stable=True)]
    # The position of each example within its group: its place minus the start of the group, which
    # is the exclusive cumulative sum of the sizes.
    position = torch.arange(len(groups), device="cpu") - (sizes.cumsum(0) - sizes)[groups[grouped]]
    counts = torch.tensor([held(size) for size in sizes.tolist()], device="cpu")
    is_test = position < counts[groups[grouped]]
    # Rounding down leaves groups smaller than 1 / test_share without a test example.
    if not is_test.any():
        found = f"no test example in groups of at most {int(sizes.max())}"
        raise ValueError(f"test_share must be larger, found {found}")
    # Ascending: the order of the examples then does not depend on the generator.
    return grouped[~is_test].sort().values, grouped[is_test].sort().values


def as_share(name: str, value: float) -> Fraction:
    """Convert a share to the decimal fraction that it is written as.

    Products with it are exact: in floating point, ``int(0.29 * 100)`` is 28.

    >>> from equipoise.data.dataset import as_share
    >>> as_share("test_share", 0.1)
    Fraction(1, 10)
    """
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, found {value!r}")
    # str gives the shortest decimal that rounds to this float: 0.1, not 0.1000000000000000055.
    return Fraction(str(float(value)))


def _check_inputs(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.dim() < 2 or not len(x):
        expected = "float32 of shape (N, *features) with N > 0"
        raise ValueError(f"{name} must be {expected}, found {describe(x)}")


def _check_answers(name: str, y: Tensor, n: int, classes: int | None) -> None:
    dtype = torch.float32 if classes is None else torch.int64
    if not isinstance(y, Tensor) or y.dtype != dtype or y.shape != (n,):
        kind = "a regression, classes = None" if classes is None else f"{classes} classes"
        raise ValueError(f"{name} must be {str(dtype)[6:]} ({n},) for {kind}, found {describe(y)}")
    if classes is not None:
        _check_range(name, y, classes, "labels")


def _check_owners(owners: Tensor, n: int) -> None:
    if not isinstance(owners, Tensor) or owners.dtype != torch.int64 or owners.shape != (n,):
        raise ValueError(f"owners must be int64 ({n},), found {describe(owners)}")
    # n examples have at most n owners. The limit also bounds the memory of bincount.
    _check_range("owners", owners, n, "clients")
    missing = (owners.bincount() == 0).nonzero()
    if len(missing):
        found = f"no example of {int(missing[0])}"
        raise ValueError(f"owners must number the clients from 0 without gaps, found {found}")


def _check_part(name: str, part: Tensor, n: int) -> None:
    if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.dim() != 1:
        expected = "int64 indices of shape (examples,)"
        raise ValueError(f"{name} must be {expected}, found {describe(part)}")
    _check_range(name, part, n, "indices")


def _check_range(name: str, values: Tensor, end: int, what: str) -> None:
    outside = values[(values < 0) | (values >= end)]
    if len(outside):
        raise ValueError(f"{name} must hold {what} from 0 to {end - 1}, found {int(outside[0])}")
