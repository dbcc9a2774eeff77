"""Draw the figures of the site. The build calls it; so does ``python docs/pictures.py``."""

from pathlib import Path

import matplotlib
import thumbnails
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from torch.nn.functional import cross_entropy

import equipoise as eq
from benchmarks.paper import figures, report
from benchmarks.paper.results import Store
from benchmarks.paper.tables import TABLES

RESULTS = Path(__file__).parents[1] / "benchmarks" / "paper" / "runs"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "equipoise",
    "font.family": "sans-serif",
    "font.size": 9,
}
N = 20


def draw_all(folder):
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, (topology, malicious) in graphs().items():
            save(graph(topology, malicious), folder / f"{name}.svg")
        save(graph(*graphs()["regular-20"], legend=True), folder / "clients.svg")
        save(diagnosis(), folder / "diagnosis.svg")
        histories = train_three()
        for name, picture in of_histories(histories).items():
            save(picture, folder / f"{name}.svg")
        for name, picture in of_results():
            save(picture, folder / f"paper-{name}.svg")
        save(accepted_ball(), folder / "balance.svg")
        for name, thumbnail in thumbnails.draw(histories).items():
            thumbnail.savefig(
                folder / f"{name}.svg", metadata={"Date": None}
            )  # no tight bounding box: all have the same size


def save(figure, path):
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.08)


def graphs():
    """Return the graphs of the papers; a fifth of the clients is malicious."""
    found = {}
    for n in (10, 20, 30, 40, 50):
        malicious = eq.draw_malicious(n, 0.2)
        found[f"regular-{n}"] = (
            eq.Topology.regular(n, n // 2, seed=0, malicious=malicious),
            malicious,
        )
    malicious = eq.draw_malicious(N, 0.2)
    found["complete"] = eq.Topology.complete(N), malicious
    found["erdos-renyi"] = eq.Topology.erdos_renyi(N, 0.5, seed=0, malicious=malicious), malicious
    found["small-world"] = (
        eq.Topology.small_world(N, 10, rewire=0.3, seed=0, malicious=malicious),
        malicious,
    )
    found["ring"] = eq.Topology.ring(N), malicious
    for femb in (0.16, 0.22, 0.32):
        found[f"femb-{femb:g}".replace(".", "")] = (
            eq.Topology.random_with_femb(N, femb, malicious, seed=0),
            malicious,
        )
    found |= {
        name: (topology, eq.draw_malicious(N, 0.2)) for name, topology in named_graphs().items()
    }
    return found


def named_graphs():
    """Return the graphs of other papers."""
    graph = eq.Topology
    return {
        "star": graph.star(N),
        "torus": graph.torus(4, 5),
        "exponential": graph.exponential(N),
        "scale-free": graph.scale_free(N, 2, seed=0),
        "dumbbell": graph.dumbbell(N),
        "two-worlds": graph.two_worlds(N),
        "two-castle": graph.two_castle(N),
        "octopus": graph.octopus(N),
    }


def diagnosis():
    """Draw who is endangered in a scale-free graph."""
    topology = eq.Topology.scale_free(N, 2, seed=3)
    malicious = eq.draw_malicious(topology, 0.2, placement="betweenness")
    figure = Figure(figsize=(3.4, 3.5), layout="constrained")
    eq.plots.diagnosis(topology.diagnose(malicious), figure.subplots())
    return figure


def graph(topology, malicious, legend=False):
    figure = Figure(figsize=(3.4, 3.5) if legend else (2.7, 2.7), layout="constrained")
    ax = eq.plots.graph(topology, malicious, figure.subplots())
    if not legend:
        ax.get_legend().remove()
    return figure


def train_three():
    """Train with three rules while a fifth of all clients is malicious."""
    digits = eq.data.digits()
    clients = digits.split(eq.data.by_group(digits, N, p=0.5))
    malicious = eq.draw_malicious(N, 0.2)
    model = eq.models.logistic_regression(64, 10)
    topology = eq.Topology.regular(N, 10, seed=0, malicious=malicious)
    histories = {}
    for rule in (eq.FedAvg(), eq.Median(), eq.Balance()):
        simulator = eq.Simulator(
            trainer=eq.LocalSGD(model, cross_entropy, clients, lr=0.15),
            topology=topology,
            rule=rule,
            models=eq.flatten(model).expand(N, -1),
            attack=eq.attacks.TrimAttack(),
            malicious=malicious,
            metrics={"error": eq.metrics.ErrorRate(model, digits.test_x, digits.test_y)},
            evaluate_every=4,
        )
        histories[type(rule).__name__] = simulator.run(100)
    return histories


def of_histories(histories):
    """Draw the histories with ``eq.plots``."""
    plots = eq.plots
    costs = Figure((3.4, 1.3), layout="constrained")
    plots.cost_bars(histories, costs.subplots(1, 2, sharey=True))
    return {
        "under-attack": plots.error_over_rounds(histories, ax=axes(3.4, 3.5)).figure,
        "per-client": plots.error_per_client(histories["Median"], ax=axes(3.4, 2.3)).figure,
        "acceptance": plots.acceptance_over_rounds(histories["Balance"], ax=axes(3.4, 2.3)).figure,
        "costs": costs,
    }


def axes(width, height):
    return Figure((width, height), layout="constrained").subplots()


def of_results():
    """Draw the paper's figures from the committed results."""
    for name in ("gamma-har", "kappa-har", "fraction-har", "non-iid-har", "alpha-har", "clients"):
        measured = [cell for cell in report.cells(TABLES[name], Store(RESULTS)) if cell.ours]
        yield name, figures.lines(TABLES[name], measured)
    store = Store(RESULTS)
    tables = {name: report.cells(TABLES[name], store) for name in figures.SHOWN}
    yield "ours-and-theirs", figures.ours_and_theirs(tables)


def accepted_ball():
    """Draw the messages that BALANCE accepts in the first and in the last round, in 2-D."""
    own = torch.tensor([3.0, 1.0])
    generator = torch.Generator().manual_seed(3)
    benign = own + 0.36 * torch.randn(9, 2, generator=generator)
    lies = torch.tensor([[0.6, 1.7], [4.6, 0.1], [3.3, 1.35]])
    rule = eq.Balance(gamma=0.45)
    figure = Figure(figsize=(5.4, 2.7), layout="constrained")
    for ax, t in zip(figure.subplots(1, 2, sharex=True, sharey=True), (0, 99), strict=True):
        weights = rule(own, torch.cat([benign, lies]), t=t, total=100).weights
        limit = 0.45 * float(own.norm()) * float(torch.tensor(-t / 100).exp())
        ax.add_patch(Circle(own.tolist(), limit, fill=False, linestyle="--", color="#555555"))
        for points, color, marker, taken in (
            (benign, eq.plots.BENIGN, "o", weights[: len(benign)] > 0),
            (lies, eq.plots.MALICIOUS, "s", weights[len(benign) :] > 0),
        ):
            ax.scatter(*points[taken].T, color=color, marker=marker, s=36)
            ax.scatter(*points[~taken].T, facecolors="none", edgecolors=color, marker=marker, s=36)
        ax.plot(*own, "k+", markersize=12, markeredgewidth=2)
        ax.set_title(f"round {t} of 100", fontsize=9)
        ax.set_aspect("equal")
        ax.set_axis_off()
    figure.legend(handles=legend(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def legend():
    """Return legend entries: filled markers are accepted, hollow ones rejected."""
    shapes = {"own": ("+", "k", "k")}
    for name, marker, color in (
        ("benign", "o", eq.plots.BENIGN),
        ("malicious", "s", eq.plots.MALICIOUS),
    ):
        shapes |= {
            f"{name}, accepted": (marker, color, color),
            f"{name}, rejected": (marker, color, "none"),
        }
    return [
        Line2D(
            [], [], marker=marker, color=color, markerfacecolor=fill, linestyle="none", label=name
        )
        for name, (marker, color, fill) in shapes.items()
    ]


if __name__ == "__main__":
    draw_all(Path(__file__).parent / "_generated")
