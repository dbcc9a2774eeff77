"""Coordinate-wise order statistics: the mean of what is left when the smallest and largest values are dropped.

The median is the case where one or two values are left. A selection network does it for each receiver; receivers that
heard the same clients, or all of them but one, as in a complete graph, share one sorting network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import block, chunks, column_blocks, gather, new_output, same_rows
from equipoise.kernels._received import Received
from equipoise.kernels._selection_networks import Network, middle, sorting

WIDTH = 24576  # elements of one compare-exchange: long enough to hide the cost of a call, short enough for the cache
LARGEST = 512  # values; beyond, networks get too long and torch.sort takes over


class Heard(NamedTuple):
    """Receivers with equally many values, of which they drop equally many: value s of receiver r is row rows[r, s]."""

    receivers: Tensor
    rows: Tensor
    trim: int


def trimmed_mean(
    own: Tensor,
    inbox: Received,
    trim: Tensor,
    *,
    include_own: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """(n, d) mean of every coordinate without its ``trim_i`` smallest and largest values; own where nothing arrived.

    Where ``trim`` (n,) would leave none of the values, it leaves the one or two in the middle. With ``include_own`` own
    is one of the values; the result of a client whose own is not finite then means nothing. The result is written to
    ``out``, if given.
    """
    result = new_output(own, *own.shape) if out is None else out
    # The native kernels see on the way whether all is finite, which would take another pass to know beforehand.
    trusting = (
        not inbox._is_examined and inbox.k < LARGEST and native.serves(inbox.bank, own, result)
    )
    if not trusting or not _write_means(result, own, inbox._trusted(), trim, include_own):
        _write_means(result, own, inbox, trim, include_own)
    return result


def _write_means(
    result: Tensor, own: Tensor, inbox: Received, trim: Tensor, include_own: bool
) -> bool:
    """Write the trimmed means; whether all messages are finite, as far as the native kernels have seen them."""
    alone = (inbox.counts == 0).nonzero().flatten()
    result[alone] = own[alone]
    extra, finite, others = own if include_own else None, True, []
    for heard in _heard(inbox, trim, include_own):
        if inbox.keep_nonfinite or heard.rows.shape[1] + include_own > LARGEST:
            _by_sorting(result, inbox.bank, extra, heard)
        elif (rows := _shared_rows(own, inbox, heard, include_own)) is not None:
            finite &= _by_leaving_out(result, inbox.bank, heard._replace(rows=rows))
        elif native.serves(inbox.bank, own, result):
            others.append(heard)
        else:
            _by_network(result, inbox.bank, extra, heard)
    rest = [
        _natively(result, inbox.bank, extra, some) for some in _together(others)
    ]  # all, whatever is found
    return finite and all(rest)


def _heard(inbox: Received, trim: Tensor, include_own: bool) -> Iterator[Heard]:
    for group in inbox._arrived.groups:
        trims = trim[group.receivers].clamp_max((group.rows.shape[1] + include_own - 1) // 2)
        amounts = trims.unique().tolist()
        if len(amounts) == 1:
            yield Heard(group.receivers, group.rows, amounts[0])
            continue
        for amount in amounts:
            chosen = trims == amount
            yield Heard(group.receivers[chosen], group.rows[chosen], amount)


def _together(heard: list[Heard]) -> list[list[Heard]]:
    """What one call of the native kernels can do: all that needs no list of steps, and each of the others."""
    if not heard:
        return []
    compiled = native.limits().max_compiled
    small = [some for some in heard if some.rows.shape[1] < compiled]
    large = [[some] for some in heard if some.rows.shape[1] >= compiled]
    return [small, *large] if small else large


def _shared_rows(own: Tensor, inbox: Received, heard: Heard, include_own: bool) -> Tensor | None:
    """The rows of each receiver, own among them if asked for, where all have the same but for one; otherwise None."""
    rows = heard.rows
    if include_own:
        if not same_rows(own, inbox.bank) or not inbox.finite[heard.receivers].all():
            return None
        rows = torch.cat([rows, heard.receivers[:, None]], 1)
    if len(rows) <= 2 or len(rows.unique()) > rows.shape[1] + 1:
        return None
    ordered = rows.sort(dim=1).values
    return None if (ordered[:, 1:] == ordered[:, :-1]).any() else rows


def _by_leaving_out(result: Tensor, bank: Tensor, heard: Heard) -> bool:
    """One sorting of all rows serves all receivers; what a receiver did not hear is taken out of it again."""
    union = heard.rows.unique()
    left_out = union.sum() - heard.rows.sum(1) if len(union) > heard.rows.shape[1] else None
    if native.serves(bank, result) and len(union) <= native.limits().max_values:
        return _natively_leaving_out(result, bank, heard, union, left_out)
    network, heard_rows = sorting(len(union), heard.trim), union.tolist()
    for columns in column_blocks(bank.shape[1], WIDTH // 3):
        part = block(bank, columns)
        views, buffers = part.unbind(), part.new_empty(len(union) + 1, part.shape[1]).unbind()
        ranked = _run(network, [views[row] for row in heard_rows], buffers)
        if left_out is None:
            result[heard.receivers, columns] = _mean(ranked).to(result.dtype)
            continue
        for some in chunks(len(heard.receivers), len(ranked[0])):
            missing = gather(bank, left_out[some], columns)
            result[heard.receivers[some], columns] = _mean_without(ranked, missing).to(result.dtype)
    return True


def _natively_leaving_out(
    result: Tensor, bank: Tensor, heard: Heard, union: Tensor, left_out: Tensor | None
) -> bool:
    if left_out is not None:
        places = torch.searchsorted(union, left_out)
        return native.trimmed_means_but_one(
            [bank], union, places, heard.trim, result, heard.receivers
        )
    first = Heard(heard.receivers[:1], heard.rows[:1], heard.trim)
    finite = _natively(result, bank, None, [first])
    result[heard.receivers[1:]] = result[first.receivers]
    return finite


def _mean_without(ranked: list[Tensor], missing: Tensor) -> Tensor:
    """Mean of ranked values when one value, possibly beyond their ends, is taken out and the trimming moves along.

    A value beyond one end moves the window by one, so the end itself leaves. Written such that large values that
    leave the sum never enter it.
    """
    low, inner, high = ranked[0], ranked[1:-1], ranked[-1]
    if not inner:
        return torch.where(missing > low, low, high)
    share = 1 / (len(ranked) - 1)
    ends = ((high * share - missing * share) + low * share).where(missing > low, high * share)
    ends = ends.where(missing < high, low * share)
    return _saturated(ends.add_(_weighted_sum(inner, share)))


def _natively(result: Tensor, bank: Tensor, own: Tensor | None, heard: list[Heard]) -> bool:
    """A network for each receiver, in C; whether all values are finite."""
    matrices, rows = [bank], [some.rows for some in heard]
    if own is not None:
        matrices = [bank, own]
        rows = [torch.cat([some.rows, len(bank) + some.receivers[:, None]], 1) for some in heard]
    counts = torch.cat([torch.full((len(some),), some.shape[1], device="cpu") for some in rows])
    trims = torch.cat(
        [torch.full((len(some.receivers),), some.trim, device="cpu") for some in heard]
    )
    receivers, flat = (
        torch.cat([some.receivers for some in heard]),
        torch.cat([some.flatten() for some in rows]),
    )
    return native.trimmed_means(matrices, flat, counts, trims, result, receivers)


def _by_network(result: Tensor, bank: Tensor, own: Tensor | None, heard: Heard) -> None:
    """A network for each receiver, on views into the bank."""
    if bank.shape[1] * 2 <= WIDTH:
        _by_wide_network(result, bank, own, heard)
        return
    count = heard.rows.shape[1] + (own is not None)
    network, receivers, rows = (
        middle(count, heard.trim),
        heard.receivers.tolist(),
        heard.rows.tolist(),
    )
    for columns in column_blocks(bank.shape[1], WIDTH):
        part = block(bank, columns)
        views, buffers = part.unbind(), part.new_empty(count + 1, part.shape[1]).unbind()
        for receiver, mine in zip(receivers, rows, strict=True):
            values = [views[row] for row in mine]
            if own is not None:
                values.append(block(own[receiver : receiver + 1], columns)[0])
            _write_mean(_run(network, values, buffers), result[receiver, columns])


def _by_wide_network(result: Tensor, bank: Tensor, own: Tensor | None, heard: Heard) -> None:
    """One network for several receivers at a time, for models so short that calls would cost more than arithmetic."""
    count, d = heard.rows.shape[1] + (own is not None), bank.shape[1]
    network, part = middle(count, heard.trim), block(bank, slice(None))
    for some in chunks(len(heard.receivers), d, WIDTH):
        receivers, rows = heard.receivers[some], heard.rows[some]
        values = list(part.index_select(0, rows.T.flatten()).unflatten(0, rows.T.shape))
        if own is not None:
            values.append(gather(own, receivers, slice(None)))
        buffers = part.new_empty(count + 1, len(rows), d).unbind()
        result[receivers] = _mean(_run(network, values, buffers)).to(result.dtype)


def _by_sorting(result: Tensor, bank: Tensor, own: Tensor | None, heard: Heard) -> None:
    """As above for very many values, or for NaN, which sorting puts last."""
    count = heard.rows.shape[1] + (own is not None)
    for columns in column_blocks(bank.shape[1], max(1, min(WIDTH, (1 << 21) // count))):
        for receiver, rows in zip(heard.receivers, heard.rows, strict=True):
            values = gather(bank, rows, columns)
            if own is not None:
                values = torch.cat([values, gather(own, receiver[None], columns)])
            kept = values.sort(dim=0).values[heard.trim : count - heard.trim]
            mean = _weighted_sum(list(kept), 1 / len(kept))
            # Infinite only where a value is: the bounds are infinite there, and finite elsewhere.
            largest = torch.finfo(mean.dtype).max
            mean.clamp_(kept[0].clamp_max(-largest), kept[-1].clamp_min(largest))
            result[receiver, columns] = mean.to(result.dtype)


def _run(network: Network, values: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[Tensor]:
    """Put values through a network without writing to them, but to buffers, of which there is one more than values."""
    items, ours, spare = list(values), [False] * len(values), list(buffers)
    for i, j, low, high in network.steps:
        a, b = items[i], items[j]
        if low and high:
            items[i] = torch.minimum(a, b, out=spare.pop())
            items[j] = torch.maximum(a, b, out=b if ours[j] else spare.pop())
            if ours[i]:
                spare.append(a)
        elif low:
            items[i] = torch.minimum(a, b, out=a if ours[i] else spare.pop())
        else:
            items[j] = torch.maximum(a, b, out=b if ours[j] else spare.pop())
        ours[i], ours[j] = ours[i] or low, ours[j] or high
    return [items[position] for position in network.kept]


def _mean(values: list[Tensor]) -> Tensor:
    if len(values) == 1:
        return values[0]
    mean = _weighted_sum(values, 1 / len(values))
    return (
        _saturated(mean) if len(values) > 2 else mean
    )  # halves of the largest number add up to it


def _write_mean(values: list[Tensor], result: Tensor) -> None:
    """Mean into a given tensor, without another one where dtypes allow it."""
    if len(values) == 1 or values[0].dtype != result.dtype:
        result.copy_(_mean(values))
        return
    torch.mul(values[0], 1 / len(values), out=result)
    for value in values[1:]:
        result.add_(value, alpha=1 / len(values))
    if len(values) > 2:
        _saturated(result)


def _saturated(mean: Tensor) -> Tensor:
    """The mean of finite values, in place: rounding can push it beyond the largest finite number."""
    largest = torch.finfo(mean.dtype).max
    return mean.clamp_(-largest, largest)


def _weighted_sum(values: list[Tensor], weight: float) -> Tensor:
    """``weight * sum(values)``; no partial sum of a mean is larger than its values, but for rounding."""
    total = values[0] * weight
    for value in values[1:]:
        total.add_(value, alpha=weight)
    return total
