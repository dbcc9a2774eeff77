"""Decentralized training of n clients on one machine."""

from equipoise.simulation.history import History
from equipoise.simulation.record import Round
from equipoise.simulation.schedule import EachRound
from equipoise.simulation.simulator import Rule, Simulator

__all__ = ["EachRound", "History", "Round", "Rule", "Simulator"]
