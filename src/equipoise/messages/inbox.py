"""Who received what, without a copy of a model for every receiver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from equipoise._utils.formatting import as_call
from equipoise._utils.memo import Memo
from equipoise._utils.validation import check_range, describe, is_floating
from equipoise.kernels import Received
from equipoise.messages._parsing import UNREADABLE, as_ids, as_list, is_copied, read


@dataclass(frozen=True, eq=False)
class Inbox(Received):
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
        _ = self._sent  # checks the ids

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
    def from_others(self) -> Tensor:
        """(n, k) which slots hold what another client sent, where receivers are the clients 0 to n - 1."""
        return self.mask & (self.senders != torch.arange(self.n, device=self.senders.device)[:, None])

    def current(self) -> Inbox:
        """This inbox as a rule reads it, its ids checked again if they were modified.

        Changes of tensors made under ``torch.inference_mode`` cannot be noticed: for these, each call of a rule
        examines the messages again.
        """
        inbox = self
        if any(x.is_inference() for x in (self.bank, *self._ids)):
            inbox = self._copy(Memo(trusting=True))
        _ = inbox._sent  # checks the ids
        return inbox

    def with_bank(self, bank: Tensor, *, keep_nonfinite: bool = False) -> Inbox:
        """Other messages along the same edges, whose ids are not checked again."""
        memo = Memo()
        memo.put("sent", self._ids, self._sent)
        return self._copy(memo, bank=bank, keep_nonfinite=keep_nonfinite)

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
