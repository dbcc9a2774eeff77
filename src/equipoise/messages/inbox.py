"""The messages of all receivers, without a copy of a model for each receiver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from equipoise._utils.formatting import as_call
from equipoise._utils.memo import Memo
from equipoise._utils.validation import check_count, check_range, describe, is_floating
from equipoise.kernels import ReceivedMessages
from equipoise.messages._parsing import UNREADABLE, as_ids, as_messages, copy_values, parse_message

Senders = range | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Inbox(ReceivedMessages):
    """The messages of n receivers: message ``s`` of receiver ``i`` is ``bank[slots[i, s]]``.

    A model that is sent to many neighbors is one row of ``bank``. A client that sends a different
    lie to each neighbor costs one row per lie. ``senders[i, s]`` is the id of the client that sent
    the message; ties between messages go to the lowest id. Where ``mask[i, s]`` is False, there is
    no message, and the other entries are ignored.

    A message with a NaN or an infinity is absent, as if it had never arrived.
    ``keep_nonfinite=True`` keeps such messages, to reproduce papers that did so.

    The tensors are not copied. If you modify one of them in place, the next rule examines the
    messages again. Writes through numpy or ``Tensor.data`` are not detected: make a new inbox after
    these.

    ``reasons`` maps each slot whose message `collect` rejected to the reason; it is empty for other
    inboxes. `why_absent` adds the messages that are absent for another reason. ``receivers (n,)``
    are the ids of the receivers; without it they are 0 to n - 1.

    >>> bank = torch.tensor([[1.0, 2.0], [3.0, 4.0], [torch.nan, 0.0]])
    >>> inbox = Inbox(bank, slots=torch.tensor([[1, 2], [0, 2]]))
    >>> inbox.present
    tensor([[ True, False],
            [ True, False]])
    """

    bank: Tensor
    slots: Tensor
    mask: Tensor = None  # type: ignore[assignment]  # by default, all slots hold a message
    senders: Tensor = None  # type: ignore[assignment]  # by default, row i is of client i
    keep_nonfinite: bool = False
    reasons: dict[int, str] = field(default_factory=dict, repr=False, kw_only=True)
    receivers: Tensor | None = field(default=None, repr=False, kw_only=True)
    _memo: Memo = field(default_factory=Memo, init=False, repr=False)

    __repr__ = as_call

    def __post_init__(self) -> None:
        # A frozen dataclass sets its fields this way. Slots that are not a tensor fail in `_check`.
        if self.mask is None and isinstance(self.slots, Tensor):
            object.__setattr__(self, "mask", torch.ones_like(self.slots, dtype=torch.bool))
        if self.senders is None:
            object.__setattr__(self, "senders", self.slots)
        self._check()

    def _check(self) -> None:
        if not is_floating(self.bank) or self.bank.dim() != 2:
            expected = "a floating-point tensor of shape (m, d)"
            raise ValueError(f"bank must be {expected}, found {describe(self.bank)}")
        _check_table("slots", self.slots, torch.int64, None)
        _check_table("mask", self.mask, torch.bool, self.slots.shape)
        _check_table("senders", self.senders, torch.int64, self.slots.shape)
        # Kernels index the bank by slots, and senders break ties, so all must be on one device.
        devices = {x.device for x in (self.bank, *self._ids)}
        if len(devices) > 1:
            found = sorted(map(str, devices))
            raise ValueError(f"bank, slots, mask and senders must be on one device, found {found}")
        if self.bank.is_meta:
            raise ValueError(
                "bank must hold values, found a tensor on the device meta, which has none"
            )
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
            expected = "a floating-point tensor of shape (k, d)"
            raise ValueError(f"received must be {expected}, found {describe(received)}")
        if received.is_meta or cls is not Inbox:
            return cls(received.detach(), _all_rows(len(received), received.device))
        return inbox_of_one(received.detach(), range(len(received)))

    @classmethod
    def collect(
        cls,
        messages: Iterable[object],
        *,
        like: Tensor,
        senders: Iterable[int] | Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Inbox:
        """The inbox of one client from untrusted messages, as they arrive from a network.

        A message is a dense floating-point tensor or numpy array with as many elements as ``like``,
        or its elements as bytes. Arrays may have any layout and byte order. Bytes are ``bytes``, a
        ``bytearray``, a ``memoryview`` or another buffer; they hold values of ``dtype``, by default
        that of ``like``, in the byte order of this machine. Values are cast to the dtype and moved
        to the device of ``like``.

        Other messages are absent: no sender can crash its receiver. Of several readable messages
        of one sender only the first counts. ``reasons`` says why a message was rejected. Messages
        with NaN or infinity are accepted here and absent from ``present``. The bank has one row for
        each accepted message.

        >>> own = torch.zeros(2)
        >>> messages = [torch.ones(2), torch.ones(3), "gossip", torch.full((2,), 9.0)]
        >>> inbox = Inbox.collect(messages, like=own, senders=[4, 5, 6, 4])
        >>> inbox.mask
        tensor([[ True, False, False, False]])
        >>> for slot, reason in inbox.reasons.items():
        ...     print(slot, reason)
        1 wrong size: 3 values, expected 2
        2 malformed: 'str', expected a tensor, an array or bytes
        3 duplicate: sender 4 already filled slot 0
        """
        dtype = _as_wire_dtype(dtype, like)
        received = as_messages(messages)
        ids = as_ids(senders, len(received))
        found = [parse_message(message, like.numel(), dtype) for message in received]
        # Memory is reserved for senders of a readable message only. Otherwise an attacker could
        # make a receiver reserve a model for each malformed message.
        readable = {ids[slot] for slot, values in enumerate(found) if not isinstance(values, str)}
        bank = like.new_empty(len(readable), like.numel())
        rows = [0] * len(received)
        accepted: dict[int, int] = {}  # the slot of each sender's message
        reasons: dict[int, str] = {}
        for slot, (sender, values) in enumerate(zip(ids, found, strict=True)):
            if isinstance(values, str):
                reasons[slot] = values
            elif sender in accepted:
                reasons[slot] = f"duplicate: sender {sender} already filled slot {accepted[sender]}"
            elif copy_values(values, bank[len(accepted)], dtype):
                rows[slot] = len(accepted)
                accepted[sender] = slot
            else:
                reasons[slot] = UNREADABLE
        # Slots of rejected messages point to row 0, and the mask hides them. A sender none of whose
        # messages could be copied leaves a row at the end of the bank, which is cut off.
        mask = [slot not in reasons for slot in range(len(received))]
        return cls(
            bank[: len(accepted)],
            slots=torch.tensor(rows, dtype=torch.int64, device=like.device)[None],
            mask=torch.tensor(mask, dtype=torch.bool, device=like.device)[None],
            senders=torch.tensor(ids, dtype=torch.int64, device=like.device)[None],
            reasons=reasons,
        )

    def why_absent(self, receiver: int = 0) -> dict[int, str]:
        """Map each slot of a receiver without a present message to the reason.

        A reason starts with ``silent`` (no message arrived), ``malformed``, ``wrong size``,
        ``duplicate`` or ``non-finite``.

        >>> own = torch.zeros(2)
        >>> inbox = Inbox.collect([own, own[:1], own / 0], like=own)
        >>> inbox.why_absent()
        {1: 'wrong size: 1 values, expected 2', 2: 'non-finite: a NaN, an infinity, or a norm that
        overflows'}
        """
        check_count("receiver", receiver, 0, self.n - 1)
        present = self.present[receiver].tolist()
        if all(present):
            return {}
        mask = self.mask[receiver].tolist()
        absent = {}
        for slot in range(self.k):
            if not mask[slot]:
                absent[slot] = self.reasons.get(slot, "silent: no message arrived")
            elif not present[slot]:
                absent[slot] = "non-finite: a NaN, an infinity, or a norm that overflows"
        return absent

    @property
    def absences(self) -> dict[int, str]:
        """Map each sender without a present message to the reason, for the inbox of one receiver.

        `why_absent` does the same by slot, for any receiver. Of a sender with several messages, all
        absent, the first reason counts.

        >>> own = torch.zeros(2)
        >>> Inbox.collect([own, own[:1]], like=own, senders=[4, 7]).absences
        {7: 'wrong size: 1 values, expected 2'}
        """
        if self.n != 1:
            raise ValueError(
                f"absences needs the inbox of one receiver, found {self.n}; "
                "inbox.of(i).absences are those of receiver i"
            )
        reasons = self.why_absent()
        if not reasons:
            return {}
        senders = self.senders[0].tolist()
        heard = {sender for slot, sender in enumerate(senders) if slot not in reasons}
        found: dict[int, str] = {}
        for slot, reason in reasons.items():
            if senders[slot] not in heard:
                found.setdefault(senders[slot], reason)
        return found

    @property
    def from_others(self) -> Tensor:
        """(n, k) which slots hold a message of another client."""
        receivers = self.receivers
        if receivers is None:
            receivers = torch.arange(self.n, device=self.senders.device)
        return self.mask & (self.senders != receivers[:, None])

    def current(self) -> Inbox:
        """This inbox for one call of a rule, with its ids checked again if they were modified.

        In-place changes of tensors made under ``torch.inference_mode`` are not detected. So each
        call of a rule examines such messages again.
        """
        inbox = self
        if any(x.is_inference() for x in (self.bank, *self._ids)):
            # A fresh cache that is valid for one call, during which no code writes to the messages.
            inbox = self._copy(Memo(trusting=True))
        _ = inbox._sent  # checks the ids
        return inbox

    def with_bank(self, bank: Tensor, *, keep_nonfinite: bool = False) -> Inbox:
        """Other messages along the same edges; the ids are not checked again."""
        # Edges depend on the ids only. Norms and finiteness depend on the bank, and start anew.
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
        # The reasons stay with their slots, which are numbered as before.
        part = Inbox(
            self.bank,
            self.slots[chosen],
            self.mask[chosen],
            self.senders[chosen],
            self.keep_nonfinite,
            reasons=self.reasons,
            receivers=None if self.receivers is None else self.receivers[chosen],
        )
        for name in ("bank_norms", "finite"):  # these depend on the bank only
            known = self._memo.known(name)
            if known is not None:
                part._memo.put(name, (self.bank,), known)
        return part


def _all_rows(k: int, device: torch.device) -> Tensor:
    return torch.arange(k, device=device)[None]


def inbox_of_one(bank: Tensor, senders: Senders) -> Inbox:
    """The inbox of one client with a message of each sender, in the rows of the bank."""
    template = _template_of_one(senders, bank.device)
    # Its ids are part of the inboxes that are handed out, and may have been modified there.
    if any(x._version for x in template._ids):
        _template_of_one.cache_clear()
        template = _template_of_one(senders, bank.device)
    return template.with_bank(bank)


@lru_cache(maxsize=16)
def _template_of_one(senders: Senders, device: torch.device) -> Inbox:
    """An inbox of one message per sender without values, with the edges for all calls."""
    # Tensors made under inference_mode have no count of in-place changes.
    with torch.inference_mode(False):
        bank = torch.empty(len(senders), 0, device=device)
        rows = _all_rows(len(senders), device)
        ids = rows if isinstance(senders, range) else rows.new_tensor([senders])
        return Inbox(bank, rows, senders=ids)


def _as_wire_dtype(dtype: torch.dtype | None, like: Tensor) -> torch.dtype:
    """The dtype of values in bytes, by default that of ``like``; raise unless both are floating."""
    if not is_floating(like):
        raise ValueError(f"like must be a floating-point tensor, found {describe(like)}")
    if dtype is None:
        return like.dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point torch.dtype, found {dtype!r}")
    return dtype


def _check_table(name: str, x: object, dtype: torch.dtype, shape: torch.Size | None) -> None:
    """Raise unless ``x`` is a matrix of this dtype, and of this shape if given."""
    fits = isinstance(x, Tensor) and x.dtype == dtype and x.dim() == 2
    if not fits or (shape is not None and x.shape != shape):  # type: ignore[attr-defined]
        kind = "a bool" if dtype == torch.bool else "an int64"
        expected = "(n, k)" if shape is None else str(tuple(shape))
        raise ValueError(f"{name} must be {kind} tensor of shape {expected}, found {describe(x)}")
