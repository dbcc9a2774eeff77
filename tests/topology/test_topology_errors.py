"""Errors of Topology say what was expected and found."""

from __future__ import annotations

import re

import networkx as nx
import numpy as np
import pytest
import torch

from equipoise import Lies, Topology

RING = Topology.ring(3)
MODELS = torch.zeros(3, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Topology(torch.zeros(3)),
            "senders must be an int64 tensor of shape (n, k), n > 0, found float32 (3,)",
        ),
        (lambda: Topology(torch.zeros(0, 2).long()), "n > 0, found int64 (0, 2)"),
        (
            lambda: Topology(torch.tensor([[1], [2]])),
            "senders must be clients from 0 to 1, or -1 for none, found 1 to 2",
        ),
        (lambda: Topology(torch.tensor([[-2], [0]])), "or -1 for none, found -2 to 0"),
        (
            lambda: Topology(torch.tensor([[0, 1], [1, 0]])),
            "senders must ascend for every receiver, then be -1, found [1, 0]",
        ),
        (lambda: Topology(torch.tensor([[0, 1], [1, 1]])), "then be -1, found [1, 1]"),
        (lambda: Topology(torch.tensor([[-1, 1], [0, 1]])), "then be -1, found [-1, 1]"),
        (lambda: Topology.ring(0), "n must be an integer at least 1, found 0"),
        (lambda: Topology.complete(2.0), "n must be an integer at least 1, found 2.0"),
        (lambda: Topology.regular(0, 0), "n must be an integer at least 1, found 0"),
        (lambda: Topology.regular(4, 4), "degree must be an integer from 0 to 3, found 4"),
        (lambda: Topology.regular(4, -1), "degree must be an integer from 0 to 3, found -1"),
        (lambda: Topology.regular(5, 3), "n * degree must be even, found 5 * 3 = 15"),
        (lambda: Topology.regular(6, 3, seed=-1), "seed must be an integer at least 0, found -1"),
        (lambda: Topology.regular(6, 3, malicious=[6]), "malicious must be from 0 to 5, found 6"),
        (lambda: RING.without_receivers([3]), "clients must be from 0 to 2, found 3"),
        (
            lambda: Topology.regular(6, 1, seed=0),
            "found no connected regular graph with n=6, degree=1 in 1000 draws; "
            "ask for more edges, or for connected=",
        ),
        (lambda: Topology.erdos_renyi(0, 0.5), "n must be an integer at least 1, found 0"),
        (lambda: Topology.erdos_renyi(4, 1.5), "p must be a number from 0 to 1, found 1.5"),
        (
            lambda: Topology.erdos_renyi(4, float("nan")),
            "p must be a number from 0 to 1, found nan",
        ),
        (
            lambda: Topology.erdos_renyi(3, 0.0),
            "found no connected Erdős-Rényi graph with n=3, p=0.0 in 1000 draws",
        ),
        (lambda: Topology.small_world(0, 2, 0.1), "n must be an integer at least 1, found 0"),
        (lambda: Topology.small_world(4, 4, 0.1), "degree must be an integer from 0 to 3, found 4"),
        (
            lambda: Topology.small_world(6, 3, 0.1),
            "degree must be even, half of it on either side of a client, found 3",
        ),
        (
            lambda: Topology.small_world(6, 2, -0.1),
            "rewire must be a number from 0 to 1, found -0.1",
        ),
        (
            lambda: Topology.small_world(6, 2, 0.0, malicious=[0, 3]),
            "found no connected small-world graph with n=6, degree=2, rewire=0.0 "
            "with its 4 benign clients connected "
            "among themselves in 1000 draws",
        ),
        (lambda: Topology.random_with_femb(0, 0.1, []), "n must be an integer at least 1, found 0"),
        (
            lambda: Topology.random_with_femb(4, 1.1, [0]),
            "femb must be a number from 0 to 1, found 1.1",
        ),
        (lambda: Topology.random_with_femb(4, 0.1, [4]), "malicious must be from 0 to 3, found 4"),
        (
            lambda: Topology.random_with_femb(4, 0.1, [0], edges=-1),
            "edges must be an integer at least 0, found -1",
        ),
        (
            lambda: Topology.random_with_femb(4, 1.0, [0], edges=4),
            "femb=1.0 with 4 edges of 3 benign and 1 malicious clients needs 4 "
            "edges between malicious and benign "
            "clients, found 3 pairs of them",
        ),
        (
            lambda: Topology.random_with_femb(4, 0.0, [0], edges=4),
            "needs 4 edges on either side, found 3 pairs",
        ),
        (
            lambda: Topology.random_with_femb(4, 0.0, [0], edges=3),
            "needs an edge between malicious and benign clients to give every "
            "client a neighbor, found 0",
        ),
        (
            lambda: Topology.random_with_femb(4, 1.0, [0], edges=3),
            "needs at least 2 edges on either side to be connected, found 0",
        ),
        (
            lambda: Topology.random_with_femb(4, 1.0, [0]),
            "femb=1.0 with 6 edges of 3 benign and 1 malicious",
        ),
        (
            lambda: Topology.from_networkx(nx.MultiGraph()),
            "graph must be a Graph or a DiGraph, found MultiGraph",
        ),
        (
            lambda: Topology.from_networkx([(0, 1)]),
            "graph must be a Graph or a DiGraph, found list",
        ),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, "a")])),
            "graph must have nodes that can be sorted, found [0, 'a']",
        ),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0]),
            "nodes must hold every node of the graph once, found 1 0 times",
        ),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0, 1, 0]),
            "once, found 0 2 times",
        ),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0, "1"]),
            "once, found '1' that is not in it",
        ),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=[0, [1]]),
            "once, found [1] that is not in it",
        ),
        (
            lambda: Topology.from_networkx(nx.Graph([(0, 1)]), nodes=2),
            "every node of the graph once, found int",
        ),
        (
            lambda: Topology.from_networkx([(0, 1)], nodes=[0, 1]),
            "graph must be a Graph or a DiGraph, found list",
        ),
        (lambda: Topology.from_networkx(nx.Graph()), "n must be an integer at least 1, found 0"),
        (lambda: Topology.from_edges(0, []), "n must be an integer at least 1, found 0"),
        (lambda: Topology.from_edges(3, [(0, 3)]), "edges must join clients 0 to 2, found 0 to 3"),
        (
            lambda: Topology.from_edges(3, [(-1, 2)]),
            "edges must join clients 0 to 2, found -1 to 2",
        ),
        (
            lambda: Topology.from_edges(3, [(0, 1, 2)]),
            "edges must be integers of shape (e, 2), found int64 (1, 3)",
        ),
        (
            lambda: Topology.from_edges(3, [(0.0, 1.0)]),
            "edges must be integers of shape (e, 2), found float64 (1, 2)",
        ),
        (
            lambda: Topology.from_edges(3, [(True, False)]),
            "edges must be integers of shape (e, 2), found bool (1, 2)",
        ),
        (
            lambda: Topology.from_edges(3, torch.tensor([0, 1])),
            "edges must be integers of shape (e, 2), found int64 (2,)",
        ),
        (
            lambda: Topology.from_edges(3, [(0, 1), (2,)]),
            "edges must be pairs of clients, found [(0, 1), (2,)]",
        ),
        (lambda: Topology.from_edges(3, 5), "edges must be pairs of clients, found 5"),
        (
            lambda: Topology.from_adjacency(torch.zeros(2, 3)),
            "matrix must be of shape (n, n), found float32 (2, 3)",
        ),
        (
            lambda: Topology.from_adjacency(torch.zeros(4)),
            "matrix must be of shape (n, n), found float32 (4,)",
        ),
        (
            lambda: Topology.from_adjacency([[0, 1], [2, 0]]),
            "matrix must hold nothing but 0 and 1, found 2",
        ),
        (
            lambda: Topology.from_adjacency(np.full((1, 1), np.nan)),
            "matrix must hold nothing but 0 and 1, found nan",
        ),
        (
            lambda: Topology.from_adjacency(np.zeros((0, 0))),
            "n must be an integer at least 1, found 0",
        ),
        (lambda: RING.neighbors(3), "i must be an integer from 0 to 2, found 3"),
        (lambda: RING.neighbors(-1), "i must be an integer from 0 to 2, found -1"),
        (lambda: RING.drop(1.2), "p must be a number from 0 to 1, found 1.2"),
        (lambda: RING.drop(0.2, 3), "generator must be a torch.Generator, found int"),
        (lambda: RING.femb([5]), "malicious must be from 0 to 2, found 5"),
        (
            lambda: RING.is_connected([1, 1]),
            "malicious must name every client once, found client 1 more than once",
        ),
        (
            lambda: RING.deliver(torch.zeros(4, 2)),
            "models must be a floating-point tensor of shape (n, d) with n = 3 "
            "clients, found float32 (4, 2)",
        ),
        (lambda: RING.deliver(torch.zeros(3)), "with n = 3 clients, found float32 (3,)"),
        (lambda: RING.deliver(torch.zeros(3, 2).long()), "with n = 3 clients, found int64 (3, 2)"),
        (
            lambda: RING.deliver(MODELS, MODELS),
            "malicious must name the clients that may lie, found None",
        ),
        (
            lambda: RING.deliver(MODELS, torch.zeros(4, 2), [0]),
            "lies must be shaped like models, (3, 2), found (4, 2)",
        ),
        (
            lambda: RING.deliver(MODELS, [1.0], [0]),
            "lies must be Lies or a tensor shaped like models, found list",
        ),
        (
            lambda: RING.deliver(MODELS, Lies.to_all(torch.zeros(5)), [0]),
            "lies must have d = 2 parameters like models, found 5",
        ),
        (
            lambda: RING.deliver(MODELS, MODELS.double(), [0]),
            "lies must have the dtype and device of models, torch.float32 on "
            "cpu, found torch.float64 on cpu",
        ),
        (
            lambda: RING.deliver(MODELS, MODELS.to("meta"), [0]),
            "lies must have the dtype and device of models, torch.float32 on "
            "cpu, found torch.float32 on meta",
        ),
        (
            lambda: RING.deliver(MODELS, Lies.per_receiver(torch.zeros(4, 2)), [0]),
            "receivers of lies must be from -1 to 2, found 0 to 3",
        ),
    ],
)
def test_error_text(make, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
