"""Weights of gossip averaging: their definitions, and what averaging needs of them."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import Topology
from tests.digraphs import Edges, digraphs

SYMMETRIC = ("metropolis", "lazy", "laplacian")
KINDS = (*SYMMETRIC, "uniform")


def as_matrix(topology: Topology, weights: Tensor) -> Tensor:
    """(n, n) the gossip matrix, with the remainder of each row on the diagonal."""
    n = topology.n
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for sender, weight in zip(topology.senders[i].tolist(), weights[i], strict=True):
            if sender >= 0:
                matrix[i, sender] += weight
    return matrix + (1 - matrix.sum(1)).diag()


def without_loops(graph: tuple[int, Edges]) -> Topology:
    n, edges = graph
    return Topology.from_edges(n, [(a, b) for a, b in edges if a != b])


@given(digraphs(), st.sampled_from(SYMMETRIC))
def test_symmetric_and_doubly_stochastic(graph: tuple[int, Edges], kind):
    topology = without_loops(graph)
    weights = topology.gossip_weights(kind)
    assert weights.shape == topology.senders.shape
    assert weights.dtype == torch.float64
    assert torch.equal(weights > 0, topology.mask)
    matrix = as_matrix(topology, weights)
    assert torch.equal(matrix.tril(-1), matrix.triu(1).T)
    assert (matrix.diagonal() >= -1e-12).all()
    torch.testing.assert_close(matrix.sum(0), torch.ones(topology.n, dtype=torch.float64))


@given(digraphs())
def test_metropolis_by_definition(graph: tuple[int, Edges]):
    topology = without_loops(graph)
    weights = as_matrix(topology, topology.gossip_weights("metropolis"))
    degrees = topology.degrees.tolist()
    for sender, receiver in topology.edges().tolist():
        expected = 1 / (1 + max(degrees[sender], degrees[receiver]))
        assert weights[receiver, sender] == expected


@given(digraphs())
def test_lazy_is_half_identity(graph: tuple[int, Edges]):
    topology = without_loops(graph)
    metropolis = as_matrix(topology, topology.gossip_weights("metropolis"))
    lazy = as_matrix(topology, topology.gossip_weights("lazy"))
    identity = torch.eye(topology.n, dtype=torch.float64)
    torch.testing.assert_close(lazy, (identity + metropolis) / 2)
    assert torch.linalg.eigvalsh(lazy).min() >= -1e-12


@given(digraphs())
def test_laplacian_step_is_the_largest(graph: tuple[int, Edges]):
    topology = without_loops(graph)
    matrix = as_matrix(topology, topology.gossip_weights("laplacian"))
    eigenvalues = torch.linalg.eigvalsh(matrix)
    smallest = 0.0 if topology.k else 1.0  # without edges the matrix is the identity
    torch.testing.assert_close(eigenvalues[0].item(), smallest, atol=1e-12, rtol=0)


@given(digraphs())
def test_uniform_on_directed_graphs(graph: tuple[int, Edges]):
    n, edges = graph
    topology = Topology.from_edges(n, edges, directed=True)
    matrix = as_matrix(topology, topology.gossip_weights("uniform"))
    for i in range(n):
        members = {i} | {sender for sender, receiver in edges if receiver == i}
        expected = [1 / len(members) if j in members else 0.0 for j in range(n)]
        torch.testing.assert_close(matrix[i].tolist(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_self_loops_have_no_weight(kind):
    graph = Topology.small_world(8, 4, 0.5, seed=0)
    loops = graph.with_self_loops()
    torch.testing.assert_close(
        as_matrix(loops, loops.gossip_weights(kind)), as_matrix(graph, graph.gossip_weights(kind))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_edges_no_weights(kind):
    assert Topology.from_edges(3, []).gossip_weights(kind).shape == (3, 0)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_one_way_edge_is_an_error(kind):
    topology = Topology.from_edges(3, [(0, 1), (1, 0), (2, 1)], directed=True)
    message = (
        f"kind='{kind}' must have edges in both directions, "
        "found an edge from client 2 to 1 without its reverse; kind='uniform' accepts"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        topology.gossip_weights(kind)


def test_unknown_kind_is_an_error():
    message = "kind must be 'metropolis', 'lazy', 'laplacian' or 'uniform', found 'max'"
    with pytest.raises(ValueError, match=re.escape(message)):
        Topology.ring(4).gossip_weights("max")  # type: ignore[arg-type]
