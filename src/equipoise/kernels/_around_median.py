"""Coordinate-wise means of the values that are nearest to the median."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.kernels import native
from equipoise.kernels._blocks import block, chunks, column_blocks, new_output
from equipoise.kernels._order_statistics import EXCHANGED, LARGEST_NETWORK, _apply_network
from equipoise.kernels._received_messages import ReceivedMessages
from equipoise.kernels._selection_networks import sorting

# Elements of own models and messages that are copied at a time: 32 MiB of float32.
COPIED = 1 << 23


def mean_around_median(
    own: Tensor,
    inbox: ReceivedMessages,
    chosen: Tensor,
    amount: Tensor,
    *,
    include_own: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """(n, d) mean of the ``amount`` (n,) values of each coordinate that are nearest to the median.

    The values are those of the ``chosen`` (n, k) messages; with ``include_own``, own has a last
    column, (n, k + 1). Clients without one keep their own
    model. Of two values that are equally far from the median, the smaller one counts. Differences
    are rounded to the dtype of the arithmetic: relative errors of 1e-7 in float32.
    """
    result = new_output(own, *own.shape) if out is None else out
    alone = (~chosen.any(1)).nonzero().flatten()
    result[alone] = own[alone]
    slots = inbox.slots
    matrices = [inbox.bank]
    if include_own:
        # Rows behind those of the bank are own models.
        own_rows = len(inbox.bank) + torch.arange(inbox.n, device=slots.device)
        slots = torch.cat([slots, own_rows[:, None]], 1)
        matrices = [inbox.bank, own]
    for receivers, rows, kept in _groups(slots, chosen, amount):
        left = _left_by_c(matrices, rows, kept, result, receivers)
        if not left.any():
            continue
        receivers = receivers[left]
        rows = rows[left]
        # A block of a few receivers and columns stays in cache: see `EXCHANGED`.
        width = min(inbox.d, EXCHANGED)
        if include_own:
            width = min(width, max(256, COPIED // (len(inbox.bank) + len(own))))
        for columns in column_blocks(inbox.d, width):
            part = _joined(matrices, columns)
            for some in chunks(len(receivers), part.shape[1], EXCHANGED):
                values = part.index_select(0, rows[some].T.flatten())
                ordered = _sorted(list(values.view(rows.shape[1], -1, part.shape[1])))
                means = _without_overflow(ordered, kept)
                result[receivers[some], columns] = means.to(result.dtype)
    return result


def _left_by_c(
    matrices: list[Tensor], rows: Tensor, kept: int, result: Tensor, receivers: Tensor
) -> Tensor:
    """(r,) the receivers whose means the C kernel has not written: those of very large values.

    Whether it has depends on a receiver's own values only, and so do the last bits of its mean.
    """
    if not native.serves(*matrices, result) or rows.shape[1] > native.limits().max_values:
        return torch.ones_like(receivers, dtype=torch.bool)
    if native.means_around_median(matrices, rows, kept, result, receivers):
        return torch.zeros_like(receivers, dtype=torch.bool)
    limit = native.largest_around_median(result.dtype)
    extremes = [part.aminmax(dim=1) for part in matrices]
    # NaN compares as False.
    are_small = torch.cat([(-limit < low) & (high < limit) for low, high in extremes])
    return ~are_small[rows].all(1)


def _joined(matrices: list[Tensor], columns: slice) -> Tensor:
    """Columns of some matrices below each other; a view of one matrix if possible."""
    parts = [block(matrix, columns) for matrix in matrices]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _groups(slots: Tensor, chosen: Tensor, amount: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Receivers with the same number of chosen messages and of kept values; rows are (r, c)."""
    counts = chosen.sum(1)
    first = chosen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    kinds = torch.stack([counts, torch.minimum(amount, counts)], 1)
    for count, kept in kinds[counts > 0].unique(dim=0).tolist():
        receivers = ((kinds[:, 0] == count) & (kinds[:, 1] == kept)).nonzero().flatten()
        columns = first[receivers, :count]
        yield receivers, slots[receivers].gather(1, columns), kept


def _sorted(values: list[Tensor]) -> list[Tensor]:
    """The values of each coordinate in ascending order."""
    if len(values) > LARGEST_NETWORK:
        return list(torch.stack(values).sort(dim=0).values)
    buffers = values[0].new_empty(len(values) + 1, *values[0].shape).unbind()
    return _apply_network(sorting(len(values)), values, buffers)


def _without_overflow(ordered: list[Tensor], kept: int) -> Tensor:
    """The means, for values of any size."""
    limit = torch.finfo(ordered[0].dtype).max / 8
    # Sums of two differences stay finite for values below an eighth of the largest number.
    if -limit < float(ordered[0].min()) and float(ordered[-1].max()) < limit:
        return _mean_of_nearest(ordered, kept)
    return _mean_of_nearest([value / 8 for value in ordered], kept) * 8


def _mean_of_nearest(ordered: list[Tensor], kept: int) -> Tensor:
    """The mean of the ``kept`` values nearest to the median of sorted values.

    They are neighbors in the order of values. The window starts at the lowest values. It moves up
    by one as long as the value above it is nearer to the median than its first value.
    """
    count = len(ordered)
    low = ordered[(count - 1) // 2]
    high = ordered[count // 2]
    window = ordered[:kept]
    moved: Tensor | None = None
    for start in range(count - kept):
        first = ordered[start]
        last = ordered[start + kept]
        # Differences of close values are exact, while a rounded median need not be. So twice the
        # distances to the mean of the two middle values are compared.
        above = (last - low).add_(last - high)
        below = (low - first).add_(high - first)
        nearer = _where_negative(above.sub_(below))
        moved = nearer if moved is None else moved & nearer
        # The first value is replaced, not subtracted: a huge one must not cancel the digits of
        # others.
        window[start % kept] = _chosen(moved, last, window[start % kept])
    total = window[0] * (1 / kept)
    for value in window[1:]:
        total.add_(value * (1 / kept))
    # Rounding can leave the range of the values.
    return torch.minimum(torch.maximum(total, ordered[0]), ordered[-1])


def _where_negative(x: Tensor) -> Tensor:
    """Integers with all bits set where ``x`` is negative, and with none elsewhere."""
    bits = torch.int64 if x.dtype == torch.float64 else torch.int32
    return x.view(bits) >> (63 if x.dtype == torch.float64 else 31)


def _chosen(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``a`` where all bits of the mask are set, else ``b``; `torch.where` is five times slower."""
    other = b.view(mask.dtype)
    return (((a.view(mask.dtype) ^ other) & mask) ^ other).view(b.dtype)
