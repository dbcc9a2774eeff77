"""All references of rules, by the name of the rule, and those of rules made of rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from equipoise._utils.rng import stream
from tests import gossip_references, references
from tests import received_references as received
from tests.references import Answer, Message, Vector, norm, present


def aggregated(
    rule: Any,
    own: Vector,
    messages: Sequence[Message],
    received: Sequence[Message],
    mixing: Vector,
    **inputs: Any,
) -> Answer:
    """The answer of a wrapped rule for other messages.

    Row b of ``mixing`` has the shares of the received messages in message b, for its weights.
    """
    here = present(received)
    options = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    inputs = options | {name: value for name, value in inputs.items() if value is not None}
    answer = REFERENCES[type(rule).__name__](own, messages, **inputs)
    if here:
        # Other messages are rounded where they are made of larger terms.
        terms = mixing[:, here] @ np.abs([received[p].vector for p in here]) + np.abs(own)
        magnitude = np.maximum(answer.magnitude, np.median(terms, axis=0))
        answer = answer._replace(magnitude=magnitude)
    if answer.weights is None:
        return answer
    return answer._replace(weights=answer.weights @ mixing)


def nnm(
    own: Vector, messages: Sequence[Message], *, rule: Any, tolerated: int, **inputs: Any
) -> Answer:
    """Allouah et al. (2023): means of the n - f nearest messages, then the rule."""
    here = present(messages)
    amount = max(1, len(here) - tolerated)
    mixing = np.zeros((len(here), len(messages)))
    mixed = []
    for row, p in enumerate(here):
        order = sorted(
            here,
            key=lambda q: (
                q != p,
                float(np.sum((messages[q].vector - messages[p].vector) ** 2)),
                messages[q].sender,
            ),
        )
        mixing[row, order[:amount]] = 1 / amount
        vector = sum(messages[q].vector / amount for q in sorted(order[:amount]))
        mixed.append(Message(messages[p].sender, vector))
    return aggregated(rule, own, mixed, messages, mixing, tolerated=tolerated, **inputs)


def bucketing(
    own: Vector,
    messages: Sequence[Message],
    *,
    rule: Any,
    s: int,
    seed: int = 0,
    t: int = 0,
    **inputs: Any,
) -> Answer:
    """Karimireddy et al. (2022): means of s messages in a random order, then the rule."""
    import torch

    prime = 2**31 - 1
    drawn = torch.randint(1, prime, (4,), generator=stream(seed, "bucketing", t)).tolist()

    def key(sender: int) -> int:
        found = sender
        for factor, shift in (drawn[:2], drawn[2:]):
            found = (found * factor + shift) % prime
            found = ((found * found % prime) ^ (found >> 7)) % prime
        return found

    here = sorted(present(messages), key=lambda p: key(messages[p].sender))
    buckets = [here[first : first + s] for first in range(0, len(here), s)]
    mixing = np.zeros((len(buckets), len(messages)))
    means = []
    for row, bucket in enumerate(buckets):
        mixing[row, bucket] = 1 / len(bucket)
        vector = sum(messages[p].vector / len(bucket) for p in bucket)
        means.append(Message(min(messages[p].sender for p in bucket), vector))
    return aggregated(rule, own, means, messages, mixing, t=t, **inputs)


def clipped(
    own: Vector, messages: Sequence[Message], radius: float, rule: Any, **inputs: Any
) -> Answer:
    """The rule on messages clipped around own."""
    here = present(messages)
    mixing = np.zeros((len(here), len(messages)))
    nearer = []
    for row, p in enumerate(here):
        sender, vector = messages[p]
        distance = norm(vector - own)
        mixing[row, p] = 1.0 if distance <= radius else radius / distance
        moved = vector if distance <= radius else own + mixing[row, p] * (vector - own)
        nearer.append(Message(sender, moved))
    return aggregated(rule, own, nearer, messages, mixing, **inputs)


def static_clip(
    own: Vector, messages: Sequence[Message], *, rule: Any, radius: float, **inputs: Any
) -> Answer:
    """Clip to a fixed distance from own, then the rule."""
    return clipped(own, messages, radius, rule, **inputs)


def arc(
    own: Vector, messages: Sequence[Message], *, rule: Any, tolerated: int, **inputs: Any
) -> Answer:
    """Allouah et al. (2025): clip the floor(2 f (n - f) / n) farthest messages to the next one."""
    distances = sorted(norm(messages[p].vector - own) for p in present(messages))
    n = len(distances)
    f = min(tolerated, n // 2)
    radius = distances[n - 2 * f * (n - f) // n - 1] if n else 0.0
    return clipped(own, messages, radius, rule, tolerated=tolerated, **inputs)


REFERENCES: dict[str, Callable[..., Answer]] = (
    references.REFERENCES
    | gossip_references.GOSSIP
    | {
        "MultiKrum": received.multi_krum,
        "Bulyan": received.bulyan,
        "MeaMed": received.mea_med,
        "GeometricMedian": received.geometric_median,
        "CenteredClip": received.centered_clip,
        "CAF": received.caf,
        "NNM": nnm,
        "Bucketing": bucketing,
        "StaticClip": static_clip,
        "ARC": arc,
    }
)
