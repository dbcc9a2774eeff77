"""A peer that lies, to rehearse attacks on a network."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise._utils.validation import check_count, describe
from equipoise.attacks import Knowledge, MessageAttack
from equipoise.messages import Inbox
from equipoise.peers._arriving import Position
from equipoise.peers.peer import Peer
from equipoise.rules import Aggregator, MultiExchange
from equipoise.topology import Topology
from equipoise.types import RoundInputs

LISTENING = 0.5  # share of the time for an exchange; the rest is for sending


class MaliciousPeer(Peer):
    """A peer that speaks the protocol and sends lies, one to each neighbor.

    In a simulation an attack knows everything. Here it knows what a peer can know: its own model
    and the messages that its neighbors have sent so far. It waits for them for half of the time of
    an exchange, then forges its own; if one was absent, it stays until the deadline, as its
    neighbors do. Edges between its neighbors are unknown to it; the attack sees
    the complete graph of this peer and its neighbors, so that attacks which look at the neighbors
    of a victim look at all models. Models that have not arrived are NaN. The clients of that graph
    have the ids 0 to k, in the order of their names.

    Args:
        name: the name of this peer.
        neighbors: as for `Peer`.
        attack: what to send, any attack on messages.
        rule: the rule that the neighbors are believed to use, for attacks that need it.
        inputs: the round inputs of that rule besides ``t``, such as ``{"total": 100}``.
        seed: determines the random numbers of the attack.
        options: the other options of `Peer`.

    >>> network = eq.peers.InMemoryNetwork()
    >>> attack = eq.attacks.Gaussian()
    >>> peer = eq.peers.MaliciousPeer("m", ["a"], attack, transport=network.transport("m"))
    >>> with peer:
    ...     _ = peer.exchange(torch.zeros(3), 0, deadline=0.01)
    """

    def __init__(
        self,
        name: str,
        neighbors: Mapping[str, str] | Iterable[str],
        attack: MessageAttack,
        *,
        rule: Aggregator | MultiExchange | None = None,
        inputs: RoundInputs | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if not isinstance(attack, MessageAttack):
            expected = "an attack on messages, with a method forge"
            raise ValueError(f"attack must be {expected}, found {describe(attack)}")
        check_count("seed", seed, 0)
        super().__init__(name, neighbors, **options)
        self._attack = attack
        self._rule = rule
        self._inputs: RoundInputs = {} if inputs is None else inputs
        self._seed = seed
        members = sorted([name, *self.neighbors])
        self._me = members.index(name)
        self._others = [i for i in range(len(members)) if i != self._me]
        self._graph = Topology.complete(len(members))
        self._previous: dict[int, Tensor] = {}  # the models of the last round, by exchange

    def _talk(self, own: Tensor, position: Position, end: float) -> Inbox:
        now = time.monotonic()
        self._mailbox.begin(own, position)
        self._position = position
        inbox = self._mailbox.finish(self._senders, now + LISTENING * (end - now))
        lies = self._forge(own, inbox, position)
        for neighbor, lie in zip(self.neighbors, lies, strict=True):
            payload = self._pack(lie, position)
            self._transport.send(neighbor, payload, max(0.0, end - time.monotonic()))
        if not inbox.mask.all():
            # A benign peer would wait. One that does not is soon rounds ahead, and its neighbors
            # refuse what it sends.
            time.sleep(max(0.0, end - time.monotonic()))
        return inbox

    def _forge(self, own: Tensor, inbox: Inbox, position: Position) -> list[Tensor]:
        """The message for each neighbor, in their order."""
        models = own.new_full((self._graph.n, len(own)), torch.nan)
        models[self._me] = own
        models[self._others] = inbox.bank[inbox.slots[0]]
        absent = ~inbox.present[0]
        models[torch.tensor(self._others, device=own.device)[absent]] = torch.nan
        inputs = self._inputs.copy()
        inputs["t"] = position.t
        known = Knowledge(
            models,
            self._graph.to(own.device),
            malicious=[self._me],
            # In the first round, nobody is known to have moved.
            previous=self._previous.get(position.exchange, models),
            rule=self._rule,
            inputs=inputs,
            generator=stream(self._seed, "attack", *position),
        )
        self._previous[position.exchange] = models
        sent = self._graph.deliver(models, self._attack.forge(known), malicious=[self._me])
        mine = sent.senders == self._me
        return list(sent.bank[sent.slots[mine]])
