"""The clients of one rank, among several processes that share a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, cast

import torch
from torch import Tensor

from equipoise.kernels import chunks, squared_spread
from equipoise.rules import PerClient
from equipoise.simulation._sharding._part import (
    Everyone,
    LossesAt,
    LossOf,
    Metric,
    Part,
    ValueT,
)
from equipoise.simulation._sharding._partition import Cut, Partition, partition_of
from equipoise.simulation._sharding._ranks import Ranks, ranks_of
from equipoise.simulation._sharding._row_exchange import RowExchange
from equipoise.simulation._sharding._shared_memory import SharedMemory
from equipoise.topology import Topology

# Elements of all models that a rank receives at a time to measure their consensus.
RECEIVED = 1 << 22


class Shard:
    """The clients of one rank of a process group.

    Args:
        ranks: the processes.
        partition: which rank owns which clients.
        device: that of the models.
    """

    def __init__(self, ranks: Ranks, partition: Partition, device: torch.device) -> None:
        self.ranks = ranks
        self.partition = partition
        self._device = device
        self._own = partition.of_rank(ranks.rank)
        self._rows = self._own.to(device)
        # Rows arrive by rank. If ranks own successive blocks, that is the order of the clients.
        order = partition.owners.sort(stable=True).indices
        in_order = torch.equal(order, torch.arange(len(order), device="cpu"))
        self._order = None if in_order else order.to(device)
        self._rule: tuple[Any, Any] = (None, None)
        self._shared = SharedMemory.of(ranks, device)

    @property
    def n(self) -> int:
        """Number of clients of all ranks."""
        return len(self.partition.owners)

    is_alone = False

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.ranks.rank == 0

    def ids(self, n: int) -> Tensor:
        """The ids of this rank's clients."""
        return self._own

    def of(self, value: ValueT) -> ValueT:
        """The rows of this rank's clients."""
        if isinstance(value, Tensor) and value.dim():
            return cast(ValueT, value[self._rows.to(value.device)])
        return value

    def rule_of(self, rule: Any) -> Any:
        """A `PerClient` has a rule for each client; other rules serve all."""
        if not isinstance(rule, PerClient):
            return rule
        if self._rule[0] is not rule:
            mine = PerClient(rule.rules[client] for client in self._own.tolist())
            self._rule = (rule, mine)
        return self._rule[1]

    def exchange(self, topology: Topology, unsent: Tensor) -> RowExchange:
        """The rows that cross between ranks."""
        return RowExchange(self.ranks, self.partition, topology, unsent, self._shared)

    def all_sums(self, numbers: Iterable[int]) -> list[int]:
        """The sums over all ranks."""
        return self.ranks.sum(numbers, self._device)

    def all_rows(self, mine: Tensor) -> Tensor:
        """The rows of all ranks, in the order of the clients."""
        # Counts of examples are on the CPU, which NCCL cannot send from.
        sent = mine.to(self._device).contiguous()
        rows = self.ranks.gather(sent, self.partition.counts)
        if self._order is not None:
            rows = torch.empty_like(rows).index_copy_(0, self._order, rows)
        return rows.to(mine.device)

    def cut(self, topology: Topology) -> Cut:
        """The edges between ranks."""
        return self.partition.cut(topology)

    @contextmanager
    def telling_errors(self) -> Iterator[None]:
        """Tell the other ranks of an error."""
        try:
            yield
        # KeyboardInterrupt is no Exception.
        except BaseException as error:
            self.ranks.tell(error)
            raise

    def losses(self, loss_of: LossesAt) -> LossesAt:
        """Losses by row instead of id."""

        def of_rows(t: int) -> LossOf:
            of_ids = loss_of(t)
            return lambda models, rows: of_ids(models, self._rows[rows])

        return of_rows

    def measure(self, metric: Metric, models: Tensor) -> Tensor:
        """The values for this rank's models, in the blocks of models of a whole simulation.

        The last digits of a product of matrices depend on its shape and on the place of a row. So
        a block that several ranks share is evaluated by each of them, with zeros for the others.
        """
        size = getattr(metric, "models_at_once", 1)
        if size == 1:
            return metric(models)
        values = torch.empty(len(models), dtype=torch.float64, device=models.device)
        n = self.n
        for block in (self._own // size).unique().tolist():
            mine = (self._own // size == block).nonzero().flatten().to(models.device)
            first = block * size
            shared = models.new_zeros(min(size, n - first), models.shape[1])
            places = self._rows[mine] - first
            shared[places] = models[mine]
            values[mine] = metric(shared)[places].to(values)
        return values

    def all_losses(self, loss_of: LossOf) -> LossOf:
        """Losses on the data of any client; each rank evaluates those of its own clients."""
        place = torch.full((self.n,), -1, device="cpu")
        place[self._own] = torch.arange(len(self._own), device="cpu")

        def losses(models: Tensor, clients: Tensor) -> Tensor:
            rows = place[clients.cpu()].to(clients.device)
            mine = (rows >= 0).nonzero().flatten()
            found = models.new_zeros(len(models))
            if len(mine):
                found[mine] = loss_of(models[mine], rows[mine]).to(found)
            # The other ranks add zeros, which changes no bit.
            return self.ranks.add(found)

        return losses

    def all_fingerprint(self, trainer: Any) -> str | None:
        """A digest of the digests of all clients, which does not depend on the partition."""
        if not hasattr(trainer, "client_fingerprints"):
            return None
        digests = self.all_rows(trainer.client_fingerprints())
        return blake2b(bytes(digests.flatten().tolist()), digest_size=16).hexdigest()

    def redistribute(self, rows: Tensor, owners: Tensor, *, back: bool = False) -> Tensor:
        """The rows of the clients that ``owners`` gives to this rank; with ``back``, from them."""
        start, end = (owners, self.partition.owners) if back else (self.partition.owners, owners)
        rank = self.ranks.rank
        mine = (start == rank).nonzero().flatten()
        order = end[mine].sort(stable=True).indices
        theirs = (end == rank).nonzero().flatten()
        counts_out = torch.bincount(end[mine], minlength=self.ranks.size).tolist()
        counts_in = torch.bincount(start[theirs], minlength=self.ranks.size).tolist()
        into = rows.new_empty(len(theirs), *rows.shape[1:])
        sent = rows[order.to(rows.device)]
        self.ranks.swap(sent, counts_out, into, counts_in)
        arrival = start[theirs].sort(stable=True).indices
        return torch.empty_like(into).index_copy_(0, arrival.to(into.device), into)

    def all_consensus(self, models: Tensor, chosen: Tensor) -> float:
        """The same pieces of columns as in one process, each summed by one rank.

        For that, a rank receives some columns of all models: as many numbers as its own models.
        """
        owners = self.partition.owners[chosen.cpu()]
        counts = torch.bincount(owners, minlength=self.ranks.size).tolist()
        order = owners.sort(stable=True).indices.to(models.device)
        mine = models[self.of(chosen)]
        n = len(order)
        pieces = list(chunks(models.shape[1], n))
        totals = torch.zeros(len(pieces), dtype=torch.float64, device="cpu")
        # Each rank sums so many pieces at a time, which bounds its memory.
        share = max(1, RECEIVED // (n * pieces[0].stop))
        for first in range(0, len(pieces), share * self.ranks.size):
            starts = range(first, first + share * self.ranks.size, share)
            shares = [pieces[start : start + share] for start in starts]
            spans = [slice(part[0].start, part[-1].stop) if part else slice(0) for part in shares]
            columns = self._columns(mine, spans, counts)[order.argsort()]
            start = spans[self.ranks.rank].start or 0
            for i, piece in enumerate(shares[self.ranks.rank], first + share * self.ranks.rank):
                totals[i] = squared_spread(columns[:, piece.start - start : piece.stop - start])
        return float(self.ranks.add(totals.to(self._device)).cpu().sum()) / n

    def _columns(self, mine: Tensor, spans: list[slice], counts: list[int]) -> Tensor:
        """(n, width) this rank's span of columns of all models, by rank."""
        widths = [mine[:1, span].shape[1] for span in spans]
        sent = torch.cat([mine[:, span].flatten() for span in spans])
        width = widths[self.ranks.rank]
        into = mine.new_empty(sum(counts) * width)
        counts_out = [len(mine) * each for each in widths]
        self.ranks.swap(sent[:, None], counts_out, into[:, None], [c * width for c in counts])
        return into.view(sum(counts), width)


def part_of(
    group: object, partition: object, topology: object, n: int, device: torch.device
) -> Part:
    """The clients of this process: all without a group, else those that the partition gives it."""
    if group is None:
        return Everyone()
    ranks = ranks_of(group)
    graph = topology if isinstance(topology, Topology) else None
    return Shard(ranks, partition_of(partition, graph, n, ranks.size), device)
