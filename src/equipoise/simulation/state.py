"""Everything that changes from round to round."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equipoise._utils.formatting import as_call
from equipoise.simulation.history import History


# Frozen: rolling back is then an assignment of an earlier state.
@dataclass(frozen=True, eq=False, repr=False)
class State:
    """A run after ``t`` rounds: a round is a function from one `State` to the next.

    ``Simulator.state`` reads the current one and puts a run back to an earlier one. A checkpoint is
    a `State` in a file.

    Args:
        models: (n, d) the models of all clients.
        t: number of completed rounds, which is also the number of the next one.
        total: number of rounds that the run is going to have, None until that is known.
        rule_state: ``Aggregated.state`` of the last round.
        trainer_state: a copy of ``trainer.state_dict()``, None for a trainer that has none.
        history: the records of the completed rounds.
    """

    models: Tensor
    t: int
    total: int | None
    rule_state: Any
    trainer_state: dict[str, Tensor] | None
    history: History

    __repr__ = as_call


def read_trainer_state(trainer: Any) -> dict[str, Tensor] | None:
    """The state of a trainer, as it is now; None if the trainer cannot return or restore one."""
    # Half of the two methods is of no use: the state could not be restored.
    if not hasattr(trainer, "state_dict") or not hasattr(trainer, "load_state_dict"):
        return None
    state: dict[str, Tensor] = trainer.state_dict()
    # The state_dict of an nn.Module holds the tensors that training goes on to modify.
    return dict(state) if getattr(trainer, "replaces_state", False) else deepcopy(state)


def restore_trainer_state(trainer: Any, trainer_state: dict[str, Tensor] | None) -> None:
    """Put a trainer back to a state that `read_trainer_state` returned or a checkpoint holds."""
    # An empty dict is a state as well: that of a trainer without momentum.
    if trainer_state is not None and hasattr(trainer, "load_state_dict"):
        trainer.load_state_dict(trainer_state)
