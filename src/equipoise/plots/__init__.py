"""Figures of graphs and runs, sized for one column of a paper.

Every function draws into ``ax``, or into a new figure 3.3 inches wide, and returns the axes. Save a
figure with ``ax.figure.savefig("name.pdf")``. No function opens a window or changes matplotlib's
settings. Colors are those of Okabe and Ito (2008), which color-blind readers can tell apart.
Malicious clients are red and have their own marker. Requires matplotlib:
``pip install "equipoise[plots]"``.
"""

from equipoise.plots._acceptance import acceptance_over_rounds
from equipoise.plots._costs import cost_bars
from equipoise.plots._errors import error_over_rounds, error_per_client
from equipoise.plots._graphs import diagnosis, graph
from equipoise.plots._heatmap import heatmap
from equipoise.plots._style import BENIGN, COLORS, ENDANGERED, MALICIOUS, MARKERS

__all__ = [
    "BENIGN",
    "COLORS",
    "ENDANGERED",
    "MALICIOUS",
    "MARKERS",
    "acceptance_over_rounds",
    "cost_bars",
    "diagnosis",
    "error_over_rounds",
    "error_per_client",
    "graph",
    "heatmap",
]
