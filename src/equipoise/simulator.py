"""Decentralized training of n clients on one machine, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import checkpoints, kernels
from equipoise.attacks.combinations import poisoners
from equipoise.attacks.knowledge import Knowledge
from equipoise.exchange import converse
from equipoise.history import History, Round
from equipoise.inbox import Inbox, describe
from equipoise.lies import Clients, as_mask
from equipoise.metrics import acceptance, consensus_error
from equipoise.mixing import mix
from equipoise.progress import Progress
from equipoise.random_graphs import check_count
from equipoise.randomness import stream
from equipoise.schedule import EachRound
from equipoise.topology import Topology
from equipoise.types import (
    Aggregated,
    Aggregator,
    Attack,
    DataAttack,
    MessageAttack,
    MultiExchange,
    RoundInputs,
    Trainer,
)

Rule = Aggregator | MultiExchange
Metric = Callable[[Tensor], Tensor]


class Simulator:
    r"""Clients that train, exchange models along a graph, aggregate and mix: Algorithm 3 of the BALANCE paper.

    Every round t, each client i trains its model to :math:`w_i^{t+1/2}`, sends it to its neighbours, aggregates what it
    received by the rule, and keeps a share alpha of its own:
    :math:`w_i^{t+1} = \alpha w_i^{t+1/2} + (1 - \alpha) \mathrm{AGG}_i`. Malicious clients train and aggregate like the
    others, on poisoned data if the attack is one on data, and send what the attack forges.

    The simulator only puts the parts together; each of them also works in a loop of your own. A run depends on the
    seed and on nothing else: two runs on one machine are equal bit by bit, also if one was interrupted and resumed.

    Args:
        trainer: local training, ``trainer(models, t) -> models``: a `LocalSGD`, or any function.
        topology: the graph, or a function of the round, or an `EachRound`. With ``topology.with_self_loops()`` and
            ``alpha=0`` a client's own model is one of those that are aggregated.
        rule: the rule of all clients, a `PerClient`, an `EachRound` that draws one, or None for local training only.
        models: (n, d) the initial models.
        attack: what malicious clients do; nothing if not given.
        malicious: bool mask (n,) or client ids.
        alpha: share of own in the mixture: a number, one per client (n,), a function of the round, or an `EachRound`.
        total: how many rounds there will be, which BALANCE must know; `run` sets it if it is not given.
        metrics: what to measure of every client's model, by name: functions from models (n, d) to values (n,).
        every: measure after every that many rounds, or after the rounds in a container, and after the last one.
        tolerated: how many malicious neighbours rules expect: a number, or one per client (n,). If not given, the
            true number in each round's graph, as the BALANCE paper has it; 0 without an attack.
        loss_of: for UBAR, a function of the round that returns ``loss_of`` of `RoundInputs`; by default the trainer's.
        keep_nonfinite: let messages with NaN or infinities through to the rules, to reproduce papers that did.
        seed: decides everything that is random here; the trainer has its own.
        name: of the history.

    >>> goals = torch.tensor([[1.0], [2.0], [3.0], [50.0]])
    >>> simulator = eq.Simulator(
    ...     trainer=lambda models, t: models + 0.5 * (goals - models),
    ...     topology=eq.Topology.complete(4),
    ...     rule=eq.Median(),
    ...     models=torch.zeros(4, 1),
    ...     malicious=[3],
    ...     metrics={"distance": lambda models: (models - 2).abs().sum(1)},
    ... )
    >>> history = simulator.run(20)
    >>> history.worst("distance")[1][-1] < 1
    True
    """

    def __init__(
        self,
        trainer: Trainer,
        topology: Topology | Callable[[int], Topology] | EachRound[Topology],
        rule: Rule | EachRound[Rule] | None,
        models: Tensor,
        *,
        attack: Attack | None = None,
        malicious: Clients | None = None,
        alpha: float | Tensor | Callable[[int], float | Tensor] | EachRound[float | Tensor] = 0.5,
        total: int | None = None,
        metrics: Mapping[str, Metric] | None = None,
        every: int | Container[int] = 1,
        tolerated: int | Tensor | None = None,
        loss_of: Callable[[int], Callable[..., Tensor]] | None = None,
        keep_nonfinite: bool = False,
        seed: int = 0,
        name: str = "",
    ) -> None:
        if not isinstance(models, Tensor) or models.dim() != 2 or not models.is_floating_point():
            raise ValueError(f"models must be a floating-point tensor of shape (n, d), found {describe(models)}")
        if total is not None:
            check_count("total", total, 1)
        if isinstance(every, int):
            check_count("every", every, 1)
        if metrics is not None and not isinstance(metrics, Mapping):
            raise ValueError(f"metrics must be functions by name, a dict, found {describe(metrics)}")
        _check_attack(attack, malicious)
        if not isinstance(rule, EachRound):
            _check_rule(rule)
        self.topology, self.rule, self.attack, self.alpha = topology, rule, attack, alpha
        self.models, self.t, self.total = models.detach().clone(), 0, total
        self.state: Any = None
        self.malicious = as_mask(malicious, len(models)).to(models.device)
        self.metrics, self.every, self.tolerated, self.seed = dict(metrics or {}), every, tolerated, seed
        self.keep_nonfinite = keep_nonfinite
        self.trainer = _poisoned(trainer, attack, self.malicious)
        self.loss_of = loss_of or getattr(self.trainer, "loss_of", None)
        self.history = History(len(models), self.malicious, name)
        self._seconds: dict[str, float] = {}

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.models)

    # Algorithm 3: one round.

    @torch.no_grad()
    def step(self) -> Round:
        """One round; returns its record, which is also added to the history. Nothing changes if it fails."""
        self._seconds = {}
        with self._restored_on_error():
            t, topology, rule, alpha = self.t, self._topology(), self._rule(), self._alpha()
            with self._phase("train"):
                trained = self._trained(t)
            exchange, own, out = None, trained, Aggregated(trained)
            if rule is not None:
                exchange = Exchange(self, topology, rule, self._inputs(t, topology, rule, trained))
                own, out = exchange.converse(trained)
            with self._phase("mix"):
                models = own if rule is None else mix(own, out.model, alpha)
            record = self._record(t, models, out, exchange)
            self.history.add(record)
            self.models, self.t, self.state = models, t + 1, out.state
        return record

    def run(
        self,
        rounds: int | None = None,
        *,
        progress: bool = False,
        checkpoint: str | Path | None = None,
        save_every: int = 100,
    ) -> History:
        """Run so many rounds more, or all that are left of ``total``; returns the history.

        With ``checkpoint``, a file, the run is saved at the start, every ``save_every`` rounds, at the end, and when it
        is interrupted; if the file exists already, the run goes on from there, and ``rounds`` counts from the start.
        Ctrl-C ends a run as it was before the round: ``history`` holds all that are complete, and `run` goes on.
        """
        kept = checkpoints.Kept(self, checkpoint, save_every)
        with self._restored_on_error():
            end = self._end(rounds, resumes=checkpoint is not None)
            kept.resume(end)
        with kept, Progress(end, "round", done=self.t) if progress else _Silence() as bar:
            while self.t < end:
                self.step()
                bar.advance(self._note)
                kept.advance()
        return self.history

    def save(self, path: str | Path) -> None:
        """Write all that a run needs to go on to a file, as data without code; see `load`."""
        checkpoints.save(path, self)

    def load(self, path: str | Path) -> None:
        """Go on from a checkpoint of a simulator that was made with the same arguments."""
        with self._restored_on_error():
            checkpoints.load(path, self)

    def _end(self, rounds: int | None, resumes: bool) -> int:
        """The round to stop before."""
        if rounds is None:
            if self.total is None:
                raise ValueError("rounds must be given, here or as total of the Simulator, found neither")
            return self.total
        check_count("rounds", rounds, 1)
        end = rounds if resumes else self.t + rounds
        self.total = self.total or end
        if end > self.total:
            raise ValueError(f"rounds must end by total = {self.total}, found {rounds} from round {self.t}")
        return end

    # What changes from round to round.

    def _topology(self) -> Topology:
        topology = self._drawn("topology", self.topology)
        if not isinstance(topology, Topology) or topology.n != self.n:
            found = f"{topology.n} clients" if isinstance(topology, Topology) else type(topology).__name__
            raise ValueError(f"topology must be a Topology of {self.n} clients, as models has, found {found}")
        return topology

    def _rule(self) -> Rule | None:
        rule = self.rule.at(self.t, seed=self.seed, name="rule") if isinstance(self.rule, EachRound) else self.rule
        _check_rule(rule)
        return rule

    def _alpha(self) -> float | Tensor:
        alpha: float | Tensor = self._drawn("alpha", self.alpha)
        return alpha

    def _drawn(self, name: str, setting: Any) -> Any:
        """A setting that may be a function of the round."""
        if isinstance(setting, EachRound):
            return setting.at(self.t, seed=self.seed, name=name)
        return setting(self.t) if callable(setting) else setting

    def _trained(self, t: int) -> Tensor:
        with torch.enable_grad():
            trained = self.trainer(self.models, t)
        if not isinstance(trained, Tensor) or (trained.shape, trained.dtype) != (self.models.shape, self.models.dtype):
            raise ValueError(f"trainer must return models like {describe(self.models)}, found {describe(trained)}")
        return trained.detach()

    def _inputs(self, t: int, topology: Topology, rule: Rule, trained: Tensor) -> RoundInputs:
        """All that a rule may ask for."""
        inputs: RoundInputs = {"t": t, "tolerated": self._tolerated(topology), "state": self.state}
        inputs["generator"] = stream(self.seed, "aggregation", t)
        if self.total is not None:
            inputs["total"] = self.total
        if self.loss_of is not None:
            inputs["loss_of"] = self.loss_of(t)
        if hasattr(self.trainer, "samples"):
            inputs["samples"] = self.trainer.samples
        if isinstance(rule, MultiExchange):
            inputs["update"] = trained - self.models
        return inputs

    def _tolerated(self, topology: Topology) -> int | Tensor:
        if self.tolerated is not None:
            return self.tolerated
        return 0 if self.attack is None else topology.malicious_neighbors(self.malicious).to(self.models.device)

    # What is written down.

    def _record(self, t: int, models: Tensor, out: Aggregated, exchange: Exchange | None) -> Round:
        with self._phase("bookkeeping"):
            finite = kernels.are_finite(models)
            values = {} if exchange is None else exchange.values(out)
            broken = (~finite & ~self.malicious).nonzero().flatten().tolist()
        clients: dict[str, Any] = {}
        if self._is_measured(t):
            with self._phase("measure"):
                clients = {name: _measured(name, metric, models) for name, metric in self.metrics.items()}
                values["consensus"] = consensus_error(models[~self.malicious])
        news = tuple(client for client in broken if client not in self.history.diverged)
        return Round(t, clients, values, self._seconds, news)

    def _is_measured(self, t: int) -> bool:
        last = self.total is not None and t + 1 == self.total
        return last or ((t + 1) % self.every == 0 if isinstance(self.every, int) else t in self.every)

    def _note(self) -> str:
        """What a progress bar says about the last round that was measured."""
        benign = self.history.benign
        last = self.history.evaluated[-1].clients if self.history.evaluated else {}
        notes = [f"worst {name} {torch.tensor(values)[list(benign)].max():.4g}" for name, values in last.items()]
        if self.history.diverged:
            notes.append(f"{len(self.history.diverged)} benign clients not finite")
        elif self.history[-1].alone:
            notes.append("nobody accepted")
        return ", ".join(notes)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Count the time of a block as that of a phase."""
        start = time.perf_counter()
        yield
        if self.models.device.type == "cuda":
            torch.cuda.synchronize(self.models.device)
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    @contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        """What fails, or is interrupted anywhere, leaves no trace."""
        before, rounds = (self.models, self.t, self.state, self.total, self.history), len(self.history)
        trainer = self.trainer.state_dict() if hasattr(self.trainer, "state_dict") else None
        try:
            yield
        except BaseException:
            self.models, self.t, self.state, self.total, self.history = before
            if len(self.history) > rounds:
                self.history = History(self.n, self.malicious, self.history.name, list(self.history)[:rounds])
            if trainer is not None:
                self.trainer.load_state_dict(trainer)  # type: ignore[attr-defined]
            raise


class Exchange:
    """The messages of one round: forged, delivered and counted."""

    def __init__(self, simulator: Simulator, topology: Topology, rule: Rule, inputs: RoundInputs) -> None:
        self.simulator, self.topology, self.rule, self.inputs = simulator, topology, rule, inputs
        self.count = 0

    def converse(self, trained: Tensor) -> tuple[Tensor, Aggregated]:
        """All exchanges of the round: the models to mix with, and the aggregates."""
        seconds = self.simulator._seconds
        with self.simulator._phase("aggregate"):
            own, out = converse(self.rule, trained, self.deliver, **self.inputs)
        seconds["aggregate"] -= seconds.get("forge", 0.0) + seconds.get("deliver", 0.0)
        return own, out

    def deliver(self, sent: Tensor) -> Inbox:
        """What everybody receives: the truth, or what malicious clients say instead."""
        simulator = self.simulator
        with simulator._phase("forge"):
            lies = None
            if isinstance(simulator.attack, MessageAttack) and simulator.malicious.any():
                lies = simulator.attack.forge(self._known(sent))
        with simulator._phase("deliver"):
            keep = simulator.keep_nonfinite
            self.inbox: Inbox = self.topology.deliver(sent, lies, simulator.malicious, keep_nonfinite=keep)
        self.count += 1
        return self.inbox

    def _known(self, sent: Tensor) -> Knowledge:
        """Everything: updates, if they are what is sent, start from nothing."""
        simulator, t = self.simulator, self.simulator.t
        says = getattr(self.rule, "sends_updates", None)
        updates = says is not None and says(self.count, t)
        return Knowledge(
            models=sent,
            topology=self.topology,
            malicious=simulator.malicious,
            previous=torch.zeros_like(sent) if updates else simulator.models,
            rule=self.rule,
            inputs=self.inputs,
            generator=stream(simulator.seed, "attack", t, self.count),
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
        return values


class _Silence:
    """A progress bar that shows nothing."""

    def __enter__(self) -> _Silence:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, note: object) -> None:
        pass


def _check_rule(rule: object) -> None:
    if isinstance(rule, type):
        raise ValueError(f"rule must be a rule, found the class {rule.__name__}; {rule.__name__}() makes one")
    if rule is not None and not isinstance(rule, Aggregator | MultiExchange):
        raise ValueError(f"rule must be a rule such as Median(), found {describe(rule)}")


def _check_attack(attack: object, malicious: object) -> None:
    if isinstance(attack, type):
        raise ValueError(f"attack must be an attack, found the class {attack.__name__}; {attack.__name__}() makes one")
    if attack is not None and not isinstance(attack, DataAttack | MessageAttack):
        raise ValueError(f"attack must have a method forge or a method poison, found {describe(attack)}")
    if attack is not None and malicious is None:
        raise ValueError("malicious must say which clients attack, found None; [] is nobody")


def _measured(name: str, metric: Metric, models: Tensor) -> list[float]:
    """What a metric says of every client."""
    values = metric(models)
    if not isinstance(values, Tensor) or values.shape != (len(models),):
        expected = f"a tensor ({len(models)},) of one value per client"
        raise ValueError(f"metrics[{name!r}] must return {expected}, found {describe(values)}")
    measured: list[float] = values.tolist()
    return measured


def _poisoned(trainer: Trainer, attack: Attack | None, malicious: Tensor) -> Trainer:
    """The trainer, with poisoned data where the attack is one on data."""
    clients = malicious.nonzero().flatten().tolist()
    if attack is None or not any(poisoners(attack, client) for client in clients):
        return trainer
    if not hasattr(trainer, "poisoned"):
        raise ValueError(
            f"trainer must have a method poisoned(attack, malicious), as LocalSGD has, for {type(attack).__name__}, "
            f"an attack on data, found {type(trainer).__name__}"
        )
    poisoned: Trainer = trainer.poisoned(attack, malicious)
    return poisoned
