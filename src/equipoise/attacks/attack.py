"""The protocols of attacks: on training data, and on messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from equipoise.messages import Lies

if TYPE_CHECKING:
    from equipoise.attacks.knowledge import Knowledge


# Checked by the presence of the method: an attack need not inherit from a protocol. A class
# with both methods satisfies both.
@runtime_checkable
class DataAttack(Protocol):
    """An attack on a malicious client's training data; it then trains and sends as usual."""

    def poison(
        self, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return poisoned copies of a malicious client's examples and labels.

        It does not modify its arguments.
        """
        ...


@runtime_checkable
class MessageAttack(Protocol):
    """An attack on the messages of malicious clients.

    The adversary is rushing and omniscient: see `equipoise.attacks.Knowledge`. It returns lies per
    sender, per receiver or per edge, or None to send the models unchanged. Only messages of
    malicious clients change: delivery ignores lies in the name of benign clients.

    An optional attribute ``uses_malicious_models: bool`` tells whether the models that malicious
    clients would have sent matter to benign clients. False is a promise for every round in which
    some benign client has a finite model:

    - all messages from malicious to benign clients are lies, and
    - these lies do not depend on the rows of malicious clients in ``known.models``,
      ``known.previous``, ``known.origin`` or ``known.inputs["update"]``. The values there are
      finite, but may be old or meaningless.

    Then malicious clients need neither train nor aggregate. An attack without the attribute counts
    as True. `equipoise.attacks.uses_malicious_models` resolves it for any attack.

    An optional attribute ``uses_models: bool`` tells whether lies depend on any model. With False,
    only the shapes, dtypes and devices of the tensors in ``known`` matter. A simulation in several
    processes then need not gather all models in each of them; see
    `equipoise.attacks.uses_models`.
    """

    def forge(self, known: Knowledge) -> Lies | None:
        """Return the messages that malicious clients send this round instead of their models."""
        ...


Attack: TypeAlias = DataAttack | MessageAttack
"""An attack on data, on messages, or, with both methods, on both."""
