"""The protocol of local training."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Trainer(Protocol):
    """Local training of all clients: any function from models and round to models.

    A trainer may have more, which `equipoise.Simulator` uses if it is there: ``poisoned(attack, malicious)``, a
    trainer whose malicious clients train on poisoned examples; ``loss_of(t)``, the losses that UBAR asks for;
    ``samples``, how many examples every client has; ``restarted()``, the trainer as it was before
    its first round.

    Three more methods are for checkpoints. ``state_dict()``, a flat dict of tensors, and
    ``load_state_dict(state)`` save and restore all that the trainer remembers from round to round,
    such as the moments of Adam. ``fingerprint()``, a string that identifies the training data,
    makes it an error to resume with other data.

    Using a checkpoint with a trainer that has no ``state_dict`` warns that a resumed run may differ.
    If the models and the round alone determine what it returns, set ``stateless = True`` on the
    trainer, which may be a function.
    """

    def __call__(self, models: Tensor, t: int) -> Tensor:
        """The models (n, d) after local training in round t; the given ones stay as they are."""
        ...
