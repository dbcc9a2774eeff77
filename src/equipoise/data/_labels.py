"""Validate the labels and owners that partitions use."""

from __future__ import annotations

from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.data.dataset import Dataset


def answers_of(data: Dataset | Tensor) -> Tensor:
    """Return the label or target of each example."""
    answers = data.y if isinstance(data, Dataset) else data
    if not isinstance(answers, Tensor) or answers.dim() != 1 or not len(answers):
        expected = "a Dataset, or labels of shape (N,) with N > 0"
        raise ValueError(f"data must be {expected}, found {describe(answers)}")
    return answers


def labels_of(data: Dataset | Tensor, partition: str) -> tuple[Tensor, int]:
    """Return the class of each example, and the number of classes."""
    answers = answers_of(data)
    if not _is_integer(answers):
        raise ValueError(
            f"data must have classes for {partition}, found {describe(answers)}; divide a"
            " regression by iid or, if the data have owners, by_client"
        )
    labels = _from_zero(answers, "labels")
    # A dataset knows classes that have no training example; bare labels cannot.
    known = data.classes if isinstance(data, Dataset) else None
    return labels, known or int(labels.max()) + 1


def owners_of(data: Dataset | Tensor) -> Tensor:
    """Return the owner of each example, numbered from 0 without gaps."""
    if isinstance(data, Dataset):
        if data.owners is None:
            name = data.name or "the data set"
            raise ValueError(
                f"data must have owners for by_client, found none in {name};"
                " har and celeba have owners"
            )
        # Dataset has checked them, except for later changes of the tensor in place.
        owners = data.owners
    else:
        owners = _integer_vector(data)
    owners = _from_zero(owners, "owners")
    missing = (owners.bincount() == 0).nonzero()
    if len(missing):
        found = f"no example of {int(missing[0])}"
        raise ValueError(f"data must number the owners from 0 without gaps, found {found}")
    return owners


def _integer_vector(owners: Tensor) -> Tensor:
    is_vector = isinstance(owners, Tensor) and owners.dim() == 1 and len(owners) > 0
    if not is_vector or not _is_integer(owners):
        expected = "a Dataset, or integer owners of shape (N,) with N > 0"
        raise ValueError(f"data must be {expected}, found {describe(owners)}")
    return owners


def _is_integer(numbers: Tensor) -> bool:
    # bool counts as an integer: two classes.
    return not numbers.is_floating_point() and not numbers.is_complex()


def _from_zero(numbers: Tensor, what: str) -> Tensor:
    # The generators are on the CPU, so the labels must be too; int64 can index and be counted.
    numbers = numbers.detach().cpu().long()
    if numbers.min() < 0:
        raise ValueError(f"data must have {what} from 0, found {int(numbers.min())}")
    return numbers
