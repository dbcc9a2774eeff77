"""Cases worked by hand, for rules that use distances and angles."""

from __future__ import annotations

import math

import equipoise as eq
from tests.cases import Case

nan = math.nan
inf = math.inf
EQ3 = "eq. 3"
SEC6 = "sec. 6.1.2"
SEC7 = "sec. 7"

NEAR_FIVE = [[4.0, 4.0], [5.0, 4.0], [3.0, 7.0]]  # at distances 1, 2, 3 of (3, 4), which has norm 5


HALF = {"t": 1, "total": 2}


BALANCE = [
    Case("on the threshold", eq.Balance(0.5, 0.0), [3, 4], [[3, 6.5]], [3, 6.5], [1], EQ3),
    Case("above the threshold", eq.Balance(0.5, 0.0), [3, 4], [[3, 6.5625]], [3, 4], [0], EQ3),
    Case(
        "mean of accepted", eq.Balance(0.5, 0.0), [3, 4], [*NEAR_FIVE], [4.5, 4], [0.5, 0.5, 0], EQ3
    ),
    Case(
        "first round",
        eq.Balance(1.0, 2 * math.log(2)),
        [3, 4],
        NEAR_FIVE,
        [4, 5],
        [1 / 3] * 3,
        EQ3,
        HALF | {"t": 0},
    ),
    # the decay is exp(-2 ln 2 / 2) = 1/2, so the threshold 5 falls to 2.5
    Case(
        "half way",
        eq.Balance(1.0, 2 * math.log(2)),
        [3, 4],
        NEAR_FIVE,
        [4.5, 4],
        [0.5, 0.5, 0],
        EQ3,
        HALF,
    ),
    Case(
        "own progress",
        eq.Balance(1.0, 9.0, lambda t, total: 0.0),
        [3, 4],
        [[3, 8]],
        [3, 8],
        [1],
        EQ3,
        HALF,
    ),
    Case("opposite direction", eq.Balance(1.0, 0.0), [3, 4], [[-3, -4]], [3, 4], [0], EQ3),
    Case(
        "gamma 0 takes copies",
        eq.Balance(0.0, 0.0),
        [3, 4],
        [[3, 4], [3, 4.5]],
        [3, 4],
        [1, 0],
        EQ3,
    ),
    Case(
        "zero own takes zeros",
        eq.Balance(0.5, 0.0),
        [0, 0],
        [[0, 0], [1e-9, 0]],
        [0, 0],
        [1, 0],
        EQ3,
    ),
    Case(
        "not finite",
        eq.Balance(9.0, 0.0),
        [3, 4],
        [[nan, 4], [3, inf], [4, 4]],
        [4, 4],
        [0, 0, 1],
        EQ3,
    ),
    Case("no message", eq.Balance(0.5, 0.0), [3, 4], [], [3, 4], [], EQ3),
]


BALANCE_MEDIAN = [
    Case("median cuts", eq.BalanceMedian(0.9), [3, 4], NEAR_FIVE, [4.5, 4], [0.5, 0.5, 0], SEC7),
    Case("gamma cuts", eq.BalanceMedian(0.25), [3, 4], NEAR_FIVE, [4, 4], [1, 0, 0], SEC7),
    Case("gamma cuts all", eq.BalanceMedian(0.1), [3, 4], NEAR_FIVE, [3, 4], [0, 0, 0], SEC7),
    # distances 1, 2, 3, 4: the median is 2.5
    Case(
        "even count",
        eq.BalanceMedian(0.9),
        [3, 4],
        [*NEAR_FIVE, [3, 8]],
        [4.5, 4],
        [0.5, 0.5, 0, 0],
        SEC7,
    ),
    Case("one message is the median", eq.BalanceMedian(0.9), [3, 4], [[3, 8]], [3, 8], [1], SEC7),
    Case("one message beyond gamma", eq.BalanceMedian(0.5), [3, 4], [[3, 8]], [3, 4], [0], SEC7),
    Case("gamma exactly", eq.BalanceMedian(0.5), [3, 4], [[3, 6.5]], [3, 6.5], [1], SEC7),
    # the absent message would have moved the median from 1.5 to 2
    Case(
        "not finite",
        eq.BalanceMedian(0.9),
        [3, 4],
        [[4, 4], [5, 4], [nan, 0]],
        [4, 4],
        [1, 0, 0],
        SEC7,
    ),
    Case(
        "zero own takes zeros",
        eq.BalanceMedian(0.9),
        [0, 0],
        [[0, 0], [1, 0]],
        [0, 0],
        [1, 0],
        SEC7,
    ),
    Case(
        "zero own, others far",
        eq.BalanceMedian(0.9),
        [0, 0],
        [[1, 0], [1, 0]],
        [0, 0],
        [0, 0],
        SEC7,
    ),
    Case("no message", eq.BalanceMedian(), [3, 4], [], [3, 4], [], SEC7),
]


KRUM = [
    # two nearest each: 0 -> 1 + 9, 1 -> 1 + 4, 3 -> 4 + 9, 10 -> 49 + 81
    Case("two nearest", eq.Krum(0), [9], [[0], [1], [3], [10]], [1], [0, 1, 0, 0], SEC6),
    # one nearest each: 0 -> 1, 1 -> 1, 3 -> 4, 10 -> 49
    Case(
        "one nearest, a tie",
        eq.Krum(1),
        [9],
        [[0], [1], [3], [10]],
        [0],
        [1, 0, 0, 0],
        SEC6,
        beyond=True,
    ),
    Case(
        "tolerated too large",
        eq.Krum(7),
        [9],
        [[3], [0], [1], [10]],
        [0],
        [0, 1, 0, 0],
        SEC6,
        beyond=True,
    ),
    Case(
        "the call's tolerated",
        eq.Krum(7),
        [9],
        [[0], [1], [3], [10]],
        [1],
        [0, 1, 0, 0],
        SEC6,
        {"tolerated": 0},
    ),
    # two nearest each, squared: 0 -> 36 + 36 = 72, 202 -> 4 + 81 = 85; not squared: 12 and 11
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
    Case(
        "tie to the lowest id",
        eq.Krum(0),
        [9, 9],
        [[5, 0], [1, 1]],
        [1, 1],
        [0, 1],
        SEC6,
        senders=[7, 2],
    ),
    Case(
        "identical messages",
        eq.Krum(0),
        [9],
        [[2], [5], [2], [5]],
        [2],
        [0, 0, 1, 0],
        SEC6,
        senders=[3, 2, 1, 4],
    ),
    Case(
        "not finite",
        eq.Krum(0),
        [9],
        [[nan], [0], [inf], [1], [3], [10]],
        [1],
        [0, 0, 0, 1, 0, 0],
        SEC6,
    ),
    Case("one message", eq.Krum(0), [9], [[4]], [4], [1], SEC6),
    Case("no message", eq.Krum(0), [9], [], [9], [], SEC6),
]


FLTRUST = [
    # both have norm 5 after rescaling; their cosines are 1 and 24/25
    Case(
        "by cosine",
        eq.FLTrust(),
        [3, 4],
        [[6, 8], [4, 3]],
        [171 / 49, 172 / 49],
        [25 / 49, 24 / 49],
        SEC6,
    ),
    Case(
        "plain mean",
        eq.FLTrust(weighted=False),
        [3, 4],
        [[6, 8], [4, 3]],
        [3.5, 3.5],
        [0.5, 0.5],
        SEC6,
    ),
    Case(
        "rescaled up and down",
        eq.FLTrust(False),
        [3, 4],
        [[0, 1], [20, 0]],
        [2.5, 2.5],
        [0.5, 0.5],
        SEC6,
    ),
    Case("negative cosine", eq.FLTrust(), [3, 4], [[-3, -4], [0, 10]], [0, 5], [0, 1], SEC6),
    Case("right angle", eq.FLTrust(False), [3, 4], [[4, -3], [0, 10]], [0, 5], [0, 1], SEC6),
    Case("zero message", eq.FLTrust(), [3, 4], [[0, 0], [0, 10]], [0, 5], [0, 1], SEC6),
    Case(
        "not finite", eq.FLTrust(), [3, 4], [[3, inf], [nan, 4], [0, 10]], [0, 5], [0, 0, 1], SEC6
    ),
    Case("nothing accepted", eq.FLTrust(), [3, 4], [[-3, -4], [0, 0]], [3, 4], [0, 0], SEC6),
    Case("zero own", eq.FLTrust(), [0, 0], [[1, 0], [0, 1]], [0, 0], [0, 0], SEC6),
    Case("no message", eq.FLTrust(), [3, 4], [], [3, 4], [], SEC6),
]


SCCLIP = [
    # at distances 5 (inside) and 10 (halved)
    Case("inside and outside", eq.SCClip(5.0), [0, 0], [[3, 4], [6, 8]], [3, 4], [0.5, 0.25], SEC6),
    # steps (0, 2) / 2 and (3, 4) / 5
    Case("both outside", eq.SCClip(1.0), [1, 1], [[1, 3], [4, 5]], [1.3, 1.9], [0.25, 0.1], SEC6),
    # distances 2 and 5, tau 3.5: steps (0, 2) and 0.7 * (3, 4)
    Case(
        "median, even",
        eq.SCClip("median"),
        [1, 1],
        [[1, 3], [4, 5]],
        [2.05, 3.4],
        [0.5, 0.35],
        SEC6,
    ),
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
    Case(
        "second largest",
        eq.SCClip("second_largest"),
        [1, 1],
        [[1, 3], [4, 5]],
        [1.6, 2.8],
        [0.5, 0.2],
        SEC6,
    ),
    Case("second largest of one", eq.SCClip("second_largest"), [1, 1], [[4, 5]], [4, 5], [1], SEC6),
    Case("copies", eq.SCClip(1.0), [1, 1], [[1, 1], [1, 1]], [1, 1], [0.5, 0.5], SEC6),
    Case(
        "not finite",
        eq.SCClip(5.0),
        [0, 0],
        [[nan, 0], [6, 8], [0, inf]],
        [3, 4],
        [0, 0.5, 0],
        SEC6,
    ),
    Case("no message", eq.SCClip(1.0), [1, 1], [], [1, 1], [], SEC6),
    Case("norm", eq.SCClip(mode="norm"), [3, 4], [[6, 8], [1, 0]], [2, 2], [0.5, 0.5], "sec. 2.3"),
    Case(
        "norm, zero message",
        eq.SCClip(mode="norm"),
        [3, 4],
        [[6, 8], [0, 0]],
        [1.5, 2],
        [0.5, 0.5],
        "sec. 2.3",
    ),
    Case("norm, negative", eq.SCClip(mode="norm"), [3, 4], [[-6, -8]], [-3, -4], [1], "sec. 2.3"),
    Case(
        "norm, zero own",
        eq.SCClip(mode="norm"),
        [0, 0],
        [[6, 8], [1, 0]],
        [0, 0],
        [0.5, 0.5],
        "sec. 2.3",
    ),
    Case("norm, no message", eq.SCClip(mode="norm"), [3, 4], [], [3, 4], [], "sec. 2.3"),
]
