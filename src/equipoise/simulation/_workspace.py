"""What a run keeps from round to round to save time; results do not depend on it."""

from __future__ import annotations

from torch import Tensor

from equipoise._utils.recycled_memory import RecycledMemory
from equipoise.simulation._routes import Routes
from equipoise.simulation._settings import Settings
from equipoise.topology import Topology


class Workspace:
    """Memory for models, and the routes of the last graph.

    The models before a round and those after it take turns in the same memory. Code outside of the
    run may keep models of any round: see `RecycledMemory`.
    """

    def __init__(self, settings: Settings) -> None:
        self.memory = RecycledMemory()
        self._source: Topology | None = None
        self._routes: Routes | None = None
        # The largest number of other messages so far; at first a guess, one of each attacker.
        self._others = int(settings.attackers.sum())

    def routes(self, settings: Settings, topology: Topology, models: Tensor) -> Routes:
        """The routes of this graph."""
        if self._routes is None or self._source is not topology:
            self._source = topology
            self._routes = Routes(topology.to(models.device), settings)
        return self._routes

    def new_bank(self, models: Tensor) -> Tensor:
        """Memory for the messages of a round: one row per client, then others."""
        return self.memory.take(models, len(models) + self._others, models.shape[1])

    def note_bank(self, bank: Tensor, n: int) -> None:
        """Remember how many rows a round needed, for the next one."""
        self._others = max(self._others, len(bank) - n)
