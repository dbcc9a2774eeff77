"""Train one setting with one seed, and summarize the run."""

from __future__ import annotations

import math
import os
import subprocess
import time
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import equipoise
from benchmarks.paper.registry import ATTACKS, RULES, draw_alpha, draw_graph
from benchmarks.paper.setting import Setting
from benchmarks.paper.tasks import load
from equipoise import attacks, data, metrics, models
from equipoise.attacks import Attack
from equipoise.rules import Aggregator, Balance, BalanceMedian, without_warnings
from equipoise.simulation import EachRound, History, Simulator
from equipoise.topology import Topology, draw_malicious
from equipoise.training import LocalSGD

# One evaluation is not enough: a single batch can ruin the worst client for one round. Five in the
# last 5 % of rounds average that out. The last one is after the last round, as in the paper.
TAIL = 5
SAVED = 200  # rounds between two checkpoints
PACKAGE = Path(equipoise.__file__).parent
Run = dict[str, Any]


def simulator(setting: Setting, seed: int, root: str | os.PathLike[str]) -> Simulator:
    """Return the simulator at the start of the training.

    The seed determines data, graph, malicious clients, initial models and batches. They are the
    same for settings that differ only in rule and attack.
    """
    task = setting.task
    n = setting.n
    dataset = load(setting.data, os.fspath(root), seed)
    model = task.model(seed)
    malicious = draw_malicious(n, setting.malicious, seed=seed)
    attack = _attack(setting)
    trainer = LocalSGD(
        model,
        task.loss,
        dataset.split(_parts(setting, dataset, seed)),
        lr=task.lr * setting.step,
        batch_size=setting.batch,
        steps=setting.local_steps,
        reduction="sum",
        seed=seed,
    )
    tests = _metrics(setting, dataset, model)
    benign = torch.ones(n, dtype=torch.bool, device="cpu")
    benign[[] if attack is None else malicious] = False
    return Simulator(
        trainer,
        _graph(setting, malicious, seed),
        RULES[setting.rule](setting.gamma, setting.kappa, n, seed),
        models.initial_models(task.model, n, same=setting.start == "same", seed=seed),
        attack=attack,
        malicious=None if attack is None else malicious,
        alpha=0.0 if setting.own else draw_alpha(setting.alpha, n, seed),
        total=setting.rounds,
        metrics={name: partial(_of_some, metric, benign) for name, metric in tests.items()},
        evaluate_every=evaluated(setting.rounds),
        keep_nonfinite=setting.nonfinite == "kept",
        seed=seed,
        name=str(setting),
    )


def _of_some(metric: Callable[[Tensor], Tensor], chosen: Tensor, models: Tensor) -> Tensor:
    """Evaluate a metric for the chosen models; NaN for the others.

    Evaluation takes a fifth of the time of a run, and errors of malicious clients are not reported.
    """
    values = torch.full((len(models),), math.nan, dtype=torch.float64, device=models.device)
    values[chosen] = metric(models[chosen])
    return values


def evaluated(rounds: int) -> frozenset[int]:
    """Return the rounds with an evaluation: the middle one, and five in the last 5 %.

    >>> from benchmarks.paper.run import evaluated
    >>> sorted(evaluated(2000))
    [999, 1919, 1939, 1959, 1979, 1999]
    """
    return frozenset(
        {rounds // 2 - 1, *(rounds - 1 - rounds * i // (20 * TAIL) for i in range(TAIL))} - {-1}
    )


def run(
    setting: Setting,
    seed: int,
    root: str | os.PathLike[str],
    *,
    step: Callable[[Simulator], None] | None = None,
    checkpoint: Path | None = None,
    last: int = 0,
) -> tuple[Run, History]:
    """Train; returns the result and the whole history.

    ``step(simulator)`` is called after each round, and may raise to stop the run. With the path of
    a ``checkpoint``, the run resumes from it. A run stops early when all benign models are
    non-finite, since they cannot recover. Models are also evaluated after each of the ``last``
    rounds; this affects only the history.
    """
    _origin()  # before training, because the source may be changed or committed meanwhile
    one = simulator(setting, seed, root)
    start = time.perf_counter()
    one.evaluate_every = evaluated(setting.rounds).union(
        range(setting.rounds - last, setting.rounds)
    )
    if checkpoint is not None and checkpoint.exists():
        try:
            one.load(checkpoint)
        except ValueError as error:  # damaged, or written by another version
            warnings.warn(f"{error}: training starts from the beginning", stacklevel=2)
    begun = one.t

    def after_round(one: Simulator) -> bool:
        if step is not None:
            step(one)
        if checkpoint is not None and one.t % SAVED == 0:
            one.save(checkpoint)
        return _is_over(one)

    try:
        # As in the paper, rules get the true number of malicious neighbors, even if it exceeds the
        # number that they tolerate.
        with without_warnings():
            if not _is_over(one):
                one.run(on_round=after_round)
    except BaseException:
        if checkpoint is not None and one.t > begun:
            one.save(checkpoint)
        raise
    seconds = (time.perf_counter() - start) * one.t / max(1, one.t - begun)
    return _summary(setting, seed, one, seconds), one.history


def _summary(setting: Setting, seed: int, one: Simulator, seconds: float) -> Run:
    """Return the result of a run: errors at each evaluation, costs, and the origin."""
    tested = evaluated(setting.rounds)
    stopped = one.t < setting.rounds
    rounds = [
        round_ if round_.t in tested else replace(round_, clients={}) for round_ in one.history
    ]
    if stopped:  # the last round was not an evaluated one
        last = {name: tuple(metric(one.models).tolist()) for name, metric in one.metrics.items()}
        rounds[-1] = replace(rounds[-1], clients=last)
    history = History(one.n, one.malicious, rounds=rounds)
    found: Run = {"seed": seed, "trained": one.t, "seconds": round(seconds, 1)}
    if stopped:
        found["stopped"] = f"all benign models were not finite after round {one.t - 1}"
    found["evaluated"] = [round_.t for round_ in history.evaluated]
    for metric in history.metrics():
        found[f"max_{metric}"] = _short(history.worst(metric)[1])
        found[f"mean_{metric}"] = _short(history.mean(metric)[1])
        found[f"clients_{metric}"] = _short([history.per_client(metric)[i] for i in history.benign])
    summary = one.history.summary()
    names = ("consensus", "accepted_benign", "accepted_malicious", "bytes", "aggregate_seconds")
    found |= {name: _short([summary[name]])[0] for name in names if name in summary}
    found["norm"] = _short([float(one.models[list(history.benign)].double().norm(dim=1).mean())])[0]
    return found | _origin()


def tail(run: Run, metric: str) -> float:
    """Average the worst client's errors over the last 5 % of rounds.

    A run that stopped early has its last error instead.

    >>> from benchmarks.paper.run import tail
    >>> tail({"trained": 100, "evaluated": [49, 95, 99], "max_TER": [0.5, 0.1, 0.3]}, "TER")
    0.2
    """
    errors = [math.inf if x is None else float(x) for x in run[f"max_{metric}"]]
    if "stopped" in run:
        return errors[-1]
    since = run["trained"] - run["trained"] // 20 - 1
    values = [x for t, x in zip(run["evaluated"], errors, strict=True) if t >= since]
    return sum(values) / len(values)


def _short(values: list[float]) -> list[float | None]:
    """Round to six digits; None if not finite: unlike NaN, it is equal to itself."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


@cache
def _origin() -> Run:
    """Return the versions of the software."""
    return {"version": equipoise.__version__, "commit": _commit(), "torch": torch.__version__}


def _commit(package: Path = PACKAGE) -> str | None:
    """Return the commit of the clone that the package is imported from; "+" marks changes.

    None if the package is not the source of a clone. An installed copy may lie in any repository,
    for example in the virtual environment of another project, whose commits are unrelated.
    """
    package = package.resolve()
    clone = package.parent.parent
    try:
        toplevel = Path(_git(package, "rev-parse", "--show-toplevel")).resolve()
        if toplevel != clone or package != clone / "src" / "equipoise":
            return None
        if not _git(clone, "ls-files", "src/equipoise/__init__.py"):  # untracked
            return None
        project = tomllib.loads((clone / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["name"] != "equipoise":
            return None
        changes = _git(clone, "status", "--porcelain", "--untracked-files=no", "src")
        return _git(clone, "rev-parse", "--short=12", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError):
        return None  # no git, no repository, or no pyproject.toml of equipoise


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _is_over(one: Simulator) -> bool:
    return len(one.history.diverged) == one.n - len(one.history.malicious)


def _parts(setting: Setting, dataset: data.Dataset, seed: int) -> tuple[Tensor, ...]:
    n = setting.n
    if setting.p is not None:
        return data.by_group(dataset, n, p=setting.p, seed=seed)
    if setting.partition == "iid":
        return data.iid(dataset, n, seed=seed)
    if setting.partition == "by_client":
        return data.by_client(dataset, n, seed=seed)
    return data.by_classes(dataset, n, classes_each=3, seed=seed)


def _graph(setting: Setting, malicious: Tensor, seed: int) -> Topology | EachRound[Topology]:
    graph = draw_graph(setting.graph, setting.n, malicious, seed)
    if setting.own:
        graph = graph.with_self_loops()
    if not setting.disconnect:
        return graph
    return EachRound(lambda t, generator: graph.drop(setting.disconnect, generator))


def _attack(setting: Setting) -> Attack | None:
    attack = ATTACKS[setting.attack](setting.task)
    if isinstance(attack, attacks.Adaptive) and attack.mode == "max":
        attack = replace(attack, rule=_limits(setting))
    half = setting.rounds // 2
    if attack is None or setting.window == "all":
        return attack
    return attacks.Window(
        attack, *((0, half) if setting.window == "first-half" else (half, setting.rounds))
    )


def _limits(setting: Setting) -> Aggregator:
    """Return the rule whose acceptance radius the attack uses: the victims' if they use Balance."""
    rule = RULES[setting.rule](setting.gamma, setting.kappa, setting.n, 0)
    return (
        rule if isinstance(rule, Balance | BalanceMedian) else Balance(setting.gamma, setting.kappa)
    )


def _metrics(
    setting: Setting, dataset: data.Dataset, model: torch.nn.Module
) -> dict[str, Callable[[Tensor], Tensor]]:
    x = dataset.test_x
    y = dataset.test_y
    if setting.task.metric == "MSE":
        return {"MSE": metrics.MeanSquaredError(model, x, y)}
    found: dict[str, Callable[[Tensor], Tensor]] = {"TER": metrics.ErrorRate(model, x, y)}
    if (backdoor := setting.backdoor) is not None:
        found["ASR"] = metrics.AttackSuccess(model, x, y, backdoor.trigger, backdoor.target)
    return found
