"""Conditions on a graph under which theorems about rules hold."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Protocol, runtime_checkable

from equipoise._utils.validation import check_count, check_number
from equipoise.topology.measures import ROUNDING, GraphMeasures

UNKNOWN = "no guarantee on graphs is known"
NO_THEOREM = "no theorem applies"
NO_PLACES = "pass malicious: the condition depends on their places"


@dataclass(frozen=True)
class Verdict:
    """Whether the theory of a rule covers a graph, and the number that decides.

    ``covered`` is None if this is not known: there is no theory, or its condition was not checked.
    """

    covered: bool | None
    reason: str


@runtime_checkable
class Guarantee(Protocol):
    """The attribute ``guarantee`` of a rule: when its theory covers a graph.

    ``str`` of it is the condition in words.
    """

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Whether the theory covers the graph of this graph."""
        ...


@dataclass(frozen=True)
class NoMalicious:
    """The rule is not robust: one malicious neighbor moves the aggregate anywhere.

    >>> eq.topology.NoMalicious().judge(eq.Topology.ring(5).diagnose([0])).covered
    False
    """

    def __str__(self) -> str:
        return "none if f > 0"

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Covered if no benign client has a malicious neighbor."""
        f = int(graph.malicious_degree.max())
        return Verdict(f == 0, f"f = {f}; one malicious neighbor moves the aggregate anywhere")


@dataclass(frozen=True)
class Trimming:
    """The rule drops the f largest and smallest values of each coordinate.

    Benign clients reach a consensus on each coordinate, between the benign extremes, in every graph
    that is (2f + 1)-robust, and in none that is not (f + 1)-robust, where f is the largest number
    of malicious neighbors, wherever they are (LeBlanc et al., 2013). BRIDGE assumes that a source
    component of f + 1 clients is left after malicious clients and any f further messages of each
    benign client are taken away (Fang, Yang and Bajwa, 2022), which (2f + 1)-robustness implies.

    >>> graph = eq.Topology.complete(9).diagnose(tolerated=2)
    >>> eq.topology.Trimming().judge(graph)
    Verdict(covered=True, reason='r = 5 >= 2f + 1 = 5')
    """

    def __str__(self) -> str:
        return "consensus if r >= 2f + 1"

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Covered if the graph is (2f + 1)-robust."""
        if exceeded := _exceeded(graph):
            return exceeded
        f = graph.most_tolerated
        r = graph.robustness
        enough = 2 * f + 1
        necessary = f + 1
        if r.lower >= enough:
            return Verdict(True, f"r = {r} >= 2f + 1 = {enough}")
        if r.upper < necessary:
            return Verdict(False, f"r = {r} < f + 1 = {necessary}")
        return Verdict(None, f"r = {r}; {necessary} is necessary, 2f + 1 = {enough} is sufficient")


@dataclass(frozen=True)
class Spectral:
    r"""The rule is (b, rho)-robust gossip: it covers graphs with :math:`\mu_2 > 2 \rho b`.

    :math:`\mu_2` is the algebraic connectivity of the benign subgraph, with the gossip weights of
    its edges, and b is the largest weight that a client tolerates. Gaucher, Dieuleveut and
    Hendrikx, *Unified Breakdown Analysis for Byzantine Robust Gossip*, ICML 2025.

    The (b, rho) inequality, summed over all clients x, bounds the error e of the rule by
    :math:`\|e\|^2 \leq 2 \rho b \, x^T L x \leq (2 \rho b / \mu_2) \|L x\|^2`. It is smaller than
    the step of plain averaging under the condition, so that disagreement shrinks.

    Args:
        rho: the constant of the inequality.
        equal_weights: it holds only if all neighbors of a client have the same weight.

    >>> graph = eq.Topology.complete(20).diagnose([0])
    >>> eq.topology.Spectral(rho=2).judge(graph)
    Verdict(covered=True, reason='mu_2 = 0.95 > 4b = 0.2')
    """

    rho: float
    equal_weights: bool = False

    def __post_init__(self) -> None:
        check_number("rho", self.rho, positive=True)

    def __str__(self) -> str:
        condition = f"consensus if mu_2 > {2 * self.rho:g}b"
        return f"{condition} and weights are equal" if self.equal_weights else condition

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Covered if the benign subgraph is well connected for the tolerated weight."""
        if exceeded := _exceeded(graph):
            return exceeded
        mu = graph.weighted_connectivity
        if graph.malicious is None:
            return Verdict(None, NO_PLACES)
        if mu is None:
            return Verdict(None, "needs symmetric weights and two benign clients")
        if self.equal_weights and not graph.equal_weights:
            return Verdict(None, "needs equal weights of all neighbors of a client")
        needed = 2 * self.rho * graph.tolerated_weight
        sign = ">" if mu > needed else "<="
        return Verdict(mu > needed, f"mu_2 = {mu:.3g} {sign} {2 * self.rho:g}b = {needed:.3g}")


@dataclass(frozen=True)
class Neighbors:
    """Each client needs ``per_malicious * f + more`` messages, one of which may be its own model.

    Such a theorem is about the aggregate of one client, in one round. That clients reach a
    consensus does not follow from it.

    Args:
        per_malicious: messages for each malicious neighbor.
        more: further messages.
        own_counts: the client's own model is one of the messages.

    >>> krum = eq.topology.Neighbors(2, 3)
    >>> krum.judge(eq.Topology.complete(8).diagnose(tolerated=2))
    Verdict(covered=True, reason='k >= 2f + 3 at all clients; bounds each aggregate only')
    """

    per_malicious: int
    more: int
    own_counts: bool = False

    def __post_init__(self) -> None:
        check_count("per_malicious", self.per_malicious, 1)
        check_count("more", self.more, 0)

    def __str__(self) -> str:
        return f"each aggregate if {self._condition}"

    @property
    def _count(self) -> str:
        return "k + 1" if self.own_counts else "k"

    @property
    def _condition(self) -> str:
        return f"{self._count} >= {self.per_malicious}f + {self.more}"

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Covered if all benign clients have enough neighbors for the number they tolerate."""
        if exceeded := _exceeded(graph):
            return exceeded
        f = graph.tolerated
        found = graph.degrees + self.own_counts
        needed = self.per_malicious * f + self.more
        # A client that nobody can attack needs no guarantee.
        short = (graph.benign & (found < needed) & (f > 0)).nonzero().flatten()
        if not len(short):
            return Verdict(True, f"{self._condition} at all clients; bounds each aggregate only")
        first = int(short[0])
        return Verdict(
            False,
            f"{self._count} = {int(found[first])} < {self.per_malicious}f + {self.more} = "
            f"{int(needed[first])} at client {first}"
            + (f" and {len(short) - 1} more" if len(short) > 1 else ""),
        )


@dataclass(frozen=True)
class Minority:
    """Malicious neighbors of each client need less than half of the weight, that of own included.

    As for `Neighbors`, such a theorem is about one aggregate.

    >>> star = eq.Topology.star(5).diagnose([0])
    >>> eq.topology.Minority().judge(star)
    Verdict(covered=True, reason='b = 0.2 < 1/2 at all clients; bounds each aggregate only')
    """

    def __str__(self) -> str:
        return "each aggregate if b < 1/2"

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Covered if the heaviest tolerated neighbors of all benign clients weigh below 1/2."""
        if exceeded := _exceeded(graph):
            return exceeded
        b = graph.tolerated_weight
        # A weight that is 1/2 on paper may be rounded.
        if b * ROUNDING < 1 / 2:
            return Verdict(True, f"b = {b:.3g} < 1/2 at all clients; bounds each aggregate only")
        return Verdict(False, f"b = {b:.3g} >= 1/2")


@dataclass(frozen=True)
class Complete:
    """The theorem is about complete graphs of at least ``per_malicious * f`` clients.

    >>> nna = eq.topology.Complete(11)
    >>> nna.judge(eq.Topology.complete(12).diagnose([0]))
    Verdict(covered=True, reason='complete graph, n = 12 >= 11f = 11')
    >>> nna.judge(eq.Topology.ring(12).diagnose([0]))
    Verdict(covered=False, reason='the theorem is about complete graphs')
    """

    per_malicious: int

    def __post_init__(self) -> None:
        check_count("per_malicious", self.per_malicious, 1)

    def __str__(self) -> str:
        return f"consensus if the graph is complete and n >= {self.per_malicious}f"

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Covered if all clients hear all others, and few of them are malicious."""
        if exceeded := _exceeded(graph):
            return exceeded
        n = graph.topology.n
        if (graph.degrees < n - 1).any():
            return Verdict(False, "the theorem is about complete graphs")
        needed = self.per_malicious * graph.most_tolerated
        sign = ">=" if n >= needed else "<"
        reason = f"complete graph, n = {n} {sign} {self.per_malicious}f = {needed}"
        return Verdict(n >= needed, reason)


@dataclass(frozen=True)
class BenignConnected:
    """The theory assumes that benign clients are connected among themselves.

    ``note`` says what the theorem leaves open.

    >>> eq.topology.BenignConnected().judge(eq.Topology.ring(6).diagnose([0, 3]))
    Verdict(covered=False, reason='benign clients form 2 components')
    """

    note: str = ""

    def __str__(self) -> str:
        return "convergence if benign clients are connected" + self._remark

    @property
    def _remark(self) -> str:
        return f"; {self.note}" if self.note else ""

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Covered if the benign subgraph is connected."""
        if graph.malicious is None:
            return Verdict(None, NO_PLACES)
        if graph.components > 1:
            return Verdict(False, f"benign clients form {graph.components} components")
        return Verdict(True, f"benign clients are connected{self._remark}")


@dataclass(frozen=True)
class NotChecked:
    """There is a theorem, but its condition cannot be computed from the graph; ``why`` says so.

    >>> eq.topology.NotChecked("the step size decides").judge(eq.Topology.ring(3).diagnose())
    Verdict(covered=None, reason='the step size decides')
    """

    why: str

    def __str__(self) -> str:
        return f"not known: {self.why}"

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Not known."""
        return Verdict(None, self.why)


@dataclass(frozen=True)
class NoTheorem:
    """No theorem about the rule applies to clients on a graph; ``why`` says what there is instead.

    >>> graph = eq.Topology.ring(3).diagnose()
    >>> eq.topology.NoTheorem("its theorem is about a server").judge(graph).reason
    'no theorem applies: its theorem is about a server'
    """

    why: str

    def __str__(self) -> str:
        return f"none: {self.why}"

    def judge(self, graph: GraphMeasures) -> Verdict:
        """Not known."""
        return Verdict(None, f"{NO_THEOREM}: {self.why}")


def _exceeded(graph: GraphMeasures) -> Verdict | None:
    """Not covered if a client has more malicious neighbors than its rule tolerates."""
    beyond = (graph.malicious_degree > graph.tolerated).nonzero().flatten()
    if not len(beyond):
        return None
    client = int(beyond[0])
    found = int(graph.malicious_degree[client])
    expected = int(graph.tolerated[client])
    return Verdict(False, f"client {client} tolerates {expected} malicious neighbors, has {found}")


def judge(rule: object, graph: GraphMeasures) -> Verdict:
    """The verdict of a rule, an instance or a class; without a guarantee nothing is known."""
    rule = _with_defaults(rule)
    guarantee = getattr(rule, "guarantee", None)
    if guarantee is None:
        return Verdict(None, UNKNOWN)
    # A wrapper's guarantee depends on what it wraps, so that the class has a property.
    if isinstance(guarantee, property):
        return Verdict(None, "depends on its hyper-parameters; judge an instance")
    if not isinstance(guarantee, Guarantee):
        found = type(guarantee).__name__
        raise ValueError(f"guarantee of {name_of(rule)} must have judge, found {found}")
    verdict = guarantee.judge(graph)
    # A malicious client may claim up to several times an equal weight, which no theorem allows for.
    if verdict.covered is not None and getattr(rule, "weighted", False) is True:
        return Verdict(None, "the theorem is about equal weights")
    return verdict


def _with_defaults(rule: object) -> object:
    """A class as the rule with all defaults, if all options have one."""
    if not isinstance(rule, type) or not is_dataclass(rule):
        return rule
    required = [
        field.name
        for field in fields(rule)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    return rule if required else rule()


def name_of(rule: object) -> str:
    """The name of a rule, for reports."""
    return rule.__name__ if isinstance(rule, type) else str(rule)


library_rules: list[type] = []
"""The rules of the library. They are listed here by their package, which topologies do not know."""
