"""Received messages with cached norms, finiteness and edges, as kernels use them."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from equipoise._utils.memo import Memo
from equipoise.kernels._edge_index import EdgeIndex
from equipoise.kernels._norms import are_finite, norms


class ReceivedMessages:
    """Messages of n receivers: message ``s`` of receiver ``i`` is ``bank[slots[i, s]]``.

    The base of `equipoise.Inbox`. Values derived from the tensors are cached in one private object,
    and computed again after one of the tensors was modified in place.
    """

    bank: Tensor
    slots: Tensor
    mask: Tensor
    senders: Tensor
    keep_nonfinite: bool
    _memo: Memo

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
        """(m,) Euclidean norm of each row of the bank, float64; NaN if the row is not finite."""
        return self._memo.get("bank_norms", (self.bank,), lambda: norms(self.bank))

    @property
    def _knows_norms(self) -> bool:
        """Whether the norms of the bank are cached."""
        return self._memo.known("bank_norms") is not None

    def _learn_norms(self, norms: Tensor) -> Tensor:
        """Cache norms that a kernel measured, unless some are cached; return the cached ones."""
        return self._memo.get("bank_norms", (self.bank,), lambda: norms)

    @property
    def _squares(self) -> Tensor | None:
        """(m, m) squared distances between all rows of the bank, if they are cached."""
        known: Tensor | None = self._memo.known("squares")
        return known

    def _learn_squares(self, squares: Tensor) -> None:
        """Cache the squared distances that the C kernels measured; the caller limits their size."""
        self._memo.put("squares", (self.bank,), squares)

    def lengths(self, chosen: Tensor) -> Tensor:
        """(n, k) norms of the messages in the chosen (n, k) slots; arbitrary values elsewhere."""
        # Without messages, there is no row 0 for unchosen slots to point to.
        known = self.bank_norms if len(self.bank) else self.bank_norms.new_zeros(1)
        return known[self.slots.where(chosen, 0)]

    @property
    def finite(self) -> Tensor:
        """(m,) whether a row of the bank is finite, and its norm fits a float64."""
        return self._memo.get("finite", (self.bank,), self._find_finite)

    def _find_finite(self) -> Tensor:
        # Norms that a kernel already measured spare a pass over the bank.
        return self.bank_norms.isfinite() if self._knows_norms else are_finite(self.bank)

    @property
    def present(self) -> Tensor:
        """(n, k) which slots hold a message that rules may use."""
        return self._memo.get("present", (self.bank, self.slots, self.mask), self._find_present)

    def _find_present(self) -> Tensor:
        # The mask itself is returned in the usual case, and `_find_arrived` then shares the edges.
        if self.keep_nonfinite or not self.mask.any() or self.finite.all():
            return self.mask
        # Slots without a message may hold any number, also beyond the bank, so they point to row 0.
        return self.mask & self.finite[self.slots.where(self.mask, 0)]

    @property
    def _is_examined(self) -> bool:
        """Whether it is known which messages are present, without another pass over them."""
        return self.keep_nonfinite or self._knows_norms or self._memo.known("finite") is not None

    def _trusted(self) -> Self:
        """Assume that all messages are finite; the caller checks later."""
        finite = torch.ones(len(self.bank), dtype=torch.bool, device=self.bank.device)
        # The copy has a cache of its own, so that the assumption does not reach this inbox. The
        # edges do not depend on it, and are shared.
        memo = Memo(trusting=True)
        memo.put("finite", (self.bank,), finite)
        memo.put("present", (self.bank, self.slots, self.mask), self.mask)
        memo.put("sent", self._ids, self._sent)
        return self._copy(memo)

    @property
    def counts(self) -> Tensor:
        """(n,) number of present messages."""
        return self._memo.get(
            "counts", (self.bank, self.slots, self.mask), lambda: self.present.sum(1)
        )

    @property
    def _sent(self) -> EdgeIndex:
        """The edges of all messages, finite or not."""
        return self._memo.get("sent", self._ids, self._find_sent)

    def _find_sent(self) -> EdgeIndex:
        # Checked whenever the ids are new or modified: the C kernels read memory by them.
        self._check_ids()
        return EdgeIndex(self.slots, self.mask, self.senders)

    @property
    def _arrived(self) -> EdgeIndex:
        """The edges of the messages that are present."""
        return self._memo.get("arrived", (self.bank, self.slots, self.mask), self._find_arrived)

    def _find_arrived(self) -> EdgeIndex:
        if self.present is self.mask:
            return self._sent
        return EdgeIndex(self.slots, self.present, self.senders)

    @property
    def _ids(self) -> tuple[Tensor, ...]:
        return self.slots, self.mask, self.senders

    def _check_ids(self) -> None:
        """Raise unless slots and senders are valid where ``mask``; kernels index by them."""
        used = self.slots[self.mask]
        if not used.numel():
            return
        if used.min() < 0 or used.max() >= len(self.bank):
            expected = f"rows of the bank, 0 to {len(self.bank) - 1}"
            raise ValueError(f"slots must be {expected}, found {used.min()} to {used.max()}")
        # By default senders are the slots themselves, which were checked above.
        if self.senders is not self.slots and self.senders[self.mask].min() < 0:
            lowest = self.senders[self.mask].min()
            raise ValueError(f"senders must be ids of clients, at least 0, found {lowest}")

    def _copy(self, memo: Memo, **changed: object) -> Self:
        """A copy with another cache and some other fields, which are not checked again."""
        # A shallow copy shares the tensors, and skips the checks of `Inbox.__post_init__`.
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__, **changed, _memo=memo)
        return part
