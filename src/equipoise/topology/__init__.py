"""Graphs of clients: the class `Topology`, the choice of malicious clients, and diagnostics."""

from equipoise.topology.diagnosis import Diagnosis
from equipoise.topology.guarantees import (
    BenignConnected,
    Complete,
    Guarantee,
    Minority,
    Neighbors,
    NoMalicious,
    NotChecked,
    NoTheorem,
    Spectral,
    Trimming,
    Verdict,
    library_rules,
)
from equipoise.topology.placement import draw_malicious
from equipoise.topology.robustness import Robustness
from equipoise.topology.topology import Topology

__all__ = [
    "BenignConnected",
    "Complete",
    "Diagnosis",
    "Guarantee",
    "Minority",
    "Neighbors",
    "NoMalicious",
    "NoTheorem",
    "NotChecked",
    "Robustness",
    "Spectral",
    "Topology",
    "Trimming",
    "Verdict",
    "draw_malicious",
    "library_rules",
]
