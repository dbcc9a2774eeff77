"""Draw a thumbnail for each example."""

import math

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import equipoise as eq

BLUE = eq.plots.BENIGN
RED = eq.plots.MALICIOUS


def draw(histories):
    drawings = (ball, lines_of(histories), shrinking, few_clients, limits, changing, worlds)
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
    """Draw a client's own model with accepted and rejected messages."""
    ax = plain(figure)
    own = torch.tensor([0.0, 0.0])
    benign = own + 0.36 * torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
    ax.add_patch(Circle((0, 0), 1, color=BLUE, alpha=0.12))
    ax.add_patch(Circle((0, 0), 1, fill=False, color=BLUE))
    ax.scatter(*benign.T, color=BLUE, s=24)
    ax.scatter(
        [-2.1, 1.9, 0.6],
        [0.6, -0.7, 0.5],
        facecolors=["none", "none", RED],
        edgecolors=RED,
        marker="s",
        s=30,
    )
    ax.plot(0, 0, "k*", markersize=11)
    ax.set(xlim=(-2.4, 2.4), ylim=(-1.25, 1.25))


def lines_of(histories):
    return lambda figure: eq.plots.error_over_rounds(histories, ax=figure.subplots())


def shrinking(figure):
    """Draw a model that accepts a lie at the edge of its ball in every round."""
    ax = plain(figure)
    x = 4.0
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
    """Draw the acceptance threshold for some gamma and kappa."""
    ax = figure.subplots()
    progress = torch.linspace(0, 1, 50)
    for i, (gamma, kappa) in enumerate(((0.3, 0), (0.3, 1), (0.3, 4), (0.1, 1))):
        style = {
            "color": eq.plots.COLORS[i],
            "marker": eq.plots.MARKERS[i],
            "markevery": (4 * i, 16),
            "markersize": 4,
        }
        ax.plot(progress, [gamma * math.exp(-kappa * x) for x in progress.tolist()], **style)
    ax.set(ylim=(0, 0.33), xticks=[], yticks=[])
    ax.spines[["top", "right"]].set_visible(False)


def changing(figure):
    """Draw three rounds of a graph in which clients disconnect."""
    malicious = eq.draw_malicious(12, 0.2)
    graph = eq.Topology.regular(12, 6, seed=0, malicious=malicious)
    for t, ax in enumerate(figure.subplots(1, 3)):
        eq.plots.graph(graph.drop(0.5, torch.Generator().manual_seed(t)), malicious, ax)


def worlds(figure):
    """Draw two cliques that are joined by bridges."""
    graph = eq.Topology.two_worlds(12, bridges=2)
    angles = 2 * math.pi * torch.arange(6) / 6
    circle = 0.8 * torch.stack([angles.cos(), angles.sin()], dim=1)
    places = torch.cat([circle - torch.tensor([1.4, 0]), circle + torch.tensor([1.4, 0])])
    ax = plain(figure)
    for sender, receiver in graph.edges().tolist():
        ends = places[[sender, receiver]]
        ax.plot(*ends.T, color="grey", linewidth=0.5, alpha=0.6, zorder=1)
    ax.scatter(*places[:6].T, color=BLUE, s=30)
    ax.scatter(*places[6:].T, color=eq.plots.COLORS[1], s=30)
