"""A diagnosis as a report and as tables, and the arguments of `Topology.diagnose`."""

from __future__ import annotations

import re
import sys

import pytest
import torch

import equipoise as eq
from equipoise import Topology

RING = Topology.ring(8)


def test_report_of_a_ring():
    report = str(RING.diagnose([0, 4], rules=[eq.Median, eq.Balance], time_limit=0))
    assert report.splitlines() == [
        "Topology(n=8, k=2, e=16), 2 malicious",
        "  malicious neighbors             0 to 1, metropolis weight up to 0.333",
        "  can be captured                 1, 3, 5, 7",
        "  cut off                         5, 6, 7",
        "  components of the benign graph  2",
        "  vertex connectivity             0",
        "  algebraic connectivity          0",
        "  the same with weights, mu_2     0",
        "  spectral gap                    0",
        "  r-robustness of the graph       1",
        "",
        "Theory, for f = 1 malicious neighbors:",
        "  Median   not covered: k = 2 < 2f + 1 = 3 at client 1 and 3 more",
        "  Balance  not covered: benign clients form 2 components",
    ]


def test_long_lists_are_shortened():
    report = str(Topology.star(30).diagnose([0], rules=[], time_limit=0))
    assert "can be captured                 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 19 more" in report


def test_report_without_benign_clients():
    report = str(Topology.complete(3).diagnose([0, 1, 2], time_limit=0))
    assert "malicious neighbors             no benign client" in report
    assert "algebraic connectivity          undefined" in report


@pytest.mark.parametrize("tolerated", [2, torch.tensor([2, 0, 1, 2, 0, 0, 0, 0])])
def test_tolerated_precedes_the_true_numbers(tolerated):
    diagnosis = RING.diagnose([0], tolerated=tolerated)
    assert diagnosis.most_tolerated == 2
    assert diagnosis.malicious_degree.tolist() == [0, 1, 0, 0, 0, 0, 0, 1]


def test_tolerated_of_malicious_clients_is_ignored():
    diagnosis = RING.diagnose([0], tolerated=torch.tensor([5, 1, 1, 1, 1, 1, 1, 1]))
    assert diagnosis.most_tolerated == 1


def test_gossip_weights_by_default():
    assert RING.diagnose().gossip == "metropolis"
    one_way = Topology.from_edges(3, [(0, 1), (1, 2)], directed=True)
    assert one_way.diagnose().gossip == "uniform"
    assert one_way.diagnose().algebraic_connectivity is None


def test_frames():
    pandas = pytest.importorskip("pandas")
    diagnosis = RING.diagnose([0, 4], rules=[eq.Median, eq.UBAR], time_limit=0)
    frame = diagnosis.frame()
    assert frame.index.name == "client"
    assert frame.malicious_degree.tolist() == diagnosis.malicious_degree.tolist()
    assert frame.endangered.sum() == 5
    assert frame[frame.malicious].index.tolist() == [0, 4]
    rules = diagnosis.rules_frame()
    assert rules.loc["Median", "covered"] == False  # noqa: E712 - numpy's False is no False
    assert rules.loc["UBAR", "covered"] is pandas.NA


def test_repr_is_short():
    assert repr(RING.diagnose([0])) == "Diagnosis(Topology(n=8, k=2, e=16), malicious=1)"
    assert repr(RING.diagnose(tolerated=1)).endswith("malicious=unknown)")


def test_exact_robustness_names_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    graph = Topology.regular(20, 10, seed=0)
    message = 'scipy is not installed: pip install "equipoise[diagnostics]"'
    with pytest.raises(ImportError, match=re.escape(message)):
        _ = graph.diagnose().robustness
    assert graph.diagnose(time_limit=0).robustness.lower >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"malicious": [8]}, "malicious must be from 0 to 7, found 8"),
        ({"tolerated": -1}, "tolerated must be whole numbers >= 0, found -1"),
        ({"gossip": "max"}, "kind must be 'metropolis', 'lazy', 'laplacian' or 'uniform'"),
        ({"time_limit": -1}, "time_limit must be a finite number >= 0, found -1"),
        ({"rules": ["Median"]}, "such as [Median], found 'Median' in it"),
        ({"rules": "Median"}, "rules must be a list of rules, instances or classes, such as"),
        ({"rules": eq.Median}, "such as [Median], found Median"),
        ({"rules": eq.Krum()}, "such as [Median], found Krum("),
    ],
)
def test_errors(arguments, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        RING.diagnose(**arguments)


def test_one_way_edges_need_uniform_weights():
    one_way = Topology.from_edges(3, [(0, 1), (1, 2)], directed=True)
    with pytest.raises(ValueError, match="kind='uniform' accepts directed graphs"):
        one_way.diagnose(gossip="metropolis")
