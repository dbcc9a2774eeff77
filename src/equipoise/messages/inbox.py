"""Who received what, without a copy of a model for every receiver."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.formatting import as_call
from equipoise._utils.memo import Memo
from equipoise._utils.validation import check_range, describe, is_floating
from equipoise.kernels import unordered
from equipoise.messages._parsing import UNREADABLE, as_ids, as_list, is_copied, read


class Group(NamedTuple):
    """Receivers that have the same number ``c`` of present messages, and where these are."""

    receivers: Tensor  # (r,)
    columns: Tensor  # (r, c) slots of the receiver
    rows: Tensor  # (r, c) rows of the bank


class Wiring:
    """What slots and mask alone say, found out once for all inboxes of a graph; a message counts wherever it is."""

    def __init__(self, slots: Tensor, mask: Tensor) -> None:
        self.slots, self.mask = slots, mask

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """(e,) receiver, slot and row of every message, sorted by receiver."""
        return edges_of(self.slots, self.mask)

    @cached_property
    def pairs(self) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The different pairs of a receiver and a row, if rows are clients, and which of them each message is."""
        receivers, _, rows = self.edges
        return unordered(receivers, rows, len(self.slots))

    @cached_property
    def groups(self) -> list[Group]:
        """The receivers that have any message, grouped by how many they have."""
        counts = self.mask.sum(1)
        compact = self.mask.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        found = []
        for count in counts[counts > 0].unique().tolist():
            receivers = (counts == count).nonzero().flatten()
            columns = compact[receivers, :count]
            found.append(Group(receivers, columns, self.slots[receivers].gather(1, columns)))
        return found


def edges_of(slots: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(e,) receiver, slot and row of the chosen (n, k) messages."""
    receivers, columns = chosen.nonzero(as_tuple=True)
    return receivers, columns, slots[receivers, columns]


@dataclass(frozen=True, eq=False)
class Inbox:
    """The messages of n receivers: message ``s`` of receiver ``i`` is ``bank[slots[i, s]]`` where ``mask[i, s]``.

    A model that is sent to many neighbours is one row of ``bank``; a client that tells every neighbour something else
    costs one row per lie. ``senders[i, s]`` is the id of the client that sent the message; ties between messages
    go to the lowest id. Where ``mask`` is False the other entries mean nothing.

    A message with a NaN or an infinity is absent, as if it had never arrived. ``keep_nonfinite=True`` lets such
    messages through, and exists only to reproduce papers that did so.

    The tensors are not copied. If you modify one of them in place, the next rule notices and examines
    the messages again. Writes through numpy or ``Tensor.data`` cannot be noticed: make a new inbox
    after these.

    ``reasons`` says, by slot, why ``collect`` did not accept a message; it is empty for other inboxes.

    >>> bank = torch.tensor([[1.0, 2.0], [3.0, 4.0], [torch.nan, 0.0]])
    >>> inbox = Inbox(bank, slots=torch.tensor([[1, 2], [0, 2]]))
    >>> inbox.present
    tensor([[ True, False],
            [ True, False]])
    """

    bank: Tensor
    slots: Tensor
    mask: Tensor = None  # type: ignore[assignment]  # all present
    senders: Tensor = None  # type: ignore[assignment]  # the rows are the clients
    keep_nonfinite: bool = False
    reasons: dict[int, str] = field(default_factory=dict, repr=False, kw_only=True)
    _memo: Memo = field(default_factory=Memo, init=False, repr=False)

    __repr__ = as_call

    def __post_init__(self) -> None:
        if self.mask is None and isinstance(self.slots, Tensor):
            object.__setattr__(self, "mask", torch.ones_like(self.slots, dtype=torch.bool))
        if self.senders is None:
            object.__setattr__(self, "senders", self.slots)
        self._check()

    def _check(self) -> None:
        bank, slots, mask, senders = self.bank, self.slots, self.mask, self.senders
        if not is_floating(bank) or bank.dim() != 2:
            raise ValueError(f"bank must be a floating-point tensor of shape (m, d), found {describe(bank)}")
        if not isinstance(slots, Tensor) or slots.dim() != 2 or slots.dtype != torch.int64:
            raise ValueError(f"slots must be an int64 tensor of shape (n, k), found {describe(slots)}")
        if not isinstance(mask, Tensor) or mask.shape != slots.shape or mask.dtype != torch.bool:
            raise ValueError(f"mask must be a bool tensor of shape {tuple(slots.shape)}, found {describe(mask)}")
        if not isinstance(senders, Tensor) or senders.shape != slots.shape or senders.dtype != torch.int64:
            raise ValueError(
                f"senders must be an int64 tensor of shape {tuple(slots.shape)}, found {describe(senders)}"
            )
        devices = {x.device for x in (bank, slots, mask, senders)}
        if len(devices) > 1:
            raise ValueError(f"bank, slots, mask and senders must be on one device, found {sorted(map(str, devices))}")
        if bank.is_meta:
            raise ValueError("bank must hold values, found a tensor on the device meta, which has none")
        _ = self.sent  # checks the ids

    def _check_ids(self) -> None:
        """Raise unless slots and senders are valid where the mask is True: kernels read where they point to."""
        bank, slots, mask, senders = self.bank, self.slots, self.mask, self.senders
        used = slots[mask]
        if used.numel() and (used.min() < 0 or used.max() >= len(bank)):
            raise ValueError(
                f"slots must be rows of the bank, 0 to {len(bank) - 1}, found {used.min()} to {used.max()}"
            )
        if senders is not slots and used.numel() and senders[mask].min() < 0:
            raise ValueError(f"senders must be ids of clients, at least 0, found {senders[mask].min()}")

    @classmethod
    def of_one(cls, received: Tensor) -> Inbox:
        """The inbox of one client that received the rows of a (k, d) tensor."""
        if not isinstance(received, Tensor):
            raise ValueError(
                f"received must be a (k, d) tensor or an Inbox, found {type(received).__name__}; "
                "Inbox.collect(messages, like=own) turns a list of messages into an Inbox"
            )
        if not is_floating(received) or received.dim() != 2:
            raise ValueError(f"received must be a floating-point tensor of shape (k, d), found {describe(received)}")
        return cls(received.detach(), torch.arange(len(received), device=received.device)[None])

    @classmethod
    def collect(
        cls,
        messages: Iterable[object],
        *,
        like: Tensor,
        senders: Iterable[int] | Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Inbox:
        """The inbox of one client from messages as they came off the wire, in any number and state.

        A message is a dense floating-point tensor or numpy array with as many elements as ``like``, or
        its elements as bytes. Arrays may have any layout and byte order. Bytes are ``bytes``, a
        ``bytearray``, a ``memoryview`` or another buffer; they hold values of ``dtype``, by default that
        of ``like``, in the byte order of this machine. Values are cast to the dtype and moved to the
        device of ``like``.

        Anything else is absent: a peer cannot crash its receiver. Of several readable messages of one
        sender only the first counts. ``reasons`` says why a message was not accepted. Messages with NaN
        or infinity are accepted here and absent from ``present``. The bank has one row for each accepted
        message.

        >>> own = torch.zeros(2)
        >>> messages = [torch.ones(2), torch.ones(3), "gossip", torch.full((2,), 9.0)]
        >>> inbox = Inbox.collect(messages, like=own, senders=[4, 5, 6, 4])
        >>> inbox.mask
        tensor([[ True, False, False, False]])
        >>> for slot, reason in inbox.reasons.items():
        ...     print(slot, reason)
        1 wrong size: 3 values, expected 2
        2 malformed: 'str', expected a tensor, an array or bytes
        3 duplicate: sender 4 was heard in slot 0
        """
        if not is_floating(like):
            raise ValueError(f"like must be a floating-point tensor, found {describe(like)}")
        if dtype is None:
            dtype = like.dtype
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point torch.dtype, found {dtype!r}")
        received = as_list(messages)
        ids = as_ids(senders, len(received))
        found = [read(message, like.numel(), dtype) for message in received]
        # Rubbish gets no row: its senders cost the attacker nothing.
        speakers = {ids[slot] for slot, values in enumerate(found) if not isinstance(values, str)}
        bank = like.new_empty(len(speakers), like.numel())
        rows = [0] * len(received)
        heard: dict[int, int] = {}  # the slot in which each sender was heard
        reasons: dict[int, str] = {}
        for slot, (sender, values) in enumerate(zip(ids, found, strict=True)):
            if isinstance(values, str):
                reasons[slot] = values
            elif sender in heard:
                reasons[slot] = f"duplicate: sender {sender} was heard in slot {heard[sender]}"
            elif is_copied(values, bank[len(heard)], dtype):
                rows[slot] = len(heard)
                heard[sender] = slot
            else:
                reasons[slot] = UNREADABLE
        accepted = [slot not in reasons for slot in range(len(received))]
        return cls(
            bank[: len(heard)],
            slots=torch.tensor(rows, dtype=torch.int64, device=like.device)[None],
            mask=torch.tensor(accepted, dtype=torch.bool, device=like.device)[None],
            senders=torch.tensor(ids, dtype=torch.int64, device=like.device)[None],
            reasons=reasons,
        )

    @property
    def n(self) -> int:
        """Number of receivers."""
        return self.slots.shape[0]

    @property
    def k(self) -> int:
        """Number of slots: the largest number of messages of one receiver."""
        return self.slots.shape[1]

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.bank.shape[1]

    @property
    def bank_norms(self) -> Tensor:
        """(m,) Euclidean norm of every row of the bank, float64; NaN where the row is not finite."""
        return self._memo.get("bank_norms", (self.bank,), lambda: kernels.norms(self.bank))

    @property
    def knows_norms(self) -> bool:
        """Whether the norms of the bank are known, without another look at it."""
        return self._memo.known("bank_norms") is not None

    def learn_norms(self, norms: Tensor) -> Tensor:
        """Remember norms that a kernel measured, unless they are known; returns those that are known."""
        return self._memo.get("bank_norms", (self.bank,), lambda: norms)

    def lengths(self, chosen: Tensor) -> Tensor:
        """(n, k) norms of the messages in the chosen (n, k) slots, those of other messages elsewhere."""
        norms = self.bank_norms if len(self.bank) else self.bank_norms.new_zeros(1)
        return norms[self.slots.where(chosen, 0)]

    @property
    def finite(self) -> Tensor:
        """(m,) whether a row of the bank has neither NaN nor infinity, and a norm that fits a float64."""
        return self._memo.get("finite", (self.bank,), self._find_finite)

    def _find_finite(self) -> Tensor:
        return self.bank_norms.isfinite() if self.knows_norms else kernels.are_finite(self.bank)

    @property
    def present(self) -> Tensor:
        """(n, k) which slots hold a message that rules may look at."""
        return self._memo.get("present", (self.bank, self.slots, self.mask), self._find_present)

    def _find_present(self) -> Tensor:
        if self.keep_nonfinite or not self.mask.any() or self.finite.all():
            return self.mask
        return self.mask & self.finite[self.slots.where(self.mask, 0)]

    @property
    def from_others(self) -> Tensor:
        """(n, k) which slots hold what another client sent, where receivers are the clients 0 to n - 1."""
        return self.mask & (self.senders != torch.arange(self.n, device=self.senders.device)[:, None])

    @property
    def is_examined(self) -> bool:
        """Whether it is known which messages are present, without another look at them."""
        return self.keep_nonfinite or self.knows_norms or self._memo.known("finite") is not None

    def current(self) -> Inbox:
        """This inbox as a rule reads it, its ids checked again if they were modified.

        Changes of tensors made under ``torch.inference_mode`` cannot be noticed: for these, each call of a rule
        examines the messages again.
        """
        inbox = self
        if any(x.is_inference() for x in (self.bank, self.slots, self.mask, self.senders)):
            inbox = self._copy(Memo(trusting=True))
        _ = inbox.sent  # checks the ids
        return inbox

    def trusted(self) -> Inbox:
        """The same, with all messages taken for finite, for who finds out while using them."""
        finite = torch.ones(len(self.bank), dtype=torch.bool, device=self.bank.device)
        memo = Memo(trusting=True)
        memo.put("finite", (self.bank,), finite)
        memo.put("present", (self.bank, self.slots, self.mask), self.mask)
        memo.put("sent", (self.slots, self.mask, self.senders), self.sent)
        return self._copy(memo)

    @property
    def counts(self) -> Tensor:
        """(n,) number of present messages."""
        return self._memo.get("counts", (self.bank, self.slots, self.mask), lambda: self.present.sum(1))

    @property
    def sent(self) -> Wiring:
        """What can be said before anybody looked at the messages."""
        return self._memo.get("sent", (self.slots, self.mask, self.senders), self._find_sent)

    def _find_sent(self) -> Wiring:
        self._check_ids()
        return Wiring(self.slots, self.mask)

    @property
    def arrived(self) -> Wiring:
        """The same of the messages that are present."""
        return self._memo.get("arrived", (self.bank, self.slots, self.mask), self._find_arrived)

    def _find_arrived(self) -> Wiring:
        return self.sent if self.present is self.mask else Wiring(self.slots, self.present)

    def groups(self) -> list[Group]:
        """The receivers that have any message, grouped by how many they have."""
        return self.arrived.groups

    def holding(self, bank: Tensor, keep_nonfinite: bool) -> Inbox:
        """Other messages along the same edges, of which nothing has to be checked or found out again."""
        memo = Memo()
        memo.put("sent", (self.slots, self.mask, self.senders), self.sent)
        return self._copy(memo, bank=bank, keep_nonfinite=keep_nonfinite)

    def _copy(self, memo: Memo, **changed: object) -> Inbox:
        """The same inbox with another memory, without checking it again."""
        part = copy(self)
        part.__dict__.update(changed, _memo=memo)
        return part

    def of(self, receivers: int | Tensor) -> Inbox:
        """The inbox of one receiver, or of several; the bank is shared, not copied."""
        chosen = torch.as_tensor(receivers, device=self.slots.device).reshape(-1)
        is_mask = chosen.dtype == torch.bool
        if chosen.is_floating_point() or (is_mask and len(chosen) != self.n):
            expected = f"ids of receivers, 0 to {self.n - 1}, or a bool mask of shape ({self.n},)"
            raise ValueError(f"receivers must be {expected}, found {describe(chosen)}")
        if not is_mask:
            chosen = chosen.long()
            check_range("receivers", chosen, 0, self.n)
        part = Inbox(
            self.bank,
            self.slots[chosen],
            self.mask[chosen],
            self.senders[chosen],
            self.keep_nonfinite,
            reasons=self.reasons,
        )
        for name in ("bank_norms", "finite"):
            known = self._memo.known(name)
            if known is not None:
                part._memo.put(name, (self.bank,), known)
        return part
