"""Train 20 clients on handwritten digits with eleven rules, with and without attacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise import plots
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
    # Variant I of section 7 of the paper: the limit does not fall over the rounds.
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
# The attacks that run by default; the command line offers all.
SHOWN = ("none", "Gaussian", "TrimAttack", "MinMax")
NOTES = {
    "Alone": "local training only; a useful rule does better",
    "Gaussian": "malicious clients send noise",
    "TrimAttack": "each parameter lies beyond the benign range, on the wrong side",
    "MinMax": "at most as far from benign models as these are from each other",
    "KrumAttack": "the reversed direction of Krum's choice, as far as Krum follows",
    "Dissensus": "every client is pushed away from its benign neighbors",
    "LabelFlip": "malicious clients train on wrong labels",
}
ROUNDS = 100
PICTURE = "equipoise-demo.png"
PANELS = 6  # per row of the figure


@dataclass(frozen=True)
class Setting:
    """Twenty clients on a random graph, four of them malicious.

    Half of each client's examples belong to one class.
    """

    trainer: eq.LocalSGD
    graph: eq.Topology
    models: Tensor
    malicious: Tensor
    error: eq.metrics.ErrorRate
    seed: int

    @classmethod
    def draw(cls, seed: int) -> Setting:
        """Draw the data of each client, the malicious clients, the graph and the initial model."""
        digits = eq.data.digits(seed=seed)
        clients = digits.split(eq.data.by_group(digits, 20, p=0.5, seed=seed))
        malicious = eq.draw_malicious(20, 0.2, seed=seed)
        model = eq.models.logistic_regression(64, 10, seed=seed)
        return cls(
            trainer=eq.LocalSGD(model, cross_entropy, clients, lr=0.15, seed=seed),
            graph=eq.Topology.regular(20, 10, seed=seed, malicious=malicious),
            # All clients start from one model; the simulator copies it.
            models=eq.flatten(model).expand(20, -1),
            malicious=malicious,
            error=eq.metrics.ErrorRate(model, digits.test_x, digits.test_y),
            seed=seed,
        )

    def simulator(
        self, rule: RuleLike | None, attack: eq.Attack | None, rounds: int
    ) -> eq.Simulator:
        """Set up a simulation of ``rounds`` rounds."""
        return eq.Simulator(
            self.trainer,
            self.graph,
            rule,
            self.models,
            attack=attack,
            malicious=self.malicious,
            total=rounds,
            metrics={"error": self.error},
            evaluate_every=max(1, rounds // 25),  # about 25 points per line of the figure
            seed=self.seed,
        )


def run(
    seed: int = 0,
    rounds: int = ROUNDS,
    rules: Sequence[str] = tuple(RULES),
    attacks: Sequence[str] = SHOWN,
    output: str | Path = ".",
) -> None:
    """Train with each rule under each attack, print a table of errors, and save a figure."""
    setting = Setting.draw(seed)
    print("20 clients on a random graph, 10 neighbors each; 4 clients are malicious.")
    print("Handwritten digits; half of each client's examples belong to one class.")
    print(f"Rounds: {rounds}.", flush=True)
    # In a folder, although nobody resumes: after Ctrl-C it holds what is finished.
    with TemporaryDirectory() as folder:
        try:
            results = compare(setting, rounds, rules, attacks, folder)
        except KeyboardInterrupt:
            # An interrupt before the first cell leaves nothing to read.
            with suppress(ValueError):
                print_table(eq.sweeps.read(folder))
            raise
    print_table(results)
    notes = [f"{name}: {NOTES[name]}." for name in (*rules, *attacks) if name in NOTES]
    print("", *notes, sep="\n")
    print(save_figure(setting, results, Path(output) / PICTURE))


def compare(
    setting: Setting,
    rounds: int,
    rules: Sequence[str],
    attacks: Sequence[str],
    folder: str | Path | None = None,
) -> eq.sweeps.Results:
    """Run a simulation for each rule and attack."""

    def make(rule: RuleLike | None, attack: eq.Attack | None) -> eq.Simulator:
        return setting.simulator(rule, attack, rounds)

    # Rules know the true number of malicious neighbors, even where that exceeds their guarantee.
    with without_warnings():
        return eq.sweep(
            make,
            rule={name: RULES[name] for name in rules},
            attack={heading(name): ATTACKS[name] for name in attacks},
            folder=folder,
        )


def heading(attack: str) -> str:
    """Return the column heading of an attack."""
    return "no attack" if attack == "none" else attack


def print_table(results: eq.sweeps.Results) -> None:
    """Print the table, if any simulation has finished."""
    if any(cell.history is not None for cell in results):
        print("\nTest error of the worst benign client (* marks the best rule per column):\n")
        print(table(results), flush=True)


def table(results: eq.sweeps.Results) -> str:
    """Format a row per rule and a column per attack; an asterisk marks the smallest errors.

    >>> from equipoise import demo
    >>> def finished(rule, attack):
    ...     error = {"FedAvg": 0.25, "Median": 0.5}[rule] + 0.25 * (attack == "LIE")
    ...     return eq.History(1, rounds=[eq.Round(0, {"error": [error]})])
    >>> names = {"rule": ["FedAvg", "Median"], "attack": ["no attack", "LIE"]}
    >>> print(demo.table(eq.sweep(finished, **names, progress=False)))
    rule    no attack     LIE
    FedAvg     0.250*  0.500*
    Median     0.500   0.750
    """
    errors = results.table("rule", "attack", "max_error").mean
    # Compared exactly: errors are multiples of 1 / 355, so several rules may be the best.
    marks = (errors == errors.min()).replace({True: "*", False: " "})
    text = errors.map(lambda error: "-" if math.isnan(error) else f"{error:.3f}") + marks
    lines = text.rename_axis(index=None, columns="rule").to_string().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def save_figure(setting: Setting, results: eq.sweeps.Results, path: Path) -> str:
    """Save the figure; return where it is, or how to get it."""
    try:
        figure = picture(setting, results)
    except ImportError:
        # The table is printed already: a missing matplotlib is not an error.
        return 'For a figure, run again after: pip install "equipoise[plots]"'
    figure.savefig(path, dpi=200, bbox_inches="tight", pad_inches=0.1)
    return f"Figure: {path.resolve()}"


def picture(setting: Setting, results: eq.sweeps.Results) -> Figure:
    """Draw the graph, a heatmap of final errors, and a panel of errors over rounds per rule."""
    from matplotlib.figure import Figure

    # A Figure of its own, not pyplot: no window and no global state.
    rows = math.ceil(len(results.axes["rule"]) / PANELS)
    heights = (3.3, 0.7 + 1.4 * rows)  # inches
    figure = Figure(figsize=(7.5, sum(heights)), layout="constrained")
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    left, right = top.subplots(1, 2, width_ratios=(2, 3))
    left.set_title("communication graph", fontsize=8)
    plots.graph(setting.graph, setting.malicious, left)
    label = "test error of the worst benign client, after the last round"
    plots.heatmap(results.table("rule", "attack", "max_error").mean, right, label=label)
    draw_rounds(bottom, results)
    return figure


def draw_rounds(figure: SubFigure, results: eq.sweeps.Results) -> None:
    """Draw a panel per rule with a line per attack, and one legend for all panels."""
    rules = results.axes["rule"]
    columns = min(PANELS, len(rules))
    rows = math.ceil(len(rules) / columns)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for position, rule in enumerate(rules):
        ax = panels[position]
        cells = results.where(rule=rule)
        histories = {str(cell.labels["attack"]): cell.history for cell in cells if cell.history}
        plots.error_over_rounds(histories, ax=ax, band=False)
        ax.set_title(rule, fontsize=8)
        # One legend below serves all panels.
        ax.get_legend().remove()
        lowest = position + columns >= len(rules)  # no panel below it
        ax.tick_params(labelbottom=lowest)
        ax.set_xlabel("round" if lowest else "")
        ax.set_ylabel("" if position % columns else "test error")
        ax.set_ylim(0, 1.04)  # the same scale in all panels, with room for markers at 1
    # The last row may have empty places.
    for ax in panels[len(rules) :]:
        ax.set_axis_off()
    title = "test error of the worst benign client: one panel per rule, one line per attack"
    figure.suptitle(title, fontsize=8)
    # Seven columns: all attacks fit into one row.
    entries = panels[0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=7, fontsize=7, frameon=False)
