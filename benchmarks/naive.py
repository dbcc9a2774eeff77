"""The rules in plain torch, one client at a time, as a baseline.

Each takes ``own (d,)``, ``received (k, d)`` and the round inputs of the library's rules by the
same names, and returns the aggregate. The hyper-parameters are the defaults of the library. There
is no treatment of edge cases: every message is finite and every client has some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def gathered(models: Tensor, rows: Tensor) -> Tensor:
    """(k, d) a copy of the received models, as one matrix."""
    return models[rows]


def listed(models: Tensor, rows: Tensor) -> list[Tensor]:
    """Views of the received models, for functions that take a list."""
    return [models[row] for row in rows.tolist()]


@dataclass(frozen=True)
class Opponent:
    """The aggregate of one client, and in which form it takes what is received."""

    aggregate: Callable[[Tensor, Any], Tensor]
    gather: Callable[[Tensor, Tensor], Iterable[Tensor]] = gathered


def fedavg(own: Tensor, received: Tensor, **_: Any) -> Tensor:
    return received.mean(dim=0)


def krum(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    # The default mode of cdist multiplies matrices from 26 rows on, which is noise for models that
    # nearly agree.
    squares = torch.cdist(received, received, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = max(1, len(received) - tolerated - 2)
    scores = squares.sort(dim=1).values[:, 1 : 1 + nearest].sum(dim=1)
    return received[scores.argmin()]


def trimmed_mean(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return received.sort(dim=0).values[tolerated : len(received) - tolerated].mean(dim=0)


def median(own: Tensor, received: Tensor, **_: Any) -> Tensor:
    half = len(received) // 2
    if len(received) % 2:
        return received.median(dim=0).values
    return received.sort(dim=0).values[half - 1 : half + 1].mean(dim=0)


def fltrust(own: Tensor, received: Tensor, **_: Any) -> Tensor:
    lengths: Tensor = received.norm(dim=1)
    length: Tensor = own.norm()
    trust = (received @ own / (lengths * length)).relu()
    if trust.sum() == 0:
        return own
    return (trust / trust.sum() * length / lengths) @ received


def ubar(
    own: Tensor, received: Tensor, *, tolerated: int, loss_of: Callable[[Tensor], Tensor], **_: Any
) -> Tensor:
    apart = (received - own).norm(dim=1)
    near = received[apart.topk(len(received) - tolerated, largest=False).indices]
    losses = loss_of(near)
    own_loss = loss_of(own[None])
    better = losses < own_loss
    return near[better].mean(dim=0) if better.any() else near[losses.argmin()]


def scclip(own: Tensor, received: Tensor, *, tau: float = 1.0, **_: Any) -> Tensor:
    steps = received - own
    kept: Tensor = (tau / steps.norm(dim=1)).clamp(max=1)
    return own + kept @ steps / len(received)


def balance(
    own: Tensor,
    received: Tensor,
    *,
    t: int,
    total: int,
    gamma: float = 0.3,
    kappa: float = 1.0,
    **_: Any,
) -> Tensor:
    limit = gamma * math.exp(-kappa * t / total) * own.norm()
    accepted = (received - own).norm(dim=1) <= limit
    return received[accepted].mean(dim=0) if accepted.any() else own


def balance_median(own: Tensor, received: Tensor, *, gamma: float = 0.3, **_: Any) -> Tensor:
    apart = (received - own).norm(dim=1)
    accepted = apart <= torch.minimum(apart.median(), gamma * own.norm())
    return received[accepted].mean(dim=0) if accepted.any() else own


# Rules that contain own; all weights are 1 / (k + 1).


def gossip(own: Tensor, received: Tensor, **_: Any) -> Tensor:
    return own + (received - own).sum(dim=0) / (len(received) + 1)


def clipped(own: Tensor, received: Tensor, radius: Tensor) -> Tensor:
    steps = received - own
    kept: Tensor = (radius / steps.norm(dim=1)).clamp(max=1)
    return own + kept @ steps / (len(received) + 1)


def clipped_gossip(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    apart = (received - own).norm(dim=1)
    near = apart.topk(len(received) - tolerated, largest=False).values
    return clipped(own, received, (near.square().sum() / tolerated).sqrt())


def cs_plus(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    apart = (received - own).norm(dim=1)
    return clipped(own, received, apart.topk(2 * tolerated).values[-1])


def nearest(own: Tensor, received: Tensor, tolerated: int) -> Tensor:
    apart = (received - own).norm(dim=1)
    return received[apart.topk(len(received) - tolerated, largest=False).indices]


def gts(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    near = nearest(own, received, tolerated)
    return own + (near - own).sum(dim=0) / (len(received) + 1)


def rtc(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    steps = nearest(own, received, tolerated) - own
    apart = steps.norm(dim=1)
    radius = (apart.square().sum() / tolerated).sqrt()
    return own + (radius / apart).clamp(max=1) @ steps / (len(received) + 1)


def nna(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return torch.cat([own[None], nearest(own, received, tolerated)]).mean(dim=0)


def ios(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    left = list(range(len(received)))
    for _step in range(tolerated):
        mean = (own + received[left].sum(dim=0)) / (len(left) + 1)
        left.pop(int((received[left] - mean).norm(dim=1).argmax()))
    return (own + received[left].sum(dim=0)) / (len(left) + 1)


def faba(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    left = list(range(len(received)))
    for _step in range(tolerated):
        left.pop(int((received[left] - received[left].mean(dim=0)).norm(dim=1).argmax()))
    return (own + received[left].sum(dim=0)) / (len(left) + 1)


def bridge_t(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    kept = received.sort(dim=0).values[tolerated : len(received) - tolerated]
    return torch.cat([kept, own[None]]).mean(dim=0)


def bridge_m(own: Tensor, received: Tensor, **_: Any) -> Tensor:
    return median(own, torch.cat([received, own[None]]))


def bridge_k(own: Tensor, received: Tensor, *, tolerated: int, **_: Any) -> Tensor:
    return krum(own, torch.cat([own[None], received]), tolerated=tolerated)


RULES: dict[str, Callable[..., Tensor]] = {
    "FedAvg": fedavg,
    "Krum": krum,
    "TrimmedMean": trimmed_mean,
    "Median": median,
    "FLTrust": fltrust,
    "UBAR": ubar,
    "SCClip": scclip,
    "Balance": balance,
    "BalanceMedian": balance_median,
    "Gossip": gossip,
    "ClippedGossip": clipped_gossip,
    "CSPlus": cs_plus,
    "GTS": gts,
    "RTC": rtc,
    "NNA": nna,
    "IOS": ios,
    "FABA": faba,
    "BridgeT": bridge_t,
    "BridgeM": bridge_m,
    "BridgeK": bridge_k,
}


def each_client(
    opponent: Opponent, models: Tensor, senders: Tensor, receivers: Sequence[int]
) -> Tensor:
    """Return aggregates (len(receivers), d); client i receives from ``senders[i]``."""
    result = models.new_empty(len(receivers), models.shape[1])
    for row, i in zip(result, receivers, strict=True):
        row.copy_(opponent.aggregate(models[i], opponent.gather(models, senders[i])))
    return result
