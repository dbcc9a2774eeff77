"""The protocol of local training."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Trainer(Protocol):
    """Local training of all clients: any function from models and round to models.

    `equipoise.Simulator` uses more methods if a trainer has them:

    - ``poisoned(attack, malicious)`` returns a trainer whose malicious clients train on poisoned
      examples;
    - ``loss_of(t)`` returns the losses that UBAR needs;
    - ``samples`` is the number of examples of every client;
    - ``check_models(models)`` raises a ValueError unless it can train these models, so that a
      misfit is found before the first round;
    - ``restarted()`` returns the trainer as it was before its first round;
    - ``train_into(out, models, t, clients=...)`` writes the models after training to ``out``, so
      that rounds need no new memory. If ``clients`` are given, only these are trained, because no
      other client hears the rest, and the rest keep their models;
    - ``of_clients(clients, gather=...)`` returns a trainer of some clients, of which row i of the
      models is the i-th, for a simulation in several processes. Its ``samples`` are of all clients:
      ``gather`` turns numbers of these clients (b,) into those of all (n,). So are the ids in
      ``poisoned`` and in ``train_into``, which leave out others; ``loss_of`` takes rows. Each
      tensor in its ``state_dict`` has one row per client.

    Three more are for checkpoints. ``state_dict()`` and ``load_state_dict(state)`` save and restore
    everything that the trainer remembers from round to round, such as the moments of Adam, as a
    flat dict of tensors. They also roll back a round that fails. With ``replaces_state = True``, a
    trainer promises to replace these tensors, and never to modify them in place: then a round
    begins without a copy of them. ``fingerprint()`` returns a string that identifies the training
    data; resuming with other data is then an error. In several processes,
    ``client_fingerprints()`` returns a row of bytes for each client, (b, ...) uint8, instead.

    Using a checkpoint with a trainer that has no ``state_dict`` warns that a resumed run may
    differ. If the models and the round alone determine the result, set ``stateless = True`` on the
    trainer, which may be a function.
    """

    def __call__(self, models: Tensor, t: int) -> Tensor:
        """The models (n, d) after local training in round t; the given ones are not modified."""
        ...
