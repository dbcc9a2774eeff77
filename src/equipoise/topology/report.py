"""A diagnosis as text."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from equipoise.topology.guarantees import Verdict
from equipoise.topology.measures import GraphMeasures

COVERED = {True: "covered", False: "not covered", None: "not known"}
MOST_CLIENTS = 10  # of a list, in a line of the report


def text(measures: GraphMeasures, verdicts: Mapping[str, Verdict]) -> str:
    """The report of a diagnosis."""
    lines = [_title(measures), *_table(_facts(measures))]
    if verdicts:
        lines += ["", f"Theory, for f = {measures.most_tolerated} malicious neighbors:"]
        lines += _table(
            [
                (name, f"{COVERED[verdict.covered]}: {verdict.reason}")
                for name, verdict in verdicts.items()
            ]
        )
    return "\n".join(lines)


def _title(measures: GraphMeasures) -> str:
    if measures.malicious is None:
        return f"{measures.topology}, malicious clients at unknown places"
    return f"{measures.topology}, {int(measures.malicious.sum())} malicious"


def _facts(measures: GraphMeasures) -> list[tuple[str, str]]:
    benign = measures.benign
    reached = measures.malicious_degree[benign].tolist()
    most = float(measures.malicious_weight.max())
    vertices = measures.vertex_connectivity
    return [
        ("malicious neighbors", _range(reached) + f", {measures.gossip} weight up to {most:.3g}"),
        ("can be captured", _clients(measures.capturable)),
        ("cut off", _clients(measures.cut_off)),
        ("components of the benign graph", str(measures.components)),
        ("vertex connectivity", "not computed" if vertices is None else str(vertices)),
        ("algebraic connectivity", _number(measures.algebraic_connectivity)),
        ("the same with weights, mu_2", _number(measures.weighted_connectivity)),
        ("spectral gap", _number(measures.spectral_gap)),
        ("r-robustness of the graph", str(measures.robustness)),
    ]


def _table(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {value}" for name, value in rows]


def _range(values: list[int]) -> str:
    if not values:
        return "no benign client"
    low = min(values)
    high = max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3g}"


def _clients(chosen: Tensor) -> str:
    ids = chosen.nonzero().flatten().tolist()
    shown = ", ".join(map(str, ids[:MOST_CLIENTS]))
    more = f" and {len(ids) - MOST_CLIENTS} more" if len(ids) > MOST_CLIENTS else ""
    return f"{shown}{more}" if ids else "none"
