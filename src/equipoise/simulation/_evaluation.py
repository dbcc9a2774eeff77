"""Metrics of the models after a round."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch
from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.simulation._sharding import Part

MetricFunction = Callable[[Tensor], Tensor]


EVALUATIONS = 100  # of a run by default: enough for a curve


def is_evaluated(t: int, evaluate_every: int | Container[int] | None, total: int | None) -> bool:
    """Whether metrics are measured after round t; after the last round they always are.

    >>> from equipoise.simulation._evaluation import is_evaluated
    >>> [t for t in range(250) if is_evaluated(t, None, 250)][:3]
    [0, 2, 5]
    """
    if t + 1 == total or (t == 0 and evaluate_every is None):
        # A run that is stopped early has metrics of one round at least.
        return True
    if evaluate_every is None:
        # Rounded up: at most that many evenly spaced rounds, besides the first and the last one.
        evaluate_every = -(-(total or 1) // EVALUATIONS)
    if isinstance(evaluate_every, int):
        # Rounds count from 0: 10 evaluates after the rounds 9, 19, ...
        return (t + 1) % evaluate_every == 0
    return t in evaluate_every


def evaluate(
    name: str, metric: MetricFunction, models: Tensor, idle: Tensor, part: Part
) -> list[float]:
    """The value of a metric for every client, NaN for those that are not trained."""
    values = part.measure(metric, models)
    if not isinstance(values, Tensor) or values.shape != (len(models),):
        expected = f"a tensor ({len(models)},) of one value per client"
        raise ValueError(f"metrics[{name!r}] must return {expected}, found {describe(values)}")
    measured = values.masked_fill(idle.to(values.device), torch.nan)
    # One copy from the device for all clients.
    plain: list[float] = part.all_rows(measured).tolist()
    return plain
