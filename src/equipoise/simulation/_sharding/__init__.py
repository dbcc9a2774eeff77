"""The clients of one process, of several that share a simulation."""

from equipoise.simulation._sharding._part import Everyone, Part
from equipoise.simulation._sharding._partition import Cut, Partition, PartitionLike, partition_of
from equipoise.simulation._sharding._ranks import LostRankError, Ranks, ranks_of
from equipoise.simulation._sharding._row_exchange import RowExchange
from equipoise.simulation._sharding._shard import Shard, part_of

__all__ = [
    "Cut",
    "Everyone",
    "LostRankError",
    "Part",
    "Partition",
    "PartitionLike",
    "Ranks",
    "RowExchange",
    "Shard",
    "part_of",
    "partition_of",
    "ranks_of",
]
