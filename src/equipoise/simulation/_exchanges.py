"""The messages that clients send each other in one round."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise.attacks import Knowledge, MessageAttack
from equipoise.messages import Inbox, Lies, as_lies
from equipoise.metrics import acceptance
from equipoise.rules import run_exchanges
from equipoise.simulation._routes import Routes
from equipoise.simulation._settings import RuleLike, Settings
from equipoise.simulation._timing import Stopwatch
from equipoise.simulation._validation import unmodified_by
from equipoise.simulation._workspace import Workspace
from equipoise.simulation.state import State
from equipoise.types import Aggregated, RoundInputs


class Exchanges:
    """All exchanges of one round: messages are forged, delivered and counted."""

    inbox: Inbox  # of the last exchange

    def __init__(
        self,
        settings: Settings,
        before: State,
        routes: Routes,
        rule: RuleLike,
        inputs: RoundInputs,
        watch: Stopwatch,
        bank: Tensor,
        workspace: Workspace,
    ) -> None:
        self._settings = settings
        self._before = before
        self._routes = routes
        self._rule = rule
        self._inputs = inputs
        self._watch = watch
        self._bank = bank
        self._workspace = workspace
        self._count = 0
        self._width = 0  # parameters that went along each edge, over all exchanges
        self._lies: Lies | None = None
        self._fetched: Tensor | None = None

    def run(self, trained: Tensor) -> tuple[Tensor, Aggregated]:
        """Run all exchanges: returns the models to mix with, and the aggregates."""
        self._trained = trained
        with self._watch.phase("aggregate"):
            return run_exchanges(self._rule, trained, self._exchange, **self._inputs)

    def _exchange(self, sent: Tensor) -> Inbox:
        """Send messages along the graph; malicious clients may replace theirs."""
        with self._watch.phase("forge"):
            # Timed as a phase of its own: the time of an attack is not a cost of the rule.
            lies = self._forge_as_sent(sent)
        with self._watch.phase("deliver"):
            self.inbox = self._routes.deliver(sent, lies, self._bank, self._workspace.memory)
            self._workspace.note_bank(self.inbox.bank, len(sent))
        self._count_traffic(sent)
        return self.inbox

    def _count_traffic(self, sent: Tensor) -> None:
        """Count the values along each edge, or along the edges whose receivers fetch a message."""
        if self._fetched is None:
            self._width += self.inbox.bank.shape[1]
        self._count += 1
        fetches = getattr(self._rule, "fetches", None)
        if fetches is not None and self._count == 1:
            self._fetched = fetches(sent, self.inbox, **self._inputs)

    def _forge_as_sent(self, sent: Tensor) -> Lies | Tensor | None:
        """Lies like the messages that benign clients send.

        A rule may exchange something else than models, such as sketches, and say what clients with
        given models send. Then lies are models, forged once a round, and sent as that: lies that
        do not agree over the exchanges would be weaker attacks.
        """
        as_sent = getattr(self._rule, "as_sent", None)
        if as_sent is None:
            return self._forge(sent)
        if self._count == 0:
            found = self._forge(self._trained)
            self._lies = None if found is None else as_lies(found, self._trained)
        if self._lies is None:
            return None
        return replace(self._lies, rows=as_sent(self._count, self._lies.rows))

    def _forge(self, sent: Tensor) -> Lies | Tensor | None:
        attack = self._settings.attack
        if not isinstance(attack, MessageAttack) or not self._settings.malicious.any():
            return None
        known = self._knowledge(sent)
        # Everything large that an attack is shown is shared, not copied, with benign clients.
        shown = {
            "models": known.models,
            "previous": known.previous,
            "origin": known.origin,
            "topology.senders": self._routes.topology.senders,
            "topology.mask": self._routes.topology.mask,
            "inputs['update']": self._inputs.get("update"),
        }
        with unmodified_by("attack", self._before.t, **shown):
            return attack.forge(known)

    def _knowledge(self, sent: Tensor) -> Knowledge:
        """The knowledge of the attack: everything, the worst case for a defense."""
        t = self._before.t
        models = self._before.models
        sends_updates = getattr(self._rule, "sends_updates", None)
        updates = sends_updates is not None and sends_updates(self._count, t)
        inputs = self._inputs.copy()
        # A copy of the generator: an attack that asks the victims' rule must not change what the
        # victims draw later.
        if "generator" in inputs:
            inputs["generator"] = inputs["generator"].clone_state()
        inputs.pop("out", None)  # the victims' memory
        if "gossip" in inputs and self._routes.gossip is not None:
            # An attack asks the rule about the whole graph, idle clients included.
            inputs["gossip"] = self._routes.gossip
        return Knowledge(
            models=sent,
            topology=self._routes.topology,
            malicious=self._settings.malicious,
            previous=torch.zeros_like(sent) if updates else models,
            rule=self._rule,
            inputs=inputs,
            generator=stream(self._settings.seed, "attack", t, self._count),
            origin=models if updates else None,
            memory=self._workspace.memory,
        )

    def values(self, out: Aggregated) -> dict[str, float]:
        """Traffic per client, and the shares of messages that were accepted."""
        mean, most = self._routes.messages_sent
        bank = self.inbox.bank
        # Each exchange sends one row of a bank along every edge, or along those that are fetched.
        size = self._width * bank.element_size()
        values = {"bytes": size * mean, "bytes_max": size * most}
        if self._fetched is not None:
            others = self._fetched & self.inbox.from_others
            fetched = torch.bincount(self.inbox.senders[others], minlength=self._settings.n)
            size = bank.shape[1] * bank.element_size()
            values["bytes"] += size * float(fetched.double().mean())
            values["bytes_max"] += size * float(fetched.max())
        rates = acceptance(out.weights, self.inbox, self._settings.malicious)
        if rates is not None:
            values["accepted_benign"], values["accepted_malicious"] = rates
        if out.weights is not None:
            values["isolated"] = self._isolated(out.weights)
        return values

    def _isolated(self, weights: Tensor) -> float:
        """How many benign clients received messages of others and accepted none."""
        # PerClient marks clients whose rule has no weights with NaN.
        received = self.inbox.from_others & ~weights.isnan()
        accepted = (received & (weights > 0)).any(1)
        return float((received.any(1) & ~accepted & ~self._settings.malicious).sum())
