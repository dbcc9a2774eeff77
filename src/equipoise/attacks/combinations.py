"""Attacks for some rounds, for some clients, on models only, and several at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise._utils.validation import Clients, as_mask, as_tensor, check_count, check_range, describe
from equipoise.attacks.attack import Attack, DataAttack, MessageAttack
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class Window:
    """An attack in rounds ``start`` to ``stop - 1`` only; before and after, malicious clients behave.

    Section 7 of the BALANCE paper attacks in the first, or in the second half of the rounds. `LocalSGD` uses poisoned
    data in these rounds only; a trainer of your own asks ``active(t)``.

    >>> attack = eq.attacks.Window(eq.attacks.Zero(), start=0, stop=1000)
    >>> attack.active(999), attack.active(1000)
    (True, False)
    """

    attack: Attack
    start: int
    stop: int

    def __post_init__(self) -> None:
        _check_attacks(self.attack)
        check_count("start", self.start, 0)
        check_count("stop", self.stop, 0)
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"start and stop must be rounds, 0 <= start <= stop, found {self.start} and {self.stop}")

    def active(self, t: int) -> bool:
        """Whether round t is in the window."""
        return self.start <= t < self.stop

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Those of the attack, in its rounds."""
        return poisoners(self.attack, client, t) if t is None or self.active(t) else ()

    def poison(self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """What the attack makes of the data in its rounds; a combination of several says that for every client."""
        if isinstance(self.attack, DataAttack):
            return self.attack.poison(x, y, generator=generator)
        if _may_poison(self.attack):
            raise ValueError(
                f"attack must have a method poison, found {describe(self.attack)}, which may differ from client to "
                "client; poisoners(attack, client, t) are the attacks that have one"
            )
        return x, y

    def forge(self, known: Knowledge) -> Lies | None:
        """What the attack says in its rounds, otherwise nothing."""
        t = known.inputs.get("t")
        if t is None:
            raise ValueError("inputs of Knowledge must hold the round t for Window, found none")
        return self.attack.forge(known) if self.active(t) and isinstance(self.attack, MessageAttack) else None


@dataclass(frozen=True)
class Only:
    """An attack that only some of the malicious clients follow; the others train on their data and tell the truth.

    Args:
        attack: what they do.
        clients: bool mask (n,) or client ids; kept as ids, ascending.

    >>> known = eq.attacks.Knowledge(torch.ones(4, 1), eq.Topology.complete(4), malicious=[2, 3])
    >>> eq.attacks.Only(eq.attacks.Zero(), clients=(3,)).forge(known).senders.unique()
    tensor([3])
    """

    attack: Attack
    clients: Clients

    def __post_init__(self) -> None:
        _check_attacks(self.attack)
        object.__setattr__(self, "clients", _as_ids(self.clients))

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Those of the attack, on its clients."""
        return poisoners(self.attack, client, t) if client in self.clients else ()

    def forge(self, known: Knowledge) -> Lies | None:
        """The attack's lies along the edges that leave these clients; none if it is one on data."""
        lies = self.attack.forge(known) if isinstance(self.attack, MessageAttack) else None
        edges = known.topology.edges().to(known.models.device)
        chosen = as_mask(self.clients, len(known.models), name="clients").to(edges.device) & known.liars
        kept = edges[chosen[edges[:, 0]]]
        return None if lies is None or not len(kept) else lies.along(kept)


@dataclass(frozen=True)
class OnModels:
    """An attack that lies about models even where updates are sent: the update that leads its victim to the lie.

    With LEARN, clients exchange updates before they exchange models, and other attacks are made of what is sent. Which
    of the two the BALANCE paper means is not said, and they differ: `KrumAttack` makes almost nothing of an update,
    which does little harm, and almost the zero model of a model, which takes a client far away.

    >>> origin, updates = torch.tensor([[4.0], [5.0], [6.0]]), torch.tensor([[0.1], [0.2], [0.3]])
    >>> graph = eq.Topology.complete(3)
    >>> known = eq.attacks.Knowledge(updates, graph, malicious=[2], previous=torch.zeros(3, 1), origin=origin)
    >>> eq.attacks.OnModels(eq.attacks.Zero()).forge(known).rows  # to clients 0 and 1
    tensor([[-4.],
            [-5.]])
    """

    attack: Attack

    def __post_init__(self) -> None:
        _check_attacks(self.attack)

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Those of the attack."""
        return poisoners(self.attack, client, t)

    def forge(self, known: Knowledge) -> Lies | None:
        """What the attack says about models, as updates where these are sent."""
        origin = known.origin
        if not isinstance(self.attack, MessageAttack):
            return None
        if origin is None:
            return self.attack.forge(known)
        lies = self.attack.forge(replace(known, models=origin + known.models, previous=origin, origin=None))
        if lies is None:
            return None
        told = lies.along(_edges_of_liars(known))
        return Lies(told.rows[told.which] - origin[told.receivers], told.senders, told.receivers)


@dataclass(frozen=True)
class Together:
    """Several attacks at once: where two lie on one edge, the later one counts.

    >>> both = eq.attacks.Together(
    ...     eq.attacks.Only(eq.attacks.Zero(), clients=(2,)),
    ...     eq.attacks.Only(eq.attacks.Gaussian(), clients=(3,)),
    ... )
    >>> known = eq.attacks.Knowledge(torch.ones(4, 1), eq.Topology.complete(4), malicious=[2, 3])
    >>> both.forge(known).senders.unique()
    tensor([2, 3])
    """

    attacks: tuple[Attack, ...]

    def __init__(self, *attacks: Attack) -> None:
        _check_attacks(*attacks)
        object.__setattr__(self, "attacks", attacks)

    def __repr__(self) -> str:
        return f"Together({', '.join(map(repr, self.attacks))})"

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Those of all attacks, in their order."""
        return tuple(found for attack in self.attacks for found in poisoners(attack, client, t))

    def forge(self, known: Knowledge) -> Lies | None:
        """All lies in one table; attacks on data tell none."""
        edges = _edges_of_liars(known)
        liars = [attack for attack in self.attacks if isinstance(attack, MessageAttack)]
        found = [lies.along(edges) for attack in liars if (lies := attack.forge(known)) is not None]
        return Lies.join(*found) if found else None


def _check_attacks(*attacks: object) -> None:
    for attack in attacks:
        if isinstance(attack, type) or not isinstance(attack, DataAttack | MessageAttack):
            raise ValueError(f"attack must have a method forge or a method poison, found {describe(attack)}")


def _may_poison(attack: Attack) -> bool:
    """Whether an attack is on data, or made of one that is."""
    if isinstance(attack, Together):
        return any(map(_may_poison, attack.attacks))
    if isinstance(attack, Window | Only | OnModels):
        return _may_poison(attack.attack)
    return isinstance(attack, DataAttack) or hasattr(attack, "poisoners")


def _as_ids(clients: Clients) -> tuple[int, ...]:
    """The ids of clients, ascending: unlike a mask or a tensor they can be compared and hashed."""
    expected = "clients must be a bool mask of shape (n,) or client ids"
    chosen = as_tensor(clients, expected)
    if chosen.dim() != 1 or (chosen.is_floating_point() and chosen.numel()):
        raise ValueError(f"{expected}, found {describe(chosen)}")
    if chosen.dtype == torch.bool:
        return tuple(chosen.nonzero().flatten().tolist())
    ids, times = chosen.long().unique(return_counts=True)
    check_range("clients", ids, 0, None)
    if len(ids) < len(chosen):
        raise ValueError(f"clients must name every client once, found client {ids[times > 1][0]} more than once")
    return tuple(ids.tolist())


def _edges_of_liars(known: Knowledge) -> Tensor:
    edges = known.topology.edges().to(known.models.device)
    return edges[known.liars[edges[:, 0]]]


def poisoners(attack: Attack, client: int, t: int | None = None) -> tuple[DataAttack, ...]:
    """The attacks that poison a malicious client's data in round t, or in any round, one after the other.

    An attack that is made of others, like those above, says so in a method of this name.

    >>> flip = eq.attacks.LabelFlip({3: 5})
    >>> eq.attacks.poisoners(eq.attacks.Window(flip, start=10, stop=20), client=0, t=9)
    ()
    >>> eq.attacks.poisoners(eq.attacks.Window(flip, start=10, stop=20), client=0, t=10) == (flip,)
    True
    """
    if hasattr(attack, "poisoners"):
        found: tuple[DataAttack, ...] = attack.poisoners(client, t)
        return found
    return (attack,) if isinstance(attack, DataAttack) else ()
