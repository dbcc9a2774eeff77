"""Theory covers a graph exactly where its condition holds."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

import equipoise as eq
from equipoise import Topology
from equipoise.topology import (
    BenignConnected,
    Neighbors,
    NoMalicious,
    NotChecked,
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


@pytest.mark.parametrize("condition", [Trimming(), Spectral(2), Neighbors(2, 1)], ids=str)
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


def test_means_are_not_robust():
    ring = Topology.ring(6)
    assert NoMalicious().judge(ring.diagnose()).covered is True
    assert NoMalicious().judge(ring.diagnose([2])).covered is False


def test_all_rules_of_the_library_are_judged():
    verdicts = Topology.complete(7).diagnose([0]).verdicts
    assert set(verdicts) == {rule.__name__ for rule in library_rules}
    assert {"Krum", "LEARN", "TrimmedMean", "UBAR", "Balance"} < set(verdicts)
    assert not {"Rule", "WeightedRule", "Aggregator", "GuaranteeWarning"} & set(verdicts)
    unknown = [name for name, found in verdicts.items() if "no guarantee" in found.reason]
    assert "UBAR" in unknown
    assert "Krum" not in unknown


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
