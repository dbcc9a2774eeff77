"""The laws of attacks by name, and `check_attack`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hypothesis.strategies import SearchStrategy

from equipoise._utils.validation import describe
from equipoise.attacks import Attack, DataAttack, MessageAttack
from equipoise.testing import _attack_laws
from equipoise.testing._attacked_rounds import attacked_rounds, examples
from equipoise.testing._counterexamples import Law, require_laws, select_laws


def _laws(cases: SearchStrategy[Any], **checks: Callable[[Any, Any], None]) -> dict[str, Law[Any]]:
    # The check also documents its law.
    return {name: Law(check, cases, check) for name, check in checks.items()}


MESSAGE_LAWS: Mapping[str, Law[Any]] = _laws(
    attacked_rounds(),
    fitting=_attack_laws.fitting,
    unchanged=_attack_laws.unchanged,
    repeatable=_attack_laws.repeatable,
    extremes=_attack_laws.extremes,
    unused_models=_attack_laws.unused_models,
)
"""The laws of attacks on messages, by name."""


def data_laws(features: Sequence[int]) -> Mapping[str, Law[Any]]:
    """Return the laws of attacks on data, by name, for examples of this shape."""
    return _laws(
        examples(features),
        poison_fits=_attack_laws.poison_fits,
        poison_leaves=_attack_laws.poison_leaves,
        poison_repeats=_attack_laws.poison_repeats,
    )


# The shape changes the cases, but not the names: these are the names for every shape.
DATA_LAWS = data_laws((8,))
"""The laws of attacks on data, by name."""


def check_attack(
    attack: Attack,
    *,
    laws: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    examples: int = 50,
    features: Sequence[int] = (8,),
) -> None:
    """Check the laws of attacks; raise an AssertionError with a broken law and a small case.

    Args:
        attack: an attack with ``forge``, ``poison``, or both. The laws of each method apply.
        laws: names from `MESSAGE_LAWS` and `DATA_LAWS`; all by default.
        skip: names of laws that the attack does not promise to obey.
        examples: number of random rounds, or sets of training examples, for each law.
        features: the shape of one training example, such as (1, 28, 28).

    >>> from equipoise import testing
    >>> testing.check_attack(eq.attacks.Gaussian(), examples=5)
    """
    # Otherwise no law would apply, and the check would succeed.
    if not isinstance(attack, DataAttack | MessageAttack):
        raise ValueError(
            f"attack must have a method forge or a method poison, found {describe(attack)}"
        )
    # An attack may have both methods; the laws of a method that it lacks do not apply.
    applicable = dict(MESSAGE_LAWS) if isinstance(attack, MessageAttack) else {}
    # `features` matters: an attack may mark fixed pixels of an image.
    if isinstance(attack, DataAttack):
        applicable |= data_laws(features)
    require_laws(select_laws(applicable, laws, skip), attack, examples, "the attack")
