"""Coordinate-wise order statistics: means without the smallest and largest values.

The median is the case where one or two values are left. A selection network serves each receiver;
receivers of the same messages, or of all of them except one, as in a complete graph, share one
sorting network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import block, chunks, column_blocks, gather, new_output, same_rows
from equipoise.kernels._received_messages import ReceivedMessages
from equipoise.kernels._selection_networks import Network, middle, sorting

# Elements of one compare-exchange: 96 KiB of float32 hide the overhead of a call, and the values of
# ten clients stay in a second-level cache.
EXCHANGED = 24576

# Beyond this many values, networks get too long, and `torch.sort` takes over. Without the C kernels
# it is a choice; their own limit, `native.limits().max_values`, is checked apart.
LARGEST_NETWORK = 512


class Selection(NamedTuple):
    """Receivers with the same number of values and of dropped ones; the values are ``rows[r]``."""

    receivers: Tensor
    rows: Tensor
    trim: int


def trimmed_mean(
    own: Tensor,
    inbox: ReceivedMessages,
    trim: Tensor,
    *,
    include_own: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """(n, d) mean of each coordinate without its ``trim_i`` smallest and largest values.

    Clients without messages keep their own model. If ``trim`` (n,) would drop all values, the one
    or two in the middle are kept. With ``include_own``, own is one of the values; results of
    clients whose own model is not finite are then undefined. The result is written to ``out``, if
    given.
    """
    result = new_output(own, *own.shape) if out is None else out
    # The C kernels report whether all values are finite. Checking before takes another pass. It is
    # needed if they do not read all rows: which rows are finite decides how receivers share work.
    trusting = (
        not inbox._is_examined
        and inbox.k < LARGEST_NETWORK
        and inbox._sent.used_rows == len(inbox.bank)
        and native.serves(inbox.bank, own, result)
    )
    if not trusting or not _write_means(result, own, inbox._trusted(), trim, include_own):
        _write_means(result, own, inbox, trim, include_own)
    return result


def _write_means(
    result: Tensor, own: Tensor, inbox: ReceivedMessages, trim: Tensor, include_own: bool
) -> bool:
    """Write the trimmed means; return False if a C kernel found a value that is not finite."""
    # Groups hold only receivers with a message, so the others get their own model here.
    alone = (inbox.counts == 0).nonzero().flatten()
    result[alone] = own[alone]
    extra = own if include_own else None
    finite = True
    others = []
    for selection in _selections(inbox, trim, include_own):
        # NaN has no place in a network: minimum and maximum would spread it to other values.
        if inbox.keep_nonfinite or selection.rows.shape[1] + include_own > LARGEST_NETWORK:
            _by_sorting(result, inbox.bank, extra, selection)
            continue
        shared, separate = _split_shared(own, inbox, selection, include_own)
        if shared is not None:
            finite &= _by_leaving_out(result, inbox, shared)
        if separate is not None and native.serves(inbox.bank, own, result):
            others.append(separate)
        elif separate is not None:
            _by_network(result, inbox.bank, extra, separate)
    rest = [_natively(result, inbox.bank, extra, some) for some in _batched(others)]
    return finite and all(rest)


def _selections(inbox: ReceivedMessages, trim: Tensor, include_own: bool) -> Iterator[Selection]:
    for group in inbox._arrived.groups:
        # At least one value is left if the number of values is odd, and two if it is even.
        trims = trim[group.receivers].clamp_max((group.rows.shape[1] + include_own - 1) // 2)
        amounts = trims.unique().tolist()
        if len(amounts) == 1:
            yield Selection(group.receivers, group.rows, amounts[0])
            continue
        for amount in amounts:
            chosen = trims == amount
            yield Selection(group.receivers[chosen], group.rows[chosen], amount)


def _batched(selections: list[Selection]) -> list[list[Selection]]:
    """Groups for one call of the C kernels: all compiled networks, and each of the others."""
    if not selections:
        return []
    compiled = native.limits().max_compiled
    small = [some for some in selections if some.rows.shape[1] < compiled]
    large = [[some] for some in selections if some.rows.shape[1] >= compiled]
    return [small, *large] if small else large


def _is_shared_exactly(selection: Selection, include_own: bool) -> bool:
    """Whether sharing changes no bit of a mean, so that a client on its own has the same result.

    Means of one or two values do not depend on the order of the values. Means of many values are
    added in ascending order; sorting few ones, to do the same, would cost up to half of the time.
    """
    count = selection.rows.shape[1] + include_own
    return count - 2 * selection.trim <= 2 or count > native.limits().max_compiled


def _split_shared(
    own: Tensor, inbox: ReceivedMessages, selection: Selection, include_own: bool
) -> tuple[Selection | None, Selection | None]:
    """Receivers of all finite rows of the bank, or of all except one, and the other receivers.

    The former share one sorting. Whether a receiver does depends on its own messages and on the
    bank only: otherwise the last bits of its mean would change with the other receivers.
    """
    if native.serves(inbox.bank, own) and not _is_shared_exactly(selection, include_own):
        return None, selection
    rows = selection.rows
    if include_own:
        # Rows of the bank are shared, so own must be one of them.
        if not same_rows(own, inbox.bank):
            return None, selection
        rows = torch.cat([rows, selection.receivers[:, None]], 1)
    finite = inbox.finite
    if rows.shape[1] < 2 or rows.shape[1] < int(finite.sum()) - 1:
        return None, selection
    # In one order for all: the kept values of a network are added in an order that depends on it.
    rows = rows.sort(dim=1).values
    if not include_own:
        selection = selection._replace(rows=rows)
        if len(rows) <= 2 and rows.shape[1] >= int(finite.sum()):
            return None, selection  # nothing to share
    # A row that occurs twice would be removed once. An own that is not finite would spoil the
    # sorting for all receivers.
    shares = (rows[:, 1:] != rows[:, :-1]).all(1) & finite[rows].all(1)
    if shares.all():
        return selection._replace(rows=rows), None
    if not shares.any():
        return None, selection
    shared = Selection(selection.receivers[shares], rows[shares], selection.trim)
    others = Selection(selection.receivers[~shares], selection.rows[~shares], selection.trim)
    return shared, others


def _by_leaving_out(result: Tensor, inbox: ReceivedMessages, selection: Selection) -> bool:
    """One sorting of all rows serves all receivers; the row that a receiver lacks is removed."""
    bank = inbox.bank
    union = inbox.finite.nonzero().flatten()
    # Each receiver has all rows of the union except one, so that sums of ids tell which.
    left_out = union.sum() - selection.rows.sum(1) if len(union) > selection.rows.shape[1] else None
    if native.serves(bank, result) and len(union) <= native.limits().max_values:
        return _natively_leaving_out(result, bank, selection, union, left_out)
    # If a row is left out, one rank more is kept than a receiver needs: the row may be among them.
    network = sorting(len(union), selection.trim)
    union_rows = union.tolist()
    for columns in column_blocks(bank.shape[1], EXCHANGED // 3):
        part = block(bank, columns)
        views = part.unbind()
        buffers = part.new_empty(len(union) + 1, part.shape[1]).unbind()
        ranked = _apply_network(network, [views[row] for row in union_rows], buffers)
        if left_out is None:
            result[selection.receivers, columns] = _elementwise_mean(ranked).to(result.dtype)
            continue
        for some in chunks(len(selection.receivers), len(ranked[0])):
            missing = gather(bank, left_out[some], columns)
            means = _mean_without(ranked, missing).to(result.dtype)
            result[selection.receivers[some], columns] = means
    return True


def _natively_leaving_out(
    result: Tensor, bank: Tensor, selection: Selection, union: Tensor, left_out: Tensor | None
) -> bool:
    if left_out is not None:
        places = torch.searchsorted(union, left_out)
        return native.trimmed_means_but_one(
            [bank], union, places, selection.trim, result, selection.receivers
        )
    # No row is left out: all receivers have the same rows, and so the same mean.
    first = Selection(selection.receivers[:1], selection.rows[:1], selection.trim)
    finite = _natively(result, bank, None, [first])
    if len(selection.receivers) > 1:
        result[selection.receivers[1:]] = result[first.receivers]
    return finite


def _mean_without(ranked: list[Tensor], missing: Tensor) -> Tensor:
    """Mean of ranked values after removing one, possibly beyond their ends.

    A value beyond one end moves the window by one, so that the value at this end drops out. Large
    values that leave the sum never enter it: a huge message must not cancel the digits of others.
    """
    low, *inner, high = ranked
    if not inner:
        return torch.where(missing > low, low, high)
    # Values are scaled before they are added: the sum of large ones would overflow.
    share = 1 / (len(ranked) - 1)
    ends = ((high * share - missing * share) + low * share).where(missing > low, high * share)
    ends = ends.where(missing < high, low * share)
    return _saturated(ends.add_(_weighted_sum(inner, share)))


def _natively(
    result: Tensor, bank: Tensor, own: Tensor | None, selections: list[Selection]
) -> bool:
    """A network for each receiver, in C; whether all values are finite."""
    matrices = [bank]
    rows = [some.rows for some in selections]
    if own is not None:
        # Rows of several matrices are numbered consecutively: own i is row len(bank) + i.
        matrices = [bank, own]
        rows = [
            torch.cat([some.rows, len(bank) + some.receivers[:, None]], 1) for some in selections
        ]
    counts = torch.cat([torch.full((len(some),), some.shape[1], device="cpu") for some in rows])
    trims = torch.cat(
        [torch.full((len(some.receivers),), some.trim, device="cpu") for some in selections]
    )
    receivers = torch.cat([some.receivers for some in selections])
    flat = torch.cat([some.flatten() for some in rows])
    return native.trimmed_means(matrices, flat, counts, trims, result, receivers)


def _by_network(result: Tensor, bank: Tensor, own: Tensor | None, selection: Selection) -> None:
    """A network for each receiver, on views into the bank."""
    if bank.shape[1] * 2 <= EXCHANGED:
        _by_wide_network(result, bank, own, selection)
        return
    count = selection.rows.shape[1] + (own is not None)
    network = middle(count, selection.trim)
    receivers = selection.receivers.tolist()
    rows = selection.rows.tolist()
    for columns in column_blocks(bank.shape[1], EXCHANGED):
        part = block(bank, columns)
        views = part.unbind()
        buffers = part.new_empty(count + 1, part.shape[1]).unbind()
        for receiver, mine in zip(receivers, rows, strict=True):
            values = [views[row] for row in mine]
            if own is not None:
                values.append(block(own[receiver : receiver + 1], columns)[0])
            _write_mean(_apply_network(network, values, buffers), result[receiver, columns])


def _by_wide_network(
    result: Tensor, bank: Tensor, own: Tensor | None, selection: Selection
) -> None:
    """One network for several receivers at a time, for models so short that calls dominate."""
    d = bank.shape[1]
    count = selection.rows.shape[1] + (own is not None)
    network = middle(count, selection.trim)
    part = block(bank, slice(None))
    for some in chunks(len(selection.receivers), d, EXCHANGED):
        receivers = selection.receivers[some]
        rows = selection.rows[some]
        values = list(part.index_select(0, rows.T.flatten()).unflatten(0, rows.T.shape))
        if own is not None:
            values.append(gather(own, receivers, slice(None)))
        buffers = part.new_empty(count + 1, len(rows), d).unbind()
        kept = _apply_network(network, values, buffers)
        result[receivers] = _elementwise_mean(kept).to(result.dtype)


def _by_sorting(result: Tensor, bank: Tensor, own: Tensor | None, selection: Selection) -> None:
    """The same for very many values, or for NaN, which sorting puts last."""
    count = selection.rows.shape[1] + (own is not None)
    for columns in column_blocks(bank.shape[1], max(1, min(EXCHANGED, (1 << 21) // count))):
        for receiver, rows in zip(selection.receivers, selection.rows, strict=True):
            values = gather(bank, rows, columns)
            if own is not None:
                values = torch.cat([values, gather(own, receiver[None], columns)])
            kept = values.sort(dim=0).values[selection.trim : count - selection.trim]
            mean = _weighted_sum(list(kept), 1 / len(kept))
            # Saturated, except where a kept value is infinite: there, the bounds are too.
            largest = torch.finfo(mean.dtype).max
            mean.clamp_(kept[0].clamp_max(-largest), kept[-1].clamp_min(largest))
            result[receiver, columns] = mean.to(result.dtype)


def _apply_network(
    network: Network, values: Sequence[Tensor], buffers: Sequence[Tensor]
) -> list[Tensor]:
    """Run a network on values, writing to buffers only: one more than there are values."""
    items = list(values)
    ours = [False] * len(values)
    spare = list(buffers)
    # ``ours[i]`` tells whether item i is a buffer, which may be overwritten; messages never are.
    for i, j, low, high in network.steps:
        a = items[i]
        b = items[j]
        if low and high:
            # Both results need both values, so the first one goes to a spare buffer.
            items[i] = torch.minimum(a, b, out=spare.pop())
            items[j] = torch.maximum(a, b, out=b if ours[j] else spare.pop())
            if ours[i]:
                spare.append(a)
        elif low:
            items[i] = torch.minimum(a, b, out=a if ours[i] else spare.pop())
        else:
            items[j] = torch.maximum(a, b, out=b if ours[j] else spare.pop())
        ours[i] |= low
        ours[j] |= high
    return [items[position] for position in network.kept]


def _elementwise_mean(values: list[Tensor]) -> Tensor:
    if len(values) == 1:
        return values[0]
    mean = _weighted_sum(values, 1 / len(values))
    # Of two values no rounding can leave the range: halves of the largest number add up to it.
    return _saturated(mean) if len(values) > 2 else mean


def _write_mean(values: list[Tensor], result: Tensor) -> None:
    """The mean, written to a given tensor without a temporary if dtypes allow it."""
    if len(values) == 1 or values[0].dtype != result.dtype:
        result.copy_(_elementwise_mean(values))
        return
    torch.mul(values[0], 1 / len(values), out=result)
    for value in values[1:]:
        result.add_(value, alpha=1 / len(values))
    if len(values) > 2:
        _saturated(result)


def _saturated(mean: Tensor) -> Tensor:
    """Clamp the mean of finite values, which rounding can push beyond the largest number."""
    largest = torch.finfo(mean.dtype).max
    return mean.clamp_(-largest, largest)


def _weighted_sum(values: list[Tensor], weight: float) -> Tensor:
    """``weight * sum(values)``; partial sums of a mean exceed its values by rounding only."""
    total = values[0] * weight
    for value in values[1:]:
        total.add_(value, alpha=weight)
    return total
