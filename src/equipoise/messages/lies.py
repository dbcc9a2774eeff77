"""What malicious clients say instead of their model, and to whom."""

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
    """A table of addressed lies: messages from ``senders[j]`` to ``receivers[j]`` read ``rows[which[j]]``.

    ``rows (l, d)`` holds every distinct lie once; ``senders``, ``receivers`` and ``which`` are int64 of shape (a,).
    A sender of -1 is every malicious client, a receiver of -1 is everybody. Where several entries address one edge,
    the most specific one counts: the exact edge before the receiver, before the sender, before everybody; among
    equals the later one. Without ``which``, entry j reads row j.

    Who may lie is not decided here: :meth:`Topology.deliver` ignores lies from benign clients.

    >>> rows, senders = torch.tensor([[0.0], [9.0]]), torch.tensor([-1, 2])
    >>> lies = eq.Lies(rows, senders, receivers=torch.tensor([-1, 0]))
    >>> heard = torch.tensor([[1, 2], [0, 2], [0, 1]])
    >>> lies.resolve(heard, mask=torch.ones(3, 2, dtype=torch.bool))
    tensor([[0, 1],
            [0, 0],
            [0, 0]])
    """

    rows: Tensor
    senders: Tensor
    receivers: Tensor
    which: Tensor = None  # type: ignore[assignment]  # one row per entry

    __repr__ = as_call

    def __post_init__(self) -> None:
        if not is_floating(self.rows) or self.rows.dim() != 2:
            raise ValueError(f"rows must be a floating-point tensor of shape (l, d), found {describe(self.rows)}")
        if self.which is None:
            object.__setattr__(self, "which", torch.arange(len(self.rows), device=self.rows.device))
        shape = self.which.shape
        for name in ("senders", "receivers", "which"):
            ids = getattr(self, name)
            if ids.dtype != torch.int64 or ids.dim() != 1 or ids.shape != shape:
                raise ValueError(f"{name} must be an int64 tensor of shape ({shape.numel()},), found {describe(ids)}")
            if ids.device != self.rows.device:
                raise ValueError(f"{name} must be on the device of rows, {self.rows.device}, found {ids.device}")
        check_range("senders", self.senders, -1, None)
        check_range("receivers", self.receivers, -1, None)
        check_range("which", self.which, 0, len(self.rows))

    @classmethod
    def per_sender(cls, rows: Tensor, *, only: Clients | None = None) -> Lies:
        """Client i tells everybody ``rows[i]``; ``only`` these clients, if given.

        >>> eq.Lies.per_sender(torch.zeros(4, 2), only=[3]).senders
        tensor([3])
        """
        ids = _choose(only, rows)
        return cls(rows, ids, torch.full_like(ids, -1), ids)

    @classmethod
    def per_receiver(cls, rows: Tensor, *, only: Clients | None = None, senders: Clients | None = None) -> Lies:
        """Every malicious client tells client i ``rows[i]``; ``only`` these receivers, if given.

        With ``senders``, only these clients say so. That takes an entry for every pair of them and a receiver, but no
        copy of a row; on a large sparse graph :meth:`along` its edges is smaller.

        >>> eq.Lies.per_receiver(torch.zeros(3, 2), only=[0, 2], senders=[1]).receivers
        tensor([0, 2])
        """
        ids = _choose(only, rows)
        if senders is None:
            return cls(rows, torch.full_like(ids, -1), ids, ids)
        told_by = _choose(senders, rows, name="senders")
        told_to = ids.repeat_interleave(len(told_by))
        return cls(rows, told_by.repeat(len(ids)), told_to, told_to)

    @classmethod
    def per_edge(cls, edges: Tensor, rows: Tensor, which: Tensor | None = None) -> Lies:
        """Along ``edges[j] = (sender, receiver)`` travels ``rows[which[j]]``, or ``rows[j]`` without ``which``.

        >>> eq.Lies.per_edge(torch.tensor([[0, 1], [0, 2]]), torch.tensor([[5.0], [6.0]])).receivers
        tensor([1, 2])
        """
        _check_edges(edges)
        check_range("edges", edges, 0, None)
        if which is None and len(rows) != len(edges):
            raise ValueError(f"rows must be one per edge without which, expected {len(edges)}, found {len(rows)}")
        return cls(rows, edges[:, 0], edges[:, 1], which)  # type: ignore[arg-type]

    @classmethod
    def to_all(cls, row: Tensor) -> Lies:
        """Every malicious client tells everybody ``row (d,)``.

        >>> eq.Lies.to_all(torch.zeros(2)).rows.shape
        torch.Size([1, 2])
        """
        if row.dim() != 1:
            raise ValueError(f"row must be a floating-point tensor of shape (d,), found {describe(row)}")
        everybody = torch.full((1,), -1, device=row.device)
        return cls(row[None], everybody, everybody)

    @staticmethod
    def join(*lies: Lies) -> Lies:
        """All the lies in one table; where two are equally specific, the later one counts.

        >>> one_by_one = eq.Lies.per_sender(torch.ones(3, 2), only=[1])
        >>> both = eq.Lies.join(eq.Lies.to_all(torch.zeros(2)), one_by_one)
        >>> both.which
        tensor([0, 2])
        """
        if not lies:
            raise ValueError("lies must be at least one Lies to join, found none")
        kinds = {(x.rows.shape[1], x.rows.dtype, x.rows.device) for x in lies}
        if len(kinds) > 1:
            found = sorted(f"{describe(x.rows)} on {x.rows.device}" for x in lies)
            raise ValueError(f"lies must share one width d, dtype and device, found {', '.join(found)}")
        starts = [0, *accumulate(len(x.rows) for x in lies)]
        return Lies(
            torch.cat([x.rows for x in lies]),
            torch.cat([x.senders for x in lies]),
            torch.cat([x.receivers for x in lies]),
            torch.cat([x.which + start for x, start in zip(lies, starts, strict=False)]),
        )

    def along(self, edges: Tensor) -> Lies:
        """The same lies, told along these edges (a, 2) only; the rows are shared, not copied.

        So that some malicious clients can follow one attack and the others another one:
        ``Lies.join(first.along(edges[some]), second.along(edges[~some]))``.

        >>> eq.Lies.to_all(torch.zeros(2)).along(torch.tensor([[0, 1], [0, 2]])).receivers
        tensor([1, 2])
        """
        _check_edges(edges)
        n = 1 + max((int(ids.max()) for ids in (edges, self.senders, self.receivers) if ids.numel()), default=0)
        which = self._find(edges[:, 0], edges[:, 1], n)
        lied = which >= 0
        return Lies.per_edge(edges[lied], self.rows, which[lied])

    def resolve(self, senders: Tensor, mask: Tensor) -> Tensor:
        """(n, k) row of the lie that receiver i hears from ``senders[i, s]`` where ``mask[i, s]``; -1 is no lie."""
        n = len(senders)
        check_range("senders of lies", self.senders, -1, n)
        check_range("receivers of lies", self.receivers, -1, n)
        receivers = torch.arange(n, device=senders.device)[:, None].expand_as(senders)
        table = torch.full_like(senders, -1)
        table[mask] = self._find(senders[mask], receivers[mask], n)
        return table

    @torch.no_grad()
    def substitute(self, models: Tensor, senders: Tensor, mask: Tensor, may_lie: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct messages (m, d), and which of them (n, k) arrives in every slot where ``mask``.

        They are the models that are still sent to somebody, then the lies that are told where ``mask & may_lie``.
        While nobody lies they are ``models`` itself, not a copy.

        >>> models, everyone = torch.tensor([[0.0], [1.0], [2.0]]), torch.ones(3, 1, dtype=torch.bool)
        >>> heard = torch.tensor([[1], [2], [2]])
        >>> eq.Lies.to_all(torch.tensor([9.0])).substitute(models, heard, everyone, may_lie=heard == 2)
        (tensor([[1.],
                [9.]]), tensor([[0],
                [1],
                [1]]))
        """
        which = self.resolve(senders, mask & may_lie)
        lied = which >= 0
        if not lied.any():
            return models, senders
        honest = mask & ~lied
        kept, kept_slots = _renumber(senders[honest], len(models))
        told, told_slots = _renumber(which[lied], len(self.rows))
        bank = new_output(models, len(kept) + len(told), models.shape[1])
        torch.index_select(models, 0, kept, out=bank[: len(kept)])
        torch.index_select(self.rows, 0, told, out=bank[len(kept) :])
        slots = torch.zeros_like(senders)
        slots[honest], slots[lied] = kept_slots, told_slots + len(kept)
        return bank, slots

    def _find(self, senders: Tensor, receivers: Tensor, n: int) -> Tensor:
        """(e,) row of the lie along every edge, -1 where there is none."""
        nothing = self.which.new_tensor([-1])
        keys, order = _key(self.senders, self.receivers, n).sort(stable=True)
        keys, answers = torch.cat([nothing, keys]), torch.cat([nothing, self.which[order]])
        everybody = torch.full_like(senders, -1)
        found = everybody
        by_specificity = (everybody, everybody), (senders, everybody), (everybody, receivers), (senders, receivers)
        for address in by_specificity:
            wanted = _key(*address, n)
            last = torch.searchsorted(keys, wanted, right=True) - 1
            found = torch.where(keys[last] == wanted, answers[last], found)
        return found


def as_lies(lies: Lies | Tensor, models: Tensor) -> Lies:
    """Lies that fit to the models; a tensor shaped like these is what every client says to everybody."""
    if not isinstance(lies, Lies | Tensor):
        raise ValueError(f"lies must be Lies or a tensor shaped like models, found {type(lies).__name__}")
    if isinstance(lies, Tensor) and lies.shape != models.shape:
        raise ValueError(f"lies must be shaped like models, {tuple(models.shape)}, found {tuple(lies.shape)}")
    rows = lies if isinstance(lies, Tensor) else lies.rows
    if rows.shape[1] != models.shape[1]:
        raise ValueError(f"lies must have d = {models.shape[1]} parameters like models, found {rows.shape[1]}")
    if (rows.dtype, rows.device) != (models.dtype, models.device):
        expected, found = (f"{x.dtype} on {x.device}" for x in (models, rows))
        raise ValueError(f"lies must have the dtype and device of models, {expected}, found {found}")
    return Lies.per_sender(lies) if isinstance(lies, Tensor) else lies


def _choose(clients: Clients | None, rows: Tensor, *, name: str = "only") -> Tensor:
    """The ids of the chosen clients, out of one for every row; all of them for None."""
    n = len(rows)
    chosen = None if clients is None else as_mask(clients, n, name=name).nonzero().flatten()
    return torch.arange(n, device=rows.device) if chosen is None else chosen.to(rows.device)


def _renumber(ids: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """The different ids below ``end``, ascending, and the position of every id among them."""
    used = torch.zeros(end, dtype=torch.bool, device=ids.device)
    used[ids] = True
    return used.nonzero().flatten(), (used.cumsum(0) - 1)[ids]


def _key(senders: Tensor, receivers: Tensor, n: int) -> Tensor:
    return (senders + 1) * (n + 1) + receivers + 1


def _check_edges(edges: Tensor) -> None:
    if edges.dtype != torch.int64 or edges.dim() != 2 or edges.shape[1] != 2:
        raise ValueError(f"edges must be an int64 tensor of shape (a, 2), found {describe(edges)}")
