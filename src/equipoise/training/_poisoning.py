"""Whose data an attack poisons, and when."""

from __future__ import annotations

from equipoise._utils.rng import stream
from equipoise.attacks import Attack, DataAttack, poisoners
from equipoise.training._examples import Examples, Pair


class Poisoning:
    """An attack on the data of some clients; what is drawn depends on the seed and on the client alone.

    Of several attacks on one client, each draws on its own.
    """

    def __init__(self, clean: Examples, attack: Attack, malicious: list[int], seed: int) -> None:
        self.clean, self.attack, self.malicious, self.seed = clean, attack, malicious, seed
        self._last: tuple[dict[int, tuple[DataAttack, ...]], Examples] = ({}, clean)
        if any(poisoners(attack, client) for client in malicious):
            self._try()

    def _try(self) -> None:
        """Complain now about an attack that these examples do not suit, not in the round when it begins."""
        client = next(client for client in self.malicious if poisoners(self.attack, client))
        self.clean.replaced({client: self._poisoned(client, poisoners(self.attack, client))})

    def examples(self, t: int) -> Examples:
        """Everybody's examples in round t; kept, because most rounds are like the one before."""
        at_work = {client: found for client in self.malicious if (found := poisoners(self.attack, client, t))}
        if not _same(at_work, self._last[0]):
            poisoned = {client: self._poisoned(client, attacks) for client, attacks in at_work.items()}
            self._last = at_work, self.clean.replaced(poisoned)
        return self._last[1]

    def _poisoned(self, client: int, attacks: tuple[DataAttack, ...]) -> Pair:
        x, y = (part.clone() for part in self.clean.of_client(client))  # an attack may write to what it is given
        for place, attack in enumerate(attacks):
            later = (place,) if place else ()  # what the first draws does not depend on whether others follow
            x, y = attack.poison(x, y, generator=stream(self.seed, "poison", client, *later))
        return x, y


def _same(some: dict[int, tuple[DataAttack, ...]], others: dict[int, tuple[DataAttack, ...]]) -> bool:
    """The very same attacks on the same clients; whether attacks can be compared is not known."""
    return some.keys() == others.keys() and all(
        list(map(id, attacks)) == list(map(id, others[client])) for client, attacks in some.items()
    )
