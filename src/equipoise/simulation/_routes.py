"""The way of every message of a graph, from its sender to its receivers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise._utils.validation import describe
from equipoise.kernels import are_finite
from equipoise.messages import Inbox, Lies, as_lies, lies_received
from equipoise.topology import Topology
from equipoise.topology.gossip_weights import GossipKind


class Routes:
    """The messages of all rounds that have the same graph.

    Values that depend on the graph alone are computed once. So is the place of each lie in an
    inbox, as long as the lies of every round are addressed in the same way.

    Args:
        topology: the graph, on the device of the models.
        malicious: (n,) bool.
        idle: (n,) bool, clients that neither train nor aggregate; messages to them are not
            delivered.
        keep_nonfinite: see `Inbox`.
        gossip: see `Simulator`.
    """

    def __init__(
        self,
        topology: Topology,
        malicious: Tensor,
        idle: Tensor,
        *,
        keep_nonfinite: bool,
        gossip: GossipKind | Callable[[Topology], Tensor] | None = None,
    ) -> None:
        self.topology = topology
        self.malicious = malicious
        self._idle = idle
        self._keep_nonfinite = keep_nonfinite
        self._gossip = gossip
        self._received = topology.without_receivers(idle) if idle.any() else topology
        self._addresses: tuple[Tensor, ...] = ()  # of the last lies
        self._routed: tuple[Inbox, Tensor] | None = None

    @cached_property
    def malicious_neighbors(self) -> Tensor:
        """(n,) number of malicious senders of each client."""
        return self.topology.malicious_neighbors(self.malicious)

    @cached_property
    def messages_sent(self) -> tuple[float, float]:
        """The number of messages that a client sends, on average and at most."""
        senders, receivers = self.topology.edges().T
        # A self-loop is not traffic.
        counts = torch.bincount(senders[senders != receivers], minlength=self.topology.n)
        return float(counts.double().mean()), float(counts.max())

    @cached_property
    def gossip(self) -> Tensor | None:
        """(n, k) the weights of the messages in gossip averaging, in the slots of the graph."""
        if self._gossip is None:
            return None
        if not callable(self._gossip):
            return self.topology.gossip_weights(self._gossip)
        weights = self._gossip(self.topology)
        shape = self.topology.senders.shape
        if not isinstance(weights, Tensor) or weights.shape != shape:
            expected = f"one weight per slot, a tensor of shape {tuple(shape)}"
            raise ValueError(f"gossip must return {expected}, found {describe(weights)}")
        return weights.to(self.topology.senders.device)

    @cached_property
    def gossip_received(self) -> Tensor | None:
        """The same in the slots of the inboxes, which idle clients do not have."""
        weights = self.gossip
        if weights is None or self._received is self.topology:
            return weights
        # Both graphs have the same senders of every client that is not idle, in the same order.
        known = self.topology.mask & ~self._idle[:, None]
        received = weights.new_zeros(self._received.senders.shape)
        received[self._received.mask] = weights[known]
        return received

    def deliver(
        self, sent: Tensor, lies: Lies | Tensor | None, bank: Tensor, memory: RecycledMemory
    ) -> Inbox:
        """The inbox of all clients, in which malicious senders' messages are replaced by lies.

        If ``sent`` are the first rows of ``bank``, lies are copied to the rows behind them, and no
        model is copied. A bank that is too small is replaced.
        """
        if lies is None:
            self._check_idle_are_unheard(sent, torch.zeros_like(self._may_lie))
            return self._received.deliver(sent, keep_nonfinite=self._keep_nonfinite)
        table = as_lies(lies, sent)  # also checks dtype, device and shape
        template, rows = self._route(sent, table)
        n = len(sent)
        if sent.data_ptr() != bank.data_ptr() or len(bank) < n + len(rows):
            bank = memory.take(sent, n + len(rows), sent.shape[1])
            bank[:n] = sent
        bank = bank[: n + len(rows)]
        torch.index_select(table.rows, 0, rows, out=bank[n:])
        return template.with_bank(bank, keep_nonfinite=self._keep_nonfinite)

    def _route(self, sent: Tensor, lies: Lies) -> tuple[Inbox, Tensor]:
        """An inbox with the slots of models and lies, and the rows of the lies that are sent."""
        addresses = (lies.senders, lies.receivers, lies.which)
        known = len(addresses) == len(self._addresses) and all(
            map(torch.equal, addresses, self._addresses)
        )
        if self._routed is None or not known:
            self._routed = self._find_route(sent, lies)
            # Copies, because the attack may modify its table before the next round.
            self._addresses = tuple(x.clone() for x in addresses)
        return self._routed

    def _find_route(self, sent: Tensor, lies: Lies) -> tuple[Inbox, Tensor]:
        senders = self._senders
        which = lies_received(lies, senders, self._may_lie)
        is_lie = which >= 0
        self._check_idle_are_unheard(sent, is_lie)
        rows, places = which[is_lie].unique(return_inverse=True)
        slots = senders.clone()
        slots[is_lie] = len(senders) + places
        # No columns: `with_bank` puts the messages of each round in.
        nothing = torch.empty(len(senders) + len(rows), 0, device=senders.device)
        return Inbox(nothing, slots, self._received.mask, senders), rows

    @cached_property
    def _senders(self) -> Tensor:
        # Unused slots point to client 0, masked.
        return self._received.senders.clamp(min=0)

    @cached_property
    def _may_lie(self) -> Tensor:
        """(n, k) the messages of malicious clients; a self-loop carries a client's own model."""
        receivers = torch.arange(self.topology.n, device=self._senders.device)[:, None]
        is_malicious = self.malicious[self._senders] & (self._senders != receivers)
        return self._received.mask & is_malicious

    def _check_idle_are_unheard(self, sent: Tensor, is_lie: Tensor) -> None:
        """Raise if a client would receive the model of one that was not trained."""
        heard = self._received.mask & self._idle[self._senders] & ~is_lie
        # Most attacks have nothing to learn from if all benign models have diverged.
        if not heard.any() or not are_finite(sent[~self.malicious]).any():
            return
        receiver, slot = heard.nonzero()[0].tolist()
        sender = int(self._senders[receiver, slot])
        raise ValueError(
            "attack must replace every message of malicious clients, as it declares by "
            f"uses_malicious_models=False, found none from client {sender} to {receiver}; "
            "train_malicious=True trains all clients"
        )
