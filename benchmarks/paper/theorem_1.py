"""Check Theorem 1 of the BALANCE paper on linear regression with synthetic data."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.registry import NO_ATTACK, PUBLISHED
from benchmarks.paper.run import simulator
from benchmarks.paper.setting import Setting
from benchmarks.paper.tasks import load
from equipoise import plots
from equipoise._utils.optional import import_optional
from equipoise.simulation import Simulator

ATTACKS = (*(name for name in PUBLISHED if name != "Backdoor"), "LIE", "Dissensus", "Adaptive")
FILE = "theorem-1"


@dataclass(frozen=True)
class Quadratic:
    """The risk of a linear model w: its mean squared error on all training examples.

    ``F(w) = F(w*) + (w - w*)' H (w - w*) / 2``, with the Hessian H, float64.
    """

    hessian: Tensor
    best: Tensor
    floor: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Quadratic:
        """Compute the risk from examples."""
        inputs = x.double()
        best = torch.linalg.lstsq(inputs, y[:, None].double()).solution[:, 0]
        residual = inputs @ best - y
        return cls(2 * inputs.T @ inputs / len(x), best, float(residual.square().mean()))

    def excess(self, models: Tensor) -> Tensor:
        """Return the risk (n,) above the minimum."""
        away = models.double() - self.best
        return ((away @ self.hessian) * away).sum(1) / 2

    def gradient(self, models: Tensor) -> Tensor:
        """Return the gradients (n, d) of the risk."""
        return (models.double() - self.best) @ self.hessian

    def curvature(self) -> tuple[float, float]:
        """Return mu and L, the smallest and the largest eigenvalue of the Hessian."""
        values = torch.linalg.eigvalsh(self.hessian)
        return float(values[0]), float(values[-1])


@dataclass(frozen=True)
class Constants:
    """The constants of the theorem, as measured in a run.

    ``eta`` is the learning rate for the mean loss of a batch. ``delta`` bounds the noise of the
    gradients, ``rho`` their norm, ``psi`` the norm of the models.
    """

    mu: float
    L: float
    delta: float
    rho: float
    psi: float
    eta: float
    gamma: float
    alpha: float
    start: float

    def bound(self, t: int) -> float:
        """Return the bound on the excess risk of each benign client after t rounds."""
        noise = 2 * self.L * self.eta * self.delta**2 / self.mu
        lies = 2 * self.gamma * self.rho * self.psi * (1 - self.alpha) / (self.mu * self.eta)
        return (1 - self.mu * self.eta) ** t * self.start + noise + lies

    def conditions(self) -> dict[str, bool]:
        """Return whether learning rate and gamma satisfy the conditions of the theorem."""
        largest = self.rho / (self.L * self.psi * (1 - self.alpha))
        return {
            "eta": self.eta <= min(1 / (4 * self.L), 1 / self.mu),
            "gamma": self.gamma <= largest,
        }


Found = dict[str, dict[str, Any]]  # by attack


def check(seed: int = 0, rounds: int = 0, attacks: Sequence[str] = ATTACKS) -> Found:
    """Run Balance under each attack.

    Measures the excess risk of the worst benign client in each round, and the bound on it.
    """
    bar = import_optional("tqdm", "benchmarks").tqdm(attacks, unit="attack")
    return {
        attack: _one(Setting(data="synthetic", attack=attack, rounds=rounds), seed)
        for attack in bar
    }


def _one(setting: Setting, seed: int) -> dict[str, Any]:
    dataset = load(setting.data, ".", seed)
    risk = Quadratic.of(dataset.x, dataset.y)
    run = simulator(setting, seed, ".")
    eta = setting.task.lr * setting.step * setting.batch
    measured, delta = _measured(run, risk, eta)
    mu, smoothness = risk.curvature()
    constants = Constants(
        mu=mu,
        L=smoothness,
        delta=delta,
        rho=max(measured["rho"]),
        psi=max(measured["psi"]),
        eta=eta,
        gamma=setting.gamma,
        alpha=0.5,
        start=measured["excess"][0],
    )
    excess = measured["excess"]
    bounds = [constants.bound(t) for t in range(len(excess))]
    return {
        "seed": seed,
        **asdict(constants),
        **{f"{name}_is_small_enough": ok for name, ok in constants.conditions().items()},
        "holds": all(x <= bound for x, bound in zip(excess, bounds, strict=True)),
        "excess": excess,
        "bound": bounds,
    }


def _measured(run: Simulator, risk: Quadratic, eta: float) -> tuple[dict[str, list[float]], float]:
    """Train; returns the maxima over benign clients in each round, and delta.

    The maxima are those of the excess risk, of the gradient's norm and of the model's norm. Delta
    is the maximum over clients of the root mean square, over rounds, of the distance between the
    gradient of a batch and the gradient of the risk.
    """
    benign = ~run.malicious
    series: dict[str, list[float]] = {"excess": [], "rho": [], "psi": []}
    noise = torch.zeros(int(benign.sum()), dtype=torch.float64, device=benign.device)

    def measure(run: Simulator) -> None:
        models = run.models[benign]
        gradient = risk.gradient(models)
        series["excess"].append(float(risk.excess(models).max()))
        series["rho"].append(float(gradient.norm(dim=1).max()))
        series["psi"].append(float(models.double().norm(dim=1).max()))
        if run.t != run.total:
            # The next round trains on the same batches: LocalSGD draws them from the round alone.
            step = (models - run.trainer(run.models, run.t)[benign]).double() / eta
            noise.add_((step - gradient).square().sum(1))

    measure(run)
    run.run(on_round=measure)
    return series, math.sqrt(float(noise.max()) / max(1, run.t))


def table(found: Found) -> str:
    """Format a line for each attack: the final excess risk, its bound, and the constants."""
    lines = [f"{'attack':<24} excess risk     bound   delta     rho     psi  holds"]
    for attack, one in found.items():
        final = f"{one['excess'][-1]:11.4g} {one['bound'][-1]:9.4g}"
        constants = " ".join(f"{one[name]:7.4g}" for name in ("delta", "rho", "psi"))
        lines.append(f"{attack:<24} {final} {constants}  {'yes' if one['holds'] else 'NO'}")
    return "\n".join(lines)


def save(found: Found, folder: Path) -> list[Path]:
    """Write the numbers as CSV and, if matplotlib is installed, a picture."""
    numbers = folder / f"{FILE}.csv"
    with open(numbers, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["attack", *next(iter(found.values()), {})])
        for attack, one in found.items():
            writer.writerow([attack, *map(_format, one.values())])
    try:
        picture = draw(found)
    except ImportError as error:
        print(f"No picture: {error}", file=sys.stderr)
        return [numbers]
    picture.savefig(folder / f"{FILE}.svg", bbox_inches="tight")
    return [numbers, folder / f"{FILE}.svg"]


def _format(value: Any) -> str:
    """Format a number, or a list separated by spaces, with five digits."""
    if isinstance(value, list):
        return " ".join(map(_format, value))
    return str(float(f"{value:.5g}")) if isinstance(value, float) else str(value)


def draw(found: Found) -> Any:
    """Draw the excess risk under each attack, and the lowest of the bounds."""
    module = import_optional("matplotlib.figure", "plots")
    figure = module.Figure(figsize=(5.5, 3.2), layout="constrained")
    ax = figure.subplots()
    styles = ("-", "--", "-.", ":")
    for i, (attack, one) in enumerate(found.items()):
        ax.plot(
            one["excess"],
            label="no attack" if attack == NO_ATTACK else attack,
            linestyle=styles[i % 4],
            color=plots.COLORS[i % len(plots.COLORS)],
            linewidth=1,
        )
    if found:
        lowest = min((one["bound"] for one in found.values()), key=lambda bound: float(bound[-1]))
        ax.plot(lowest, color="black", linewidth=2, label="Theorem 1's bound, the lowest")
    ax.set_yscale("log")
    ax.set_xlabel("round")
    ax.set_ylabel("excess risk of the worst benign client")
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
