"""A small drawing for each of the examples, all of one shape."""

import math

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import equipoise as eq

BLUE, RED = eq.plots.BENIGN, eq.plots.MALICIOUS


def draw(histories):
    drawings = (ball, lines_of(histories), shrinking, few_clients, limits, changing)
    return {f"example-{i}": drawn(drawing) for i, drawing in enumerate(drawings, start=1)}


def drawn(drawing):
    figure = Figure((3.4, 1.9), layout="constrained")
    drawing(figure)
    for ax in figure.axes:
        ax.set(xlabel="", ylabel="")
        if ax.get_legend():
            ax.get_legend().remove()
    return figure


def plain(figure):
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_aspect("equal")
    return ax


def ball(figure):
    """A client's own model, what it accepts, and what it does not."""
    ax, own = plain(figure), torch.tensor([0.0, 0.0])
    benign = own + 0.36 * torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    ax.add_patch(Circle((0, 0), 1, color=BLUE, alpha=0.12))
    ax.add_patch(Circle((0, 0), 1, fill=False, color=BLUE))
    ax.scatter(*benign.T, color=BLUE, s=24)
    ax.scatter([-2.1, 1.9, 0.6], [0.6, -0.7, 0.5], facecolors=["none", "none", RED], edgecolors=RED, marker="s", s=30)
    ax.plot(0, 0, "k*", markersize=11)
    ax.set(xlim=(-2.4, 2.4), ylim=(-1.25, 1.25))


def lines_of(histories):
    return lambda figure: eq.plots.error_over_rounds(histories, ax=figure.subplots())


def shrinking(figure):
    """A model that believes a lie at the edge of its ball, round after round."""
    ax, x = plain(figure), 4.0
    while x > 0.4:
        ax.add_patch(Circle((x, 0), 0.3 * x, fill=False, color=BLUE, linewidth=0.9))
        ax.plot(x, 0, "k*", markersize=7)
        ax.plot(0.7 * x, 0, "s", color=RED, markersize=4)
        x *= 0.8
    ax.plot(0, 0, "k+", markersize=9)
    ax.set(xlim=(-0.2, 5.4), ylim=(-1.3, 1.3))


def few_clients(figure):
    eq.plots.graph(eq.Topology.regular(8, 4, seed=0, malicious=[0]), [0], figure.subplots())


def limits(figure):
    """How far a message may be away, for some gamma and kappa."""
    ax, progress = figure.subplots(), torch.linspace(0, 1, 50)
    for i, (gamma, kappa) in enumerate(((0.3, 0), (0.3, 1), (0.3, 4), (0.1, 1))):
        style = {"color": eq.plots.COLORS[i], "marker": eq.plots.MARKERS[i], "markevery": (4 * i, 16), "markersize": 4}
        ax.plot(progress, [gamma * math.exp(-kappa * x) for x in progress.tolist()], **style)
    ax.set(ylim=(0, 0.33), xticks=[], yticks=[])
    ax.spines[["top", "right"]].set_visible(False)


def changing(figure):
    """One graph in three rounds, in which clients disconnect."""
    malicious = eq.draw_malicious(12, 0.2)
    graph = eq.Topology.regular(12, 6, seed=0, malicious=malicious)
    for t, ax in enumerate(figure.subplots(1, 3)):
        eq.plots.graph(graph.drop(0.5, torch.Generator().manual_seed(t)), malicious, ax)
