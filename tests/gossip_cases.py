"""Cases worked by hand for the rules that contain own; see `tests.worked_cases`."""

from __future__ import annotations

import math

import equipoise as eq
from tests.cases import Case

nan = math.nan
HE = "He et al. 2022"
GAUCHER = "Gaucher et al. 2025"
WU = "Wu et al. 2023"
FANG = "Fang et al. 2022"

# At distances 1, 2, 3, 8 of own; with own, each of them has the weight 1/5.
LINE = [[1.0], [2.0], [3.0], [8.0]]
FIFTHS = [0.2] * 4

GOSSIP = [
    Case("mean with own", eq.Gossip(), [0], LINE, [2.8], FIFTHS, "Lian et al. 2017"),
    Case(
        "not finite", eq.Gossip(), [0, 0], [[2, 4], [nan, 0]], [1, 2], [0.5, 0], "Lian et al. 2017"
    ),
    Case("no message", eq.Gossip(), [9, 9], [], [9, 9], [], "Lian et al. 2017"),
]

CLIPPED_GOSSIP = [
    Case("nothing tolerated", eq.ClippedGossip(0), [0], LINE, [2.8], FIFTHS, HE),
    # The radius is sqrt((1 + 4 + 9) / 5 / (1 / 5)) = sqrt(14).
    Case(
        "one of four",
        eq.ClippedGossip(1),
        [0],
        LINE,
        [(6 + math.sqrt(14)) / 5],
        [0.2, 0.2, 0.2, 0.2 * math.sqrt(14) / 8],
        HE,
    ),
    # Two copies of own and a pair that disagrees: the nearest three are at distances 0, 0, 2.
    Case(
        "symmetric",
        eq.ClippedGossip(1),
        [0],
        [[0], [0], [2], [-2]],
        [0],
        FIFTHS,
        HE,
    ),
    Case("copies only", eq.ClippedGossip(1), [3], [[3], [3], [9]], [3], [0.25, 0.25, 0], HE),
    Case("all tolerated", eq.ClippedGossip(4), [0], LINE, [0], [0] * 4, HE, beyond=True),
    Case("no message", eq.ClippedGossip(1), [9, 9], [], [9, 9], [], HE),
]

CS_PLUS = [
    Case("nothing tolerated", eq.CSPlus(0), [0], LINE, [2.8], FIFTHS, GAUCHER),
    # The radius is the second largest distance, 3.
    Case("one of four", eq.CSPlus(1), [0], LINE, [1.8], [0.2, 0.2, 0.2, 0.075], GAUCHER),
    # The fourth largest distance, 1.
    Case("two of four", eq.CSPlus(2), [0], LINE, [0.8], [0.2, 0.1, 0.2 / 3, 0.025], GAUCHER),
    Case("a tie", eq.CSPlus(1), [0], [[4], [-4], [2]], [0.5], [0.25] * 3, GAUCHER),
    Case("not enough", eq.CSPlus(3), [0], LINE, [0], [0] * 4, GAUCHER, beyond=True),
    # Two are present: together they weigh twice as much as one of them.
    Case("not finite", eq.CSPlus(1), [0], [[1], [nan], [3]], [2 / 3], [1 / 3, 0, 1 / 9], GAUCHER),
    Case("one message", eq.CSPlus(1), [0], [[4]], [0], [0], GAUCHER, beyond=True),
    Case("no message", eq.CSPlus(1), [9], [], [9], [], GAUCHER),
]

GTS = [
    Case("nothing tolerated", eq.GTS(0), [0], LINE, [2.8], FIFTHS, GAUCHER),
    Case("one of four", eq.GTS(1), [0], LINE, [1.2], [0.2, 0.2, 0.2, 0], GAUCHER),
    Case("three of four", eq.GTS(3), [0], LINE, [0.2], [0.2, 0, 0, 0], GAUCHER),
    Case("a tie", eq.GTS(1), [0], [[2], [-2]], [2 / 3], [1 / 3, 0], GAUCHER),
    Case("lowest id", eq.GTS(1), [0], [[2], [-2]], [-2 / 3], [0, 1 / 3], GAUCHER, senders=[5, 4]),
    Case("all tolerated", eq.GTS(9), [0], LINE, [0], [0] * 4, GAUCHER, beyond=True),
    Case("no message", eq.GTS(1), [9], [], [9], [], GAUCHER),
]

RTC = [
    Case("nothing tolerated", eq.RTC(0), [0], LINE, [2.8], FIFTHS, "Yang and Ghaderi 2024"),
    # 8 is removed. The radius is sqrt(14), and 3 is below it.
    Case(
        "one of four",
        eq.RTC(1),
        [0],
        LINE,
        [1.2],
        [0.2, 0.2, 0.2, 0],
        "Yang and Ghaderi 2024",
    ),
    # 9 and 9 are removed. The radius is sqrt((1 + 1 + 1 + 1 + 36) / 2) = sqrt(20).
    Case(
        "clipped as well",
        eq.RTC(2),
        [0],
        [[1], [1], [-1], [-1], [6], [9], [-9]],
        [math.sqrt(20) / 8],
        [0.125, 0.125, 0.125, 0.125, math.sqrt(20) / 48, 0, 0],
        "Yang and Ghaderi 2024",
    ),
    Case("no message", eq.RTC(1), [9], [], [9], [], "Yang and Ghaderi 2024"),
]

FARHADKHANI = "Farhadkhani et al. 2023"
NNA = [
    Case("nothing tolerated", eq.NNA(0), [0], LINE, [2.8], FIFTHS, FARHADKHANI),
    Case("one of four", eq.NNA(1), [0], LINE, [1.5], [0.25, 0.25, 0.25, 0], FARHADKHANI),
    Case("a tie", eq.NNA(1), [0], [[2], [-2], [1]], [1], [1 / 3, 0, 1 / 3], FARHADKHANI),
    Case("all tolerated", eq.NNA(4), [0], LINE, [0], [0] * 4, FARHADKHANI, beyond=True),
    Case("no message", eq.NNA(1), [9], [], [9], [], FARHADKHANI),
]

IOS = [
    Case("nothing tolerated", eq.IOS(0), [0], LINE, [2.8], FIFTHS, WU),
    Case("one of four", eq.IOS(1), [0], LINE, [1.5], [0.25, 0.25, 0.25, 0], WU),
    # The mean of 0, -2, 1, 7, 8 is 2.8. Without 8, it is 1.5, and 7 is the farthest.
    Case("one by one", eq.IOS(2), [0], [[-2], [1], [7], [8]], [-1 / 3], [1 / 3, 1 / 3, 0, 0], WU),
    # 0, 4 and -4: both are as far from 0, and the higher id is dropped.
    Case("a tie", eq.IOS(1), [0], [[4], [-4]], [2], [0.5, 0], WU),
    Case("lowest id", eq.IOS(1), [0], [[4], [-4]], [-2], [0, 0.5], WU, senders=[1, 0]),
    # Own is 90 away from the mean of the others, and still stays.
    Case("never own", eq.IOS(1), [90], [[0], [1], [2]], [31], [0, 1 / 3, 1 / 3], WU),
    Case("all dropped", eq.IOS(9), [0], LINE, [0], [0] * 4, WU, beyond=True),
    Case("no message", eq.IOS(1), [9], [], [9], [], WU),
]

FABA = [
    Case("nothing tolerated", eq.FABA(0), [0], LINE, [2.8], FIFTHS, WU),
    Case("one of four", eq.FABA(1), [0], LINE, [1.5], [0.25, 0.25, 0.25, 0], WU),
    # The mean of the messages alone is 13/4, so that -3 is the farthest; then 1 from 16/3.
    Case(
        "own has no part",
        eq.FABA(2),
        [0],
        [[-3], [1], [7], [8]],
        [5],
        [0, 0, 1 / 3, 1 / 3],
        WU,
        beyond=True,
    ),
    Case("a tie", eq.FABA(1), [0], [[4], [-4], [0]], [4 / 3], [1 / 3, 0, 1 / 3], WU),
    Case("no message", eq.FABA(1), [9], [], [9], [], WU),
]

SQUARE = [[1.0, 40.0], [2.0, 30.0], [3.0, 20.0], [10.0, -50.0]]
BRIDGE = [
    Case("trimmed mean", eq.Bridge(tolerated=1), [4, 10], SQUARE, [3, 20], None, FANG),
    Case("nothing trimmed", eq.Bridge(tolerated=0), [4, 10], SQUARE, [4, 10], None, FANG),
    Case("saturated", eq.Bridge(tolerated=9), [4, 10], SQUARE, [3, 20], None, FANG, beyond=True),
    Case("median", eq.Bridge("M"), [4, 10], SQUARE, [3, 20], None, FANG),
    Case("median of two", eq.Bridge("M"), [4], [[6]], [5], None, FANG),
    # Own 0, 1, 3, 7, 8 with f = 1: each has two nearest others. Own has 1 + 9, and 1 has 1 + 4.
    Case("Krum", eq.Bridge("K", 1), [0], [[1], [3], [7], [8]], [1], [1, 0, 0, 0], FANG),
    # Of five models, each has one nearest other: 0 and 1, 7 and 8 tie, and own is first.
    Case(
        "Krum chooses own",
        eq.Bridge("K", 2),
        [0],
        [[1], [3.5], [7], [8]],
        [0],
        [0] * 4,
        FANG,
        beyond=True,
    ),
    # Of 0 to 0.5 and 9, theta = 5 are selected, and 1 of them is the median.
    Case(
        "Bulyan",
        eq.Bridge("B", 1),
        [0.2],
        [[0.0], [0.1], [0.3], [0.4], [0.5], [9.0]],
        [0.2],
        None,
        FANG,
    ),
    Case("no message", eq.Bridge("M"), [9], [], [9], None, FANG),
    Case("nothing finite", eq.Bridge("K", 1), [9], [[nan]], [9], [0], FANG, beyond=True),
]

GOSSIP_CASES = [
    *GOSSIP,
    *CLIPPED_GOSSIP,
    *CS_PLUS,
    *GTS,
    *RTC,
    *NNA,
    *IOS,
    *FABA,
    *BRIDGE,
]
