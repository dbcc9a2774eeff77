"""What the adversary knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from equipoise import kernels
from equipoise.inbox import describe
from equipoise.kernels.gram import central_rows
from equipoise.lies import Clients, as_mask
from equipoise.topology import Topology
from equipoise.types import Aggregator, MultiExchange, RoundInputs

Space = Literal["model", "update"]


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

    def __post_init__(self) -> None:
        models, n = self.models, self.topology.n
        if models.dim() != 2 or not models.is_floating_point() or len(models) != n:
            raise ValueError(f"models must be a floating-point tensor of shape ({n}, d), found {describe(models)}")
        if self.previous is not None and (self.previous.shape, self.previous.dtype) != (models.shape, models.dtype):
            raise ValueError(f"previous must be like models, {describe(models)}, found {describe(self.previous)}")
        object.__setattr__(self, "malicious", as_mask(self.malicious, n).to(models.device))

    @cached_property
    def liars(self) -> Tensor:
        """(n,) bool: who is malicious."""
        return as_mask(self.malicious, self.topology.n)

    @cached_property
    def tolls(self) -> Tensor:
        """(n,) how many malicious clients each client hears."""
        return self.topology.malicious_neighbors(self.liars).to(self.models.device)

    @cached_property
    def victims(self) -> Tensor:
        """Ids of the benign clients that hear a malicious one."""
        return ((self.tolls > 0) & ~self.liars).nonzero().flatten()

    @cached_property
    def sane(self) -> Tensor:
        """(n,) bool: who is benign and has finite models, the only ones that attacks learn from."""
        finite = kernels.are_finite(self.models)
        return ~self.liars & finite & (finite if self.previous is None else kernels.are_finite(self.previous))

    @cached_property
    def central(self) -> Tensor:
        """(n,) weights of a mean of benign models that a few which are far away do not move."""
        return central_rows(self.models, self.sane).to(self.models.dtype)

    @cached_property
    def heard(self) -> tuple[Tensor, Tensor]:
        """(v, k) whom the victims hear, and where there is somebody."""
        topology = self.topology.to(self.models.device)
        return topology.senders[self.victims].clamp_min(0), topology.mask[self.victims]

    def columns(self, part: slice) -> Knowledge:
        """The same about some of the parameters."""
        before = None if self.previous is None else self.previous[:, part]
        piece = replace(self, models=self.models[:, part], previous=before)
        for name in ("liars", "tolls", "victims", "sane", "central", "heard"):
            piece.__dict__[name] = getattr(self, name)
        return piece

    def before(self, attack: object) -> Tensor:
        """The models before local training, or an error that says who needs them."""
        if self.previous is None:
            raise ValueError(f"previous must be given to Knowledge for {type(attack).__name__}, found None")
        return self.previous

    def randn(self, *shape: int) -> Tensor:
        """Standard normal noise from the generator, in the dtype and on the device of the models."""
        return self._drawn(torch.randn, shape)

    def rand(self, *shape: int) -> Tensor:
        """Uniform noise in [0, 1) from the generator, in the dtype and on the device of the models."""
        return self._drawn(torch.rand, shape)

    def _drawn(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        device = self.models.device if self.generator is None else self.generator.device
        return draw(*shape, generator=self.generator, device=device).to(self.models)
