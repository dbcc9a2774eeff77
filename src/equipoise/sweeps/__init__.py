"""Many simulations: grids of rules, attacks, graphs and seeds, on one machine or a cluster."""

from equipoise.sweeps._results import CellResult, Results
from equipoise.sweeps._sweep import read, sweep
from equipoise.sweeps._table import Table

__all__ = ["CellResult", "Results", "Table", "read", "sweep"]
