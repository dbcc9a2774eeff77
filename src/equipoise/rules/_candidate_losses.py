"""Losses of received models on the data of their receivers, a few models at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from equipoise._utils.validation import describe
from equipoise.kernels import column_blocks
from equipoise.messages import Inbox

LossOf = Callable[[Tensor, Tensor], Tensor]

COPIED_CANDIDATES = 1 << 21  # elements that are copied at a time: 8 MiB of float32

# If no more than this many models fit, a model is expanded, without a copy, to all clients that
# received it. A batch of different models is worth a copy only if it is not much smaller.
SMALL_BATCH = 32


def candidate_losses(
    loss_of: LossOf, own: Tensor, inbox: Inbox, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """(n, k) losses of the chosen messages, infinite elsewhere, and (n,) losses of own; float64.

    A loss of a message that is NaN becomes infinite, so that it is never the lowest. Clients
    without a chosen message get no loss of own.
    """
    receivers, columns = chosen.nonzero(as_tuple=True)
    rows = inbox.slots[receivers, columns]
    losses = torch.full(chosen.shape, torch.inf, dtype=torch.float64, device=own.device)
    found = _evaluate(loss_of, inbox.bank, rows, receivers)
    losses[receivers, columns] = found.where(~found.isnan(), torch.inf)
    # Losses of own are evaluated only for clients that compare a message with them.
    clients = receivers.unique()
    own_losses = torch.full((len(own),), torch.inf, dtype=torch.float64, device=own.device)
    own_losses[clients] = _evaluate(loss_of, own, clients, clients)
    return losses, own_losses


def _evaluate(loss_of: LossOf, models: Tensor, rows: Tensor, clients: Tensor) -> Tensor:
    """Losses of some rows of ``models`` on the data of some clients, pair by pair."""
    losses = torch.empty(len(rows), dtype=torch.float64, device=models.device)
    for part, candidates in _batches(models, rows):
        found = loss_of(candidates, clients[part])
        if not isinstance(found, Tensor) or found.shape != clients[part].shape:
            expected = f"one loss per model, {len(candidates)}"
            raise ValueError(f"loss_of must return {expected}, found {describe(found)}")
        losses[part] = found.detach().double()
    return losses


def _batches(models: Tensor, rows: Tensor) -> Iterator[tuple[slice | Tensor, Tensor]]:
    """Parts of ``rows`` and their models; views of these where that is as good as a copy."""
    fitting = COPIED_CANDIDATES // models.shape[1]
    counts = rows.bincount()
    mostly_shared = len(rows) > 2 * counts.count_nonzero()
    # A batch of at most three models is not worth a copy.
    if fitting <= 3 or (fitting <= SMALL_BATCH and mostly_shared):
        for part in rows.argsort(stable=True).split(counts[counts > 0].tolist()):
            yield part, models[int(rows[part[0]])].expand(len(part), -1)
        return
    # One buffer serves all batches, so that memory is allocated once.
    buffer = models.new_empty(0, models.shape[1])
    for part in column_blocks(len(rows), fitting):
        chosen = rows[part]
        candidates = models[int(chosen[0]) :][: len(chosen)]  # a view, if the rows are consecutive
        if len(candidates) < len(chosen) or (chosen.diff() != 1).any():
            target = buffer.resize_(len(chosen), models.shape[1])
            candidates = torch.index_select(models, 0, chosen, out=target)
        yield part, candidates
