"""The demo: every rule, with nobody attacking and under three attacks, on real handwritten digits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import plots
from equipoise._utils.progress import Progress
from equipoise.rules import without_warnings
from equipoise.simulation import RuleLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

RULES: Mapping[str, RuleLike | None] = {
    "Alone": None,
    "FedAvg": eq.FedAvg(),
    "Krum": eq.Krum(),
    "TrimmedMean": eq.TrimmedMean(),
    "Median": eq.Median(),
    "FLTrust": eq.FLTrust(),
    "UBAR": eq.UBAR(),
    "LEARN": eq.LEARN(),
    "SCClip": eq.SCClip(),
    "Balance": eq.Balance(),
    "Balance(kappa=0)": eq.Balance(kappa=0),
    "BalanceMedian": eq.BalanceMedian(),
}
ATTACKS: Mapping[str, eq.Attack | None] = {
    "none": None,
    "Gaussian": eq.attacks.Gaussian(),
    "TrimAttack": eq.attacks.TrimAttack(),
    "MinMax": eq.attacks.MinMax(),
    "KrumAttack": eq.attacks.KrumAttack(),
    "Dissensus": eq.attacks.Dissensus(epsilon=30.0),
    "LabelFlip": eq.attacks.LabelFlip({label: 9 - label for label in range(10)}),
}
SHOWN = ("none", "Gaussian", "TrimAttack", "MinMax")
NOTES = {
    "Alone": "no client listens to another; a rule has to beat that",
    "Gaussian": "malicious clients send noise",
    "TrimAttack": "every parameter is beyond all others, on the wrong side",
    "MinMax": "no farther from benign models than these are from each other",
    "KrumAttack": "the signs of what Krum chooses, turned round, as far as it follows",
    "Dissensus": "every client is pushed away from its benign neighbours",
    "LabelFlip": "malicious clients train on wrong labels",
}
ROUNDS = 100
PICTURE = "equipoise-demo.png"
PANELS = 6  # in a row of the picture

Results: TypeAlias = dict[str, dict[str, eq.History]]
"""What came of a rule under an attack, ``results[rule][attack]``."""


@dataclass(frozen=True)
class Setting:
    """Twenty clients on a random graph, four of them malicious; half of a client's digits are of one class."""

    trainer: eq.LocalSGD
    graph: eq.Topology
    models: Tensor
    malicious: Tensor
    error: eq.metrics.ErrorRate
    seed: int

    @classmethod
    def draw(cls, seed: int) -> Setting:
        """The seed decides who has which digits, who is malicious, the graph and the initial model."""
        digits = eq.data.digits(seed=seed)
        clients = digits.split(eq.data.by_group(digits, 20, p=0.5, seed=seed))
        malicious = eq.draw_malicious(20, 0.2, seed=seed)
        model = eq.models.logistic_regression(64, 10, seed=seed)
        return cls(
            trainer=eq.LocalSGD(model, cross_entropy, clients, lr=0.15, seed=seed),
            graph=eq.Topology.regular(20, 10, seed=seed, malicious=malicious),
            models=eq.flatten(model).expand(20, -1),
            malicious=malicious,
            error=eq.metrics.ErrorRate(model, digits.test_x, digits.test_y),
            seed=seed,
        )

    def simulator(self, rule: RuleLike | None, attack: eq.Attack | None, rounds: int) -> eq.Simulator:
        """A run of so many rounds, at its start."""
        return eq.Simulator(
            self.trainer,
            self.graph,
            rule,
            self.models,
            attack=attack,
            malicious=self.malicious,
            total=rounds,
            metrics={"error": self.error},
            evaluate_every=max(1, rounds // 25),
            seed=self.seed,
        )


def run(
    seed: int = 0,
    rounds: int = ROUNDS,
    rules: Sequence[str] = tuple(RULES),
    attacks: Sequence[str] = SHOWN,
    output: str | Path = ".",
) -> None:
    """Train with every rule under every attack, print a table of errors, and save a picture in a folder."""
    setting, results = Setting.draw(seed), Results()
    print("20 clients, 4 of them malicious, each with 10 neighbours on a random graph.")
    print(f"Handwritten digits, half of what a client has of one class. Rounds: {rounds}.", flush=True)
    try:
        compare(setting, rounds, rules, attacks, results)
    finally:  # also after Ctrl-C
        if results:
            print("\nTest error of the worst benign client, with * for the best of a column:\n")
            print(table(results, attacks), flush=True)
    print("", *(f"{name}: {NOTES[name]}." for name in (*rules, *attacks) if name in NOTES), sep="\n")
    print(save(setting, results, Path(output) / PICTURE))


def compare(setting: Setting, rounds: int, rules: Sequence[str], attacks: Sequence[str], results: Results) -> None:
    """Add to the results a history for every rule and attack, each as soon as it is complete."""
    # Rules are told the true number of malicious neighbors, also where that is more than they guarantee.
    with without_warnings(), one_thread(), Progress(len(rules) * len(attacks), "run") as bar:
        for rule in rules:
            for attack in attacks:
                simulator = setting.simulator(RULES[rule], ATTACKS[attack], rounds)
                show = partial(show_error, bar, f"{rule}, {attack}")
                results.setdefault(rule, {})[attack] = simulator.run(on_round=show)
                bar.advance()


def show_error(bar: Progress, label: str, simulator: eq.Simulator) -> None:
    """Show the last error of a run in a progress bar, after each evaluation."""
    if simulator.history[-1].clients:
        bar.advance(f"worst error {worst(simulator.history):.2f}, {label}", steps=0)


@contextmanager
def one_thread() -> Iterator[None]:
    """For models as small as these, threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def table(results: Results, attacks: Sequence[str]) -> str:
    """A line for each rule and a column for each attack; the smallest errors of a column have an asterisk.

    >>> from equipoise import demo
    >>> def finished(error):
    ...     return eq.History(1, rounds=[eq.Round(0, {"error": [error]})])
    >>> results = {"FedAvg": {"none": finished(0.25), "Gaussian": finished(0.5)}, "Median": {"none": finished(0.25)}}
    >>> print(demo.table(results, ["none", "Gaussian"]))
    rule              no attack    Gaussian
    FedAvg                0.250*      0.500*
    Median                0.250*          -
    """
    errors = errors_of(results)
    best = {attack: min(row.get(attack, torch.inf) for row in errors.values()) for attack in attacks if errors}

    def cell(row: Mapping[str, float], attack: str) -> str:
        return f"{row[attack]:>11.3f}{'*' if row[attack] == best[attack] else ' '}" if attack in row else f"{'-':>11} "

    lines = [f"{'rule':<16}" + "".join(f"{heading(attack):>11} " for attack in attacks)]
    lines += [f"{rule:<16}" + "".join(cell(row, attack) for attack in attacks) for rule, row in errors.items()]
    return "\n".join(line.rstrip() for line in lines)


def errors_of(results: Results) -> dict[str, dict[str, float]]:
    """Max.TER of every rule under every attack."""
    return {rule: {attack: worst(history) for attack, history in row.items()} for rule, row in results.items()}


def worst(history: eq.History) -> float:
    """Max.TER: the error of the worst benign client, where it was measured last."""
    return history.worst("error")[1][-1]


def heading(attack: str) -> str:
    """What to call an attack in a table."""
    return "no attack" if attack == "none" else attack


def save(setting: Setting, results: Results, path: Path) -> str:
    """Save the picture, and say where it is, or how to get it."""
    try:
        figure = picture(setting, results)
    except ImportError:
        return 'For a picture: pip install "equipoise[plots]", and run it again.'
    figure.savefig(path, dpi=200, bbox_inches="tight", pad_inches=0.1)
    return f"Picture: {path.resolve()}"


def picture(setting: Setting, results: Results) -> Figure:
    """The graph, the table of final errors, and a panel of errors over rounds for each rule."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(results) / PANELS)
    heights = (3.3, 0.7 + 1.4 * rows)  # inches
    figure = Figure(figsize=(7.5, sum(heights)), layout="constrained")
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    left, right = top.subplots(1, 2, width_ratios=(2, 3))
    left.set_title("who hears whom", fontsize=8)
    plots.graph(setting.graph, setting.malicious, left)
    errors = {
        rule: {heading(attack): error for attack, error in row.items()} for rule, row in errors_of(results).items()
    }
    plots.heatmap(errors, right, label="test error of the worst benign client, after the last round")
    draw_rounds(bottom, results)
    return figure


def draw_rounds(figure: SubFigure, results: Results) -> None:
    """A panel for each rule and a line for each attack, with one legend for all."""
    columns = min(PANELS, len(results))
    rows = math.ceil(len(results) / columns)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for position, (rule, row) in enumerate(results.items()):
        ax = panels[position]
        histories = {heading(attack): history for attack, history in row.items()}
        plots.error_over_rounds(histories, ax=ax, band=False)
        ax.set_title(rule, fontsize=8)
        ax.get_legend().remove()
        lowest = position + columns >= len(results)
        ax.tick_params(labelbottom=lowest)
        ax.set_xlabel("round" if lowest else "")
        ax.set_ylabel("" if position % columns else "test error")
        ax.set_ylim(0, 1.04)
    for ax in panels[len(results) :]:
        ax.set_axis_off()
    title = "test error of the worst benign client: a panel for each rule, a line for each attack"
    figure.suptitle(title, fontsize=8)
    entries = panels[0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=7, fontsize=7, frameon=False)
