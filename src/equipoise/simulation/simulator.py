"""Decentralized training of n clients on one machine, round by round."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from equipoise._utils.formatting import call
from equipoise._utils.optional import import_optional
from equipoise._utils.validation import (
    Clients,
    as_counts,
    as_mask,
    check_callable,
    check_count,
    check_flag,
    describe,
)
from equipoise.attacks import Attack
from equipoise.rules import at_most_one_warning
from equipoise.simulation import checkpoints
from equipoise.simulation._evaluation import MetricFunction
from equipoise.simulation._round import play_round
from equipoise.simulation._settings import RuleLike, Settings
from equipoise.simulation._sharding import Cut, PartitionLike, part_of
from equipoise.simulation._validation import (
    are_unheard,
    as_alpha,
    as_metrics,
    as_rounds,
    check_attack_setting,
    check_gossip,
    check_models,
    check_rule_setting,
    check_topology_setting,
    check_trainer,
    prepare_trainer,
    trainer_of_part,
)
from equipoise.simulation._workspace import Workspace
from equipoise.simulation.each_round import EachRound
from equipoise.simulation.history import History
from equipoise.simulation.record import Round
from equipoise.simulation.state import State, read_trainer_state, restore_trainer_state
from equipoise.topology import Topology
from equipoise.topology.gossip_weights import GossipKind
from equipoise.training import Trainer


class Simulator(Settings):
    r"""Clients that train, exchange models along a graph, aggregate and mix.

    This is Algorithm 3 of the BALANCE paper. In every round t, each client i trains its model to
    :math:`w_i^{t+1/2}`, sends it to its neighbors, aggregates the messages that it received with
    the rule, and mixes the aggregate with its own model:
    :math:`w_i^{t+1} = \alpha w_i^{t+1/2} + (1 - \alpha) \mathrm{AGG}_i`. Malicious clients train
    and aggregate like the others, on poisoned data if the attack poisons data, and send the
    messages that the attack forges.

    The simulator only composes the parts; each of them also works in a loop of your own. A run
    depends on its arguments and the seed only: two runs on one machine are equal bit by bit, even
    if one of them was interrupted and resumed.

    Args:
        trainer: local training, ``trainer(models, t) -> models``: a `LocalSGD`, of which a run
            takes a copy without memory of earlier runs, or any function. A trainer with memory
            needs ``state_dict`` to resume exactly: see `Trainer`.
        topology: the graph, or a function of the round, or an `EachRound`. With
            ``topology.with_self_loops()`` and ``alpha=0``, a client's own model is one of the
            aggregated ones.
        rule: the rule of all clients, a `PerClient`, an `EachRound` that draws one, or None for
            local training only.
        models: (n, d) the initial models.
        attack: the behavior of malicious clients, None if they behave like the others.
        malicious: bool mask (n,) or client ids.
        alpha: weight of a client's own model in the mixture: a number, one per client (n,), a
            function of the round, or an `EachRound`. The default is that of the rule, 0.5, or 0 if
            its aggregate already contains own: see `default_alpha`.
        total: number of rounds, which BALANCE must know; `run` sets it if it is not given.
        metrics: functions from models (n, d) to values (n,), by name.
        evaluate_every: measure metrics once in so many rounds, or after the rounds in a
            container; the last round is always evaluated. By default, that is every round of up to
            100 or of an unknown ``total``; of a longer run, the first round and about 100 evenly
            spaced ones.
        tolerated: how many malicious neighbors rules expect: a number, or one per client (n,). The
            default is the number that the rule was made with, ``Krum(tolerated=2)``, or else the
            true number in the graph of the round, as in the BALANCE paper: 0 without an attack.
        gossip: the weights of the edges, for rules that read the round input ``gossip``: a kind of
            `Topology.gossip_weights`, such as ``"metropolis"``, or a function of the topology that
            returns weights in the form of that method. Without it, such rules weigh own and all
            messages equally. Other rules ignore it.
        loss_of: a function of the round that returns ``loss_of`` of `RoundInputs`, which UBAR
            needs; the default is that of the trainer.
        keep_nonfinite: pass messages with NaN or infinities to the rules, to reproduce papers that
            did.
        train_malicious: train and aggregate for malicious clients even if no other client hears
            their models, because the attack replaces all their messages and does not look at
            their models. By default they then keep their initial models, if the trainer can leave
            clients out, as `LocalSGD` can. Results of benign clients are the same, bit by bit with
            the C kernels.
        seed: determines all random numbers of the run; the trainer has its own seed.
        name: the name of the history.
        group: share the run with the other processes of this group of ``torch.distributed``, for
            example ``torch.distributed.group.WORLD``, or of a device mesh of one dimension. Every
            process makes the same simulator. Each one trains and keeps a part of the clients, see
            `clients`, and sends the models that clients of others hear. All processes must be
            trusted: ``torch.distributed`` is no defense against a malicious one. Results are those
            of a single process, bit by bit with the C kernels.
        partition: which process of the group owns which clients: ``"contiguous"`` blocks of equal
            size; ``"bisection"`` or ``"modularity"``, which cut few edges; the rank
            of each client (n,); or a function of the graph and the number of processes that returns
            these. `cut` says how many edges are cut.

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
        rule: RuleLike | EachRound[RuleLike] | None,
        models: Tensor,
        *,
        attack: Attack | None = None,
        malicious: Clients | None = None,
        alpha: float
        | Tensor
        | Callable[[int], float | Tensor]
        | EachRound[float | Tensor]
        | None = None,
        total: int | None = None,
        metrics: Mapping[str, MetricFunction] | None = None,
        evaluate_every: int | Container[int] | None = None,
        tolerated: int | Tensor | None = None,
        gossip: GossipKind | Callable[[Topology], Tensor] | None = None,
        loss_of: Callable[[int], Callable[..., Tensor]] | None = None,
        keep_nonfinite: bool = False,
        train_malicious: bool = False,
        seed: int = 0,
        name: str = "",
        group: ProcessGroup | DeviceMesh | None = None,
        partition: PartitionLike = "contiguous",
    ) -> None:
        # First all checks: poisoning the data of malicious clients, below, may take long.
        check_models(models)
        n = len(models)
        if total is not None:
            check_count("total", total, 1)
        evaluate_every = as_rounds(evaluate_every)
        metrics = as_metrics(metrics)
        check_trainer(trainer, loss_of, models)
        check_count("seed", seed, 0)
        check_flag("keep_nonfinite", keep_nonfinite)
        check_flag("train_malicious", train_malicious)
        # An attack without attackers would silently do nothing.
        check_attack_setting(attack, malicious)
        # Settings that depend on the round are checked when they are drawn.
        check_topology_setting(topology, n)
        if not isinstance(rule, EachRound):
            check_rule_setting(rule, n)
        check_gossip(gossip)
        alpha = as_alpha(alpha, rule, models)
        if tolerated is not None:
            as_counts("tolerated", tolerated, n, models.device)
        # A copy: the caller may go on to use the mask for something else.
        mask = as_mask(malicious, n).to(models.device, copy=True)
        part = part_of(group, partition, topology, n, models.device)
        trainer = trainer_of_part(trainer, part)
        trainer = prepare_trainer(trainer, attack, mask)
        is_idle = not train_malicious and are_unheard(mask, attack, trainer)
        super().__init__(
            trainer=trainer,
            topology=topology,
            rule=rule,
            attack=attack,
            malicious=mask,
            idle=mask if is_idle else torch.zeros_like(mask),
            alpha=alpha,
            metrics=metrics,
            evaluate_every=evaluate_every,
            tolerated=tolerated,
            gossip=gossip,
            loss_of=getattr(trainer, "loss_of", None) if loss_of is None else part.losses(loss_of),
            keep_nonfinite=keep_nonfinite,
            seed=int(seed),
            part=part,
        )
        self._state = State(
            # A copy: the caller may go on to train these models.
            models=part.of(models.detach()).clone(),
            t=0,
            total=None if total is None else int(total),
            rule_state=None,
            trainer_state=None,
            history=History(n, mask, name, seed=seed),
        )
        self._workspace = Workspace(self)
        if isinstance(topology, Topology) and gossip is not None:
            # Weights that this graph does not have are an error before the first round.
            _ = self._workspace.routes(self, topology, models).gossip
        self._warned: list[str] = []  # a rule without guarantee warns once per run, not per round

    def __repr__(self) -> str:
        return call(
            "Simulator",
            trainer=self.trainer,
            topology=self.topology,
            rule=self.rule,
            models=self.models,
            attack=self.attack,
            malicious=self.malicious.nonzero().flatten().tolist(),
            alpha=self.alpha,
            t=self.t,
            total=self.total,
        )

    # The state of the run

    @property
    def state(self) -> State:
        """The current state. Assign an earlier one to roll the run back to it.

        The trainer is a live object: its part of the state is copied on every access.

        >>> trainer = lambda models, t: models + 1
        >>> simulator = eq.Simulator(trainer, eq.Topology.ring(3), None, torch.zeros(3, 1))
        >>> before = simulator.state
        >>> _ = simulator.run(5)
        >>> simulator.state = before
        >>> simulator.t, simulator.models.sum()
        (0, tensor(0.))
        """
        # The models need no copy: rounds never modify them in place.
        return replace(self._state, trainer_state=read_trainer_state(self.trainer))

    @state.setter
    def state(self, state: State) -> None:
        if not isinstance(state, State) or describe(state.models) != describe(self.models):
            expected = f"a State with models like {describe(self.models)}"
            found = describe(state.models if isinstance(state, State) else state)
            raise ValueError(f"state must be {expected}, found {found}")
        # In this order: if the trainer refuses its state, the rest is rolled back all the same.
        self._state = state
        restore_trainer_state(self.trainer, state.trainer_state)

    @property
    def models(self) -> Tensor:
        """(n, d) the current models of all clients; of a group, those of `clients`."""
        return self._state.models

    @property
    def clients(self) -> Tensor:
        """The ids of the clients in this process, ascending: all of them without a group."""
        return self.part.ids(self.n)

    def all_models(self) -> Tensor:
        """(n, d) the current models of all clients; of a group, every process must call it."""
        return self.part.all_rows(self.models)

    def cut(self) -> Cut:
        """The edges of the next round's graph that lead from one process to another.

        ``rows`` is the number of models that are sent for them in an exchange.

        >>> trainer = lambda models, t: models
        >>> eq.Simulator(trainer, eq.Topology.ring(3), None, torch.zeros(3, 1)).cut()
        Cut(edges=0, rows=0)
        """
        return self.part.cut(self.topology_at(self.t))

    @property
    def t(self) -> int:
        """Number of completed rounds."""
        return self._state.t

    @property
    def total(self) -> int | None:
        """Number of rounds that the run is going to have, None until that is known."""
        return self._state.total

    @property
    def history(self) -> History:
        """The records of the completed rounds."""
        return self._state.history

    @contextmanager
    def _rolled_back_on_error(self) -> Iterator[State]:
        """Roll back all state on any exception, Ctrl-C included."""
        before = self.state
        try:
            yield before
        # KeyboardInterrupt is no Exception.
        except BaseException:
            self.state = before
            raise

    # Rounds

    def step(self) -> Round:
        """Run one round and return its record. A round that fails changes nothing."""
        with (
            self._rolled_back_on_error() as before,
            self.part.telling_errors(),
            at_most_one_warning(self._warned),
        ):
            # A round returns a new state, so only the trainer has to be rolled back.
            self._state = play_round(self, before, self._workspace)
        return self.history[-1]

    def run(
        self,
        rounds: int | None = None,
        *,
        progress: bool = False,
        checkpoint: str | Path | None = None,
        save_every: int = 100,
        on_round: Callable[[Simulator], object] | None = None,
    ) -> History:
        """Run that many more rounds, or all that are left of ``total``, and return the history.

        The first run sets ``total`` if the constructor did not. To run in several parts, pass
        ``total`` to the constructor.

        Ctrl-C rolls back the current round: ``history`` holds the completed ones, and `run` can be
        called again.

        Args:
            rounds: number of rounds to add; with a checkpoint that exists, the number of rounds
                from the start.
            progress: show a progress bar on standard error. Needs ``equipoise[progress]``.
            checkpoint: a file to resume from if it exists, and to save to: at the start, every
                ``save_every`` rounds, at the end, and when the run is interrupted. In a group, it
                is a folder that all processes reach, and is not saved to after an error; any number
                of processes can resume from it.
            save_every: number of rounds between two checkpoints.
            on_round: called with the simulator after each round. The run stops early if it
                returns True.

        >>> def is_close(simulator):
        ...     return bool((simulator.models < 0.1).all())
        >>> trainer = lambda models, t: models / 2
        >>> simulator = eq.Simulator(trainer, eq.Topology.ring(3), None, torch.ones(3, 1))
        >>> len(simulator.run(100, on_round=is_close))
        4
        """
        check_count("save_every", save_every, 1)
        if on_round is not None:
            check_callable("on_round", on_round)
        if checkpoint is not None:
            checkpoints.warn_of_unsaved_state(self.trainer)
        total = self.total
        begun = self.t
        with self._rolled_back_on_error():
            end, saved = self._begin(rounds, checkpoint)
            file = _Checkpoint(self, checkpoint, saved)
            file.save()  # one that cannot be written fails here, before there is work to lose
        if self.t != begun:
            # The resumed rounds depend on their total, which stays even if no round follows.
            total = self.total
            begun = self.t
        completed = False
        try:
            shown = progress and self.part.is_first
            with self.part.telling_errors(), self._progress_bar(end, shown=shown) as bar:
                self._step_until(end, save_every, file, bar, on_round)
            completed = True
        finally:
            if self.t == begun < end:  # no round depends on the new total yet
                self._state = replace(self._state, total=total)
            # All processes save together, and after an error some may be gone.
            if completed or self.part.is_alone:
                file.save()
        return self.history

    def _step_until(
        self,
        end: int,
        save_every: int,
        file: _Checkpoint,
        bar: Any,
        on_round: Callable[[Simulator], object] | None,
    ) -> None:
        """Run rounds until the end, or until ``on_round`` stops them."""
        while self.t < end:
            self.step()
            if self.t % save_every == 0:
                file.save()
            if bar is not None:
                _show(bar, self)
            # One process may stop all of them.
            if on_round is not None and any(self.part.all_sums([bool(on_round(self))])):
                break

    def _begin(self, rounds: int | None, checkpoint: str | Path | None) -> tuple[int, int | None]:
        """Resume from the file if it exists; returns the round to stop at, and that in the file."""
        if checkpoint is None or not self._files.exists(checkpoint, self):
            return self._set_end(rounds, resumes=False), None
        # Before loading, which compares the total of the file with that of this run.
        end = self._set_end(rounds, resumes=True)
        self._load(checkpoint)
        if self.t > end:
            expected = f"at least the {self.t} of {checkpoint}"
            raise ValueError(f"rounds must be {expected}, found {end}")
        return end, self.t

    def _set_end(self, rounds: int | None, *, resumes: bool) -> int:
        """The number of completed rounds to stop at; sets ``total`` if it is not known."""
        if rounds is None:
            if self.total is None:
                expected = "given, here or as total of the Simulator"
                raise ValueError(f"rounds must be {expected}, found neither")
            return self.total
        check_count("rounds", rounds, 1)
        # A resumed script passes the same `rounds` again: they count from the start.
        end = int(rounds) if resumes else self.t + int(rounds)
        if self.total is None:
            self._state = replace(self._state, total=end)
        elif end > self.total:
            raise ValueError(
                f"rounds must end by total = {self.total}, found {rounds} from round {self.t}; "
                "Simulator(total=...) sets it, otherwise the first run does"
            )
        return end

    def _progress_bar(self, end: int, *, shown: bool) -> AbstractContextManager[Any]:
        if not shown:
            return nullcontext()
        bar: AbstractContextManager[Any] = import_optional("tqdm", "progress").tqdm(
            total=end,
            initial=self.t,
            unit="round",
            # Rounds differ in cost (evaluation, checkpoints): the mean of all predicts the rest.
            smoothing=0.0,
            dynamic_ncols=True,
            # There is no standard error under pythonw, and a daemon may have closed it.
            disable=sys.stderr is None or sys.stderr.closed,
        )
        return bar

    # Files

    @property
    def _files(self) -> ModuleType:
        if self.part.is_alone:
            return checkpoints
        # Imported late: it imports much of torch.
        from equipoise.simulation import sharded_checkpoints

        return sharded_checkpoints

    def save(self, path: str | Path) -> None:
        """Write the state to a file, as data without code; see `load`.

        In a group, it is a folder that all processes reach, and every process must call it.
        """
        checkpoints.warn_of_unsaved_state(self.trainer)
        self._files.save(path, self.state, self)

    def load(self, path: str | Path) -> None:
        """Continue from a checkpoint of a simulator that was made with the same arguments."""
        checkpoints.warn_of_unsaved_state(self.trainer)
        with self._rolled_back_on_error():
            self._load(path)

    def _load(self, path: str | Path) -> None:
        state = self._files.load(path, self.state, self)
        try:
            self.state = state
        # load_state_dict of a trainer may raise anything.
        except Exception as error:
            expected = "a checkpoint of the same run"
            raise ValueError(
                f"{path} must be {expected}, found another trainer: {error}"
            ) from error


class _Checkpoint:
    """The file that a run is saved to, if it has one."""

    def __init__(self, simulator: Simulator, path: str | Path | None, saved: int | None) -> None:
        self._simulator = simulator
        self._path = path
        self._saved = saved  # the round that is in the file

    def save(self) -> None:
        """Save the run, unless the file holds this round."""
        simulator = self._simulator
        if self._path is not None and self._saved != simulator.t:
            simulator._files.save(self._path, simulator.state, simulator)
            self._saved = simulator.t


def _show(bar: Any, simulator: Simulator) -> None:
    """Count a round as done. The status is computed when the bar is drawn, and at the end."""
    if bar.update() or bar.n >= bar.total:
        bar.set_postfix_str(simulator.history.status())
