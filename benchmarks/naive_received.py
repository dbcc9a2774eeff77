"""Further rules over received models in plain torch, one client at a time; see `naive`."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from benchmarks.naive import median, trimmed_mean


def squares_of(received: Tensor) -> Tensor:
    return torch.cdist(received, received, compute_mode="donot_use_mm_for_euclid_dist").square()


def krum_scores(squares: Tensor, tolerated: int) -> Tensor:
    nearest = max(1, len(squares) - tolerated - 2)
    return squares.sort(dim=1).values[:, 1 : 1 + nearest].sum(dim=1)


def multi_krum(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    scores = krum_scores(squares_of(received), tolerated)
    return received[scores.topk(len(received) - tolerated, largest=False).indices].mean(dim=0)


def around_median(values: Tensor, amount: int) -> Tensor:
    half = len(values) // 2
    ordered = values.sort(dim=0).values
    median = ordered[half] if len(values) % 2 else ordered[half - 1 : half + 1].mean(dim=0)
    nearest = (ordered - median).abs().argsort(dim=0)[:amount]
    return ordered.gather(0, nearest).mean(dim=0)


def bulyan(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    squares = squares_of(received)
    left = list(range(len(received)))
    chosen = []
    theta = max(1, len(received) - 2 * tolerated)
    while len(chosen) < theta:
        scores = krum_scores(squares[left][:, left], tolerated)
        chosen.append(left.pop(int(scores.argmin())))
    return around_median(received[chosen], max(1, theta - 2 * tolerated))


def mea_med(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return around_median(received, len(received) - tolerated)


def geometric_median(own: Tensor, received: Tensor, *, steps: int = 11, **_: Any) -> Tensor:
    # As many steps as ours take on workload 1 until nothing changes.
    v = received.median(dim=0).values
    for _step in range(steps):
        pulls = 1 / (received - v).norm(dim=1)
        v = pulls / pulls.sum() @ received
    return v


def centered_clip(
    own: Tensor, received: Tensor, *, tau: float = 1.0, steps: int = 3, **_: Any
) -> Tensor:
    v = own
    for _step in range(steps):
        apart = received - v
        kept = (tau / apart.norm(dim=1)).clamp_max(1)
        v = v + kept @ apart / len(received)
    return v


def caf(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    c = torch.ones(len(received))
    best = received.mean(dim=0)
    least = torch.inf
    while c.sum() > len(received) - 2 * tolerated + 1e-6:
        shares = c / c.sum()
        mean = shares @ received
        apart = received - mean
        rows = shares.sqrt()[:, None] * apart
        values, vectors = torch.linalg.eigh(rows.double() @ rows.double().T)
        if values[-1] < least:
            least = float(values[-1])
            best = mean
        along = (apart.double() @ (rows.double().T @ vectors[:, -1])).square()
        along = along.where(c > 0, 0.0)
        c = c * (1 - along / along.max()).float()
    return best


def least_spread(received: Tensor, tolerated: int, spread: Callable[[Tensor], Tensor]) -> Tensor:
    squares = squares_of(received)
    sets = list(combinations(range(len(received)), len(received) - tolerated))
    best = min(sets, key=lambda chosen: float(spread(squares[list(chosen)][:, list(chosen)])))
    return received[list(best)].mean(dim=0)


def mda(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return least_spread(received, tolerated, torch.amax)


def largest_variance(squares: Tensor) -> Tensor:
    center = torch.eye(len(squares)) - 1 / len(squares)
    return torch.linalg.eigvalsh(-center @ squares @ center / 2)[-1]


def smea(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return least_spread(received, tolerated, largest_variance)


def bridge_b(own: Tensor, received: Tensor, **inputs: Any) -> Tensor:
    return bulyan(own, torch.cat([own[None], received]), **inputs)


def sketches_of(models: Tensor, size: int) -> Tensor:
    # Of fixed buckets and signs: random ones take as long.
    places = torch.arange(models.shape[1])
    signed = models * (1 - places % 2 * 2)
    return models.new_zeros(len(models), size).index_add_(1, places % size, signed)


def sketch_guard(
    own: Tensor, received: Tensor, *, t: int, total: int, size: int = 1000, **_: Any
) -> Tensor:
    mine = sketches_of(own[None], size)
    apart = (sketches_of(received, size) - mine).norm(dim=1)
    accepted = received[apart <= 0.3 * math.exp(-t / total) * mine.norm()]
    return accepted.mean(dim=0) if len(accepted) else own


def nnm(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    nearest = squares_of(received).topk(len(received) - tolerated, largest=False).indices
    mixed = torch.stack([received[rows].mean(dim=0) for rows in nearest])
    return trimmed_mean(own, mixed, tolerated=tolerated)


def bucketing(own: Tensor, received: Tensor, *, s: int = 2, **_: Any) -> Tensor:
    # In the order of the ids: a random one takes as long.
    buckets = torch.stack([bucket.mean(dim=0) for bucket in received.split(s)])
    return median(own, buckets)


def arc(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    n = len(received)
    apart = received - own
    lengths: Tensor = apart.norm(dim=1)
    radius = lengths.sort().values[n - 2 * tolerated * (n - tolerated) // n - 1]
    clipped = own + (radius / lengths).clamp_max(1)[:, None] * apart
    return trimmed_mean(own, clipped, tolerated=tolerated)


def static_clip(own: Tensor, received: Tensor, *, radius: float = 1.0, **_: Any) -> Tensor:
    apart = received - own
    clipped = own + (radius / apart.norm(dim=1)).clamp_max(1)[:, None] * apart
    return median(own, clipped)


RULES: dict[str, Callable[..., Tensor]] = {
    "MultiKrum": multi_krum,
    "Bulyan": bulyan,
    "MeaMed": mea_med,
    "GeometricMedian": geometric_median,
    "CenteredClip": centered_clip,
    "CAF": caf,
    "MDA": mda,
    "SMEA": smea,
    "BridgeB": bridge_b,
    "SketchGuard": sketch_guard,
    "NNM": nnm,
    "Bucketing": bucketing,
    "ARC": arc,
    "StaticClip": static_clip,
}
