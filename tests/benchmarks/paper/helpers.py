"""Results and settings for the tests of the paper's benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from benchmarks.paper.run import simulator
from benchmarks.paper.setting import Setting

ROOT = Path(__file__).parents[3]
Capture = pytest.CaptureFixture[str]
SHORT = Setting(data="synthetic", rule="Balance", attack="Gaussian", rounds=20)


def finished(setting: Setting, *errors: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Return a run that ended with these errors of the worst client."""
    metric = setting.task.metric
    total = setting.rounds
    evaluated = list(range(total - len(errors), total))
    return {
        "seed": seed,
        "trained": total,
        "seconds": 1.0,
        "evaluated": evaluated,
        f"max_{metric}": list(errors),
        **more,
    }


def interrupt_after_seven_rounds(checkpoint: Path) -> None:
    def interrupt(run: eq.Simulator) -> None:
        if run.t == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulator(SHORT, 0, ".").run(checkpoint=checkpoint, on_round=interrupt)
