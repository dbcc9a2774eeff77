"""Pictures of graphs and of runs, to the width of a paper's column.

Every function draws into ``ax``, or into a new figure 3.3 inches wide, and returns the axes; save it with
``ax.figure.savefig("name.pdf")``. Nothing is shown, and no setting of matplotlib is changed. Colours are those of Okabe
and Ito (2008), which colour-blind readers can tell apart; what is malicious is red, and has a shape of its own.
Needs matplotlib: ``pip install "equipoise[plots]"``.
"""

from equipoise.plots._style import BENIGN, COLOURS, MALICIOUS, MARKERS
from equipoise.plots.acceptance import acceptance_over_rounds
from equipoise.plots.costs import cost_bars
from equipoise.plots.errors import error_over_rounds, error_per_client
from equipoise.plots.graphs import graph
from equipoise.plots.tables import heatmap

__all__ = [
    "BENIGN",
    "COLOURS",
    "MALICIOUS",
    "MARKERS",
    "acceptance_over_rounds",
    "cost_bars",
    "error_over_rounds",
    "error_per_client",
    "graph",
    "heatmap",
]
