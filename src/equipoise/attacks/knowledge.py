"""The adversary's knowledge of one round."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from equipoise._utils.formatting import as_call
from equipoise._utils.recycled_memory import RecycledMemory
from equipoise._utils.rng import device_of, draw_uniform
from equipoise._utils.validation import Clients, as_mask, describe, is_floating
from equipoise.attacks._client_facts import ClientFacts, Scope
from equipoise.attacks._neighborhoods import Neighborhoods
from equipoise.kernels import block, compute_dtype
from equipoise.rules import Aggregator, MultiExchange
from equipoise.topology import Topology
from equipoise.types import RoundInputs

Space = Literal["model", "update"]


@dataclass(frozen=True, eq=False)
class Knowledge:
    """One round, as seen by an omniscient adversary that controls all malicious clients.

    The adversary is rushing: it knows the messages of this round before it sends its own.

    Args:
        models: (n, d) every client's model after local training. The rows of malicious clients are
            the models that they would send if they were benign. For an attack that declares
            ``uses_malicious_models = False``, they may hold arbitrary finite values, here and in
            the other arguments.
        topology: the graph of this round.
        malicious: bool mask (n,) or client ids; kept as a mask.
        previous: (n, d) the models before local training, for attacks on updates.
        rule: the victims' rule, for attacks that search for messages that it accepts.
        inputs: the round inputs of that rule, among them the round ``t`` of ``total``.
        generator: the source of randomness; torch's global generator by default.
        origin: (n, d) the base models, if ``models`` are updates because the rule sends updates,
            as LEARN does.
        memory: where `randn` draws noise, which takes less time than new memory in every round.

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
    memory: RecycledMemory = field(default_factory=RecycledMemory, repr=False)
    _facts: ClientFacts = field(init=False, repr=False)

    # Tensors appear by dtype and shape: a round may hold millions of numbers.
    __repr__ = as_call

    def __post_init__(self) -> None:
        if not isinstance(self.topology, Topology):
            raise ValueError(f"topology must be a Topology, found {describe(self.topology)}")
        models = self.models
        n = self.topology.n
        if not is_floating(models) or models.dim() != 2 or len(models) != n:
            expected = f"a floating-point tensor of shape ({n}, d)"
            raise ValueError(f"models must be {expected}, found {describe(models)}")
        if not models.shape[1]:
            raise ValueError("models must have parameters, found none")
        # Compare dtype and shape, which a description consists of.
        for name in ("previous", "origin"):
            other = getattr(self, name)
            if other is not None and describe(other) != describe(models):
                raise ValueError(
                    f"{name} must be like models, {describe(models)}, found {describe(other)}"
                )
        # Copy the small inputs, so that an attack cannot change the state of the system.
        malicious = as_mask(self.malicious, n).to(models.device, copy=True)
        object.__setattr__(self, "malicious", malicious)
        object.__setattr__(self, "inputs", _copied(self.inputs))
        # Facts come from whole models, before an attack looks at a block of columns.
        facts = ClientFacts(models, self.previous, self.topology, malicious)
        object.__setattr__(self, "_facts", facts)

    @property
    def malicious_mask(self) -> Tensor:
        """(n,) bool: the malicious clients."""
        # The field `malicious` has a wider type, because the constructor also takes ids.
        return self._facts.malicious

    @property
    def malicious_count(self) -> int:
        """Number of malicious clients."""
        return self._facts.malicious_count

    @property
    def malicious_degree(self) -> Tensor:
        """(n,) number of malicious clients among the neighbors of each client."""
        return self._facts.malicious_degree

    @property
    def victims(self) -> Tensor:
        """Ids of the benign clients with a malicious neighbor."""
        return self._facts.victims

    @property
    def finite_benign(self) -> Tensor:
        """(n,) bool: benign clients with finite models. Attacks learn only from these."""
        return self._facts.finite_benign

    @property
    def _is_feasible(self) -> bool:
        """Whether there is a victim, and a finite benign model to learn from."""
        return bool(len(self.victims)) and bool(self.finite_benign.any())

    def _neighborhoods(self, scope: Scope, include_malicious: bool = False) -> Neighborhoods:
        """Return the benign neighbors of each victim, or all benign clients.

        ``include_malicious`` adds the models of malicious clients before the attack. A victim
        without such neighbors observes itself.
        """
        return self._facts.neighborhoods(scope, include_malicious)

    def _columns(self, part: slice) -> Knowledge:
        """Restrict to some of the parameters, in the dtype of the arithmetic."""
        return self._with_vectors(
            block(self.models, part),
            None if self.previous is None else block(self.previous, part),
            None if self.origin is None else block(self.origin, part),
        )

    def _widened(self) -> Knowledge:
        """Convert to the dtype of the arithmetic."""
        wide = compute_dtype(self.models)  # `to` copies nothing if the models have it already
        return self._with_vectors(
            self.models.to(wide),
            None if self.previous is None else self.previous.to(wide),
            None if self.origin is None else self.origin.to(wide),
        )

    def _with_vectors(
        self, models: Tensor, previous: Tensor | None = None, origin: Tensor | None = None
    ) -> Knowledge:
        """Copy with other vectors; the facts about the clients stay those of the whole models."""
        # Not dataclasses.replace, which would validate again and forget the facts.
        view = copy(self)
        object.__setattr__(view, "models", models)
        object.__setattr__(view, "previous", previous)
        object.__setattr__(view, "origin", origin)
        return view

    def require_previous(self, attack: object) -> Tensor:
        """Return the models before local training; raise a ValueError that names the attack."""
        if self.previous is None:
            name = type(attack).__name__
            raise ValueError(f"previous must be given to Knowledge for {name}, found None")
        return self.previous

    def randn(self, *shape: int, std: float = 1.0) -> Tensor:
        """Draw normal noise from the generator, in the dtype and on the device of the models."""
        device = device_of(self.generator, self.models.device)
        # Always draw in float32, so that one seed gives the same noise in every dtype.
        like = torch.empty(0, dtype=torch.float32, device=device)
        noise = self.memory.take(like, *shape)
        torch.randn(*shape, generator=self.generator, dtype=like.dtype, device=device, out=noise)
        return noise.mul_(std).to(self.models)

    def rand(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw uniform noise in [low, high), in the dtype and on the device of the models."""
        device = device_of(self.generator, self.models.device)
        # `draw_uniform` draws float32 as well, so the noise is the same in every dtype.
        noise = draw_uniform(*shape, low=low, high=high, generator=self.generator, device=device)
        return noise.to(self.models)


def _copied(inputs: RoundInputs) -> RoundInputs:
    """Copy the numbers per client; share ``update``, which is as large as the models."""
    copied = inputs.copy()
    for name in ("tolerated", "samples", "gossip"):
        value = inputs.get(name)
        # Plain numbers cannot be modified, so only tensors need a copy.
        if isinstance(value, Tensor):
            copied[name] = value.clone()
    return copied
