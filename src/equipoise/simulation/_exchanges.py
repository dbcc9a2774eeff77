"""The messages that clients send each other in one round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise.attacks import Knowledge, MessageAttack, uses_models
from equipoise.messages import Inbox, Lies, as_lies
from equipoise.rules import run_exchanges, serving
from equipoise.simulation._routes import Routes
from equipoise.simulation._settings import RuleLike, Settings
from equipoise.simulation._timing import Stopwatch
from equipoise.simulation._validation import unmodified_by
from equipoise.simulation._workspace import Workspace
from equipoise.simulation.state import State
from equipoise.types import Aggregated, RoundInputs


@dataclass(eq=False)
class Exchanges:
    """All exchanges of one round: messages are forged, delivered and counted."""

    settings: Settings
    before: State
    workspace: Workspace
    routes: Routes
    rule: RuleLike
    inputs: RoundInputs
    trained: Tensor
    bank: Tensor  # memory for the messages
    watch: Stopwatch
    inbox: Inbox = field(init=False)  # of the last exchange
    _count: int = field(default=0, init=False)
    _width: int = field(default=0, init=False)  # parameters that went along each edge
    _lies: Lies | None = field(default=None, init=False)
    _fetched: Tensor | None = field(default=None, init=False)

    def run(self) -> tuple[Tensor, Aggregated]:
        """Run all exchanges: returns the models to mix with, and the aggregates."""
        ids = self.settings.part.ids(self.settings.n)
        rule = self.settings.part.rule_of(self.rule)
        # Receivers are numbered from 0 in each process; warnings must name the clients.
        with self.watch.phase("aggregate"), serving(ids):
            return run_exchanges(rule, self.trained, self._exchange, **self.inputs)

    def _exchange(self, sent: Tensor) -> Inbox:
        """Send messages along the graph; malicious clients may replace theirs."""
        with self.watch.phase("deliver"):
            heard, bank = self.routes.hear(sent, self.bank, self.workspace.memory)
        with self.watch.phase("forge"):
            # Timed as a phase of its own: the time of an attack is not a cost of the rule.
            lies = self._forge_as_sent(sent)
        with self.watch.phase("deliver"):
            self.inbox = self.routes.deliver(heard, lies, bank, self.workspace.memory)
            self.workspace.note_bank(self.inbox.bank, len(sent))
        self._count_traffic(sent)
        return self.inbox

    def _count_traffic(self, sent: Tensor) -> None:
        """Count the values along each edge, or along the edges whose receivers fetch a message."""
        if self._fetched is None:
            self._width += self.inbox.bank.shape[1]
        self._count += 1
        fetches = getattr(self.rule, "fetches", None)
        if fetches is not None and self._count == 1:
            self._fetched = fetches(sent, self.inbox, **self.inputs)

    def _forge_as_sent(self, sent: Tensor) -> Lies | None:
        """Lies like the messages that benign clients send.

        A rule may exchange something else than models, such as sketches, and say what clients with
        given models send. Then lies are models, forged once a round, and sent as that: lies that
        do not agree over the exchanges would be weaker attacks.
        """
        as_sent = getattr(self.rule, "as_sent", None)
        if as_sent is None:
            return self._forge(sent)
        if self._count == 0:
            self._lies = self._forge(self.trained)
        if self._lies is None:
            return None
        return replace(self._lies, rows=as_sent(self._count, self._lies.rows))

    def _forge(self, sent: Tensor) -> Lies | None:
        attack = self.settings.attack
        if not isinstance(attack, MessageAttack) or not self.settings.has_malicious:
            return None
        known = self._knowledge(sent, attack)
        # Everything large that an attack is shown is shared, not copied, with benign clients.
        shown = {
            "models": known.models,
            "previous": known.previous,
            "origin": known.origin,
            "topology.senders": self.routes.topology.senders,
            "topology.mask": self.routes.topology.mask,
            "inputs['update']": self.inputs.get("update"),
        }
        if not self._shows_models(attack):
            shown = {}
        # The attack may ask the rule about all clients.
        with unmodified_by("attack", self.before.t, **shown), serving(None):
            lies = attack.forge(known)
        return None if lies is None else as_lies(lies, known.models)  # checks dtype and shape

    def _shows_models(self, attack: MessageAttack) -> bool:
        """Whether the models of all clients are gathered, or here, for the attack."""
        return self.settings.part.is_alone or uses_models(attack)

    def _knowledge(self, sent: Tensor, attack: MessageAttack) -> Knowledge:
        """The knowledge of the attack: everything, the worst case for a defense."""
        t = self.before.t
        sends_updates = getattr(self.rule, "sends_updates", None)
        updates = sends_updates is not None and sends_updates(self._count, t)
        if self._shows_models(attack):
            sent = self.settings.part.all_rows(sent)
            models = self.settings.part.all_rows(self.before.models)
            previous = torch.zeros_like(sent) if updates else models
        else:
            # One row in memory.
            sent = models = previous = torch.zeros_like(sent[:1]).expand(self.settings.n, -1)
        return Knowledge(
            models=sent,
            topology=self.routes.topology,
            malicious=self.settings.malicious,
            previous=previous,
            rule=self.rule,
            inputs=self._inputs_of_all(attack),
            generator=stream(self.settings.seed, "attack", t, self._count),
            origin=models if updates else None,
            memory=self.workspace.memory,
        )

    def _inputs_of_all(self, attack: MessageAttack) -> RoundInputs:
        """The round inputs of all clients."""
        inputs = self.inputs.copy()
        # A copy of the generator: an attack that asks the victims' rule must not change what the
        # victims draw later.
        if "generator" in inputs:
            inputs["generator"] = inputs["generator"].clone_state()
        inputs.pop("out", None)  # the victims' memory
        inputs["tolerated"] = self.settings.tolerated_by(self.rule, self.routes.malicious_neighbors)
        if "gossip" in inputs and self.routes.gossip is not None:
            # An attack asks the rule about the whole graph, idle clients included.
            inputs["gossip"] = self.routes.gossip
        update = inputs.pop("update", None)
        if update is not None and self._shows_models(attack):
            inputs["update"] = self.settings.part.all_rows(update)
        if "loss_of" in inputs:
            inputs["loss_of"] = self.settings.part.all_losses(inputs["loss_of"])
        return inputs

    def values(self, out: Aggregated) -> dict[str, float]:
        """Traffic per client, and the shares of messages that were accepted."""
        mean, most = self.routes.messages_sent
        bank = self.inbox.bank
        # Each exchange sends one row of a bank along every edge, or along those that are fetched.
        size = self._width * bank.element_size()
        values = {"bytes": size * mean, "bytes_max": size * most}
        if self._fetched is not None:
            size = bank.shape[1] * bank.element_size()
            fetched = self._fetched_from()
            values["bytes"] += size * float(fetched.double().mean())
            values["bytes_max"] += size * float(fetched.max())
        has_weights, isolated, *counts = self.settings.part.all_sums(self._accepted(out.weights))
        if has_weights:
            kinds = ("benign", "malicious")
            for kind, accepted, received in zip(kinds, counts[::2], counts[1::2], strict=True):
                values[f"accepted_{kind}"] = accepted / received if received else math.nan
            values["isolated"] = float(isolated)
        return values

    def _fetched_from(self) -> Tensor:
        """(n,) how many others have fetched the message of each client."""
        assert self._fetched is not None
        senders = self.inbox.senders[self._fetched & self.inbox.from_others]
        counts = torch.bincount(senders, minlength=self.settings.n)
        return torch.tensor(self.settings.part.all_sums(counts.tolist()), device="cpu")

    def _accepted(self, weights: Tensor | None) -> list[int]:
        """What `acceptance` and the number of isolated clients depend on, as whole numbers.

        Messages to benign clients of this process count: those of benign senders that they
        accepted and received, and those of malicious ones. Clients are isolated that received
        messages and accepted none. The first number is 0 for a rule without weights.
        """
        if weights is None:
            return [0] * 6
        # PerClient marks clients whose rule has no weights with NaN.
        received = self.routes.counted & ~weights.isnan()
        accepted = received & (weights > 0)
        isolated = received.any(2).any(0) & ~accepted.any(2).any(0)
        counts = torch.stack([accepted.sum((1, 2)), received.sum((1, 2))], 1)
        # One copy from the device for all counts.
        return [1, *torch.cat([isolated.sum()[None], counts.flatten()]).tolist()]
