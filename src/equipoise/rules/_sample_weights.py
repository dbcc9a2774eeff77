"""Weights of messages by the number of examples that their senders claim to have."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.validation import check_flag, describe, is_number
from equipoise.messages import Inbox
from equipoise.rules.base import uniform


def check_weighting(weighted: object, cap: object) -> None:
    """Validate the options of a rule whose messages can be weighted by samples."""
    check_flag("weighted", weighted)
    # Below 1, the weights of all messages would not sum to 1.
    if not is_number(cap) or not cap >= 1:
        raise ValueError(f"cap must be a number >= 1, found {cap!r}")


def message_shares(
    inbox: Inbox, accepted: Tensor, samples: Tensor | None, cap: float = math.inf
) -> Tensor:
    r"""(n, k) float64 weights of the accepted messages, proportional to samples, up to a cap.

    Without samples, all weights are equal. With them, the weight of message j is

    .. math:: p_j = \min(\lambda s_j, c / k)

    with the :math:`\lambda` for which the k weights sum to 1. Where there is none, because too few
    senders claim an example, all of these have the weight c / k, and own has the remainder.
    """
    if samples is None:
        return uniform(accepted)
    counts = _as_samples(samples, inbox)
    # Absent slots may hold any sender, so they look up client 0, and count for 0.
    sizes = counts[inbox.senders.where(accepted, 0)].where(accepted, 0.0)
    if math.isinf(cap):
        total = kernels.row_sums(sizes)[:, None]
        # If no accepted sender has an example, own gets the whole weight; 0 / 0 would be NaN.
        return (sizes / total).where(total > 0, 0.0)
    return capped_shares(sizes, cap / accepted.sum(1, keepdim=True).double().clamp_min(1))


def capped_shares(sizes: Tensor, limit: Tensor) -> Tensor:
    """(n, k) min(scale * sizes, limit) with the scale, one per row, for which rows sum to 1.

    ``limit`` is (n, 1). A sum of 1 may be out of reach: then all positive sizes are at the limit.
    """
    if not sizes.shape[1]:
        return sizes
    # Claims are up to 1e308, and their sum must not overflow.
    sizes = sizes / sizes.amax(1, keepdim=True).clamp_min(torch.finfo(sizes.dtype).tiny)
    largest_first = sizes.sort(dim=1, descending=True).values
    # If the j largest are at the limit, the others share 1 - j * limit. The sums are of the others
    # only, so that a claim beyond the limit does not change the weight of anybody.
    rest = largest_first.flip(1).cumsum(1).flip(1)
    at_limit = torch.arange(sizes.shape[1], device=sizes.device)
    scales = (1 - at_limit * limit) / rest
    # The right j is the first for which the largest of the others stays within the limit.
    fits = (scales * largest_first <= limit) & (rest > 0)
    first = fits.int().argmax(1, keepdim=True)
    scale = scales.gather(1, first).where(fits.any(1, keepdim=True), torch.inf)
    # 0 * inf is NaN: a sender without examples has no weight, whatever the scale.
    return (sizes * scale).where(sizes > 0, 0.0).clamp(max=limit).clamp_min(0.0)


def _as_samples(samples: Tensor | None, inbox: Inbox) -> Tensor:
    """The number of examples of each client, float64; raise unless they are valid."""
    # Samples are looked up by client id, so the largest id decides how many are needed.
    clients = int(inbox.senders[inbox.mask].max()) + 1 if inbox.mask.any() else 1
    counts = torch.as_tensor(samples, device=inbox.slots.device).double()
    if counts.dim() != 1 or len(counts) < clients:
        expected = f"one number per client, at least {clients}"
        raise ValueError(f"samples must have {expected}, found {describe(counts)}")
    # Negative counts would give weights outside of [0, 1].
    if not (counts.isfinite() & (counts >= 0)).all():
        raise ValueError(f"samples must be finite and >= 0, found {counts.min()} to {counts.max()}")
    return counts
