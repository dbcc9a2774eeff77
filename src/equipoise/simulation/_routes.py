"""The way of every message of a graph, from its sender to its receivers."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise._utils.validation import describe
from equipoise.kernels import are_finite
from equipoise.messages import Inbox, Lies, lies_received
from equipoise.simulation._settings import Settings
from equipoise.topology import Topology


class Routes:
    """The messages of all rounds that have the same graph.

    Values that depend on the graph alone are computed once. So is the place of each lie in an
    inbox, as long as the lies of every round are addressed in the same way.

    Args:
        topology: the graph, on the device of the models.
        settings: those of the run. Messages to idle clients, which neither train nor aggregate, are
            not delivered.
    """

    def __init__(self, topology: Topology, settings: Settings) -> None:
        self.topology = topology
        self._part = settings.part
        self._malicious = settings.malicious
        self._attackers = settings.attackers
        self._idle = settings.idle
        self._keep_nonfinite = settings.keep_nonfinite
        self._gossip = settings.gossip
        self._received = topology.without_receivers(self._idle) if self._idle.any() else topology
        self._exchange = self._part.exchange(self._received, self._idle)
        self._addresses: tuple[Tensor, ...] = ()  # of the last lies
        self._routed: tuple[Inbox, Tensor] | None = None

    @cached_property
    def malicious_neighbors(self) -> Tensor:
        """(n,) number of malicious senders of each client."""
        return self.topology.malicious_neighbors(self._attackers)

    @cached_property
    def counted(self) -> Tensor:
        """(2, r, k) the messages of others to benign clients: from benign, and malicious ones."""
        # A self-loop carries a client's own model.
        is_other = self._mask & (self._senders != self._receivers[:, None])
        received = is_other & ~self._malicious[self._receivers, None]
        is_lie = self._malicious[self._senders]
        return torch.stack([received & ~is_lie, received & is_lie])

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

    def hear(self, sent: Tensor, bank: Tensor, memory: RecycledMemory) -> tuple[Tensor, Tensor]:
        """The models that receivers in this process may hear, and the bank for `deliver`.

        Some models may come from other processes.
        """
        if self._exchange is None:
            return sent, bank
        return self._exchange.complete(sent, bank, memory)

    def deliver(
        self, heard: Tensor, lies: Lies | None, bank: Tensor, memory: RecycledMemory
    ) -> Inbox:
        """The inbox of all receivers, in which malicious senders' messages are replaced by lies.

        If ``heard`` are the first rows of ``bank``, lies are copied to the rows behind them, and no
        model is copied. A bank that is too small is replaced.
        """
        if lies is None:
            self._check_idle_are_unheard(heard, torch.zeros_like(self._may_lie))
            return self._without_lies.with_bank(heard, keep_nonfinite=self._keep_nonfinite)
        template, rows = self._route(heard, lies)
        n = len(heard)
        if heard.data_ptr() != bank.data_ptr() or len(bank) < n + len(rows):
            bank = memory.take(heard, n + len(rows), heard.shape[1])
            bank[:n] = heard
        bank = bank[: n + len(rows)]
        torch.index_select(lies.rows, 0, rows, out=bank[n:])
        return template.with_bank(bank, keep_nonfinite=self._keep_nonfinite)

    def _route(self, heard: Tensor, lies: Lies) -> tuple[Inbox, Tensor]:
        """An inbox with the slots of models and lies, and the rows of the lies that are sent."""
        addresses = (lies.senders, lies.receivers, lies.which)
        known = len(addresses) == len(self._addresses) and all(
            map(torch.equal, addresses, self._addresses)
        )
        if self._routed is None or not known:
            self._routed = self._find_route(heard, lies)
            # Copies, because the attack may modify its table before the next round.
            self._addresses = tuple(x.clone() for x in addresses)
        return self._routed

    def _find_route(self, heard: Tensor, lies: Lies) -> tuple[Inbox, Tensor]:
        which = lies_received(
            lies, self._senders, self._may_lie, receivers=self._receivers, n=self.topology.n
        )
        is_lie = which >= 0
        self._check_idle_are_unheard(heard, is_lie)
        rows, places = which[is_lie].unique(return_inverse=True)
        slots = self._slots.clone()
        slots[is_lie] = len(heard) + places
        return self._inbox(slots, len(heard) + len(rows)), rows

    @cached_property
    def _without_lies(self) -> Inbox:
        return self._inbox(self._slots, len(self._clients))

    def _inbox(self, slots: Tensor, rows: int) -> Inbox:
        # No columns: `with_bank` puts the messages of each round in.
        nothing = torch.empty(rows, 0, device=slots.device)
        return Inbox(nothing, slots, self._mask, self._senders, receivers=self._receivers)

    # The receivers in this process, and the messages to them

    @cached_property
    def _receivers(self) -> Tensor:
        return self._part.ids(self.topology.n).to(self.topology.senders.device)

    @cached_property
    def _mask(self) -> Tensor:
        return self._part.of(self._received.mask)

    @cached_property
    def _senders(self) -> Tensor:
        # Unused slots point to client 0, masked.
        return self._part.of(self._received.senders.clamp(min=0))

    @cached_property
    def _slots(self) -> Tensor:
        """The row of each sender's model among those that are heard."""
        return self._senders if self._exchange is None else self._exchange.places(self._senders)

    @cached_property
    def _clients(self) -> Tensor:
        """The clients whose models are heard, row by row."""
        return self._receivers if self._exchange is None else self._exchange.clients

    @cached_property
    def _may_lie(self) -> Tensor:
        """(r, k) the messages of malicious clients; a self-loop carries a client's own model."""
        is_malicious = self._attackers[self._senders] & (self._senders != self._receivers[:, None])
        return self._mask & is_malicious

    def _check_idle_are_unheard(self, heard: Tensor, is_lie: Tensor) -> None:
        """Raise if a client would receive the model of one that was not trained."""
        stale = self._mask & self._idle[self._senders] & ~is_lie
        # Most attacks have nothing to learn from if all benign models have diverged.
        if not stale.any() or not are_finite(heard[~self._attackers[self._clients]]).any():
            return
        receiver, slot = stale.nonzero()[0].tolist()
        sender = int(self._senders[receiver, slot])
        raise ValueError(
            "attack must replace every message of malicious clients, as it declares by "
            f"uses_malicious_models=False, found none from client {sender} to "
            f"{int(self._receivers[receiver])}; train_malicious=True trains all clients"
        )
