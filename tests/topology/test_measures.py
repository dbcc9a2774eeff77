"""The numbers of a diagnosis equal those of networkx and of their definitions."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import Topology
from equipoise.topology import Diagnosis
from tests.digraphs import Edges, digraphs, subsets


@st.composite
def diagnosed(draw: st.DrawFn, *, directed: bool = False) -> tuple[Diagnosis, list[int], nx.Graph]:
    n, edges = draw(digraphs())
    malicious = draw(subsets(n))
    topology = Topology.from_edges(n, edges, directed=directed)
    diagnosis = topology.diagnose(malicious, rules=[], time_limit=0)
    benign = nx.DiGraph() if directed else nx.Graph()
    benign.add_nodes_from(i for i in range(n) if i not in malicious)
    benign.add_edges_from(
        (a, b) for a, b in topology.edges().tolist() if a != b and not {a, b} & set(malicious)
    )
    return diagnosis, malicious, benign


def gossip_matrix(diagnosis: Diagnosis) -> np.ndarray:
    topology = diagnosis.topology
    weights = topology.gossip_weights(diagnosis.gossip)
    matrix = np.zeros((topology.n, topology.n))
    for i, row in enumerate(topology.senders.tolist()):
        for sender, weight in zip(row, weights[i].tolist(), strict=True):
            if sender >= 0:
                matrix[i, sender] = weight
    return matrix


@given(st.booleans().flatmap(lambda directed: diagnosed(directed=directed)))
def test_malicious_degrees_and_weights(case: tuple[Diagnosis, list[int], nx.Graph]):
    diagnosis, malicious, _ = case
    matrix = gossip_matrix(diagnosis)
    for i in range(diagnosis.topology.n):
        neighbors = [j for j in diagnosis.topology.neighbors(i).tolist() if j != i]
        bad = [j for j in neighbors if j in malicious]
        assert diagnosis.degrees[i] == len(neighbors)
        if i in malicious:
            assert diagnosis.malicious_degree[i] == diagnosis.malicious_weight[i] == 0
            assert not diagnosis.endangered[i]
            continue
        assert diagnosis.malicious_degree[i] == diagnosis.tolerated[i] == len(bad)
        assert diagnosis.malicious_weight[i].item() == pytest.approx(matrix[i, bad].sum())
        is_half = len(bad) > 0 and matrix[i, bad].sum() >= matrix[i].sum() / 2 - 1e-9
        assert diagnosis.capturable[i] == is_half


@given(diagnosed())
def test_benign_graph_as_in_networkx(case: tuple[Diagnosis, list[int], nx.Graph]):
    diagnosis, _, benign = case
    parts = sorted(nx.connected_components(benign), key=lambda part: (-len(part), min(part)))
    expected = [[i for i in range(diagnosis.topology.n) if i in part] for part in parts]
    found = [
        (diagnosis.component == number).nonzero().flatten().tolist()
        for number in range(diagnosis.components)
    ]
    assert found == expected
    if len(benign) > 1:
        assert diagnosis.vertex_connectivity == nx.node_connectivity(benign)
        spectrum = sorted(nx.laplacian_spectrum(benign))
        assert diagnosis.algebraic_connectivity == pytest.approx(spectrum[1], abs=1e-9)
    else:
        assert diagnosis.algebraic_connectivity is None


@given(diagnosed(directed=True))
def test_directed_components(case: tuple[Diagnosis, list[int], nx.DiGraph]):
    diagnosis, malicious, benign = case
    assert diagnosis.components == nx.number_strongly_connected_components(benign)
    assert ((diagnosis.component == -1).nonzero().flatten().tolist()) == sorted(malicious)


@given(diagnosed())
def test_weighted_spectra_by_definition(case: tuple[Diagnosis, list[int], nx.Graph]):
    diagnosis, _, benign = case
    ids = sorted(benign)
    among = gossip_matrix(diagnosis)[np.ix_(ids, ids)]
    if len(ids) < 2:
        assert diagnosis.spectral_gap is None
        assert diagnosis.weighted_connectivity is None
        return
    laplacian = np.diag(among.sum(1)) - among
    expected = np.linalg.eigvalsh(laplacian)
    assert diagnosis.weighted_connectivity == pytest.approx(expected[1], abs=1e-9)
    gossip = np.sort(np.abs(np.linalg.eigvalsh(np.eye(len(ids)) - laplacian)))
    assert diagnosis.spectral_gap == pytest.approx(1 - gossip[-2], abs=1e-9)


@given(digraphs(), st.integers(0, 8))
def test_unknown_places_are_the_worst(graph: tuple[int, Edges], tolerated: int):
    n, edges = graph
    topology = Topology.from_edges(n, edges)
    diagnosis = topology.diagnose(tolerated=tolerated, time_limit=0)
    matrix = gossip_matrix(diagnosis)
    for i in range(n):
        heaviest = sorted(matrix[i], reverse=True)[:tolerated]
        assert diagnosis.malicious_weight[i].item() == pytest.approx(sum(heaviest))
        assert diagnosis.malicious_degree[i] == min(tolerated, int((matrix[i] > 0).sum()))
    assert diagnosis.tolerated_weight == pytest.approx(float(diagnosis.malicious_weight.max()))
    assert diagnosis.benign.all()


def test_large_graphs_have_no_vertex_connectivity():
    diagnosis = Topology.regular(60, 4, seed=0).diagnose(time_limit=0)
    assert diagnosis.vertex_connectivity is None
    assert diagnosis.components == 1


def test_half_of_many_weights_can_be_captured():
    # 1 / 11 summed five times is not half of its sum of ten in floating point.
    clique = Topology.complete(11).diagnose([1, 2, 3, 4, 5], time_limit=0)
    assert clique.capturable.tolist() == [True] + 5 * [False] + 5 * [True]
    assert torch.equal(clique.endangered, clique.capturable)
