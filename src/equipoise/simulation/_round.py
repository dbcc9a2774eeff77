"""One round: a function from one state to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.rng import stream
from equipoise._utils.validation import describe
from equipoise.rules import Rule, mix_and_check
from equipoise.simulation._evaluation import evaluate, is_evaluated
from equipoise.simulation._exchanges import Exchanges
from equipoise.simulation._round_inputs import wanted_by
from equipoise.simulation._routes import Routes
from equipoise.simulation._settings import RuleLike, Settings
from equipoise.simulation._timing import Stopwatch
from equipoise.simulation._validation import unmodified_by
from equipoise.simulation._workspace import Workspace
from equipoise.simulation.record import Round
from equipoise.simulation.state import State
from equipoise.types import Aggregated, RoundInputs


@torch.no_grad()
def play_round(settings: Settings, before: State, workspace: Workspace) -> State:
    """The state after one more round of Algorithm 3 of the BALANCE paper.

    The trainer is the only object that is modified. The caller restores it if the round fails.
    """
    t = before.t
    # Draw all settings first: an invalid one fails before the time for training is spent.
    topology = settings.topology_at(t)
    rule = settings.rule_at(t)
    alpha = settings.part.of(settings.alpha_at(t, rule))
    watch = Stopwatch(before.models.device)
    with watch.phase("train"):
        bank = workspace.new_bank(before.models)
        own = _train(settings, before, bank[: len(before.models)])
    if rule is None:
        out = Aggregated(own)
        models = own
        finite = False  # nothing has looked at them
        values: dict[str, float] = {}
    else:
        routes = workspace.routes(settings, topology, before.models)
        inputs = _round_inputs(settings, before, rule, routes, own)
        memory = workspace.memory.take(own, *own.shape)
        # A plain function may keep its result, which is mixed in place below.
        if isinstance(rule, Rule):
            inputs["out"] = memory
        exchanges = Exchanges(settings, before, workspace, routes, rule, inputs, own, bank, watch)
        # A multi-exchange rule may return other models to mix with than the trained ones.
        own, out = exchanges.run()
        with watch.phase("mix"):
            # w_i^{t+1} = alpha w_i^{t+1/2} + (1 - alpha) AGG_i
            if out.model is memory and out.state is not None:
                memory = workspace.memory.take(own, *own.shape)  # the state may hold the aggregate
            models, finite = mix_and_check(own, out.model, alpha, out=memory)
        with watch.phase("bookkeeping"):
            values = exchanges.values(out)
    with watch.phase("bookkeeping"):
        if settings.trained is not None:
            values["idle"] = float(settings.n - len(settings.trained))
        diverged = _newly_diverged(settings, before, models, finite)
    clients: dict[str, Any] = {}
    if is_evaluated(t, settings.evaluate_every, before.total):
        with watch.phase("measure"):
            clients = _measure(settings, models)
            # Malicious clients can be arbitrarily far away: they do not count.
            values["consensus"] = settings.part.all_consensus(models, ~settings.malicious)
    record = Round(t, clients, values, watch.seconds, diverged)
    history = before.history.extended(record)
    return replace(before, models=models, t=t + 1, rule_state=out.state, history=history)


def _train(settings: Settings, before: State, memory: Tensor) -> Tensor:
    """The models after local training, in ``memory`` if the trainer can write to it."""
    trainer = settings.trainer
    models = before.models
    # Attacks on updates, and rolling back, need the models from before training.
    with torch.enable_grad(), unmodified_by("trainer", before.t, models=models):
        if hasattr(trainer, "train_into"):
            trainer.train_into(memory, models, before.t, clients=settings.trained)
            return memory
        trained = trainer(models, before.t)
    if (
        not isinstance(trained, Tensor)
        or trained.shape != models.shape
        or trained.dtype != models.dtype
    ):
        expected = f"models like {describe(models)}"
        raise ValueError(f"trainer must return {expected}, found {describe(trained)}")
    # A model with a graph would keep the activations of all rounds in memory.
    return trained.detach()


def _round_inputs(
    settings: Settings, before: State, rule: RuleLike, routes: Routes, trained: Tensor
) -> RoundInputs:
    """All inputs that the rule may need."""
    part = settings.part
    t = before.t
    tolerated = part.of(settings.tolerated_by(rule, routes.malicious_neighbors))
    inputs: RoundInputs = {"t": t, "tolerated": tolerated, "state": before.rule_state}
    if before.total is not None:
        inputs["total"] = before.total
    wanted = wanted_by(rule)
    if "gossip" in wanted and routes.gossip_received is not None:
        inputs["gossip"] = part.of(routes.gossip_received)
    if "generator" in wanted:
        # A new stream for each round: a resumed run draws the same numbers.
        inputs["generator"] = stream(settings.seed, "aggregation", t)
    if "loss_of" in wanted and settings.loss_of is not None:
        inputs["loss_of"] = settings.loss_of(t)
    if "samples" in wanted and hasattr(settings.trainer, "samples"):
        inputs["samples"] = settings.trainer.samples
    # A tensor as large as the models, so only for rules that may look at it.
    if "update" in wanted:
        inputs["update"] = trained - before.models
    return inputs


def _newly_diverged(
    settings: Settings, before: State, models: Tensor, finite: bool
) -> tuple[int, ...]:
    """Benign clients, of all processes, whose models are not finite for the first time."""
    part = settings.part
    # The norm of finite models may overflow, in float64 only.
    if not any(part.all_sums([not finite or models.dtype == torch.float64])):
        return ()
    broken = ~kernels.are_finite(models) & ~part.of(settings.malicious)
    clients = part.all_rows(broken.byte()).nonzero().flatten().tolist()
    return tuple(client for client in clients if client not in before.history.diverged)


def _measure(settings: Settings, models: Tensor) -> dict[str, list[float]]:
    """The metrics of all clients by name, in the process that keeps the history."""
    part = settings.part
    idle = part.of(settings.idle)
    metrics = settings.metrics.items()
    measured = {name: evaluate(name, metric, models, idle, part) for name, metric in metrics}
    return measured if part.is_first else {}
