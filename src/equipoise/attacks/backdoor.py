"""A backdoor: the model is accurate except on examples with a trigger."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import ClassVar

import torch
from torch import Tensor

from equipoise._utils.validation import check_options, is_finite
from equipoise.attacks.knowledge import Knowledge, Space
from equipoise.attacks.triggers import Trigger, check_examples
from equipoise.messages import Lies


@dataclass(frozen=True)
class Backdoor:
    r"""Train also on examples with a trigger and the label ``target``, and send a scaled result.

    .. math:: m_j = s \, w_j \quad \text{(model space)} \qquad \text{or} \qquad
              m_j = w_j^t + s \, (w_j - w_j^t) \quad \text{(update space)}

    for a malicious client j with the model :math:`w_j` after, and :math:`w_j^t` before local
    training. It attacks data and messages: `poison` a malicious client's examples, let it train,
    then `forge` its messages.

    Poisoned copies are from Gu et al., *BadNets*, 2017, the scaling from Bagdasaryan et al., *How
    To Backdoor Federated Learning*, AISTATS 2020; the BALANCE paper (Fang et al., CCS 2024,
    appendix D) uses both. How we resolved ambiguities:

    - Malicious clients "share the scaled models": the whole model is scaled, and overflows under
      plain averaging within some tens of rounds. Bagdasaryan et al. scale updates,
      ``space="update"``, which stays closer to benign models.
    - They "replicate their training data": all examples, including those of the target class. The
      code of FLDetector copies at most 300 examples, that of SAFEFL a random part.
    - The targets are not stated: 0 for MNIST in FLDetector, 1 for HAR in SAFEFL. That gives
      ``Backdoor(PixelPattern())`` for MNIST and Fashion-MNIST, ``Backdoor(EveryNth(), target=1)``
      for HAR and ``Backdoor(ONE_PIXEL, target=1)`` for CelebA.

    Args:
        trigger: the mark that opens the backdoor.
        target: the label that the model learns for marked examples.
        scale: the factor s; the number of clients by default.
        space: scale the ``"model"`` or the ``"update"``.

    >>> attack = eq.attacks.Backdoor(eq.attacks.EveryNth(2))
    >>> attack.poison(torch.ones(1, 2), torch.tensor([7]))
    (tensor([[1., 1.],
            [1., 0.]]), tensor([7, 0]))
    >>> known = eq.attacks.Knowledge(torch.ones(3, 2), eq.Topology.ring(3), malicious=[1])
    >>> attack.forge(known).rows
    tensor([[3., 3.]])
    """

    # It sends the malicious client's own model.
    uses_malicious_models: ClassVar[bool] = True

    trigger: Trigger
    target: int = 0
    scale: float | None = None  # n, which only a round has
    space: Space = "model"

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.trigger, Trigger):
            raise ValueError(f"trigger must be a Trigger, found {type(self.trigger).__name__}")
        try:
            # A plain int: tensors are hashed by identity, so equal attacks would differ.
            object.__setattr__(self, "target", index(self.target))
        except TypeError as error:
            raise ValueError(f"target must be an integer label, found {self.target!r}") from error
        if self.scale is not None and not (is_finite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be a finite number > 0 or None, found {self.scale!r}")

    @torch.no_grad()
    def poison(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Append a copy of all examples (b, ...) with trigger and target label: (2 b, ...)."""
        check_examples(x, y, self.target)
        # The clean examples stay, so that the model remains accurate without the trigger.
        stamped = self.trigger.stamp(x)
        return torch.cat([x, stamped]), torch.cat([y, torch.full_like(y, self.target)])

    @torch.no_grad()
    def forge(self, known: Knowledge) -> Lies | None:
        """Return every malicious client's own model, or update, times ``scale``.

        Values beyond the range of the dtype become infinite, as in the attack of the paper.
        """
        senders = known.malicious_mask.nonzero().flatten()
        if not len(senders):
            return None
        # A factor of n makes up for an average over n clients: the model replacement of
        # Bagdasaryan et al.
        scale = len(known.models) if self.scale is None else self.scale
        rows = known.models[senders]  # a copy, so it may be scaled in place
        if self.space == "model":
            rows.mul_(scale)
        else:
            previous = known.require_previous(self)[senders]
            rows.sub_(previous).mul_(scale).add_(previous)
        return Lies(rows, senders, torch.full_like(senders, -1))  # -1: to all receivers
