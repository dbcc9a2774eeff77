"""Phases of a round."""

from __future__ import annotations

import pytest
import torch

from equipoise.simulation import _timing
from equipoise.simulation._timing import Stopwatch


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_timing, "time", clock)
    return clock


def test_phases_add_up(clock: Clock) -> None:
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(3):
        with watch.phase("train"):
            clock.now += 2.0
        clock.now += 5.0
    assert watch.seconds == {"train": 6.0}


def test_inner_phases_are_separate(clock: Clock) -> None:
    watch = Stopwatch(torch.device("cpu"))
    with watch.phase("aggregate"):
        clock.now += 1.0
        with watch.phase("forge"):
            clock.now += 10.0
            with watch.phase("search"):
                clock.now += 100.0
        with watch.phase("forge"):
            clock.now += 20.0
        clock.now += 2.0
    with watch.phase("mix"):
        clock.now += 4.0
    assert watch.seconds == {"search": 100.0, "forge": 30.0, "aggregate": 3.0, "mix": 4.0}
