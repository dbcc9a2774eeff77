"""The tables and figures of the BALANCE paper: which settings they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.paper import published
from benchmarks.paper.published import Figures
from benchmarks.paper.registry import METHODS, PUBLISHED
from benchmarks.paper.setting import Setting

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows and columns of changes to a setting; a cell has both, and those of its table.

    ``figures`` are the paper's. ``axis``, if it is one, is the field of `Setting` whose values are the columns: such
    tables are figures in the paper, whose values are not printed.
    """

    caption: str
    rows: Mapping[str, Changes]
    columns: Mapping[str, Changes]
    common: Changes = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    measure: str = "error"
    axis: str = ""

    def setting(self, row: str, column: str, **changes: Any) -> Setting:
        """The setting of a cell."""
        return Setting(**{**self.common, **self.rows[row], **self.columns[column], **changes})

    def cells(self, **changes: Any) -> Iterator[tuple[str, str, Setting]]:
        """Row, column and setting of every cell, row by row."""
        for row in self.rows:
            for column in self.columns:
                yield row, column, self.setting(row, column, **changes)


def _rules(names: Sequence[str] = METHODS) -> Mapping[str, Changes]:
    return {name: {"rule": name} for name in names}


def _attacks(names: Sequence[str] = PUBLISHED) -> Mapping[str, Changes]:
    return {name: {"attack": name} for name in names}


def _both(rows: Mapping[str, Changes], columns: Mapping[str, Changes]) -> Mapping[str, Changes]:
    """All pairs, as rows of one table."""
    return {f"{x}, {y}": {**first, **second} for x, first in rows.items() for y, second in columns.items()}


def _figure(caption: str, axis: str, values: Sequence[Any], *, har: bool = False) -> Table:
    """A figure of the paper: BALANCE alone under all attacks for its own parameters, else some rules under two.

    On MNIST at fewer rounds, and without UBAR, which trains two or three times as long as others: hours of work, not
    days. On HAR all rounds take seconds.
    """
    alone = axis in ("gamma", "kappa")
    rules = ("BALANCE",) if alone else ("FedAvg", "Median", *(("UBAR",) if har else ()), "SCCLIP", "BALANCE")
    rows = _both(_rules(rules), _attacks(PUBLISHED if alone else ("Gauss", "Trim")))
    data = "HAR (re-derived features)" if har else "MNIST"
    common = {"data": "har"} if har else {"rounds": 300}
    return Table(f"{caption} on {data}", rows, {str(x): {axis: x} for x in values}, common, axis=axis)


def _noise(data: str, place: str, figures: Figures) -> Table:
    """Two attacks add or send noise, whose numbers are variances in the paper's words; in its code they may not be."""
    columns = ("No", "Feature", "Feature-1000", "Gauss", "Gauss-200")
    known = {(rule, column): figures[rule, column.split("-")[0]] for rule in METHODS for column in columns}
    caption = f"Feature and Gauss with the paper's numbers as variances, or as standard deviations, on {place}"
    return Table(caption, _rules(), _attacks(columns), {"data": data}, known)


STRONGEST = ("No", "Adapt", "LIE", "Dissensus", "Mimic", "MinMax", "Adapt-max", "Adapt-own")

_TABLES: Mapping[str, Table] = {
    "synthetic": Table(
        "Max.MSE on synthetic data",
        *(_rules(), _attacks([name for name in PUBLISHED if name != "Backdoor"]), {"data": "synthetic"}),
        published.SYNTHETIC,
    ),
    "mnist": Table("Max.TER on MNIST", _rules(), _attacks(), {"data": "mnist"}, published.MNIST),
    "fashion-mnist": Table(
        "Max.TER on Fashion-MNIST", _rules(), _attacks(), {"data": "fashion-mnist"}, published.FASHION
    ),
    "har": Table("Max.TER on HAR (re-derived features)", _rules(), _attacks(), {"data": "har"}, published.HAR),
    "celeba": Table("Max.TER on CelebA", _rules(), _attacks(), {"data": "celeba"}, published.CELEBA),
    "consensus": Table(
        "Consensus error on MNIST", _rules(), _attacks(), {"data": "mnist"}, published.CONSENSUS, measure="consensus"
    ),
    "own-included": Table(
        "Own among the models that are aggregated", _rules(), _attacks(), {"own": True}, published.OWN_INCLUDED
    ),
    "case-I": Table("Another alpha for every client", _rules(), _attacks(), {"alpha": "Case-I"}),
    "case-II": Table("Another alpha for every client and round", _rules(), _attacks(), {"alpha": "Case-II"}),
    "mixed-rules": Table(
        "Another rule for every client (III), and round (IV)",
        *(_rules(("Case-III", "Case-IV")), _attacks(), {}, published.MIXED_RULES),
    ),
    "time-varying": Table("Clients that disconnect", _rules(), _attacks(), {"disconnect": 0.2}, published.TIME_VARYING),
    "initial-models": Table("Different initial models", _rules(), _attacks(), {"start": "different"}),
    "graphs": Table(
        "Other graphs",
        _both({name: {"graph": name} for name in ("complete", "erdos-renyi", "small-world", "ring")}, _rules()),
        _attacks(),
    ),
    "femb": Table(
        "Fraction of edges between malicious and benign clients",
        *(_both({name: {"graph": name} for name in ("femb-0.16", "femb-0.22", "femb-0.32")}, _rules()), _attacks()),
    ),
    "three-classes": Table(
        "Examples of three classes a client",
        *(_rules(), _attacks(), {"partition": "three-classes"}),
        {
            ("UBAR", "No"): published.SENTENCES["UBAR", "three-classes No"],
            ("Median", "LF"): published.SENTENCES["Median", "three-classes LF"],
        },
    ),
    "lie-dissensus": Table(
        "LIE and Dissensus", _rules(), _attacks(("No", "LIE", "Dissensus")), {}, published.LIE_DISSENSUS
    ),
    "variants": Table(
        "Variants of BALANCE", _rules(("Variant-I", "Variant-II", "BALANCE")), _attacks(), {}, published.VARIANTS
    ),
    "windows": Table(
        "Median under an attack in some rounds only",
        *({name: {"window": name} for name in ("first-half", "second-half", "all")}, _attacks(("Trim",))),
        *({"rule": "Median"}, published.SENTENCES),
    ),
    "baselines": Table(
        "Nobody attacks: local training only, and what a server would do",
        {
            "Alone": {"rule": "Alone"},
            "server-assisted": {"rule": "FedAvg", "graph": "complete", "own": True},
            "FedAvg": {"rule": "FedAvg"},
        },
        _attacks(("No",)),
        *({}, {**published.SENTENCES, ("FedAvg", "No"): (0.10,)}),
    ),
    "nonfinite": Table(
        "Feature on synthetic data, where messages with NaN or infinities are absent, or kept",
        *(_rules(), {name: {"nonfinite": name} for name in ("absent", "kept")}),
        *({"data": "synthetic", "attack": "Feature"}, published.FEATURE),
    ),
    "noise-synthetic": _noise("synthetic", "synthetic data", published.SYNTHETIC),
    "noise-har": _noise("har", "HAR (re-derived features)", published.HAR),
    "noise-mnist": _noise("mnist", "MNIST", published.MNIST),
    "readings": Table(
        "Other readings of two attacks, and what else hurts BALANCE",
        *(_rules(), _attacks(("Backdoor-seen", "Adapt", "Adapt-max", "Adapt-own", "MinMax", "Mimic"))),
    ),
    "strongest": Table(
        "BALANCE under attacks that stay within what it accepts",
        *({name: {"data": name} for name in ("synthetic", "har", "mnist")}, _attacks(STRONGEST), {"rule": "BALANCE"}),
    ),
}

_FIGURES: Mapping[str, tuple[str, str, Sequence[Any]]] = {
    "gamma": ("Impact of gamma", "gamma", (0.05, 0.1, 0.3, 0.5, 1.0)),
    "kappa": ("Impact of kappa", "kappa", (0.5, 1.0, 2.0, 5.0, 20.0)),
    "fraction": ("Impact of the fraction of malicious clients", "malicious", (0.0, 0.1, 0.2, 0.3, 0.5, 0.8)),
    "non-iid": ("Impact of the degree of non-IID", "partition", [f"p={p}" for p in (0.1, 0.3, 0.5, 0.8, 1.0)]),
    "alpha": ("Impact of alpha", "alpha", ("0.1", "0.3", "0.5", "0.7", "0.9")),
    "clients": ("Impact of the number of clients", "graph", [f"regular-({n},{n // 2})" for n in range(10, 51, 10)]),
}

TABLES: Mapping[str, Table] = {
    **_TABLES,
    **{name: _figure(*figure) for name, figure in _FIGURES.items()},
    **{f"{name}-har": _figure(*figure, har=True) for name, figure in _FIGURES.items() if name != "clients"},
}
"""All tables and figures by name. HAR has thirty clients, neither more nor fewer."""
