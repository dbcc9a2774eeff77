"""Attacks restricted to some rounds, clients or spaces, and several attacks at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise._utils.validation import (
    Clients,
    as_mask,
    as_tensor,
    check_count,
    check_range,
    describe,
)
from equipoise.attacks.attack import Attack, DataAttack, MessageAttack
from equipoise.attacks.knowledge import Knowledge
from equipoise.messages import Lies


@dataclass(frozen=True)
class Window:
    """An attack in rounds ``start`` to ``stop - 1``; in other rounds malicious clients are benign.

    Section 7 of the BALANCE paper attacks in the first, or in the second half of the rounds.
    `LocalSGD` uses poisoned data in these rounds only; a custom trainer can call ``active(t)``.

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
        # start == stop is valid: an empty window, in which nothing is attacked.
        if not 0 <= self.start <= self.stop:
            raise ValueError(
                "start and stop must be rounds, 0 <= start <= stop, "
                f"found {self.start} and {self.stop}"
            )

    def active(self, t: int) -> bool:
        """Return whether round t is in the window."""
        return self.start <= t < self.stop

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Return the data attacks on a client, in rounds of the window."""
        # Without a round, return the attacks of any round.
        return poisoners(self.attack, client, t) if t is None or self.active(t) else ()

    def poison(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Poison the data of a round in the window.

        Raise a ValueError if the attack combines others, because the result may depend on the
        client; `poisoners` gives the data attacks on one client.
        """
        if isinstance(self.attack, DataAttack):
            return self.attack.poison(x, y, generator=generator)
        if _may_poison(self.attack):
            raise ValueError(
                f"attack must have a method poison, found {describe(self.attack)}, which may "
                "differ from client to client; use poisoners(attack, client, t)"
            )
        # An attack on messages only.
        return x, y

    def forge(self, known: Knowledge) -> Lies | None:
        """Return the lies of the attack in rounds of the window, otherwise None."""
        t = known.inputs.get("t")
        if t is None:
            raise ValueError("inputs of Knowledge must hold the round t for Window, found none")
        if not self.active(t) or not isinstance(self.attack, MessageAttack):
            return None
        return self.attack.forge(known)


@dataclass(frozen=True)
class OnlyClients:
    """An attack by some of the malicious clients; the others train and send as if benign.

    Args:
        attack: the attack of these clients.
        clients: bool mask (n,) or client ids; kept as ids, ascending.

    >>> known = eq.attacks.Knowledge(torch.ones(4, 1), eq.Topology.complete(4), malicious=[2, 3])
    >>> eq.attacks.OnlyClients(eq.attacks.Zero(), clients=(3,)).forge(known).senders.unique()
    tensor([3])
    """

    attack: Attack
    clients: Clients

    def __post_init__(self) -> None:
        _check_attacks(self.attack)
        # Ids instead of a mask or tensor, so that equal attacks compare equal.
        object.__setattr__(self, "clients", _as_ids(self.clients))

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Return the data attacks on a client, if it is one of these clients."""
        return poisoners(self.attack, client, t) if client in self.clients else ()

    def forge(self, known: Knowledge) -> Lies | None:
        """Return the lies of the attack along the edges that leave these clients."""
        lies = self.attack.forge(known) if isinstance(self.attack, MessageAttack) else None
        # Even without lies, an id beyond the clients of the graph is an error.
        chosen = as_mask(self.clients, len(known.models), name="clients")
        edges = _malicious_edges(known)
        kept = edges[chosen.to(edges.device)[edges[:, 0]]]  # (e, 2): sender, receiver
        return None if lies is None or not len(kept) else lies.along(kept)


@dataclass(frozen=True)
class InModelSpace:
    """Forge models even where a rule sends updates, and send the updates that lead to them.

    LEARN exchanges updates before it exchanges models, and other attacks craft their lies from the
    messages of each exchange. The BALANCE paper does not state which it means, and the two differ:
    `KrumAttack` turns an update into almost nothing, which does little harm, and a model into
    almost the zero model, which moves a client far away.

    >>> origin = torch.tensor([[4.0], [5.0], [6.0]])
    >>> updates = torch.tensor([[0.1], [0.2], [0.3]])
    >>> known = eq.attacks.Knowledge(
    ...     updates, eq.Topology.complete(3), [2], previous=torch.zeros(3, 1), origin=origin
    ... )
    >>> eq.attacks.InModelSpace(eq.attacks.Zero()).forge(known).rows  # to clients 0 and 1
    tensor([[-4.],
            [-5.]])
    """

    attack: Attack

    def __post_init__(self) -> None:
        _check_attacks(self.attack)

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Return the data attacks on a client."""
        return poisoners(self.attack, client, t)

    def forge(self, known: Knowledge) -> Lies | None:
        """Return the lies of the attack on models, as updates if the rule sends updates."""
        if not isinstance(self.attack, MessageAttack):
            return None
        origin = known.origin
        # Without an origin, the rule exchanges models already.
        if origin is None:
            return self.attack.forge(known)
        # Present the round as if models were exchanged: base plus update.
        models = replace(known, models=origin + known.models, previous=origin, origin=None)
        lies = self.attack.forge(models)
        if lies is None:
            return None
        # The update to a false model depends on the receiver, so there is one row per edge.
        lies = lies.along(_malicious_edges(known))
        rows = lies.rows[lies.which] - origin[lies.receivers]
        return Lies(rows, lies.senders, lies.receivers)


@dataclass(frozen=True)
class Combined:
    """Several attacks at once; if two lie along the same edge, the later one counts.

    >>> both = eq.attacks.Combined(
    ...     eq.attacks.OnlyClients(eq.attacks.Zero(), clients=(2,)),
    ...     eq.attacks.OnlyClients(eq.attacks.Gaussian(), clients=(3,)),
    ... )
    >>> known = eq.attacks.Knowledge(torch.ones(4, 1), eq.Topology.complete(4), malicious=[2, 3])
    >>> both.forge(known).senders.unique()
    tensor([2, 3])
    """

    attacks: tuple[Attack, ...]

    # A generated constructor would take one tuple, not any number of attacks.
    def __init__(self, *attacks: Attack) -> None:
        _check_attacks(*attacks)
        object.__setattr__(self, "attacks", attacks)

    def __repr__(self) -> str:
        return f"Combined({', '.join(map(repr, self.attacks))})"

    def poisoners(self, client: int, t: int | None) -> tuple[DataAttack, ...]:
        """Return the data attacks on a client, in order."""
        return tuple(found for attack in self.attacks for found in poisoners(attack, client, t))

    def forge(self, known: Knowledge) -> Lies | None:
        """Return all lies in one table; data attacks add none."""
        edges = _malicious_edges(known)
        forged = [
            attack.forge(known) for attack in self.attacks if isinstance(attack, MessageAttack)
        ]
        # Per edge, all lies are equally specific, so the later attack wins.
        found = [lies.along(edges) for lies in forged if lies is not None]
        return Lies.join(*found) if found else None


def poisoners(attack: Attack, client: int, t: int | None = None) -> tuple[DataAttack, ...]:
    """Return the attacks on a malicious client's data in round t, or in any round, in order.

    A combination of attacks implements a method of this name.

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


def uses_malicious_models(
    attack: Attack, *, malicious: Clients | None = None, rounds: Iterable[int] | None = None
) -> bool:
    """Return whether the models that malicious clients train matter to benign clients.

    They do not if every message from a malicious to a benign client is a lie, in all of the rounds,
    and if no lie depends on these models. Message attacks declare that: see
    `equipoise.attacks.MessageAttack`. Data attacks always need the models.

    Models are trained over many rounds, so the answer for one round does not permit skipping its
    training: ask about all rounds to come.

    Args:
        attack: a data attack, a message attack, or a combination of attacks.
        malicious: bool mask (n,) or client ids. Without it, some malicious client may not be among
            the clients of an `OnlyClients`.
        rounds: the rounds in question. Without it, some round may be outside of a `Window`.

    >>> eq.attacks.uses_malicious_models(eq.attacks.Zero())
    False
    >>> some = eq.attacks.OnlyClients(eq.attacks.Zero(), clients=(2, 3))
    >>> eq.attacks.uses_malicious_models(some)
    True
    >>> eq.attacks.uses_malicious_models(some, malicious=[3])
    False
    >>> late = eq.attacks.Window(eq.attacks.Zero(), start=5, stop=10)
    >>> eq.attacks.uses_malicious_models(late, rounds=range(5, 10))
    False
    """
    # None stands for an unknown client, which no OnlyClients names, and for an unknown round.
    clients = frozenset([None] if malicious is None else _as_ids(malicious, "malicious"))
    return any(
        _looks_at_malicious_models(attack, t) or _always_lying(attack, clients, t) != clients
        for t in ([None] if rounds is None else rounds)
    )


def uses_models(attack: Attack) -> bool:
    """Return whether lies of the attack may depend on models, of any client.

    Attacks declare that: see `equipoise.attacks.MessageAttack`. A combination does if one of its
    parts does. Attacks on data only send no lies.

    >>> eq.attacks.uses_models(eq.attacks.Gaussian()), eq.attacks.uses_models(eq.attacks.LIE())
    (False, True)
    """
    if isinstance(attack, Combined):
        return any(map(uses_models, attack.attacks))
    # In model space, a lie is added to a model.
    if isinstance(attack, Window | OnlyClients):
        return uses_models(attack.attack)
    return isinstance(attack, MessageAttack) and bool(getattr(attack, "uses_models", True))


def _looks_at_malicious_models(attack: Attack, t: int | None) -> bool:
    """Return whether a part of the attack may look at malicious models in round t."""
    if isinstance(attack, Combined):
        return any(_looks_at_malicious_models(part, t) for part in attack.attacks)
    if isinstance(attack, Window) and t is not None and not attack.active(t):
        return False
    if isinstance(attack, Window | OnlyClients | InModelSpace):
        return _looks_at_malicious_models(attack.attack, t)
    return _declares_use(attack)


def _always_lying(
    attack: Attack, clients: frozenset[int | None], t: int | None
) -> frozenset[int | None]:
    """Return the malicious clients all of whose messages to benign clients are lies in round t."""
    if isinstance(attack, Combined):
        return frozenset().union(*(_always_lying(part, clients, t) for part in attack.attacks))
    if isinstance(attack, Window) and (t is None or not attack.active(t)):
        return frozenset()
    if isinstance(attack, OnlyClients):
        return _always_lying(attack.attack, clients.intersection(attack.clients), t)
    if isinstance(attack, Window | InModelSpace):
        return _always_lying(attack.attack, clients, t)
    return frozenset() if _declares_use(attack) else clients


def _declares_use(attack: Attack) -> bool:
    """Return whether one attack, not a combination, may use malicious models."""
    # Without a declaration, malicious clients are trained, which is always correct.
    return isinstance(attack, DataAttack) or bool(getattr(attack, "uses_malicious_models", True))


def _check_attacks(*attacks: object) -> None:
    for attack in attacks:
        # A class has the methods of its instances, but forgetting the parentheses is a mistake.
        if isinstance(attack, type) or not isinstance(attack, DataAttack | MessageAttack):
            raise ValueError(
                f"attack must have a method forge or a method poison, found {describe(attack)}"
            )


def _may_poison(attack: Attack) -> bool:
    """Return whether an attack is a data attack, or contains one."""
    if isinstance(attack, Combined):
        return any(map(_may_poison, attack.attacks))
    if isinstance(attack, Window | OnlyClients | InModelSpace):
        return _may_poison(attack.attack)
    # A combination that is defined elsewhere has a method poisoners.
    return isinstance(attack, DataAttack) or hasattr(attack, "poisoners")


def _as_ids(clients: Clients, name: str = "clients") -> tuple[int, ...]:
    """Return client ids, ascending. Unlike a mask or a tensor, they can be compared and hashed."""
    expected = f"{name} must be a bool mask of shape (n,) or client ids"
    chosen = as_tensor(clients, expected)
    # An empty list becomes a tensor of floats, but is a valid set of ids.
    if chosen.dim() != 1 or (chosen.is_floating_point() and chosen.numel()):
        raise ValueError(f"{expected}, found {describe(chosen)}")
    if chosen.dtype == torch.bool:
        return tuple(chosen.nonzero().flatten().tolist())
    ids, times = chosen.long().unique(return_counts=True)
    # The number of clients is not known yet; forge checks the upper end.
    check_range(name, ids, 0, None)
    if len(ids) < len(chosen):
        repeated = ids[times > 1][0]
        raise ValueError(
            f"{name} must name every client once, found client {repeated} more than once"
        )
    return tuple(ids.tolist())


def _malicious_edges(known: Knowledge) -> Tensor:
    """Return the edges (sender, receiver) that leave malicious clients."""
    edges = known.topology.edges().to(known.models.device)
    return edges[known.malicious_mask[edges[:, 0]]]
