"""Decentralized training of n clients on one machine, round by round."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.formatting import call
from equipoise._utils.progress import Progress, Silence
from equipoise._utils.rng import stream
from equipoise._utils.validation import Clients, as_counts, as_mask, check_count, check_flag, describe
from equipoise.attacks import Attack
from equipoise.metrics import consensus_error
from equipoise.rules import as_shares, at_most_one_warning, mix
from equipoise.simulation import checkpoints
from equipoise.simulation._evaluation import Metric, is_measured, measured
from equipoise.simulation._round import Messages
from equipoise.simulation._round import Rule as Rule
from equipoise.simulation._round_inputs import expected, wants_update
from equipoise.simulation._timing import Stopwatch
from equipoise.simulation._validation import (
    check_attack,
    check_options,
    check_rule,
    check_topology,
    is_drawn,
    poisoned,
    unchanged,
)
from equipoise.simulation.history import History
from equipoise.simulation.record import Round
from equipoise.simulation.schedule import EachRound
from equipoise.topology import Topology
from equipoise.training import Trainer
from equipoise.types import Aggregated, RoundInputs


class Simulator:
    r"""Clients that train, exchange models along a graph, aggregate and mix: Algorithm 3 of the BALANCE paper.

    Every round t, each client i trains its model to :math:`w_i^{t+1/2}`, sends it to its neighbours, aggregates what it
    received by the rule, and keeps a share alpha of its own:
    :math:`w_i^{t+1} = \alpha w_i^{t+1/2} + (1 - \alpha) \mathrm{AGG}_i`. Malicious clients train and aggregate like the
    others, on poisoned data if the attack is one on data, and send what the attack forges.

    The simulator only puts the parts together; each of them also works in a loop of your own. A run depends on the
    seed and on nothing else: two runs on one machine are equal bit by bit, also if one was interrupted and resumed.

    Args:
        trainer: local training, ``trainer(models, t) -> models``: a `LocalSGD`, of which a run takes a copy that
            remembers nothing of others, or any function. One that remembers something from round
            to round needs ``state_dict`` to resume exactly: see `Trainer`.
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
        tolerated: how many malicious neighbours rules expect: a number, or one per client (n,). If not given, what
            the rule was made with, ``Krum(tolerated=2)``; if that was not given either, the true number in each
            round's graph, as the BALANCE paper has it: 0 without an attack.
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
        metrics = {} if metrics is None else metrics
        check_options(models, total, every, metrics, trainer=trainer, **{} if loss_of is None else {"loss_of": loss_of})
        check_count("seed", seed, 0)
        check_flag("keep_nonfinite", keep_nonfinite)
        check_attack(attack, malicious)
        if not is_drawn("topology", topology):
            check_topology(topology, len(models))
        if not isinstance(rule, EachRound):
            check_rule(rule, len(models))
        if not is_drawn("alpha", alpha):
            as_shares(alpha, models)
        if tolerated is not None:
            as_counts("tolerated", tolerated, len(models), models.device)
        self.topology, self.rule, self.attack, self.alpha = topology, rule, attack, alpha
        self.models, self.t, self.total = models.detach().clone(), 0, None if total is None else int(total)
        self.state: Any = None
        self.malicious = as_mask(malicious, len(models)).to(models.device, copy=True)
        self.metrics, self.tolerated, self.seed = dict(metrics), tolerated, int(seed)
        self.every = every if isinstance(every, Container) else int(every)
        self.keep_nonfinite = keep_nonfinite
        self.trainer = poisoned(trainer, attack, self.malicious)
        self.loss_of = loss_of or getattr(self.trainer, "loss_of", None)
        self.history = History(len(models), self.malicious, name)
        self._warned: list[str] = []

    def __repr__(self) -> str:
        names = ("trainer", "topology", "rule", "models", "attack", "malicious", "alpha", "t", "total")
        values = {name: getattr(self, name) for name in names}
        return call("Simulator", **values | {"malicious": self.malicious.nonzero().flatten().tolist()})

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.models)

    # Algorithm 3: one round.

    @torch.no_grad()
    def step(self) -> Round:
        """One round; returns its record, which is also added to the history. Nothing changes if it fails."""
        watch = Stopwatch(self.models.device)
        with self._restored_on_error(), at_most_one_warning(self._warned):
            t, topology, rule, alpha = self.t, self._topology(), self._rule(), self._alpha()
            with watch.phase("train"):
                trained = self._trained(t)
            messages, own, out = None, trained, Aggregated(trained)
            if rule is not None:
                messages = Messages(self, topology, rule, self._inputs(t, topology, rule, trained), watch)
                own, out = messages.converse(trained)
            with watch.phase("mix"):
                models = own if rule is None else mix(own, out.model, alpha)
            record = self._record(t, models, out, messages, watch)
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

        The first run fixes ``total``, if the Simulator was not made with one: who runs in parts gives it there.

        With ``checkpoint``, a file, the run is saved at the start, every ``save_every`` rounds, at the end, and when it
        is interrupted; if the file exists already, the run goes on from there, and ``rounds`` counts from the start.
        Ctrl-C ends a run as it was before the round: ``history`` holds all that are complete, and `run` goes on.
        """
        if checkpoint is not None:
            checkpoints.warn_of_unsaved_state(self.trainer)
        kept, total, begun = checkpoints.Kept(self, checkpoint, save_every), self.total, self.t
        with self._restored_on_error():
            end = self._end(rounds, resumes=checkpoint is not None and Path(checkpoint).exists())
            kept.resume(end)
        if self.t != begun:  # what was resumed depends on its total
            total, begun = self.total, self.t
        try:
            with kept, Progress(end, "round", done=self.t) if progress else Silence() as bar:
                while self.t < end:
                    self.step()
                    bar.advance(self._note)
                    kept.advance()
        finally:
            if self.t == begun < end:  # no round depends on it yet
                self.total = total
        return self.history

    def save(self, path: str | Path) -> None:
        """Write all that a run needs to go on to a file, as data without code; see `load`."""
        checkpoints.warn_of_unsaved_state(self.trainer)
        checkpoints.save(path, self)

    def load(self, path: str | Path) -> None:
        """Go on from a checkpoint of a simulator that was made with the same arguments."""
        checkpoints.warn_of_unsaved_state(self.trainer)
        with self._restored_on_error():
            checkpoints.load(path, self)

    def _end(self, rounds: int | None, resumes: bool) -> int:
        """The round to stop before."""
        if rounds is None:
            if self.total is None:
                raise ValueError("rounds must be given, here or as total of the Simulator, found neither")
            return self.total
        check_count("rounds", rounds, 1)
        end = int(rounds) if resumes else self.t + int(rounds)
        self.total = self.total or end
        if end > self.total:
            hint = "Simulator(total=...) says how many there will be, otherwise the first run does"
            raise ValueError(f"rounds must end by total = {self.total}, found {rounds} from round {self.t}; {hint}")
        return end

    # What changes from round to round.

    def _topology(self) -> Topology:
        return check_topology(self._drawn("topology", self.topology), self.n)

    def _rule(self) -> Rule | None:
        rule = self.rule.at(self.t, seed=self.seed, name="rule") if isinstance(self.rule, EachRound) else self.rule
        check_rule(rule, self.n)
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
        with torch.enable_grad(), unchanged("trainer", models=self.models):
            trained = self.trainer(self.models, t)
        if not isinstance(trained, Tensor) or (trained.shape, trained.dtype) != (self.models.shape, self.models.dtype):
            raise ValueError(f"trainer must return models like {describe(self.models)}, found {describe(trained)}")
        return trained.detach()

    def _inputs(self, t: int, topology: Topology, rule: Rule, trained: Tensor) -> RoundInputs:
        """All that a rule may ask for."""
        inputs: RoundInputs = {"t": t, "tolerated": self._tolerated(topology, rule), "state": self.state}
        inputs["generator"] = stream(self.seed, "aggregation", t)
        if self.total is not None:
            inputs["total"] = self.total
        if self.loss_of is not None:
            inputs["loss_of"] = self.loss_of(t)
        if hasattr(self.trainer, "samples"):
            inputs["samples"] = self.trainer.samples
        if wants_update(rule):
            inputs["update"] = trained - self.models
        return inputs

    def _tolerated(self, topology: Topology, rule: Rule) -> int | Tensor:
        if self.tolerated is not None:
            return self.tolerated
        liars = self.malicious if self.attack is not None else torch.zeros_like(self.malicious)
        return expected(rule, topology.malicious_neighbors(liars).to(self.models.device))

    # What is written down.

    def _record(self, t: int, models: Tensor, out: Aggregated, messages: Messages | None, watch: Stopwatch) -> Round:
        with watch.phase("bookkeeping"):
            finite = kernels.are_finite(models)
            values = {} if messages is None else messages.values(out)
            broken = (~finite & ~self.malicious).nonzero().flatten().tolist()
        clients: dict[str, Any] = {}
        if is_measured(t, self.every, self.total):
            with watch.phase("measure"):
                clients = {name: measured(name, metric, models) for name, metric in self.metrics.items()}
                values["consensus"] = consensus_error(models[~self.malicious])
        news = tuple(client for client in broken if client not in self.history.diverged)
        return Round(t, clients, values, watch.seconds, news)

    def _note(self) -> str:
        """What a progress bar says about the last round that was measured."""
        benign = self.history.benign
        last = self.history.evaluated[-1].clients if self.history.evaluated else {}
        notes = [
            f"worst {name} {torch.tensor(values, dtype=torch.float64, device='cpu')[list(benign)].max():.4g}"
            for name, values in last.items()
        ]
        if self.history.diverged:
            notes.append(f"{len(self.history.diverged)} benign clients not finite")
        elif self.history[-1].alone:
            notes.append("nobody accepted")
        return ", ".join(notes)

    @contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        """What fails, or is interrupted anywhere, leaves no trace."""
        before, rounds = (self.models, self.t, self.state, self.total, self.history), len(self.history)
        trainer: Any = self.trainer
        remembers = hasattr(trainer, "state_dict") and hasattr(trainer, "load_state_dict")
        memory = deepcopy(trainer.state_dict()) if remembers else None  # that of a module changes with the module
        try:
            yield
        except BaseException:
            self.models, self.t, self.state, self.total, self.history = before
            if len(self.history) > rounds:
                self.history = History(self.n, self.malicious, self.history.name, list(self.history)[:rounds])
            if remembers:
                trainer.load_state_dict(memory)
            raise
