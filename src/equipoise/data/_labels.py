"""By what partitions go: the labels and the owners of examples, checked."""

from __future__ import annotations

from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.data.dataset import Dataset


def answers_of(data: Dataset | Tensor) -> Tensor:
    """The label or target of every example."""
    answers = data.y if isinstance(data, Dataset) else data
    if not isinstance(answers, Tensor) or answers.dim() != 1 or not len(answers):
        raise ValueError(f"data must be a Dataset, or labels of shape (N,) with N > 0, found {describe(answers)}")
    return answers


def labels_of(data: Dataset | Tensor, partition: str) -> tuple[Tensor, int]:
    """The class of every example, and the number of classes."""
    answers = answers_of(data)
    if not _is_integer(answers):
        raise ValueError(
            f"data must have classes for {partition}, found {describe(answers)}; a regression can be divided by iid or,"
            " if the data has owners, by_client"
        )
    labels = _from_zero(answers, "labels")
    known = data.classes if isinstance(data, Dataset) else None
    return labels, known or int(labels.max()) + 1


def owners_of(data: Dataset | Tensor) -> Tensor:
    """The owner of every example, numbered from 0 without gaps."""
    owners = data.owners if isinstance(data, Dataset) else data
    if isinstance(data, Dataset) and owners is None:
        raise ValueError(f"data must have owners for by_client, found none in {data.name or 'it'}; har and celeba have")
    if not isinstance(owners, Tensor) or owners.dim() != 1 or not len(owners) or not _is_integer(owners):
        raise ValueError(
            f"data must be a Dataset, or integer owners of shape (N,) with N > 0, found {describe(owners)}"
        )
    owners = _from_zero(owners, "owners")
    missing = (owners.bincount() == 0).nonzero()
    if len(missing):
        raise ValueError(f"data must number the owners from 0 without gaps, found no example of {int(missing[0])}")
    return owners


def _is_integer(numbers: Tensor) -> bool:
    return not numbers.is_floating_point() and not numbers.is_complex()


def _from_zero(numbers: Tensor, what: str) -> Tensor:
    numbers = numbers.detach().cpu().long()
    if numbers.min() < 0:
        raise ValueError(f"data must have {what} from 0, found {int(numbers.min())}")
    return numbers
