"""Decentralized training of n clients, in one process or in several."""

from equipoise.simulation._settings import RuleLike
from equipoise.simulation._sharding import Cut, LostRankError
from equipoise.simulation.each_round import EachRound
from equipoise.simulation.history import History
from equipoise.simulation.record import Round
from equipoise.simulation.simulator import Simulator
from equipoise.simulation.state import State

__all__ = [
    "Cut",
    "EachRound",
    "History",
    "LostRankError",
    "Round",
    "RuleLike",
    "Simulator",
    "State",
]
