"""Whose data an attack poisons, and when."""

from __future__ import annotations

from equipoise.attacks.combinations import Only, Together, Window
from equipoise.randomness import stream
from equipoise.training.examples import Examples, Pair
from equipoise.types import Attack, DataAttack


def poisoners(attack: Attack, client: int, t: int | None = None) -> tuple[DataAttack, ...]:
    """The attacks that poison a malicious client's data in round t, or in any round, one after the other.

    >>> from equipoise.training.poisoning import poisoners
    >>> flip = eq.attacks.LabelFlip({3: 5})
    >>> poisoners(eq.attacks.Window(flip, start=10, stop=20), client=0, t=9)
    ()
    >>> poisoners(eq.attacks.Window(flip, start=10, stop=20), client=0, t=10) == (flip,)
    True
    """
    match attack:
        case Window():
            return poisoners(attack.attack, client, t) if t is None or attack.active(t) else ()
        case Only():
            return poisoners(attack.attack, client, t) if client in attack.clients else ()
        case Together():
            return tuple(found for part in attack.attacks for found in poisoners(part, client, t))
    return (attack,) if isinstance(attack, DataAttack) else ()


class Poisoning:
    """An attack on the data of some clients; what is drawn depends on the seed and on the client alone."""

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
        x, y = self.clean.of_client(client)
        for attack in attacks:
            x, y = attack.poison(x, y, generator=stream(self.seed, "poison", client))
        return x, y


def _same(some: dict[int, tuple[DataAttack, ...]], others: dict[int, tuple[DataAttack, ...]]) -> bool:
    """The very same attacks on the same clients; whether attacks can be compared is not known."""
    return some.keys() == others.keys() and all(
        list(map(id, attacks)) == list(map(id, others[client])) for client, attacks in some.items()
    )
