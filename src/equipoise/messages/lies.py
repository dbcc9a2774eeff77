"""The messages that malicious clients send instead of their models, by edge."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from equipoise._utils.formatting import as_call
from equipoise._utils.validation import Clients, as_mask, check_range, describe, is_floating
from equipoise.kernels import new_output


@dataclass(frozen=True, eq=False)
class Lies:
    """A table of lies: the message from ``senders[j]`` to ``receivers[j]`` is ``rows[which[j]]``.

    ``rows (l, d)`` holds each distinct lie once; ``senders``, ``receivers`` and ``which`` are int64
    of shape (a,). A sender of -1 stands for all malicious clients, a receiver of -1 for all
    clients. If several entries address one edge, the most specific one counts: first the exact
    edge, then the receiver, then the sender, then all. Among equals the last one counts. Without
    ``which``, entry j has row j.

    A table does not say which clients are malicious: :meth:`Topology.deliver` ignores the lies of
    benign clients.

    >>> rows = torch.tensor([[0.0], [9.0]])
    >>> lies = eq.Lies(rows, senders=torch.tensor([-1, 2]), receivers=torch.tensor([-1, 0]))
    >>> inbox = eq.Topology.complete(3).deliver(torch.ones(3, 1), lies, malicious=[1, 2])
    >>> inbox.bank[inbox.slots].squeeze(-1)
    tensor([[0., 9.],
            [1., 0.],
            [1., 0.]])
    """

    rows: Tensor
    senders: Tensor
    receivers: Tensor
    which: Tensor = None  # type: ignore[assignment]  # one row per entry

    __repr__ = as_call

    def __post_init__(self) -> None:
        if not is_floating(self.rows) or self.rows.dim() != 2:
            expected = "a floating-point tensor of shape (l, d)"
            raise ValueError(f"rows must be {expected}, found {describe(self.rows)}")
        device = self.rows.device
        if self.which is None:
            object.__setattr__(self, "which", torch.arange(len(self.rows), device=device))
        # ``which`` sets the number of entries. Senders and receivers must match it.
        shape = (self.which.numel(),)
        for name in ("senders", "receivers", "which"):
            ids = getattr(self, name)
            if ids.dtype != torch.int64 or ids.shape != shape:
                expected = f"an int64 tensor of shape {shape}"
                raise ValueError(f"{name} must be {expected}, found {describe(ids)}")
            if ids.device != device:
                raise ValueError(
                    f"{name} must be on the device of rows, {device}, found {ids.device}"
                )
        check_range("senders", self.senders, -1, None)
        check_range("receivers", self.receivers, -1, None)
        check_range("which", self.which, 0, len(self.rows))

    @classmethod
    def per_sender(cls, rows: Tensor, *, only: Clients | None = None) -> Lies:
        """Client i sends ``rows[i]`` to all; ``only`` these clients, if given.

        >>> eq.Lies.per_sender(torch.zeros(4, 2), only=[3]).senders
        tensor([3])
        """
        ids = _choose(only, rows)
        return cls(rows, ids, torch.full_like(ids, -1), ids)

    @classmethod
    def per_receiver(
        cls, rows: Tensor, *, only: Clients | None = None, senders: Clients | None = None
    ) -> Lies:
        """Every malicious client sends ``rows[i]`` to client i; ``only`` these receivers, if given.

        With ``senders``, only these clients lie. That takes an entry for each pair of a sender and
        a receiver, but no copy of a row. On a large sparse graph, :meth:`along` the edges takes
        fewer entries.

        >>> eq.Lies.per_receiver(torch.zeros(3, 2), only=[0, 2], senders=[1]).receivers
        tensor([0, 2])
        """
        ids = _choose(only, rows)
        if senders is None:
            return cls(rows, torch.full_like(ids, -1), ids, ids)
        # All pairs: receivers change slowly, senders fast.
        sender_ids = _choose(senders, rows, name="senders")
        receiver_ids = ids.repeat_interleave(len(sender_ids))
        return cls(rows, sender_ids.repeat(len(ids)), receiver_ids, receiver_ids)

    @classmethod
    def per_edge(cls, edges: Tensor, rows: Tensor, which: Tensor | None = None) -> Lies:
        """Send ``rows[which[j]]``, or ``rows[j]``, along ``edges[j] = (sender, receiver)``.

        >>> edges = torch.tensor([[0, 1], [0, 2]])
        >>> eq.Lies.per_edge(edges, torch.tensor([[5.0], [6.0]])).receivers
        tensor([1, 2])
        """
        _check_edges(edges)
        # -1 would stand for all clients; an edge has two definite ends.
        check_range("edges", edges, 0, None)
        if which is None and len(rows) != len(edges):
            expected = f"one per edge without which, expected {len(edges)}"
            raise ValueError(f"rows must be {expected}, found {len(rows)}")
        return cls(rows, edges[:, 0], edges[:, 1], which)  # type: ignore[arg-type]

    @classmethod
    def to_all(cls, row: Tensor) -> Lies:
        """Every malicious client sends ``row (d,)`` to all clients.

        >>> eq.Lies.to_all(torch.zeros(2)).rows.shape
        torch.Size([1, 2])
        """
        if row.dim() != 1:
            expected = "a floating-point tensor of shape (d,)"
            raise ValueError(f"row must be {expected}, found {describe(row)}")
        all_clients = torch.full((1,), -1, device=row.device)
        return cls(row[None], all_clients, all_clients)

    @staticmethod
    def join(*lies: Lies) -> Lies:
        """All lies in one table; where two are equally specific, the later one counts.

        >>> of_one = eq.Lies.per_sender(torch.ones(3, 2), only=[1])
        >>> both = eq.Lies.join(eq.Lies.to_all(torch.zeros(2)), of_one)
        >>> both.which
        tensor([0, 2])
        """
        if not lies:
            raise ValueError("lies must hold at least one Lies to join, found none")
        kinds = {(x.rows.shape[1], x.rows.dtype, x.rows.device) for x in lies}
        if len(kinds) > 1:
            found = sorted(f"{describe(x.rows)} on {x.rows.device}" for x in lies)
            raise ValueError(
                f"lies must share one width d, dtype and device, found {', '.join(found)}"
            )
        # Rows of each table follow those of the tables before. The last start has no table.
        starts = [0, *accumulate(len(x.rows) for x in lies)]
        return Lies(
            torch.cat([x.rows for x in lies]),
            torch.cat([x.senders for x in lies]),
            torch.cat([x.receivers for x in lies]),
            torch.cat([x.which + start for x, start in zip(lies, starts, strict=False)]),
        )

    def along(self, edges: Tensor) -> Lies:
        """The same lies along these edges (a, 2) only; the rows are shared, not copied.

        With it, malicious clients can follow different attacks:
        ``Lies.join(first.along(edges[some]), second.along(edges[~some]))``.

        >>> edges = torch.tensor([[0, 1], [0, 2]])
        >>> eq.Lies.to_all(torch.zeros(2)).along(edges).receivers
        tensor([1, 2])
        """
        _check_edges(edges)
        ids = (edges, self.senders, self.receivers)
        # Here the number of clients is unknown. Any n beyond all ids makes the addresses of edges
        # distinct.
        n = 1 + max((int(x.max()) for x in ids if x.numel()), default=0)
        which = self._find(edges[:, 0], edges[:, 1], n)
        is_lie = which >= 0
        return Lies.per_edge(edges[is_lie], self.rows, which[is_lie])

    def _find(self, senders: Tensor, receivers: Tensor, n: int) -> Tensor:
        """(e,) row of the lie along each edge, -1 where there is none."""
        keys, order = _address(self.senders, self.receivers, n).sort(stable=True)
        # An entry in front, which no address matches, answers for searches below the first key.
        nothing = self.which.new_tensor([-1])
        keys = torch.cat([nothing, keys])
        rows = torch.cat([nothing, self.which[order]])
        anyone = torch.full_like(senders, -1)
        found = anyone
        addresses = (
            (anyone, anyone),
            (senders, anyone),
            (anyone, receivers),
            (senders, receivers),
        )
        for address in addresses:  # the most specific last, so that it replaces the others
            wanted = _address(*address, n)
            # The sort is stable, so the last of equal keys is the latest entry.
            last = torch.searchsorted(keys, wanted, right=True) - 1
            found = torch.where(keys[last] == wanted, rows[last], found)
        return found


def lies_received(
    lies: Lies, senders: Tensor, mask: Tensor, *, receivers: Tensor | None = None, n: int = 0
) -> Tensor:
    """(r, k) row of the lie that receiver i gets from ``senders[i, s]``, where ``mask[i, s]``.

    -1 stands for no lie. ``receivers (r,)`` are the ids of some of ``n`` clients, by default of all
    of them.
    """
    if receivers is None:
        n = len(senders)
        receivers = torch.arange(n, device=senders.device)
    # An id beyond the graph would address another edge: see `_address`.
    check_range("senders of lies", lies.senders, -1, n)
    check_range("receivers of lies", lies.receivers, -1, n)
    receivers = receivers[:, None].expand_as(senders)
    table = torch.full_like(senders, -1)
    # Only edges that may carry a lie are searched.
    table[mask] = lies._find(senders[mask], receivers[mask], n)
    return table


def unforged(lies: Lies | None, senders: Tensor, mask: Tensor) -> Tensor:
    """(n, k) bool: where ``mask`` holds and ``senders[i, s]`` sends receiver i no lie.

    If ``mask`` holds for the edges from malicious to benign clients, these are the messages in
    which benign clients still receive a malicious client's model.

    >>> from equipoise.messages import unforged
    >>> lies = eq.Lies.per_sender(torch.zeros(3, 1), only=[2])
    >>> senders = torch.tensor([[1, 2], [0, 2], [0, 1]])
    >>> unforged(lies, senders, mask=senders > 0)  # all messages of clients 1 and 2
    tensor([[ True, False],
            [False, False],
            [False,  True]])
    """
    if lies is None:
        return mask.clone()
    return mask & (lies_received(lies, senders, mask) < 0)


@torch.no_grad()
def substitute_lies(
    lies: Lies, models: Tensor, senders: Tensor, mask: Tensor, may_lie: Tensor
) -> tuple[Tensor, Tensor]:
    """The distinct messages (m, d), and which of them (n, k) is in each slot where ``mask``.

    They are the models that some client still receives, followed by the lies that are sent where
    ``mask & may_lie``. Without lies, they are ``models`` itself, not a copy.

    >>> from equipoise.messages import substitute_lies
    >>> models = torch.tensor([[0.0], [1.0], [2.0]])
    >>> lies = eq.Lies.to_all(torch.tensor([9.0]))
    >>> senders = torch.tensor([[1], [2], [2]])
    >>> mask = torch.ones(3, 1, dtype=torch.bool)
    >>> substitute_lies(lies, models, senders, mask, may_lie=senders == 2)
    (tensor([[1.],
            [9.]]), tensor([[0],
            [1],
            [1]]))
    """
    which = lies_received(lies, senders, mask & may_lie)
    is_lie = which >= 0
    if not is_lie.any():
        return models, senders
    is_model = mask & ~is_lie
    kept, model_slots = _renumber(senders[is_model], len(models))
    sent, lie_slots = _renumber(which[is_lie], len(lies.rows))
    # The bank: models first, then lies. Rows that no client receives any more are left out, so it
    # grows by distinct lies only.
    bank = new_output(models, len(kept) + len(sent), models.shape[1])
    torch.index_select(models, 0, kept, out=bank[: len(kept)])
    torch.index_select(lies.rows, 0, sent, out=bank[len(kept) :])
    slots = torch.zeros_like(senders)
    slots[is_model] = model_slots
    slots[is_lie] = lie_slots + len(kept)
    return bank, slots


def as_lies(lies: Lies | Tensor, models: Tensor) -> Lies:
    """Lies that match the models; in a tensor (n, d), row i is the message of client i to all."""
    if not isinstance(lies, Lies | Tensor):
        found = type(lies).__name__
        raise ValueError(f"lies must be Lies or a tensor shaped like models, found {found}")
    if isinstance(lies, Tensor) and lies.shape != models.shape:
        expected = f"shaped like models, {tuple(models.shape)}"
        raise ValueError(f"lies must be {expected}, found {tuple(lies.shape)}")
    rows = lies if isinstance(lies, Tensor) else lies.rows
    if rows.shape[1] != models.shape[1]:
        expected = f"d = {models.shape[1]} parameters like models"
        raise ValueError(f"lies must have {expected}, found {rows.shape[1]}")
    # No silent cast: a lie beyond the range of the dtype of the models would become infinite.
    if (rows.dtype, rows.device) != (models.dtype, models.device):
        expected, found = (f"{x.dtype} on {x.device}" for x in (models, rows))
        raise ValueError(
            f"lies must have the dtype and device of models, {expected}, found {found}"
        )
    return Lies.per_sender(lies) if isinstance(lies, Tensor) else lies


def _choose(clients: Clients | None, rows: Tensor, *, name: str = "only") -> Tensor:
    """The ids of the chosen clients, of which there is one per row; all of them for None."""
    n = len(rows)
    if clients is None:
        return torch.arange(n, device=rows.device)
    # Ids from a mask are ascending, and `as_mask` rejects repeated ones.
    return as_mask(clients, n, name=name).nonzero().flatten().to(rows.device)


def _renumber(ids: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """The distinct ids below ``end``, ascending, and the position of each id among them."""
    # A bitmap instead of unique(): linear in the number of ids, and ids are small integers.
    used = torch.zeros(end, dtype=torch.bool, device=ids.device)
    used[ids] = True
    return used.nonzero().flatten(), (used.cumsum(0) - 1)[ids]


def _address(senders: Tensor, receivers: Tensor, n: int) -> Tensor:
    """One integer per pair of a sender and a receiver, each from -1 to n - 1."""
    # Digits of base n + 1, shifted by one for the -1 that stands for all clients.
    return (senders + 1) * (n + 1) + receivers + 1


def _check_edges(edges: Tensor) -> None:
    if edges.dtype != torch.int64 or edges.dim() != 2 or edges.shape[1] != 2:
        expected = "an int64 tensor of shape (a, 2)"
        raise ValueError(f"edges must be {expected}, found {describe(edges)}")
