"""What the adversary knows."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise._utils.formatting import as_call
from equipoise._utils.rng import device_of, uniform
from equipoise._utils.validation import Clients, as_mask, describe, is_floating
from equipoise.attacks._neighborhoods import Roster
from equipoise.kernels import block, central_rows, compute_dtype
from equipoise.rules import Aggregator, MultiExchange
from equipoise.topology import Topology
from equipoise.types import RoundInputs

Space = Literal["model", "update"]
Scope = Literal["receiver", "global"]


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Everything in one round of a system whose malicious clients act as one: full knowledge, and the last word.

    Args:
        models: (n, d) every client's model after local training; the rows of malicious clients are what they
            would send if they were benign.
        topology: who hears whom this round.
        malicious: bool mask (n,) or client ids.
        previous: (n, d) the models before local training, for attacks on updates.
        rule: the victims' rule, for attacks that search for what it accepts.
        inputs: the round inputs of that rule, among them the round ``t`` of ``total``.
        generator: the source of randomness; torch's global one if not given.
        origin: (n, d) the models that ``models`` are updates of, where updates are what is sent, as LEARN does.

    >>> known = eq.attacks.Knowledge(torch.zeros(4, 2), eq.Topology.ring(4), malicious=[1])
    >>> known.victims
    tensor([0, 2])
    """

    models: Tensor
    topology: Topology
    malicious: Clients
    previous: Tensor | None = None
    rule: Aggregator | MultiExchange | None = None
    inputs: RoundInputs = field(default_factory=lambda: RoundInputs())
    generator: torch.Generator | None = None
    origin: Tensor | None = None

    __repr__ = as_call

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Topology):
            raise ValueError(f"topology must be a Topology, found {describe(self.topology)}")
        models, n = self.models, self.topology.n
        if not is_floating(models) or models.dim() != 2 or len(models) != n:
            raise ValueError(f"models must be a floating-point tensor of shape ({n}, d), found {describe(models)}")
        if not models.shape[1]:
            raise ValueError("models must have parameters, found none")
        for name in ("previous", "origin"):
            other = getattr(self, name)
            if other is not None and describe(other) != describe(models):
                raise ValueError(f"{name} must be like models, {describe(models)}, found {describe(other)}")
        # What is small is copied, so that an attack cannot change what the system goes by.
        object.__setattr__(self, "malicious", as_mask(self.malicious, n).to(models.device, copy=True))
        object.__setattr__(self, "inputs", _copied(self.inputs))

    @cached_property
    def liars(self) -> Tensor:
        """(n,) bool: who is malicious."""
        return as_mask(self.malicious, self.topology.n)

    @cached_property
    def malicious_count(self) -> int:
        """How many clients are malicious."""
        return int(self.liars.sum())

    @cached_property
    def tolls(self) -> Tensor:
        """(n,) how many malicious clients each client hears."""
        return self.topology.malicious_neighbors(self.liars).to(self.models.device)

    @cached_property
    def victims(self) -> Tensor:
        """Ids of the benign clients that hear a malicious one."""
        return ((self.tolls > 0) & ~self.liars).nonzero().flatten()

    @cached_property
    def finite(self) -> Tensor:
        """(n,) bool: who has finite models."""
        finite = kernels.are_finite(self.models)
        return finite if self.previous is None else finite & kernels.are_finite(self.previous)

    @cached_property
    def sane(self) -> Tensor:
        """(n,) bool: who is benign and has finite models, the only ones that attacks learn from."""
        return ~self.liars & self.finite

    @property
    def is_hopeless(self) -> bool:
        """Whether there is nobody to lie to, or to learn from."""
        return not len(self.victims) or not bool(self.sane.any())

    @cached_property
    def _central(self) -> Tensor:
        """(n,) weights of a mean of benign models that a few which are far away do not move."""
        return central_rows(self.models, self.sane)

    @cached_property
    def _rosters(self) -> dict[tuple[Scope, bool], Roster]:
        return {}

    def roster(self, scope: Scope, everybody: bool = False) -> Roster:
        """The benign neighbours of each victim, or all benign clients; with ``everybody``, malicious ones too.

        A victim without such neighbours has itself for a crowd.
        """
        if (scope, everybody) not in self._rosters:
            members = self.finite if everybody else self.sane
            make = self._everyone if scope == "global" else self._neighbours
            self._rosters[scope, everybody] = make(members)
        return self._rosters[scope, everybody]

    def _everyone(self, members: Tensor) -> Roster:
        senders, everyone = self.liars.nonzero().flatten(), torch.full_like(self.victims[:1], -1)
        ids, about = members.nonzero().T, (everyone, senders, torch.zeros_like(senders), self.liars.sum()[None])
        return Roster.of(ids, torch.ones_like(ids, dtype=torch.bool), self._central, *about)

    def _neighbours(self, members: Tensor) -> Roster:
        topology = self.topology.to(self.models.device)
        heard, mask = topology.senders[self.victims].clamp_min(0), topology.mask[self.victims]
        crowds, slots = (mask & self.liars[heard]).nonzero(as_tuple=True)
        about = (self.victims, heard[crowds, slots], crowds, self.tolls[self.victims])
        present = mask & members[heard]
        alone = ~present.any(1)
        heard[alone, 0], present[alone, 0] = self.victims[alone], True
        return Roster.of(heard, present, self._central, *about)

    def columns(self, part: slice) -> Knowledge:
        """The same about some of the parameters, in the dtype that arithmetic is done in."""
        return self._about(*(None if x is None else block(x, part) for x in (self.models, self.previous, self.origin)))

    def widened(self) -> Knowledge:
        """The same in the dtype that arithmetic is done in."""
        wide = compute_dtype(self.models)
        return self._about(*(None if x is None else x.to(wide) for x in (self.models, self.previous, self.origin)))

    def _about(self, models: Tensor | None, previous: Tensor | None = None, origin: Tensor | None = None) -> Knowledge:
        """A copy that shares what is known about the clients, whatever their models."""
        for name in ("liars", "malicious_count", "tolls", "victims", "finite", "sane", "_central", "_rosters"):
            getattr(self, name)
        piece = copy(self)
        for name, x in (("models", models), ("previous", previous), ("origin", origin)):
            object.__setattr__(piece, name, x)
        return piece

    def before(self, attack: object) -> Tensor:
        """The models before local training, or an error that says who needs them."""
        if self.previous is None:
            raise ValueError(f"previous must be given to Knowledge for {type(attack).__name__}, found None")
        return self.previous

    def randn(self, *shape: int, std: float = 1.0) -> Tensor:
        """Normal noise from the generator, in the dtype and on the device of the models."""
        noise = torch.randn(*shape, generator=self.generator, dtype=torch.float32, device=self._source)
        return noise.mul_(std).to(self.models)

    def rand(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform noise in [low, high) from the generator, in the dtype and on the device of the models."""
        return uniform(*shape, low=low, high=high, generator=self.generator, device=self._source).to(self.models)

    @property
    def _source(self) -> torch.device:
        return device_of(self.generator, self.models.device)


def _copied(inputs: RoundInputs) -> RoundInputs:
    """Round inputs with copies of the numbers per client; ``update``, as large as the models, is shared."""
    copied = inputs.copy()
    for name in ("tolerated", "samples"):
        value = inputs.get(name)
        if isinstance(value, Tensor):
            copied[name] = value.clone()
    return copied
