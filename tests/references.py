"""References of the rules: one client at a time, in float64, as the papers define them.

They are not fast, and share no code with the library. A reference takes ``own (d,)`` and the list
of messages that one client received, and returns an `Answer`. Its keywords are the rule's
hyper-parameters and round inputs, so that
``reference_all(REFERENCES["Krum"], own, inbox, tolerated=2)`` mirrors
``Krum(tolerated=2)(own, inbox)``.

Equation and section numbers are those of the BALANCE paper (Fang et al., CCS 2024). Norms are plain
float64, so inputs must stay below about 1e150, as all float32 do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tests import gossip_references
from tests.reference_shares import (
    mean_weights,
    sample_mean_of,
    sample_weights,
    weighted_order_statistic,
)
from tests.reference_tools import (
    Answer,
    Message,
    Vector,
    array,
    mean_of,
    middle,
    norm,
    present,
    weighted_sum,
)


def fedavg(
    own: Vector,
    messages: Sequence[Message],
    *,
    weighted: bool = False,
    cap: float = math.inf,
    samples: Vector | None = None,
    **_: Any,
) -> Answer:
    """Sec. 6.1.2, FedAvg: "the weighted average of all collected models"; equal by default."""
    if not weighted:
        return mean_of(own, messages, present(messages))
    return sample_mean_of(own, messages, present(messages), samples, cap)


def krum(own: Vector, messages: Sequence[Message], *, tolerated: int, **_: Any) -> Answer:
    """Sec. 6.1.2, Krum: the model closest to its n_i - f - 2 nearest, in squared distances."""
    here = present(messages)
    nearest = max(1, min(len(here) - tolerated - 2, len(here) - 1))
    scored = []
    for candidate in here:
        squared = [
            float(np.sum((messages[candidate].vector - messages[other].vector) ** 2))
            for other in here
            if other != candidate
        ]
        scored.append((sum(sorted(squared)[:nearest]), messages[candidate].sender, candidate))
    chosen = [min(scored)[2]] if scored else []
    return mean_of(own, messages, chosen)


def trimmed_mean(
    own: Vector,
    messages: Sequence[Message],
    *,
    tolerated: int,
    weighted: bool = False,
    cap: float = 2.0,
    samples: Vector | None = None,
    **_: Any,
) -> Answer:
    """Sec. 6.1.2, Trim-mean: per dimension, remove f values on each side, average the rest.

    Weighted, remove as much weight on each side as any f messages have.
    """
    if weighted:
        weights = sample_weights(messages, present(messages), samples, cap)
        cut = float(np.sort(weights)[::-1][:tolerated].sum())
        return weighted_order_statistic(own, messages, weights, cut)
    values = [messages[position].vector for position in present(messages)]
    if not values:
        return Answer(own.copy(), None, np.abs(own))
    trimmed = min(tolerated, (len(values) - 1) // 2)
    kept = np.sort(np.stack(values), axis=0)[trimmed : len(values) - trimmed]
    return Answer(kept.mean(axis=0), None, np.abs(kept).mean(axis=0))


def median(
    own: Vector,
    messages: Sequence[Message],
    *,
    weighted: bool = False,
    cap: float = 2.0,
    samples: Vector | None = None,
    **_: Any,
) -> Answer:
    """Sec. 6.1.2, Median: per dimension; the mean of the two middle values of an even number."""
    if weighted:
        weights = sample_weights(messages, present(messages), samples, cap)
        return weighted_order_statistic(own, messages, weights, 0.5)
    values = [messages[position].vector for position in present(messages)]
    if not values:
        return Answer(own.copy(), None, np.abs(own))
    ordered = np.sort(np.stack(values), axis=0)
    low = ordered[(len(values) - 1) // 2]
    high = ordered[len(values) // 2]
    return Answer(low / 2 + high / 2, None, np.abs(low) / 2 + np.abs(high) / 2)


def fltrust(own: Vector, messages: Sequence[Message], *, weighted: bool = True, **_: Any) -> Answer:
    """Sec. 6.1.2, FLTrust: average the models of positive cosine, rescaled to the norm of own.

    Weighted by the cosine as in Cao et al. (2021), or plainly as the sentence in the paper reads.
    """
    size = norm(own)
    weights = np.zeros(len(messages))
    rescaled = list(messages)
    for position in present(messages):
        sender, vector = messages[position]
        length = norm(vector)
        if size == 0 or length == 0:
            continue
        cosine = float(np.sum((own / size) * (vector / length)))
        if cosine > 0:
            weights[position] = cosine if weighted else 1.0
            rescaled[position] = Message(sender, vector / length * size)
    if weights.sum() > 0:
        weights = weights / weights.sum()
    return weighted_sum(own, rescaled, weights)


def ubar(
    own: Vector,
    messages: Sequence[Message],
    *,
    tolerated: int,
    loss_of: Callable[[Vector], Vector],
    empty: str = "best",
    **_: Any,
) -> Answer:
    """Sec. 6.1.2, UBAR: of the n_i - f nearest models, average those of smaller loss than own.

    If there are none: the one of smallest loss (Guo et al., 2021), the closest one, or own.
    """
    here = present(messages)
    by_distance = sorted(here, key=lambda p: (norm(messages[p].vector - own), messages[p].sender))
    nearest = by_distance[: max(0, len(here) - tolerated)]
    own_loss = float(loss_of(own[None])[0])
    losses = {p: float(loss_of(messages[p].vector[None])[0]) for p in nearest}
    chosen = [p for p in nearest if losses[p] < own_loss]
    if not chosen and empty == "best":
        finite = [p for p in nearest if math.isfinite(losses[p])]
        chosen = sorted(finite, key=lambda p: (losses[p], messages[p].sender))[:1]
    if not chosen and empty == "closest":
        chosen = nearest[:1]
    return mean_of(own, messages, chosen)


def scclip(
    own: Vector,
    messages: Sequence[Message],
    *,
    tau: float | str = 1.0,
    mode: str = "difference",
    contains_own: bool = False,
    gossip: Any = None,
    weighted: bool = False,
    cap: float = 2.0,
    samples: Vector | None = None,
    **_: Any,
) -> Answer:
    """Sec. 6.1.2, SCCLIP: clip every received model "based on its own local model", then average.

    "difference" is He et al. (2022): own + (w_j - own) * min(1, tau / ||w_j - own||).
    "norm" is the clipping of sec. 2.3: w_j * min(1, ||own|| / ||w_j||). If the aggregate contains
    own, it and the clipped messages have gossip weights.
    """
    here = present(messages)
    shares = mean_weights(messages, here, samples if weighted else None, cap)
    if contains_own:
        shares = gossip_references.edge_weights(messages, gossip)
    if mode == "norm":
        clipped = list(messages)
        for position in here:
            sender, vector = messages[position]
            if norm(vector) > norm(own):
                clipped[position] = Message(sender, vector / norm(vector) * norm(own))
        return gossip_references.own_and(own, clipped, shares)
    distances = {position: norm(messages[position].vector - own) for position in here}
    radius = clipping_radius(tau, sorted(distances.values()))
    weights = np.zeros(len(messages))
    step = np.zeros_like(own)
    magnitude = np.abs(own)
    for position in here:
        distance = distances[position]
        factor = 1.0 if distance <= radius else radius / distance
        weights[position] = factor * shares[position]
        clipped_step = (messages[position].vector - own) * weights[position]
        step = step + clipped_step
        magnitude = magnitude + np.abs(clipped_step)
    return Answer(own + step, weights, magnitude)


def clipping_radius(tau: float | str, distances: Sequence[float]) -> float:
    """A fixed radius, or the median or second largest (code of He et al.) of the distances."""
    if not distances:
        return 0.0
    if tau == "median":
        return middle(distances)
    if tau == "second_largest":
        return distances[max(0, len(distances) - 2)]
    return float(tau)


def balance(
    own: Vector,
    messages: Sequence[Message],
    *,
    gamma: float = 0.3,
    kappa: float = 1.0,
    progress: Callable[[int, int], float] | None = None,
    t: int = 0,
    total: int = 1,
    weighted: bool = False,
    cap: float = 2.0,
    samples: Vector | None = None,
    **_: Any,
) -> Answer:
    """Eq. 3, Alg. 3: the mean of w_j, ||own - w_j|| <= gamma exp(-kappa lambda(t)) ||own||."""
    passed = progress(t, total) if progress else t / total
    decay = math.exp(-kappa * passed) if kappa else 1.0
    threshold = gamma * decay * norm(own)
    accepted = [p for p in present(messages) if norm(own - messages[p].vector) <= threshold]
    if weighted:
        return sample_mean_of(own, messages, accepted, samples, cap)
    return mean_of(own, messages, accepted)


def balance_median(
    own: Vector, messages: Sequence[Message], *, gamma: float = 0.3, **_: Any
) -> Answer:
    """Sec. 7, Variant II: q_j = ||own - w_j|| / ||own||; the mean of w_j, q_j <= min(med q, gamma).

    Written without the division, so that own = 0 accepts copies of own only.
    """
    here = present(messages)
    distances = {p: norm(own - messages[p].vector) for p in here}
    if not here:
        return mean_of(own, messages, [])
    threshold = min(middle(sorted(distances.values())), gamma * norm(own))
    return mean_of(own, messages, [p for p in here if distances[p] <= threshold])


def learn(
    own: Vector,
    update: Vector,
    exchange: Callable[[Vector], Sequence[Sequence[Message]]],
    *,
    t: int,
    tolerated: Sequence[int],
    own_update: str = "included",
    alpha: float = 0.5,
) -> tuple[Vector, list[Answer]]:
    """Sec. 6.1.2, LEARN: ceil(log2(t + 1)) exchanges of updates, then one of models.

    ``exchange`` takes the messages (n, d) of all clients, and returns the messages that they
    receive. Returns w^{t+1/2}, (n, d), and the trimmed mean of the received w_j^{t+1/2} of each.
    """
    current = update
    for _ in range(math.ceil(math.log2(t + 1))):
        inboxes = exchange(current)
        current = np.stack(
            [
                combined_update(
                    current[i],
                    inboxes[i],
                    int(tolerated[i]),
                    own_update=own_update,
                    alpha=alpha,
                    client=i,
                )
                for i in range(len(own))
            ]
        )
    intermediate = own - update + current
    inboxes = exchange(intermediate)
    return intermediate, [
        trimmed_mean(intermediate[i], inboxes[i], tolerated=int(tolerated[i]))
        for i in range(len(own))
    ]


def combined_update(
    mine: Vector,
    messages: Sequence[Message],
    tolerated: int,
    *,
    own_update: str,
    alpha: float,
    client: int,
) -> Vector:
    """One step of LEARN's first phase: a trimmed mean with or without own update, or mixed with it.

    N_i and {i} are united as sets: a self-loop adds nothing.
    """
    if own_update == "included":
        others = [message for message in messages if message.sender != client]
        return trimmed_mean(mine, [*others, Message(client, mine)], tolerated=tolerated).model
    heard = trimmed_mean(mine, messages, tolerated=tolerated).model
    return alpha * mine + (1 - alpha) * heard if own_update == "mixed" else heard


REFERENCES: dict[str, Callable[..., Answer]] = {
    "FedAvg": fedavg,
    "Krum": krum,
    "TrimmedMean": trimmed_mean,
    "Median": median,
    "FLTrust": fltrust,
    "UBAR": ubar,
    "SCClip": scclip,
    "Balance": balance,
    "BalanceMedian": balance_median,
}


def reference_all(
    reference: Callable[..., Answer],
    own: Tensor,
    inbox: Any,
    receivers: Iterable[int] | None = None,
    **inputs: Any,
) -> dict[int, Answer]:
    """The reference for all or the given clients, with weights in the slots of the inbox."""
    chosen = range(len(own)) if receivers is None else receivers
    return {
        i: reference_one(reference, own[i], inbox, i, **client_inputs(inputs, i)) for i in chosen
    }


def reference_one(
    reference: Callable[..., Answer], own: Tensor, inbox: Any, i: int, **inputs: Any
) -> Answer:
    """The reference for receiver ``i`` of an inbox, whose own model is ``own (d,)``."""
    slots = [s for s in range(inbox.mask.shape[1]) if bool(inbox.mask[i, s])]
    if inputs.get("gossip") is not None:
        inputs["gossip"] = inputs["gossip"][slots]
    answer = reference(array(own), messages_of(inbox, i), **inputs)
    if answer.weights is None:
        return answer
    spread = np.zeros(inbox.mask.shape[1])
    spread[slots] = answer.weights
    return answer._replace(weights=spread)


def client_inputs(inputs: dict[str, Any], i: int) -> dict[str, Any]:
    """The round inputs of client ``i``; losses become a function from arrays to arrays."""
    mine = dict(inputs)
    if isinstance(mine.get("tolerated"), Tensor):
        mine["tolerated"] = int(mine["tolerated"][i])
    if isinstance(mine.get("gossip"), Tensor):
        mine["gossip"] = array(mine["gossip"][i])
    if isinstance(mine.get("samples"), Tensor):
        mine["samples"] = array(mine["samples"])
    if "loss_of" in mine:
        mine["loss_of"] = _loss_of_client(inputs["loss_of"], i)
    return mine


def _loss_of_client(
    loss_of: Callable[[Tensor, Tensor], Tensor], i: int
) -> Callable[[Vector], Vector]:
    import torch

    def losses(models: Vector) -> Vector:
        return array(loss_of(torch.from_numpy(models), torch.full((len(models),), i)))

    return losses


def messages_of(inbox: Any, i: int) -> list[Message]:
    """The messages to receiver ``i`` of an inbox, slot by slot, NaN and infinities included."""
    return [
        Message(int(inbox.senders[i, s]), array(inbox.bank[inbox.slots[i, s]]))
        for s in range(inbox.mask.shape[1])
        if bool(inbox.mask[i, s])
    ]
