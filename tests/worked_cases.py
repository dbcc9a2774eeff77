"""Cases worked by hand, for all rules."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import equipoise as eq
from tests.cases import Case, LearnCase
from tests.distance_cases import BALANCE, BALANCE_MEDIAN, FLTRUST, KRUM, SCCLIP
from tests.gossip_cases import GOSSIP_CASES

nan = math.nan
inf = math.inf
SEC6 = "sec. 6.1.2"


def loss(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Losses of (c, d) models from a function of their first coordinate."""
    return lambda models: function(models[:, 0].double())


def falling_from_ten(x: Tensor) -> Tensor:
    """0 at 0, and 10 - x elsewhere: own = 0 is best, and the farther the better."""
    return torch.where(x == 0, 0.0, 10.0 - x)


LINE = [[1.0], [2.0], [3.0], [10.0]]


SQUARE = [[1.0, 40.0], [2.0, 30.0], [3.0, 20.0], [10.0, -50.0]]


FEDAVG = [
    Case("mean", eq.FedAvg(), [9, 9], [[1, 2], [3, 6]], [2, 4], [0.5, 0.5], SEC6),
    Case(
        "not finite", eq.FedAvg(), [9, 9], [[1, 2], [nan, 0], [3, 6]], [2, 4], [0.5, 0, 0.5], SEC6
    ),
    Case(
        "by samples",
        eq.FedAvg(True),
        [9, 9],
        [[1, 2], [3, 6]],
        [2.5, 5],
        [0.25, 0.75],
        SEC6,
        {"samples": [1, 3]},
    ),
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


TRIMMED_MEAN = [
    Case("one from each side", eq.TrimmedMean(1), [9, 9], SQUARE, [2.5, 25], None, SEC6),
    Case("none", eq.TrimmedMean(0), [9, 9], SQUARE, [4, 10], None, SEC6),
    Case("saturated, even", eq.TrimmedMean(2), [9, 9], SQUARE, [2.5, 25], None, SEC6, beyond=True),
    Case("saturated, odd", eq.TrimmedMean(5), [9], [*LINE, [100]], [3], None, SEC6, beyond=True),
    Case(
        "the call's tolerated",
        eq.TrimmedMean(0),
        [9, 9],
        SQUARE,
        [2.5, 25],
        None,
        SEC6,
        {"tolerated": 1},
    ),
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
    Case(
        "strictly better",
        eq.UBAR(1),
        [0],
        LINE,
        [1],
        [1, 0, 0, 0],
        SEC6,
        {"loss_of": loss(lambda x: (x - 1).abs())},
    ),
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
    Case(
        "empty: best",
        eq.UBAR(1),
        [0],
        LINE,
        [3],
        [0, 0, 1, 0],
        SEC6,
        {"loss_of": loss(falling_from_ten)},
    ),
    Case(
        "empty: closest",
        eq.UBAR(1, "closest"),
        [0],
        LINE,
        [1],
        [1, 0, 0, 0],
        SEC6,
        {"loss_of": loss(falling_from_ten)},
    ),
    Case(
        "empty: own",
        eq.UBAR(1, "own"),
        [0],
        LINE,
        [0],
        [0, 0, 0, 0],
        SEC6,
        {"loss_of": loss(falling_from_ten)},
    ),
    Case(
        "best: a tie",
        eq.UBAR(0),
        [0],
        LINE,
        [1],
        [1, 0, 0, 0],
        SEC6,
        {"loss_of": loss(lambda x: (x != 0) * 1.0)},
    ),
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
        "nearest: a tie",
        eq.UBAR(2),
        [0],
        [[1], [-1], [2]],
        [1],
        [1, 0, 0],
        SEC6,
        {"loss_of": loss(lambda x: -x.abs())},
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
        "tolerates all",
        eq.UBAR(4),
        [0],
        LINE,
        [0],
        [0] * 4,
        SEC6,
        {"loss_of": loss(lambda x: -x)},
        beyond=True,
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
    *GOSSIP_CASES,
]


LEARN = [
    LearnCase("round 0 exchanges no updates", eq.LEARN(), 0, 0, [10, 20, 30], [25, 20, 15]),
    # each update becomes the mean 3
    LearnCase("included", eq.LEARN(), 1, 0, [12, 21, 27], [24, 19.5, 16.5]),
    # each update becomes the middle one, 2; two models are too few to trim
    LearnCase("included, trimmed", eq.LEARN(), 1, 1, [11, 20, 26], [23, 18.5, 15.5], beyond=True),
    # updates become 4, 3.5, 1.5
    LearnCase(
        "excluded", eq.LEARN(own_update="excluded"), 1, 0, [13, 21.5, 25.5], [23.5, 19.25, 17.25]
    ),
    # updates become 4, 3.5, 1.5 and then 2.5, 2.75, 3.75
    LearnCase(
        "excluded twice",
        eq.LEARN(own_update="excluded"),
        2,
        0,
        [11.5, 20.75, 27.75],
        [24.25, 19.625, 16.125],
    ),
    # updates become 2.5, 2.75, 3.75
    LearnCase(
        "mixed", eq.LEARN(own_update="mixed"), 1, 0, [11.5, 20.75, 27.75], [24.25, 19.625, 16.125]
    ),
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
