"""Diagnosis of a graph: what malicious clients can reach, and which theory covers it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise._utils.optional import import_optional
from equipoise._utils.validation import Clients, as_counts, as_mask, check_number
from equipoise.topology import report
from equipoise.topology.gossip_weights import GossipKind, gossip_weights
from equipoise.topology.graph import Graph
from equipoise.topology.guarantees import Verdict, judge, library_rules, name_of
from equipoise.topology.measures import GraphMeasures


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(GraphMeasures):
    """The result of `equipoise.Topology.diagnose`; ``print`` shows it as a report.

    ``rules`` are those to judge, instances or classes.
    """

    rules: tuple[object, ...]

    def __repr__(self) -> str:
        found = "unknown" if self.malicious is None else f"{int(self.malicious.sum())}"
        return f"Diagnosis({self.topology!r}, malicious={found})"

    def __str__(self) -> str:
        return report.text(self, self.verdicts)

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """By name of the rule, whether its theory covers the graph."""
        return {name_of(rule): judge(rule, self) for rule in self.rules}

    def frame(self) -> Any:
        """One row per client, as a ``pandas.DataFrame``.

        Needs ``pip install "equipoise[diagnostics]"``.
        """
        pandas: Any = import_optional("pandas", "diagnostics")
        columns = {
            "malicious": ~self.benign,
            "degree": self.degrees,
            "malicious_degree": self.malicious_degree,
            "malicious_weight": self.malicious_weight,
            "tolerated": self.tolerated,
            "capturable": self.capturable,
            "component": self.component,
            "endangered": self.endangered,
        }
        table = pandas.DataFrame({name: column.numpy() for name, column in columns.items()})
        return table.rename_axis("client")

    def rules_frame(self) -> Any:
        """One row per rule, as a ``pandas.DataFrame``; ``covered`` is missing if it is not known.

        Needs ``pip install "equipoise[diagnostics]"``.
        """
        pandas: Any = import_optional("pandas", "diagnostics")
        rows = [(name, found.covered, found.reason) for name, found in self.verdicts.items()]
        table = pandas.DataFrame(rows, columns=["rule", "covered", "reason"])
        return table.astype({"covered": "boolean"}).set_index("rule")


def diagnose(
    topology: Graph,
    malicious: Clients | None,
    tolerated: int | Tensor | None,
    *,
    gossip: GossipKind | None,
    rules: Iterable[object] | None,
    time_limit: float,
) -> Diagnosis:
    """See `Topology.diagnose`."""
    check_number("time_limit", time_limit)
    sends = topology.adjacency().cpu()
    if gossip is None:
        gossip = "metropolis" if torch.equal(sends, sends.T) else "uniform"
    # Raises at once for weights that do not exist, such as symmetric ones of a directed graph.
    gossip_weights(topology.senders, gossip)
    mask = None if malicious is None else as_mask(malicious, topology.n).cpu()
    if tolerated is None:
        is_malicious = as_mask(mask, topology.n)
        reached = topology.malicious_neighbors(is_malicious).cpu()
        tolerated = reached.masked_fill(is_malicious, 0)
    counts = as_counts("tolerated", tolerated, topology.n, torch.device("cpu"))
    chosen = tuple(library_rules) if rules is None else _as_rules(rules)
    return Diagnosis(topology, mask, counts, gossip, float(time_limit), chosen)


def _as_rules(rules: object) -> tuple[object, ...]:
    """The rules as a tuple, if each can be one."""
    expected = "a list of rules, instances or classes, such as [Median]"
    if not isinstance(rules, Iterable) or isinstance(rules, str):
        raise ValueError(f"rules must be {expected}, found {name_of(rules):.80}")
    chosen = tuple(rules)
    for rule in chosen:
        # Rules know topologies, not vice versa: their protocols cannot be imported here.
        has_guarantee = hasattr(rule, "guarantee")
        if not callable(rule) and not hasattr(rule, "exchanges") and not has_guarantee:
            raise ValueError(f"rules must be {expected}, found {rule!r:.80} in it")
    return chosen
