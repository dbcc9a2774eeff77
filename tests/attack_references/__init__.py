"""Slow references of the attacks: one victim at a time, in float64, after the papers.

Nothing here is fast or shared with the library. A reference takes a `World`, all that an omniscient
adversary sees, and one victim, a benign client with a malicious neighbor. Its keywords are the
attack's options, by the same names. It returns the one `Lie` that every malicious neighbor sends
that victim; `krum_attack` also needs the ``sender``. Attacks that draw random numbers have no
reference; `trim_range` gives the range of every coordinate of a Trim lie.

Section numbers are those of section 2, "Attacks", of the project's definitions, which name the
papers and code.
"""

from tests.attack_references.adaptive import adaptive_literal, adaptive_max, balance_limit, probe
from tests.attack_references.krum import krum_attack
from tests.attack_references.others import ATTACK_REFERENCES, lie_strength
from tests.attack_references.perturbation import larger_root, perturbation_of
from tests.attack_references.trim import Range, trim_range
from tests.attack_references.world import (
    Lie,
    World,
    deviation,
    mean,
    observed_clients,
    origin,
    vectors,
)

__all__ = [
    "ATTACK_REFERENCES",
    "Lie",
    "Range",
    "World",
    "adaptive_literal",
    "adaptive_max",
    "balance_limit",
    "deviation",
    "krum_attack",
    "larger_root",
    "lie_strength",
    "mean",
    "observed_clients",
    "origin",
    "perturbation_of",
    "probe",
    "trim_range",
    "vectors",
]
