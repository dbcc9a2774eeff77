"""What clients send each other in one round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise.attacks import Knowledge, MessageAttack
from equipoise.messages import Inbox
from equipoise.metrics import acceptance
from equipoise.rules import Aggregator, MultiExchange, run_exchanges
from equipoise.simulation._timing import Stopwatch
from equipoise.simulation._validation import unchanged
from equipoise.topology import Topology
from equipoise.types import Aggregated, RoundInputs

if TYPE_CHECKING:
    from equipoise.simulation.simulator import Simulator

Rule = Aggregator | MultiExchange


class Messages:
    """The messages of one round: forged, delivered and counted."""

    def __init__(
        self, simulator: Simulator, topology: Topology, rule: Rule, inputs: RoundInputs, watch: Stopwatch
    ) -> None:
        self.simulator, self.topology, self.rule, self.inputs = simulator, topology, rule, inputs
        self.watch, self.count = watch, 0

    def converse(self, trained: Tensor) -> tuple[Tensor, Aggregated]:
        """All exchanges of the round: the models to mix with, and the aggregates."""
        seconds = self.watch.seconds
        with self.watch.phase("aggregate"):
            own, out = run_exchanges(self.rule, trained, self.deliver, **self.inputs)
        seconds["aggregate"] -= seconds.get("forge", 0.0) + seconds.get("deliver", 0.0)
        return own, out

    def deliver(self, sent: Tensor) -> Inbox:
        """What everybody receives: the truth, or what malicious clients say instead."""
        simulator = self.simulator
        with self.watch.phase("forge"):
            lies = None
            if isinstance(simulator.attack, MessageAttack) and simulator.malicious.any():
                known = self._known(sent)
                shown = {name: getattr(known, name) for name in ("models", "previous", "origin")}
                graph = {"topology.senders": self.topology.senders, "topology.mask": self.topology.mask}
                update = {"inputs['update']": self.inputs.get("update")}
                with unchanged("attack", **shown, **graph, **update):
                    lies = simulator.attack.forge(known)
        with self.watch.phase("deliver"):
            keep = simulator.keep_nonfinite
            self.inbox: Inbox = self.topology.deliver(sent, lies, simulator.malicious, keep_nonfinite=keep)
        self.count += 1
        return self.inbox

    def _known(self, sent: Tensor) -> Knowledge:
        """Everything; updates, if they are what is sent, start from nothing."""
        simulator, t = self.simulator, self.simulator.t
        says = getattr(self.rule, "sends_updates", None)
        updates = says is not None and says(self.count, t)
        inputs = self.inputs.copy()
        inputs["generator"] = inputs["generator"].clone_state()  # what victims draw is theirs, however often one asks
        return Knowledge(
            models=sent,
            topology=self.topology,
            malicious=simulator.malicious,
            previous=torch.zeros_like(sent) if updates else simulator.models,
            rule=self.rule,
            inputs=inputs,
            generator=stream(simulator.seed, "attack", t, self.count),
            origin=simulator.models if updates else None,
        )

    def values(self, out: Aggregated) -> dict[str, float]:
        """How much was sent, and whose messages were accepted."""
        senders, receivers = self.topology.edges().T
        messages = torch.bincount(senders[senders != receivers], minlength=self.topology.n)
        size = self.count * self.inbox.bank.shape[1] * self.inbox.bank.element_size()
        values = {"bytes": size * float(messages.double().mean()), "bytes_max": float(size * messages.max())}
        rates = acceptance(out.weights, self.inbox, self.simulator.malicious)
        if rates is not None:
            values |= dict(zip(("accepted_benign", "accepted_malicious"), rates, strict=True))
        if out.weights is not None:
            values["isolated"] = self._isolated(out.weights)
        return values

    def _isolated(self, weights: Tensor) -> float:
        """How many benign clients heard others and accepted nobody."""
        heard = self.inbox.from_others & ~weights.isnan()
        accepted = (heard & (weights > 0)).any(1)
        return float((heard.any(1) & ~accepted & ~self.simulator.malicious).sum())
