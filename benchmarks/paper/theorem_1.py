"""Theorem 1 of the BALANCE paper, checked on the problem that it is about: linear regression on synthetic data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.registry import PUBLISHED
from benchmarks.paper.run import simulator
from benchmarks.paper.setting import Setting
from benchmarks.paper.tasks import load
from equipoise import plots
from equipoise._utils.progress import Progress
from equipoise.optional import import_optional
from equipoise.simulation import Simulator

ATTACKS = (*(name for name in PUBLISHED if name != "Backdoor"), "LIE", "Dissensus", "Adapt-max")


@dataclass(frozen=True)
class Quadratic:
    """The risk of linear models w, the mean squared error on all training examples, in closed form.

    ``F(w) = F(w*) + (w - w*)' H (w - w*) / 2``, with the Hessian H, float64.
    """

    hessian: Tensor
    best: Tensor
    floor: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Quadratic:
        """From examples."""
        inputs = x.double()
        best = torch.linalg.lstsq(inputs, y[:, None].double()).solution[:, 0]
        residual = inputs @ best - y
        return cls(2 * inputs.T @ inputs / len(x), best, float(residual.square().mean()))

    def excess(self, models: Tensor) -> Tensor:
        """(n,) risk above the smallest."""
        away = models.double() - self.best
        return ((away @ self.hessian) * away).sum(1) / 2

    def gradient(self, models: Tensor) -> Tensor:
        """(n, d) gradients of the risk."""
        return (models.double() - self.best) @ self.hessian

    def curvature(self) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of the Hessian: mu and L."""
        values = torch.linalg.eigvalsh(self.hessian)
        return float(values[0]), float(values[-1])


@dataclass(frozen=True)
class Constants:
    """What the theorem assumes to be bounded, as it was in a run; eta is the learning rate of a batch's mean."""

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
        """The theorem's bound on the excess risk of any benign client after t rounds."""
        noise = 2 * self.L * self.eta * self.delta**2 / self.mu
        lies = 2 * self.gamma * self.rho * self.psi * (1 - self.alpha) / (self.mu * self.eta)
        return (1 - self.mu * self.eta) ** t * self.start + noise + lies

    def conditions(self) -> dict[str, bool]:
        """Whether learning rate and gamma are such as the theorem asks for."""
        largest = self.rho / (self.L * self.psi * (1 - self.alpha))
        return {"eta": self.eta <= min(1 / (4 * self.L), 1 / self.mu), "gamma": self.gamma <= largest}


def check(seed: int = 0, rounds: int = 0, attacks: Sequence[str] = ATTACKS) -> dict[str, Any]:
    """BALANCE under every attack: the excess risk of the worst benign client per round, and the bound on it."""
    found: dict[str, Any] = {"seed": seed, "attacks": {}}
    with Progress(len(attacks), "attack") as bar:
        for attack in attacks:
            found["attacks"][attack] = _one(Setting(data="synthetic", attack=attack, rounds=rounds), seed)
            bar.advance(attack)
    return found


def _one(setting: Setting, seed: int) -> dict[str, Any]:
    dataset = load(setting.data, ".", seed)
    risk = Quadratic.of(dataset.x, dataset.y)
    run = simulator(setting, seed, ".")
    eta = setting.task.lr * setting.step * setting.batch
    measured, delta = _measured(run, risk, eta)
    constants = Constants(
        *risk.curvature(),
        delta,
        max(measured["rho"]),
        max(measured["psi"]),
        eta,
        setting.gamma,
        0.5,
        measured["excess"][0],
    )
    bounds = [constants.bound(t) for t in range(len(measured["excess"]))]
    holds = all(excess <= bound for excess, bound in zip(measured["excess"], bounds, strict=True))
    about = {**asdict(constants), **{f"{name} is small enough": yes for name, yes in constants.conditions().items()}}
    return {**about, "holds": holds, "excess": measured["excess"], "bound": bounds}


def _measured(run: Simulator, risk: Quadratic, eta: float) -> tuple[dict[str, list[float]], float]:
    """Of benign clients, round by round from the start: largest excess risk, gradient and norm; and the noise, delta.

    Delta is the largest root of the mean over rounds, for any client, of squared distances between a batch's gradient
    and that of the risk.
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


def table(found: dict[str, Any]) -> str:
    """A line for each attack: excess risk after the last round, the bound on it, and what that is made of."""
    lines = ["attack       excess risk     bound   delta     rho     psi  holds"]
    for attack, one in found["attacks"].items():
        numbers = (
            f"{one['excess'][-1]:11.4g} {one['bound'][-1]:9.4g} {one['delta']:7.4g} {one['rho']:7.4g} {one['psi']:7.4g}"
        )
        lines.append(f"{attack:<12} {numbers}  {'yes' if one['holds'] else 'NO'}")
    return "\n".join(lines)


def save(found: dict[str, Any], folder: Path) -> list[Path]:
    """Write numbers and, if matplotlib is installed, a picture; otherwise say how to get it."""
    rounded = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.5g}"))
    numbers = folder / "theorem-1.json"
    numbers.write_text(json.dumps(rounded) + "\n")
    try:
        picture = draw(found)
    except ImportError as error:
        print(f"No picture: {error}", file=sys.stderr)
        return [numbers]
    picture.savefig(folder / "theorem-1.svg", bbox_inches="tight")
    return [numbers, folder / "theorem-1.svg"]


def draw(found: dict[str, Any]) -> Any:
    """Measured excess risk under every attack, and the lowest of the bounds."""
    module = import_optional("matplotlib.figure", "plots")
    figure = module.Figure(figsize=(5.5, 3.2), layout="constrained")
    ax = figure.subplots()
    styles = ("-", "--", "-.", ":")
    for i, (attack, one) in enumerate(found["attacks"].items()):
        style: dict[str, Any] = {
            "linestyle": styles[i % 4],
            "color": plots.COLOURS[i % len(plots.COLOURS)],
            "linewidth": 1,
        }
        ax.plot(one["excess"], label="no attack" if attack == "No" else attack, **style)
    lowest = min((one["bound"] for one in found["attacks"].values()), key=lambda bound: bound[-1])
    ax.plot(lowest, color="black", linewidth=2, label="Theorem 1's bound, the lowest")
    ax.set_yscale("log")
    ax.set_xlabel("round")
    ax.set_ylabel("excess risk of the worst benign client")
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
