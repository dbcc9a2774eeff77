"""Decentralized training of n clients on one machine."""

from equipoise.simulation._settings import RuleLike
from equipoise.simulation.each_round import EachRound
from equipoise.simulation.history import History
from equipoise.simulation.record import Round
from equipoise.simulation.simulator import Simulator
from equipoise.simulation.state import State

__all__ = ["EachRound", "History", "Round", "RuleLike", "Simulator", "State"]
