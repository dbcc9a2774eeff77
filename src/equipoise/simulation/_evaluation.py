"""What is measured after a round, and when."""

from __future__ import annotations

from collections.abc import Callable, Container

from torch import Tensor

from equipoise._utils.validation import describe

Metric = Callable[[Tensor], Tensor]


def is_measured(t: int, every: int | Container[int], total: int | None) -> bool:
    """Whether round t is one to measure after; the last one always is."""
    last = total is not None and t + 1 == total
    return last or ((t + 1) % every == 0 if isinstance(every, int) else t in every)


def measured(name: str, metric: Metric, models: Tensor) -> list[float]:
    """What a metric says of every client."""
    values = metric(models)
    if not isinstance(values, Tensor) or values.shape != (len(models),):
        expected = f"a tensor ({len(models)},) of one value per client"
        raise ValueError(f"metrics[{name!r}] must return {expected}, found {describe(values)}")
    plain: list[float] = values.tolist()
    return plain
