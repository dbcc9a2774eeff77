"""The tables and figures of the BALANCE paper: the settings of their cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.paper import published
from benchmarks.paper.published import Figures
from benchmarks.paper.registry import METHODS, NO_ATTACK, PUBLISHED
from benchmarks.paper.setting import Setting

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows and columns of changes to a setting. A cell combines both with those of the table.

    ``figures`` are the paper's. ``axis``, if set, is the field of `Setting` whose values are the
    columns: such tables are plots in the paper, which does not print their values.
    """

    caption: str
    rows: Mapping[str, Changes]
    columns: Mapping[str, Changes]
    common: Changes = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    measure: str = "error"
    axis: str = ""

    def setting(self, row: str, column: str, **changes: Any) -> Setting:
        """Return the setting of a cell."""
        return Setting(**{**self.common, **self.rows[row], **self.columns[column], **changes})

    def cells(self, **changes: Any) -> Iterator[tuple[str, str, Setting]]:
        """Iterate over row, column and setting of each cell, row by row."""
        for row in self.rows:
            for column in self.columns:
                yield row, column, self.setting(row, column, **changes)


def _by(field_name: str, values: Sequence[Any]) -> Mapping[str, Changes]:
    """One row or column for each value of a field."""
    return {str(value): {field_name: value} for value in values}


def _rules(names: Sequence[str] = METHODS) -> Mapping[str, Changes]:
    return _by("rule", names)


def _attacks(names: Sequence[str] = PUBLISHED) -> Mapping[str, Changes]:
    return _by("attack", names)


def _pairs(first: Mapping[str, Changes], second: Mapping[str, Changes]) -> Mapping[str, Changes]:
    """All combinations, as rows of one table."""
    return {f"{x}, {y}": {**first[x], **second[y]} for x in first for y in second}


def _figure(caption: str, axis: str, values: Sequence[Any], *, har: bool = False) -> Table:
    """A plot of the paper: only `Balance` for its own parameters, else four or five rules.

    On MNIST, they have 300 rounds and leave out UBAR, which takes two to three times as long as
    the other rules: hours of work instead of days. On HAR, all rounds take seconds.
    """
    only_balance = axis in ("gamma", "kappa")
    rules = ("FedAvg", "Median", "UBAR", "SCClip", "Balance")
    if only_balance:
        rules = ("Balance",)
    elif not har:
        rules = ("FedAvg", "Median", "SCClip", "Balance")
    attacks = PUBLISHED if only_balance else ("Gaussian", "TrimAttack")
    return Table(
        f"{caption} on {'HAR (re-derived features)' if har else 'MNIST'}",
        _pairs(_rules(rules), _attacks(attacks)),
        _by(axis, values),
        {"data": "har"} if har else {"rounds": 300},
        axis=axis,
    )


def _noise(data: str, place: str, figures: Figures) -> Table:
    """The paper states the variances of two attacks; its code may use standard deviations."""
    columns = (
        NO_ATTACK,
        "FeatureNoise",
        "FeatureNoise(std=1000)",
        "Gaussian",
        "Gaussian(std=200)",
    )
    return Table(
        f"Noise with the paper's numbers as variances or as standard deviations, on {place}",
        _rules(),
        _attacks(columns),
        {"data": data},
        {
            (rule, column): figures[rule, column.split("(")[0]]
            for rule in METHODS
            for column in columns
        },
    )


STRONGEST = (
    NO_ATTACK,
    "Adaptive(mode=literal)",
    "LIE",
    "Dissensus",
    "Mimic",
    "MinMax",
    "Adaptive",
    "Adaptive(center=own)",
)
READINGS = (
    "Backdoor(trigger=inner)",
    "Adaptive(mode=literal)",
    "Adaptive",
    "Adaptive(center=own)",
    "MinMax",
    "Mimic",
)

_TABLES: Mapping[str, Table] = {
    "synthetic": Table(
        "Max.MSE on synthetic data",
        _rules(),
        _attacks([name for name in PUBLISHED if name != "Backdoor"]),
        {"data": "synthetic"},
        published.SYNTHETIC,
    ),
    "mnist": Table("Max.TER on MNIST", _rules(), _attacks(), {"data": "mnist"}, published.MNIST),
    "fashion-mnist": Table(
        "Max.TER on Fashion-MNIST",
        _rules(),
        _attacks(),
        {"data": "fashion-mnist"},
        published.FASHION,
    ),
    "har": Table(
        "Max.TER on HAR (re-derived features)",
        _rules(),
        _attacks(),
        {"data": "har"},
        published.HAR,
    ),
    "celeba": Table(
        "Max.TER on CelebA", _rules(), _attacks(), {"data": "celeba"}, published.CELEBA
    ),
    "consensus": Table(
        "Consensus error on MNIST",
        _rules(),
        _attacks(),
        {"data": "mnist"},
        published.CONSENSUS,
        measure="consensus",
    ),
    "own-included": Table(
        "Own model among the aggregated ones",
        _rules(),
        _attacks(),
        {"own": True},
        published.OWN_INCLUDED,
    ),
    "case-I": Table("A random alpha per client", _rules(), _attacks(), {"alpha": "per-client"}),
    "case-II": Table(
        "A random alpha per client and round", _rules(), _attacks(), {"alpha": "each-round"}
    ),
    "mixed-rules": Table(
        "A random rule per client (Case III), and round (Case IV)",
        _rules(("PerClient", "EachRound(PerClient)")),
        _attacks(),
        figures=published.MIXED_RULES,
    ),
    "time-varying": Table(
        "Clients that disconnect",
        _rules(),
        _attacks(),
        {"disconnect": 0.2},
        published.TIME_VARYING,
    ),
    "initial-models": Table(
        "Different initial models", _rules(), _attacks(), {"start": "different"}
    ),
    "graphs": Table(
        "Other graphs",
        _pairs(_by("graph", ("complete", "erdos_renyi", "small_world", "ring")), _rules()),
        _attacks(),
    ),
    "femb": Table(
        "Fraction of edges between malicious and benign clients",
        _pairs(
            _by("graph", [f"random_with_femb({femb})" for femb in (0.16, 0.22, 0.32)]), _rules()
        ),
        _attacks(),
    ),
    "three-classes": Table(
        "Three classes per client",
        _rules(),
        _attacks(),
        {"partition": "by_classes(3)"},
        {
            ("UBAR", NO_ATTACK): published.SENTENCES["UBAR", f"by_classes(3) {NO_ATTACK}"],
            ("Median", "LabelFlip"): published.SENTENCES["Median", "by_classes(3) LabelFlip"],
        },
    ),
    "lie-dissensus": Table(
        "LIE and Dissensus",
        _rules(),
        _attacks((NO_ATTACK, "LIE", "Dissensus")),
        figures=published.LIE_DISSENSUS,
    ),
    "variants": Table(
        "Variants of Balance",
        _rules(("Balance(kappa=0)", "BalanceMedian", "Balance")),
        _attacks(),
        figures=published.VARIANTS,
    ),
    "windows": Table(
        "Median under an attack in some of the rounds",
        _by("window", ("first-half", "second-half", "all")),
        _attacks(("TrimAttack",)),
        {"rule": "Median"},
        published.SENTENCES,
    ),
    "baselines": Table(
        "No attack: local training only, and a server",
        {
            "Alone": {"rule": "Alone"},
            "server-assisted": {"rule": "FedAvg", "graph": "complete", "own": True},
            "FedAvg": {"rule": "FedAvg"},
        },
        _attacks((NO_ATTACK,)),
        figures={**published.SENTENCES, ("FedAvg", NO_ATTACK): (0.10,)},
    ),
    "nonfinite": Table(
        "FeatureNoise on synthetic data: messages with NaN or infinities are absent, or kept",
        _rules(),
        _by("nonfinite", ("absent", "kept")),
        {"data": "synthetic", "attack": "FeatureNoise"},
        published.FEATURE,
    ),
    "noise-synthetic": _noise("synthetic", "synthetic data", published.SYNTHETIC),
    "noise-har": _noise("har", "HAR (re-derived features)", published.HAR),
    "noise-mnist": _noise("mnist", "MNIST", published.MNIST),
    "readings": Table(
        "Other readings of two attacks, and other attacks on Balance", _rules(), _attacks(READINGS)
    ),
    "strongest": Table(
        "Balance under attacks that stay within its acceptance radius",
        _by("data", ("synthetic", "har", "mnist")),
        _attacks(STRONGEST),
        {"rule": "Balance"},
    ),
}

_FIGURES: Mapping[str, tuple[str, str, Sequence[Any]]] = {
    "gamma": ("Impact of gamma", "gamma", (0.05, 0.1, 0.3, 0.5, 1.0)),
    "kappa": ("Impact of kappa", "kappa", (0.5, 1.0, 2.0, 5.0, 20.0)),
    "fraction": (
        "Impact of the fraction of malicious clients",
        "malicious",
        (0.0, 0.1, 0.2, 0.3, 0.5, 0.8),
    ),
    "non-iid": (
        "Impact of the degree of non-IID",
        "partition",
        [f"by_group({p})" for p in (0.1, 0.3, 0.5, 0.8, 1.0)],
    ),
    "alpha": ("Impact of alpha", "alpha", ("0.1", "0.3", "0.5", "0.7", "0.9")),
    "clients": (
        "Impact of the number of clients",
        "graph",
        [f"regular({n},{n // 2})" for n in range(10, 51, 10)],
    ),
}

TABLES: Mapping[str, Table] = {
    **_TABLES,
    **{name: _figure(*figure) for name, figure in _FIGURES.items()},
    # The number of clients of HAR is fixed: its data come from 30 persons.
    **{
        f"{name}-har": _figure(*figure, har=True)
        for name, figure in _FIGURES.items()
        if name != "clients"
    },
}
"""All tables and figures by name."""
