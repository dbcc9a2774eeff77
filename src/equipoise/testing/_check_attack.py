"""The laws of attacks by name, and the check of an attack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hypothesis.strategies import SearchStrategy

from equipoise._utils.validation import describe
from equipoise.attacks import Attack, DataAttack, MessageAttack
from equipoise.testing import _attack_laws as functions
from equipoise.testing._attacked_rounds import attacked_rounds, examples
from equipoise.testing._search import Law, chosen, try_to_break


def _laws(cases: SearchStrategy[Any], **functions: Callable[[Any, Any], None]) -> dict[str, Law[Any]]:
    return {name: Law(function, cases, function) for name, function in functions.items()}


MESSAGE_LAWS: Mapping[str, Law[Any]] = _laws(
    attacked_rounds(),
    fitting=functions.fitting,
    unchanged=functions.unchanged,
    repeatable=functions.repeatable,
    extremes=functions.extremes,
)
"""What holds for any attack on messages, by name."""


def data_laws(features: Sequence[int]) -> Mapping[str, Law[Any]]:
    """What holds for any attack on data, by name, for examples of a shape."""
    return _laws(
        examples(features),
        poison_fits=functions.poison_fits,
        poison_leaves=functions.poison_leaves,
        poison_repeats=functions.poison_repeats,
    )


DATA_LAWS = data_laws((8,))
"""What holds for any attack on data, by name."""


def check_attack(
    attack: Attack,
    *,
    laws: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    examples: int = 50,
    features: Sequence[int] = (8,),
) -> None:
    """Try to break the laws that hold for any attack; raise an AssertionError that names a law and shows how.

    Args:
        attack: has ``forge``, ``poison``, or both, and is held to the laws of what it has.
        laws: names from `MESSAGE_LAWS` and `DATA_LAWS`; all if not given.
        skip: names of laws that the attack does not promise.
        examples: how many random rounds, or sets of training examples, to try for each law.
        features: the shape of one training example, such as (1, 28, 28).

    >>> from equipoise import testing
    >>> testing.check_attack(eq.attacks.Gaussian(), examples=5)
    """
    if not isinstance(attack, DataAttack | MessageAttack):
        raise ValueError(f"attack must have a method forge or a method poison, found {describe(attack)}")
    applicable = dict(MESSAGE_LAWS) if isinstance(attack, MessageAttack) else {}
    if isinstance(attack, DataAttack):
        applicable |= data_laws(features)
    try_to_break(chosen(applicable, laws, skip), attack, examples, "the attack")
