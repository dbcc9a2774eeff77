"""Graphs of clients: the class `Topology`, the choice of malicious clients, and diagnostics."""

from equipoise.topology.diagnosis import Diagnosis
from equipoise.topology.guarantees import (
    BenignConnected,
    Guarantee,
    Neighbors,
    NoMalicious,
    NotChecked,
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
    "Diagnosis",
    "Guarantee",
    "Neighbors",
    "NoMalicious",
    "NotChecked",
    "Robustness",
    "Spectral",
    "Topology",
    "Trimming",
    "Verdict",
    "draw_malicious",
    "library_rules",
]
