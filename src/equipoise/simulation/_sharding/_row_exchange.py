"""The rows of models that a rank sends to others and receives, for one graph."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.simulation._sharding._partition import Partition
from equipoise.simulation._sharding._ranks import Ranks
from equipoise.simulation._sharding._shared_memory import SharedMemory
from equipoise.topology import Topology


class RowExchange:
    """Each distinct row crosses once for each rank that hears it.

    All ranks know the graph, so each one knows what it sends and receives without asking.

    Args:
        ranks: the processes.
        partition: who owns which clients.
        topology: the graph, without edges to clients that receive nothing.
        unsent: (n,) bool, clients whose models no other client hears.
        shared: memory for rows, None if the ranks are on several machines.
    """

    def __init__(
        self,
        ranks: Ranks,
        partition: Partition,
        topology: Topology,
        unsent: Tensor,
        shared: SharedMemory | None = None,
    ) -> None:
        self._ranks = ranks
        self._shared = shared
        owners = partition.owners
        n = len(owners)
        receivers = topology.mask.nonzero()[:, 0].cpu()
        senders = topology.senders[topology.mask].cpu()
        to = owners[receivers]
        crosses = (owners[senders] != to) & ~unsent.cpu()[senders]
        # Sorted by the rank that hears it, then by sender.
        keys = (to[crosses] * n + senders[crosses]).unique()
        to = keys // n
        senders = keys % n
        self.cut_rows = len(keys)
        mine = owners[senders] == ranks.rank
        place = torch.full((n,), -1, device="cpu")
        own = partition.of_rank(ranks.rank)
        place[own] = torch.arange(len(own), device="cpu")
        self._sent = place[senders[mine]].to(topology.senders.device)
        pairs = owners[senders] * ranks.size + to
        counts = torch.bincount(pairs, minlength=ranks.size**2).view(ranks.size, ranks.size)
        # Row q counts what rank q sends, column r what rank r receives.
        self._counts: list[list[int]] = counts.tolist()
        heard = senders[to == ranks.rank]
        # Rows arrive by rank; within one, they are sorted by sender on both sides.
        heard = heard[owners[heard].sort(stable=True).indices]
        self.clients = torch.cat([own, heard]).to(topology.senders.device)
        self.own = len(own)
        place[heard] = torch.arange(len(own), len(self.clients), device="cpu")
        self._place = place.to(topology.senders.device)

    def places(self, clients: Tensor) -> Tensor:
        """The rows of some clients: own rows come first, then those that are received."""
        # A client that no one hears has no row; its message is replaced by a lie.
        return self._place[clients].clamp_min(0)

    def complete(self, sent: Tensor, bank: Tensor, memory: RecycledMemory) -> tuple[Tensor, Tensor]:
        """The rows of own clients followed by those of others, and the bank that they begin.

        That is ``bank`` if they fit, and if ``sent`` are its first rows.
        """
        rows = len(self.clients)
        # Other rows than those of the bank may be sent: the bank still holds the trained models.
        if len(bank) < rows or sent.data_ptr() != bank.data_ptr():
            bank = memory.take(sent, max(rows, len(bank)), sent.shape[1])
            bank[: self.own] = sent
        self._ranks.bytes_sent += len(self._sent) * sent.shape[1] * sent.element_size()
        into = bank[self.own : rows]
        if self._shared is not None:
            self._shared.swap(sent, self._sent, self._counts, into)
            return bank[:rows], bank
        out = memory.take(sent, len(self._sent), sent.shape[1])
        torch.index_select(sent, 0, self._sent, out=out)
        rank = self._ranks.rank
        counts_in = [each[rank] for each in self._counts]
        self._ranks.swap(out, self._counts[rank], into, counts_in)
        return bank[:rows], bank
