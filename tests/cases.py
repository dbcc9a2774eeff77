"""Every rule in every option, and one table of cases worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import equipoise as eq

nan, inf = math.nan, math.inf

RULES: dict[str, Any] = {
    "balance": eq.Balance(),
    "balance-variant-1": eq.Balance(gamma=0.5, kappa=0.0),
    "balance-decaying": eq.Balance(gamma=1.1, kappa=2.0, progress=lambda t, total: (t / total) ** 2),
    "balance-median": eq.BalanceMedian(gamma=0.35),
    "balance-median-wide": eq.BalanceMedian(gamma=1.7),
    "fedavg": eq.FedAvg(),
    "fedavg-weighted": eq.FedAvg(weighted=True),
    "krum": eq.Krum(),
    "trimmed-mean": eq.TrimmedMean(),
    "median": eq.Median(),
    "fltrust": eq.FLTrust(),
    "fltrust-plain": eq.FLTrust(weighted=False),
    "ubar-best": eq.UBAR(),
    "ubar-closest": eq.UBAR(empty="closest"),
    "ubar-own": eq.UBAR(empty="own"),
    "scclip": eq.SCClip(),
    "scclip-0.25": eq.SCClip(tau=0.25),
    "scclip-median": eq.SCClip(tau="median"),
    "scclip-second-largest": eq.SCClip(tau="second_largest"),
    "scclip-norm": eq.SCClip(mode="norm"),
}

LEARNS: dict[str, Any] = {
    "learn-included": eq.LEARN(),
    "learn-excluded": eq.LEARN(own_update="excluded"),
    "learn-mixed": eq.LEARN(own_update="mixed", alpha=0.25),
}


@dataclass(frozen=True)
class Case:
    """What one client must compute, and where that is said.

    ``received`` is a list of messages; ``senders`` their ids, 0, 1, ... if not given. ``weights`` is None for rules
    that choose coordinate by coordinate; ``beyond`` says that more is tolerated than guaranteed. Sections and equations
    are those of the BALANCE paper.
    """

    name: str
    rule: Any
    own: list[float]
    received: list[list[float]]
    model: list[float]
    weights: list[float] | None
    source: str
    inputs: dict[str, Any] = field(default_factory=dict)
    senders: list[int] | None = None
    beyond: bool = False

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Own (d,) and received (k, d), float64."""
        own = torch.tensor(self.own, dtype=torch.float64)
        return own, torch.tensor(self.received, dtype=torch.float64).reshape(-1, len(self.own))


def loss(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Losses of (c, d) models from a function of their first coordinate."""
    return lambda models: function(models[:, 0].double())


def falling_from_ten(x: Tensor) -> Tensor:
    """0 at 0, and 10 - x elsewhere: own = 0 is best, and the farther the better."""
    return torch.where(x == 0, 0.0, 10.0 - x)


LINE = [[1.0], [2.0], [3.0], [10.0]]
SQUARE = [[1.0, 40.0], [2.0, 30.0], [3.0, 20.0], [10.0, -50.0]]
NEAR_FIVE = [[4.0, 4.0], [5.0, 4.0], [3.0, 7.0]]  # at distances 1, 2, 3 of (3, 4), which has norm 5
HALF = {"t": 1, "total": 2}
EQ3, SEC6, SEC7 = "eq. 3", "sec. 6.1.2", "sec. 7"

BALANCE = [
    Case("on the threshold", eq.Balance(0.5, 0.0), [3, 4], [[3, 6.5]], [3, 6.5], [1], EQ3),
    Case("above the threshold", eq.Balance(0.5, 0.0), [3, 4], [[3, 6.5625]], [3, 4], [0], EQ3),
    Case("mean of accepted", eq.Balance(0.5, 0.0), [3, 4], [*NEAR_FIVE], [4.5, 4], [0.5, 0.5, 0], EQ3),
    Case("first round", eq.Balance(1.0, 2 * math.log(2)), [3, 4], NEAR_FIVE, [4, 5], [1 / 3] * 3, EQ3, HALF | {"t": 0}),
    # the decay is exp(-2 ln 2 / 2) = 1/2, so the threshold 5 falls to 2.5
    Case("half way", eq.Balance(1.0, 2 * math.log(2)), [3, 4], NEAR_FIVE, [4.5, 4], [0.5, 0.5, 0], EQ3, HALF),
    Case("own progress", eq.Balance(1.0, 9.0, lambda t, total: 0.0), [3, 4], [[3, 8]], [3, 8], [1], EQ3, HALF),
    Case("opposite direction", eq.Balance(1.0, 0.0), [3, 4], [[-3, -4]], [3, 4], [0], EQ3),
    Case("gamma 0 takes copies", eq.Balance(0.0, 0.0), [3, 4], [[3, 4], [3, 4.5]], [3, 4], [1, 0], EQ3),
    Case("zero own takes zeros", eq.Balance(0.5, 0.0), [0, 0], [[0, 0], [1e-9, 0]], [0, 0], [1, 0], EQ3),
    Case("not finite", eq.Balance(9.0, 0.0), [3, 4], [[nan, 4], [3, inf], [4, 4]], [4, 4], [0, 0, 1], EQ3),
    Case("no message", eq.Balance(0.5, 0.0), [3, 4], [], [3, 4], [], EQ3),
]

BALANCE_MEDIAN = [
    Case("median cuts", eq.BalanceMedian(0.9), [3, 4], NEAR_FIVE, [4.5, 4], [0.5, 0.5, 0], SEC7),
    Case("gamma cuts", eq.BalanceMedian(0.25), [3, 4], NEAR_FIVE, [4, 4], [1, 0, 0], SEC7),
    Case("gamma cuts all", eq.BalanceMedian(0.1), [3, 4], NEAR_FIVE, [3, 4], [0, 0, 0], SEC7),
    # distances 1, 2, 3, 4: the median is 2.5
    Case("even count", eq.BalanceMedian(0.9), [3, 4], [*NEAR_FIVE, [3, 8]], [4.5, 4], [0.5, 0.5, 0, 0], SEC7),
    Case("one message is the median", eq.BalanceMedian(0.9), [3, 4], [[3, 8]], [3, 8], [1], SEC7),
    Case("one message beyond gamma", eq.BalanceMedian(0.5), [3, 4], [[3, 8]], [3, 4], [0], SEC7),
    Case("gamma exactly", eq.BalanceMedian(0.5), [3, 4], [[3, 6.5]], [3, 6.5], [1], SEC7),
    # the absent message would have moved the median from 1.5 to 2
    Case("not finite", eq.BalanceMedian(0.9), [3, 4], [[4, 4], [5, 4], [nan, 0]], [4, 4], [1, 0, 0], SEC7),
    Case("zero own takes zeros", eq.BalanceMedian(0.9), [0, 0], [[0, 0], [1, 0]], [0, 0], [1, 0], SEC7),
    Case("zero own, others far", eq.BalanceMedian(0.9), [0, 0], [[1, 0], [1, 0]], [0, 0], [0, 0], SEC7),
    Case("no message", eq.BalanceMedian(), [3, 4], [], [3, 4], [], SEC7),
]

FEDAVG = [
    Case("mean", eq.FedAvg(), [9, 9], [[1, 2], [3, 6]], [2, 4], [0.5, 0.5], SEC6),
    Case("not finite", eq.FedAvg(), [9, 9], [[1, 2], [nan, 0], [3, 6]], [2, 4], [0.5, 0, 0.5], SEC6),
    Case("by samples", eq.FedAvg(True), [9, 9], [[1, 2], [3, 6]], [2.5, 5], [0.25, 0.75], SEC6, {"samples": [1, 3]}),
    Case(
        "by samples of senders",
        eq.FedAvg(True),
        [9, 9],
        [[1, 2], [0, inf], [3, 6]],
        [2.5, 5],
        [0.25, 0, 0.75],
        SEC6,
        {"samples": [3, 7, 1, 7, 7]},
        senders=[2, 4, 0],
    ),
    Case("one message", eq.FedAvg(), [9, 9], [[1, 2]], [1, 2], [1], SEC6),
    Case("no message", eq.FedAvg(), [9, 9], [], [9, 9], [], SEC6),
    Case("nothing finite", eq.FedAvg(), [9, 9], [[nan, nan], [inf, 0]], [9, 9], [0, 0], SEC6),
]

KRUM = [
    # two nearest each: 0 -> 1 + 9, 1 -> 1 + 4, 3 -> 4 + 9, 10 -> 49 + 81
    Case("two nearest", eq.Krum(0), [9], [[0], [1], [3], [10]], [1], [0, 1, 0, 0], SEC6),
    # one nearest each: 0 -> 1, 1 -> 1, 3 -> 4, 10 -> 49
    Case("one nearest, a tie", eq.Krum(1), [9], [[0], [1], [3], [10]], [0], [1, 0, 0, 0], SEC6, beyond=True),
    Case("tolerated too large", eq.Krum(7), [9], [[3], [0], [1], [10]], [0], [0, 1, 0, 0], SEC6, beyond=True),
    Case("the call's tolerated", eq.Krum(7), [9], [[0], [1], [3], [10]], [1], [0, 1, 0, 0], SEC6, {"tolerated": 0}),
    # two nearest each, squared: 0 -> 36 + 36 = 72, 202 -> 4 + 81 = 85; not squared it would be 12 against 11
    Case(
        "squared distances",
        eq.Krum(2),
        [9],
        [[-6], [0], [6], [200], [202], [211]],
        [0],
        [0, 1, 0, 0, 0, 0],
        SEC6,
        beyond=True,
    ),
    Case("tie on a ring", eq.Krum(0), [9, 9], [[5, 0], [1, 1]], [5, 0], [1, 0], SEC6),
    Case("tie to the lowest id", eq.Krum(0), [9, 9], [[5, 0], [1, 1]], [1, 1], [0, 1], SEC6, senders=[7, 2]),
    Case("identical messages", eq.Krum(0), [9], [[2], [5], [2], [5]], [2], [0, 0, 1, 0], SEC6, senders=[3, 2, 1, 4]),
    Case("not finite", eq.Krum(0), [9], [[nan], [0], [inf], [1], [3], [10]], [1], [0, 0, 0, 1, 0, 0], SEC6),
    Case("one message", eq.Krum(0), [9], [[4]], [4], [1], SEC6),
    Case("no message", eq.Krum(0), [9], [], [9], [], SEC6),
]

TRIMMED_MEAN = [
    Case("one from each side", eq.TrimmedMean(1), [9, 9], SQUARE, [2.5, 25], None, SEC6),
    Case("none", eq.TrimmedMean(0), [9, 9], SQUARE, [4, 10], None, SEC6),
    Case("saturated, even", eq.TrimmedMean(2), [9, 9], SQUARE, [2.5, 25], None, SEC6, beyond=True),
    Case("saturated, odd", eq.TrimmedMean(5), [9], [*LINE, [100]], [3], None, SEC6, beyond=True),
    Case("the call's tolerated", eq.TrimmedMean(0), [9, 9], SQUARE, [2.5, 25], None, SEC6, {"tolerated": 1}),
    # three are present, so that one from each side leaves one
    Case("not finite", eq.TrimmedMean(1), [9], [[nan], [1], [inf], [2], [-9]], [1], None, SEC6),
    Case("two messages", eq.TrimmedMean(1), [9], [[1], [4]], [2.5], None, SEC6, beyond=True),
    Case("one message", eq.TrimmedMean(1), [9], [[4]], [4], None, SEC6, beyond=True),
    Case("no message", eq.TrimmedMean(1), [9], [], [9], None, SEC6),
]

MEDIAN = [
    Case("even", eq.Median(), [9, 9], SQUARE, [2.5, 25], None, SEC6),
    Case("odd", eq.Median(), [9, 9], SQUARE[:3], [2, 30], None, SEC6),
    Case("not finite", eq.Median(), [9], [[nan], [1], [inf], [2], [-9]], [1], None, SEC6),
    Case("one message", eq.Median(), [9], [[4]], [4], None, SEC6),
    Case("no message", eq.Median(), [9], [], [9], None, SEC6),
]

FLTRUST = [
    # both have norm 5 after rescaling; their cosines are 1 and 24/25
    Case("by cosine", eq.FLTrust(), [3, 4], [[6, 8], [4, 3]], [171 / 49, 172 / 49], [25 / 49, 24 / 49], SEC6),
    Case("plain mean", eq.FLTrust(weighted=False), [3, 4], [[6, 8], [4, 3]], [3.5, 3.5], [0.5, 0.5], SEC6),
    Case("rescaled up and down", eq.FLTrust(False), [3, 4], [[0, 1], [20, 0]], [2.5, 2.5], [0.5, 0.5], SEC6),
    Case("negative cosine", eq.FLTrust(), [3, 4], [[-3, -4], [0, 10]], [0, 5], [0, 1], SEC6),
    Case("right angle", eq.FLTrust(False), [3, 4], [[4, -3], [0, 10]], [0, 5], [0, 1], SEC6),
    Case("zero message", eq.FLTrust(), [3, 4], [[0, 0], [0, 10]], [0, 5], [0, 1], SEC6),
    Case("not finite", eq.FLTrust(), [3, 4], [[3, inf], [nan, 4], [0, 10]], [0, 5], [0, 0, 1], SEC6),
    Case("nothing accepted", eq.FLTrust(), [3, 4], [[-3, -4], [0, 0]], [3, 4], [0, 0], SEC6),
    Case("zero own", eq.FLTrust(), [0, 0], [[1, 0], [0, 1]], [0, 0], [0, 0], SEC6),
    Case("no message", eq.FLTrust(), [3, 4], [], [3, 4], [], SEC6),
]

UBAR = [
    # the three nearest to 0 have losses 1, 0, 1; own has 2
    Case(
        "all better",
        eq.UBAR(1),
        [0],
        LINE,
        [2],
        [1 / 3, 1 / 3, 1 / 3, 0],
        SEC6,
        {"loss_of": loss(lambda x: (x - 2).abs())},
    ),
    # losses 0, 1, 2; own has 1, and as good as own is not better
    Case("strictly better", eq.UBAR(1), [0], LINE, [1], [1, 0, 0, 0], SEC6, {"loss_of": loss(lambda x: (x - 1).abs())}),
    Case(
        "best is too far",
        eq.UBAR(2),
        [0],
        LINE,
        [1.5],
        [0.5, 0.5, 0, 0],
        SEC6,
        {"loss_of": loss(lambda x: (x - 10).abs())},
    ),
    Case("empty: best", eq.UBAR(1), [0], LINE, [3], [0, 0, 1, 0], SEC6, {"loss_of": loss(falling_from_ten)}),
    Case(
        "empty: closest", eq.UBAR(1, "closest"), [0], LINE, [1], [1, 0, 0, 0], SEC6, {"loss_of": loss(falling_from_ten)}
    ),
    Case("empty: own", eq.UBAR(1, "own"), [0], LINE, [0], [0, 0, 0, 0], SEC6, {"loss_of": loss(falling_from_ten)}),
    Case("best: a tie", eq.UBAR(0), [0], LINE, [1], [1, 0, 0, 0], SEC6, {"loss_of": loss(lambda x: (x != 0) * 1.0)}),
    Case(
        "best: lowest id",
        eq.UBAR(0),
        [0],
        LINE,
        [3],
        [0, 0, 1, 0],
        SEC6,
        {"loss_of": loss(lambda x: (x != 0) * 1.0)},
        [4, 3, 1, 2],
    ),
    Case(
        "nearest: a tie", eq.UBAR(2), [0], [[1], [-1], [2]], [1], [1, 0, 0], SEC6, {"loss_of": loss(lambda x: -x.abs())}
    ),
    Case(
        "nearest: lowest id",
        eq.UBAR(2),
        [0],
        [[1], [-1], [2]],
        [-1],
        [0, 1, 0],
        SEC6,
        {"loss_of": loss(lambda x: -x.abs())},
        [5, 4, 3],
    ),
    Case(
        "NaN losses",
        eq.UBAR(0),
        [0],
        [[1], [2]],
        [2],
        [0, 1],
        SEC6,
        {"loss_of": loss(lambda x: torch.where(x == 1, nan, -x))},
    ),
    Case(
        "NaN is not the best",
        eq.UBAR(0),
        [0],
        [[1], [2]],
        [2],
        [0, 1],
        SEC6,
        {"loss_of": loss(lambda x: torch.where(x == 1, nan, x))},
    ),
    Case(
        "only NaN losses",
        eq.UBAR(0),
        [0],
        [[1], [2]],
        [0],
        [0, 0],
        SEC6,
        {"loss_of": loss(lambda x: torch.where(x > 0, nan, x))},
    ),
    Case(
        "NaN own loss: best",
        eq.UBAR(0),
        [0],
        [[1], [2]],
        [1],
        [1, 0],
        SEC6,
        {"loss_of": loss(lambda x: torch.where(x > 0, x, nan))},
    ),
    Case(
        "tolerates everybody", eq.UBAR(4), [0], LINE, [0], [0] * 4, SEC6, {"loss_of": loss(lambda x: -x)}, beyond=True
    ),
    Case(
        "tolerates more",
        eq.UBAR(9, "closest"),
        [0],
        LINE,
        [0],
        [0] * 4,
        SEC6,
        {"loss_of": loss(lambda x: -x)},
        beyond=True,
    ),
    # two are present, the nearer of them is kept
    Case(
        "not finite",
        eq.UBAR(1),
        [0],
        [[nan], [3], [2], [inf]],
        [2],
        [0, 0, 1, 0],
        SEC6,
        {"loss_of": loss(lambda x: -x)},
    ),
    Case("no message", eq.UBAR(0), [0], [], [0], [], SEC6, {"loss_of": loss(lambda x: -x)}),
]

SCCLIP = [
    # at distances 5 (inside) and 10 (halved)
    Case("inside and outside", eq.SCClip(5.0), [0, 0], [[3, 4], [6, 8]], [3, 4], [0.5, 0.25], SEC6),
    # steps (0, 2) / 2 and (3, 4) / 5
    Case("both outside", eq.SCClip(1.0), [1, 1], [[1, 3], [4, 5]], [1.3, 1.9], [0.25, 0.1], SEC6),
    # distances 2 and 5, tau 3.5: steps (0, 2) and 0.7 * (3, 4)
    Case("median, even", eq.SCClip("median"), [1, 1], [[1, 3], [4, 5]], [2.05, 3.4], [0.5, 0.35], SEC6),
    # distances 2, 5, 1, tau 2: steps (0, 2), 0.4 * (3, 4), (1, 0)
    Case(
        "median, odd",
        eq.SCClip("median"),
        [1, 1],
        [[1, 3], [4, 5], [2, 1]],
        [1 + 2.2 / 3, 2.2],
        [1 / 3, 0.4 / 3, 1 / 3],
        SEC6,
    ),
    Case("second largest", eq.SCClip("second_largest"), [1, 1], [[1, 3], [4, 5]], [1.6, 2.8], [0.5, 0.2], SEC6),
    Case("second largest of one", eq.SCClip("second_largest"), [1, 1], [[4, 5]], [4, 5], [1], SEC6),
    Case("copies", eq.SCClip(1.0), [1, 1], [[1, 1], [1, 1]], [1, 1], [0.5, 0.5], SEC6),
    Case("not finite", eq.SCClip(5.0), [0, 0], [[nan, 0], [6, 8], [0, inf]], [3, 4], [0, 0.5, 0], SEC6),
    Case("no message", eq.SCClip(1.0), [1, 1], [], [1, 1], [], SEC6),
    Case("norm", eq.SCClip(mode="norm"), [3, 4], [[6, 8], [1, 0]], [2, 2], [0.5, 0.5], "sec. 2.3"),
    Case("norm, zero message", eq.SCClip(mode="norm"), [3, 4], [[6, 8], [0, 0]], [1.5, 2], [0.5, 0.5], "sec. 2.3"),
    Case("norm, negative", eq.SCClip(mode="norm"), [3, 4], [[-6, -8]], [-3, -4], [1], "sec. 2.3"),
    Case("norm, zero own", eq.SCClip(mode="norm"), [0, 0], [[6, 8], [1, 0]], [0, 0], [0.5, 0.5], "sec. 2.3"),
    Case("norm, no message", eq.SCClip(mode="norm"), [3, 4], [], [3, 4], [], "sec. 2.3"),
]

CASES = [
    *BALANCE,
    *BALANCE_MEDIAN,
    *FEDAVG,
    *KRUM,
    *TRIMMED_MEAN,
    *MEDIAN,
    *FLTRUST,
    *UBAR,
    *SCCLIP,
]


@dataclass(frozen=True)
class LearnCase:
    """Three clients that all hear each other, one parameter each; own = (10, 20, 30), update = (1, 2, 6)."""

    name: str
    rule: Any
    t: int
    tolerated: int
    intermediate: list[float]
    model: list[float]
    beyond: bool = False


LEARN = [
    LearnCase("round 0 exchanges no updates", eq.LEARN(), 0, 0, [10, 20, 30], [25, 20, 15]),
    # everybody's update becomes the mean 3
    LearnCase("included", eq.LEARN(), 1, 0, [12, 21, 27], [24, 19.5, 16.5]),
    # everybody's update becomes the middle one, 2; two models are too few to trim
    LearnCase("included, trimmed", eq.LEARN(), 1, 1, [11, 20, 26], [23, 18.5, 15.5], beyond=True),
    # updates become 4, 3.5, 1.5
    LearnCase("excluded", eq.LEARN(own_update="excluded"), 1, 0, [13, 21.5, 25.5], [23.5, 19.25, 17.25]),
    # updates become 4, 3.5, 1.5 and then 2.5, 2.75, 3.75
    LearnCase("excluded twice", eq.LEARN(own_update="excluded"), 2, 0, [11.5, 20.75, 27.75], [24.25, 19.625, 16.125]),
    # updates become 2.5, 2.75, 3.75
    LearnCase("mixed", eq.LEARN(own_update="mixed"), 1, 0, [11.5, 20.75, 27.75], [24.25, 19.625, 16.125]),
    # updates become 1.75, 2.375, 4.875
    LearnCase(
        "mixed, 3 to 1",
        eq.LEARN(own_update="mixed", alpha=0.75),
        1,
        0,
        [10.75, 20.375, 28.875],
        [24.625, 19.8125, 15.5625],
    ),
]
