"""Bucketing: a rule aggregates means of messages that were put together at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.rng import device_of, stream
from equipoise._utils.validation import check_count
from equipoise.messages import Inbox
from equipoise.rules._wrapper import Changed, Wrapper, check_wrapped
from equipoise.rules.aggregator import Aggregator
from equipoise.topology import NotChecked

# Below 2**31, so that products of two of them fit an int64: see `_shuffled`.
PRIME = 2147483647


@dataclass(frozen=True)
class Bucketing(Wrapper):
    r"""A rule aggregates the means of random buckets of :math:`s` messages.

    .. math:: y_b = \frac{1}{|B_b|} \sum_{j \in B_b} w_j, \qquad
              \mathrm{AGG}_i = \text{rule}(\{y_b : b = 1, \ldots, \lceil |N_i| / s \rceil\})

    Karimireddy, He and Jaggi, *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*,
    ICLR 2022. Each bucket holds :math:`s` messages of a random permutation, the last one possibly
    fewer. Up to :math:`f_i` buckets hold a malicious message, so that the wrapped rule gets the
    same :math:`f_i` for fewer vectors. With :math:`s = 1` the aggregate is that of the wrapped
    rule. Own is not among the models.

    All receivers use one permutation of the clients in a round, so that the result of a client does
    not depend on the other clients of a call. It is drawn from the round input ``generator`` if
    there is one, as in a `Simulator`. Otherwise it depends on ``seed`` and ``t``. An attacker who
    knows it chooses which benign messages share a bucket with a lie.

    If the wrapped rule has weights, ``weights`` are those of the received messages. A bucket has
    the lowest client id of its messages, also for ``samples``.

    Args:
        rule: the rule that aggregates the means.
        s: messages in a bucket.
        seed: of the permutations in calls without ``generator``.

    >>> received = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> out = eq.Bucketing(eq.FedAvg(), s=2)(torch.zeros(1), received, t=0)
    >>> out.model, out.weights
    (tensor([1.5000]), tensor([0.2500, 0.2500, 0.2500, 0.2500]))
    """

    guarantee: ClassVar[NotChecked] = NotChecked("judge the wrapped rule on k / s messages")

    rule: Aggregator
    s: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_wrapped(self, self.rule)
        check_count("s", self.s, 1)
        check_count("seed", self.seed, 0)

    @property
    def tolerated(self) -> int | None:
        """The number of malicious neighbors that the wrapped rule expects."""
        return getattr(self.rule, "tolerated", None)

    @property
    def _inputs(self) -> tuple[str, ...]:
        return ("generator",)

    def _before_blocks(self, inputs: dict[str, Any]) -> dict[str, Any]:
        # Drawn once for all receivers of a call.
        generator = inputs.get("generator")
        if generator is None:
            generator = stream(self.seed, "bucketing", inputs.get("t") or 0)
        device = device_of(generator)
        drawn = torch.randint(1, PRIME, (4,), generator=generator, device=device)
        return inputs | {"_permutation": drawn.tolist()}

    def change(self, own: Tensor, inbox: Inbox, **inputs: Any) -> Changed:
        """Average the messages of each bucket."""
        keys = _shuffled(inbox.senders, inputs["_permutation"]).double()
        # Present messages come first, in the order of the permutation.
        keys.masked_fill_(~inbox.present, torch.inf)
        places = kernels.rank_with_ties(keys, inbox.senders)
        order = places.argsort(dim=1)
        receivers, k = inbox.slots.shape
        buckets = -(-k // self.s)
        counts = inbox.counts[:, None]
        firsts = torch.arange(buckets, device=own.device) * self.s
        sizes = (counts - firsts).clamp(0, self.s)
        # (r, buckets, s) slots of the messages in each bucket.
        positions = firsts[:, None] + torch.arange(self.s, device=own.device)
        inside = positions < counts[:, :, None]
        columns = order.gather(
            1, positions.clamp_max(max(0, k - 1)).flatten().expand(receivers, -1)
        )
        members = columns.view(receivers, buckets, self.s)
        lowest = inbox.senders.gather(1, columns).view_as(members)
        lowest = lowest.where(inside, torch.iinfo(torch.int64).max).amin(2)
        real, bucket = (sizes > 0).nonzero(as_tuple=True)
        sent = -(-inbox.mask.sum(1, keepdim=True) // self.s)
        is_sent = torch.arange(buckets, device=own.device) < sent
        rows = torch.full_like(sizes, len(real))
        rows[real, bucket] = torch.arange(len(real), device=own.device)
        shares = (1.0 / sizes.clamp_min(1)).gather(1, places // self.s)
        shares = shares.where(inbox.present, 0.0)
        write = _means(inbox, real, members[real, bucket], inside[real, bucket])

        def explain(weights: Tensor) -> Tensor:
            return weights.gather(1, places // self.s) * shares

        return Changed(len(real), rows, is_sent, lowest, write, explain)


def _means(
    inbox: Inbox, real: Tensor, members: Tensor, inside: Tensor
) -> Callable[[slice, Tensor], None]:
    """A function that writes the mean of each bucket, as an aggregate of its messages."""
    slots = inbox.slots[real].gather(1, members)
    senders = inbox.senders[real].gather(1, members)
    shares = inside.double() / inside.sum(1, keepdim=True)
    nothing = torch.zeros(len(real), dtype=torch.float64, device=slots.device)
    heard = Inbox(inbox.bank, slots, inside, senders)

    def write(some: slice, out: Tensor) -> None:
        kernels.combine(out, nothing, heard.with_bank(inbox.bank[:, some]), shares, out=out)

    return write


def _shuffled(ids: Tensor, drawn: list[int]) -> Tensor:
    """Keys below `PRIME` whose order is a random order of the ids.

    Two rounds of squaring and multiplying modulo a prime: ids that follow each other have unrelated
    keys, and the keys of receivers agree, however many ids each of them knows.
    """
    a, b, c, d = drawn
    keys = ids.remainder(PRIME)
    for factor, shift in ((a, b), (c, d)):
        keys = (keys * factor + shift).remainder(PRIME)
        keys = (keys * keys).remainder(PRIME).bitwise_xor(keys >> 7).remainder(PRIME)
    return keys
