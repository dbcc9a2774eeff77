"""The examples of all clients while an attack poisons some of them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from equipoise._utils.rng import stream
from equipoise.attacks import Attack, DataAttack, poisoners
from equipoise.training._examples import Examples, Pair


class Poisoning:
    """An attack on the data of malicious clients.

    Random numbers depend on the seed and the client only. Each of several attacks on one client
    has its own. The examples of client i are those of row i, or of ``rows[i]``.
    """

    def __init__(
        self,
        clean: Examples,
        attack: Attack,
        malicious: list[int],
        seed: int,
        *,
        rows: Mapping[int, int] | None = None,
    ) -> None:
        self._clean = clean
        self._attack = attack
        self._malicious = malicious
        self._rows = {client: client for client in malicious} if rows is None else rows
        self._seed = seed
        self._last: tuple[dict[int, tuple[DataAttack, ...]], Examples] = ({}, clean)
        # An attack that does not fit these examples fails now, not in the round when it begins.
        for client in malicious:
            if attacks := poisoners(attack, client):
                clean.replaced({self._rows[client]: self._poison(client, attacks)})
                break

    def examples(self, t: int) -> Examples:
        """The examples of all clients in round t."""
        active = {}
        for client in self._malicious:
            if attacks := poisoners(self._attack, client, t):
                active[client] = attacks
        # Kept from round to round: an attack rarely changes, and poisoning may take long.
        if not _are_same(active, self._last[0]):
            poisoned = {client: self._poison(client, attacks) for client, attacks in active.items()}
            rows = {self._rows[client]: pair for client, pair in poisoned.items()}
            self._last = active, self._clean.replaced(rows)
        return self._last[1]

    def of_rows(self, clean: Examples, rows: Tensor) -> Poisoning:
        """The attack on the clients with a row ``rows[client] >= 0`` among these examples."""
        mine = {client: int(rows[client]) for client in self._malicious if rows[client] >= 0}
        return Poisoning(clean, self._attack, list(mine), self._seed, rows=mine)

    def _poison(self, client: int, attacks: tuple[DataAttack, ...]) -> Pair:
        x, y = (
            part.clone() for part in self._clean.of_client(self._rows[client])
        )  # attacks may modify them
        for place, attack in enumerate(attacks):
            # The first attack draws the same whether others follow or not.
            key = (client, place) if place else (client,)
            x, y = attack.poison(x, y, generator=stream(self._seed, "poison", *key))
        return x, y


def _are_same(
    some: dict[int, tuple[DataAttack, ...]], others: dict[int, tuple[DataAttack, ...]]
) -> bool:
    """Whether the identical objects attack the same clients: attacks may not be comparable."""
    if some.keys() != others.keys():
        return False
    return all(
        list(map(id, attacks)) == list(map(id, others[client])) for client, attacks in some.items()
    )
