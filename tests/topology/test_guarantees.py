"""Theory covers a graph exactly where its condition holds."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch

import equipoise as eq
from equipoise import Topology
from equipoise.topology import (
    BenignConnected,
    Complete,
    Minority,
    Neighbors,
    NoMalicious,
    NotChecked,
    NoTheorem,
    Spectral,
    Trimming,
    Verdict,
    library_rules,
)


@pytest.mark.parametrize(
    ("f", "covered"), [(0, True), (1, True), (2, True), (3, None), (4, None), (5, False)]
)
def test_trimming_by_robustness(f: int, covered: bool | None):
    pytest.importorskip("scipy")
    graph = Topology.regular(20, 10, seed=0).diagnose(tolerated=f)  # r = 5
    verdict = Trimming().judge(graph)
    assert verdict.covered is covered
    assert "r = 5" in verdict.reason


@pytest.mark.parametrize("count", range(4))
def test_spectral_by_definition(count: int):
    # Two malicious neighbors of each of ten benign clients in a clique of ten, and so on.
    graph = Topology.complete(10).with_malicious(count)
    diagnosis = graph.diagnose(range(10, 10 + count))
    weight = 1 / (10 + count)  # of each edge
    for rho in (1, 2, 4):
        expected = 10 * weight > 2 * rho * count * weight
        assert Spectral(rho).judge(diagnosis).covered is expected


def test_spectral_needs_places_and_symmetry():
    ring = Topology.ring(5)
    unknown = Spectral(2).judge(ring.diagnose(tolerated=1))
    assert unknown == Verdict(None, "pass malicious: the condition depends on their places")
    star = Topology.star(4).diagnose([1], gossip="uniform")
    expected = Verdict(None, "needs symmetric weights and two benign clients")
    assert Spectral(2).judge(star) == expected


@pytest.mark.parametrize("own_counts", [False, True])
def test_neighbors_by_count(own_counts: bool):
    rule = Neighbors(2, 3, own_counts=own_counts)
    for n in range(4, 10):
        for f in range(4):
            graph = Topology.complete(n).diagnose(tolerated=f)
            enough = n - 1 + own_counts >= 2 * f + 3
            assert rule.judge(graph).covered == (enough or f == 0)


@pytest.mark.parametrize(
    "condition", [Trimming(), Spectral(2), Neighbors(2, 1), Minority(), Complete(9)], ids=str
)
def test_more_malicious_than_tolerated(condition):
    graph = Topology.complete(9).diagnose([0, 4], tolerated=1)
    expected = Verdict(False, "client 1 tolerates 1 malicious neighbors, has 2")
    assert condition.judge(graph) == expected
    assert condition.judge(Topology.complete(9).diagnose([0], tolerated=1)).covered


def test_neighbors_name_the_first_client():
    star = Topology.star(6).diagnose(tolerated=1)
    assert Neighbors(2, 1).judge(star).reason == "k = 1 < 2f + 1 = 3 at client 1 and 4 more"
    # Clients without malicious neighbors need no guarantee.
    assert Neighbors(2, 1).judge(Topology.star(6).diagnose([1])).covered


def test_benign_graph_must_be_connected():
    ring = Topology.ring(6)
    assert BenignConnected("a note").judge(ring.diagnose([0, 1])) == Verdict(
        True, "benign clients are connected; a note"
    )
    assert BenignConnected().judge(ring.diagnose([0, 2])).covered is False
    assert BenignConnected().judge(ring.diagnose(tolerated=1)).covered is None


def test_minority_by_weight():
    # In a complete graph of n clients, each edge weighs 1 / n.
    for n in range(3, 9):
        for f in range(n - 1):
            verdict = Minority().judge(Topology.complete(n).diagnose(tolerated=f))
            assert verdict.covered is (2 * f < n)
    star = Topology.star(4).diagnose([1], gossip="uniform")
    assert (
        Minority().judge(star).reason == "b = 0.25 < 1/2 at all clients; bounds each aggregate only"
    )
    assert Minority().judge(Topology.star(4).diagnose([0], gossip="uniform")).covered is False


def test_complete_graphs_only():
    for n in range(2, 30):
        verdict = Complete(11).judge(Topology.complete(n).diagnose([0]))
        assert verdict.covered is (n >= 11)
    almost = Topology.complete(30).edges()[1:]
    verdict = Complete(11).judge(Topology.from_edges(30, almost, directed=True).diagnose([4]))
    assert verdict == Verdict(False, "the theorem is about complete graphs")


def test_equal_weights_by_degree():
    rule = Spectral(2, equal_weights=True)
    assert rule.judge(Topology.complete(20).diagnose([0])).covered
    # Metropolis weights differ where degrees do.
    graph = Topology.scale_free(20, 5, seed=0)
    assert not graph.diagnose([19]).equal_weights
    expected = Verdict(None, "needs equal weights of all neighbors of a client")
    assert rule.judge(graph.diagnose([19])) == expected
    assert Topology.star(5).diagnose([1], gossip="uniform").equal_weights


def test_bridge_by_variant():
    graph = Topology.complete(8).diagnose(tolerated=2)  # k + 1 = 8
    found = {name: eq.Bridge(name).guarantee.judge(graph).covered for name in ("M", "K", "B")}
    assert found == {"M": True, "K": True, "B": False}
    assert eq.Bridge("T").guarantee == eq.TrimmedMean.guarantee


def test_a_class_is_judged_with_its_defaults():
    verdicts = Topology.complete(9).diagnose(tolerated=1, rules=[eq.Bridge, eq.NNM]).verdicts
    assert verdicts["Bridge"] == Trimming().judge(Topology.complete(9).diagnose(tolerated=1))
    assert verdicts["NNM"].reason == "depends on its hyper-parameters; judge an instance"


def test_every_rule_declares_its_theory():
    for rule in library_rules:
        assert getattr(rule, "guarantee", None) is not None, rule


def test_no_theorem_says_why():
    verdicts = Topology.complete(9).diagnose(tolerated=1, rules=[eq.FLTrust(), eq.UBAR]).verdicts
    assert [found.covered for found in verdicts.values()] == [None, None]
    reasons = [found.reason for found in verdicts.values()]
    assert reasons[0] == "no theorem applies: its theorem is about a server with clean data"
    assert reasons[1] == "no theorem applies: losses decide which models count"


CONDITIONS = {
    "none if f > 0": NoMalicious(),
    "consensus if r >= 2f + 1": Trimming(),
    "consensus if mu_2 > 8b": Spectral(4.0),
    "consensus if mu_2 > 8b and weights are equal": Spectral(4, equal_weights=True),
    "each aggregate if k + 1 >= 2f + 3": Neighbors(2, 3, own_counts=True),
    "each aggregate if b < 1/2": Minority(),
    "consensus if the graph is complete and n >= 11f": Complete(11),
    "convergence if benign clients are connected; a note": BenignConnected("a note"),
    "not known: why": NotChecked("why"),
    "none: why": NoTheorem("why"),
}


@pytest.mark.parametrize(("words", "condition"), CONDITIONS.items(), ids=CONDITIONS)
def test_conditions_in_words(words: str, condition):
    assert str(condition) == words


def test_means_are_not_robust():
    ring = Topology.ring(6)
    assert NoMalicious().judge(ring.diagnose()).covered is True
    assert NoMalicious().judge(ring.diagnose([2])).covered is False


def test_all_rules_of_the_library_are_judged():
    verdicts = Topology.complete(7).diagnose([0]).verdicts
    assert set(verdicts) == {rule.__name__ for rule in library_rules}
    assert {"Krum", "LEARN", "TrimmedMean", "UBAR", "Balance"} < set(verdicts)
    assert not {"Rule", "WeightedRule", "Aggregator", "GuaranteeWarning"} & set(verdicts)
    unknown = [name for name, found in verdicts.items() if "no theorem" in found.reason]
    assert unknown == ["BalanceMedian", "CenteredClip", "FLTrust", "SCClip", "StaticClip", "UBAR"]


def test_rules_are_classes_or_instances():
    class Wrapper:
        @property
        def guarantee(self) -> NotChecked:
            return NotChecked("as its rule")

        def __str__(self) -> str:
            return "Wrapper()"

    rules = [Wrapper, Wrapper(), eq.Krum(tolerated=1), lambda own, received: own]
    verdicts = Topology.ring(4).diagnose([0], rules=rules).verdicts
    reasons = [found.reason for found in verdicts.values()]
    assert list(verdicts)[1:3] == ["Wrapper()", "Krum(tolerated=1, strict=False)"]
    assert reasons[:2] == ["depends on its hyper-parameters; judge an instance", "as its rule"]
    assert reasons[3] == "no guarantee on graphs is known"


def test_sample_weights_have_no_theorem():
    rules = [eq.Median(), eq.Median(weighted=True), eq.Median]
    graph = Topology.complete(9).diagnose(tolerated=1, rules=rules)
    found = [verdict.covered for verdict in graph.verdicts.values()]
    assert found == [True, None, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Spectral(0), "rho must be a finite number > 0, found 0"),
        (lambda: Neighbors(0, 3), "per_malicious must be an integer at least 1, found 0"),
        (lambda: Complete(0), "per_malicious must be an integer at least 1, found 0"),
        (lambda: Neighbors(2, -1), "more must be an integer at least 0, found -1"),
        (
            lambda: (
                Topology.ring(3).diagnose(rules=[SimpleNamespace(guarantee=3)]).verdicts  # a typo
            ),
            "guarantee of namespace(guarantee=3) must have judge, found int",
        ),
    ],
)
def test_errors(make, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_wrappers_keep_what_is_about_an_aggregate() -> None:
    assert eq.NNM(eq.Krum()).guarantee == eq.Krum.guarantee
    assert eq.NNM(eq.ARC(eq.Krum())).guarantee == eq.Krum.guarantee
    for rule in (eq.NNM(eq.GTS()), eq.ARC(eq.TrimmedMean()), eq.StaticClip(eq.Krum())):
        (verdict,) = Topology.complete(40).diagnose([0], rules=[rule]).verdicts.values()
        assert verdict.covered is None


def test_static_clip_exceeds_the_bound_of_its_rule() -> None:
    """Benign messages agree, and a small radius keeps the client away from them."""
    steps = torch.tensor([-10.0] + [10.0] * 10, dtype=torch.float64)[:, None]
    rule = eq.StaticClip(eq.GTS(tolerated=1), radius=0.1)
    move = rule(torch.zeros(1, dtype=torch.float64), steps).model
    weight = 1 / 12
    error = (move - weight * steps[1:].sum(0)).square().sum()
    assert error > 2 * 4 * weight * weight * steps[1:].square().sum()
