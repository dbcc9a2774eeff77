"""What processes send each other, and what they keep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.simulation._sharding import Partition, RowExchange, partition_of
from tests.simulation.sharding.pool import Pool
from tests.simulation.sharding.small_shards import Setting


def exchange_of(topology: eq.Topology, ranks: int, rank: int, unsent: Any = ()) -> RowExchange:
    partition = Partition.contiguous(topology.n, ranks)
    mask = torch.zeros(topology.n, dtype=torch.bool)
    mask[list(unsent)] = True
    processes: Any = SimpleNamespace(rank=rank, size=ranks)
    return RowExchange(processes, partition, topology, mask)


def test_only_neighbors_are_received() -> None:
    ring = eq.Topology.ring(100)
    assert exchange_of(ring, 4, rank=1).clients.tolist() == [*range(25, 50), 24, 50]


def test_distinct_rows_cross_once() -> None:
    # Every client of the other rank hears all 3, which are 3 rows, not 9.
    assert exchange_of(eq.Topology.complete(6), 2, rank=0).cut_rows == 6


def test_unheard_clients_are_not_sent() -> None:
    exchange = exchange_of(eq.Topology.complete(6), 2, rank=0, unsent=[4])
    assert exchange.clients.tolist() == [0, 1, 2, 3, 5]
    assert exchange.cut_rows == 5


def test_cut_of_a_partition() -> None:
    partition = Partition(torch.tensor([0, 1, 0, 1]), 2)
    cut = partition.cut(eq.Topology.ring(4))
    assert (cut.edges, cut.rows) == (8, 4)


@pytest.mark.parametrize("name", ["bisection", "modularity"])
def test_partitions_of_networkx_cut_less(name: Any) -> None:
    # Two complete graphs, of even and of odd ids, joined by one edge.
    pairs = [(i, j) for i in range(12) for j in range(i) if (i - j) % 2 == 0]
    topology = eq.Topology.from_edges(12, [*pairs, (0, 1)])
    found = partition_of(name, topology, 12, 2)
    assert found.cut(topology).edges == 2
    assert Partition.contiguous(12, 2).cut(topology).edges > 20
    assert found.counts == [6, 6]


@pytest.mark.parametrize("name", ["bisection", "modularity"])
@pytest.mark.parametrize(("n", "ranks"), [(4, 3), (5, 3), (9, 4), (14, 3)])
def test_partitions_of_networkx_are_equal_shares(name: Any, n: int, ranks: int) -> None:
    found = partition_of(name, eq.Topology.ring(n), n, ranks)
    assert sorted(found.counts) == sorted(Partition.contiguous(n, ranks).counts)


def traffic(group: Any, setting: Setting) -> tuple[int, int, int]:
    """Bytes sent in three rounds, bytes expected, and how often models were gathered."""
    simulator = setting.simulator(group, group.size(), metrics={}, evaluate_every=[2])
    ranks: Any = simulator.part.ranks  # type: ignore[attr-defined]
    gathered: list[Tensor] = []
    gather = ranks.gather

    def counted(mine: Tensor, counts: list[int]) -> Tensor:
        gathered.append(mine)
        return gather(mine, counts)

    ranks.gather = counted
    rows = 0
    for _ in range(3):
        rows += simulator.cut().rows
        simulator.step()
    d = simulator.models.shape[1]
    models = sum(mine.is_floating_point() for mine in gathered)
    return ranks.bytes_sent, rows * d * 4, models


@pytest.mark.parametrize("graph", ["random", "ring", "dropping"])
def test_bytes_are_those_of_cut_rows(pool: Pool, graph: str) -> None:
    setting = Setting(graph=graph, attack="none", rounds=4, n=14)
    found = pool.call(traffic, setting, ranks=3)
    assert sum(sent for sent, _, _ in found) == found[0][1]


@pytest.mark.parametrize(
    ("attack", "times"), [("Gaussian", 0), ("Zero", 0), ("OnlyClients", 0), ("LIE", 6)]
)
def test_attacks_gather_what_they_use(pool: Pool, attack: str, times: int) -> None:
    setting = Setting(attack=attack, rounds=4, train_malicious=True)
    for _, _, gathered in pool.call(traffic, setting, ranks=2):
        assert gathered == times


def errors(group: Any) -> list[str]:
    texts = []
    for options in (
        {"group": "WORLD"},
        {"group": group, "partition": torch.zeros(9, dtype=torch.int64)},
        {"group": group, "partition": "random"},
        {"group": group, "trainer": lambda models, t: models},
        {"group": group, "n": 1},
    ):
        with pytest.raises(ValueError, match="must") as caught:
            _make(**options)
        texts.append(str(caught.value))
    return texts


def _make(n: int = 9, **options: Any) -> eq.Simulator:
    setting = Setting(n=max(n, 3))
    settings = {"trainer": setting.simulator().trainer, "topology": eq.Topology.complete(n)}
    models = torch.zeros(n, 18)
    return eq.Simulator(rule=eq.Median(), models=models, **settings | options)


def test_errors_name_the_argument(pool: Pool) -> None:
    found = pool.call(errors, ranks=2)
    assert found[0] == found[1]
    starts = ("group must be", "partition must give", "partition must be", "trainer must", "models")
    for text, start in zip(found[0], starts, strict=True):
        assert text.startswith(start), text
