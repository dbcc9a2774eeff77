"""Summaries of a history."""

from __future__ import annotations

import math

import pytest

from equipoise.simulation.history import History, Round
from tests.simulation.histories import INF, NAN, a_history


def test_rounds_in_order() -> None:
    history = a_history()
    assert len(history) == 40
    assert [one.t for one in history] == list(range(40))
    assert history[-1].t == 39
    assert [one.t for one in history.evaluated] == [4, 9, 14, 19, 24, 29, 34, 39]
    assert (history.malicious, history.benign, history.name) == ((1,), (0, 2, 3), "Balance")


def test_benign_maximum_and_mean() -> None:
    rounds, worst = a_history().worst("error")
    assert rounds == [4, 9, 14, 19, 24, 29, 34, 39]
    assert worst == [2 / (t + 1) for t in rounds]
    assert a_history().mean("error")[1] == pytest.approx([1 / (t + 1) for t in rounds])


def test_per_client_values() -> None:
    assert a_history().per_client("error") == (1 / 40, 9.0, 2 / 40, 0.0)
    assert a_history().per_client("error", t=4) == (1 / 5, 9.0, 2 / 5, 0.0)


def test_series_skips_missing() -> None:
    history = History(
        1, rounds=[Round(0, values={"loss": 2.0}), Round(3), Round(5, values={"loss": 1.0})]
    )
    assert history.series("loss") == ([0, 5], [2.0, 1.0])


def test_summary_worked_by_hand() -> None:
    summary = a_history().summary()
    assert summary == pytest.approx(
        {
            "rounds": 40,
            "max_error": 2 / 40,
            "mean_error": 1 / 40,
            "tail_error": 2 / 40,
            "consensus": 0.5**39,
            "accepted_benign": 1.0,
            "accepted_malicious": 0.125,
            "bytes": 119.5,
            "train_seconds": 0.3,
            "aggregate_seconds": 0.1,
            "measure_seconds": 8 * 0.8 / 40,
            "alone": 0,
            "diverged": 0,
        }
    )


@pytest.mark.parametrize(
    ("benign", "malicious", "alone"),
    [
        (0.0, 0.0, True),
        (0.0, math.nan, True),  # nobody lies
        (math.nan, 0.0, True),
        (0.0, 0.25, False),  # lies only
        (0.25, 0.0, False),
        (math.nan, math.nan, False),  # no messages
    ],
)
def test_alone_without_acceptance(benign: float, malicious: float, alone: bool) -> None:
    one = Round(0, values={"accepted_benign": benign, "accepted_malicious": malicious})
    assert one.alone is alone
    assert not Round(0).alone, "a rule without weights does not tell"
    history = History(1, rounds=[one, Round(1, values={"accepted_benign": 1.0})])
    assert history.summary()["alone"] == alone
    said = "alone               1 of 2 rounds, in which benign clients accepted no message"
    advice = "check initial models, learning rate and the rule's limit"
    assert (f"\n{said}: {advice}\n" in str(history)) is alone


@pytest.mark.parametrize(
    ("evaluated", "total", "counted"),
    [
        ([1899, 1900, 1919, 1939, 1959, 1979, 1999], 2000, [1900, 1919, 1939, 1959, 1979, 1999]),
        ([9, 19], 20, [19]),
        ([18, 19], 20, [19]),
        ([0, 10], 2000, [10]),  # nothing in the last 5 %
        ([0], 1, [0]),
    ],
)
def test_tail(evaluated: list[int], total: int, counted: list[int]) -> None:
    rounds = (Round(t, {"error": (float(t), 0.0)} if t in evaluated else {}) for t in range(total))
    assert History(2, rounds=rounds).summary()["tail_error"] == sum(counted) / len(counted)


def test_metrics_per_round() -> None:
    history = History(
        1, rounds=[Round(0, {"error": (0.5,), "asr": (0.1,)}), Round(1, {"error": (0.25,)})]
    )
    assert history.metrics() == ["error", "asr"]
    assert history.worst("asr") == ([0], [0.1])
    assert {"max_error": 0.25, "max_asr": 0.1}.items() <= history.summary().items()


def test_empty_history() -> None:
    assert History(3).summary() == {"rounds": 0, "diverged": 0}
    assert str(History(3)) == "3 clients, 0 malicious, 0 rounds\ndiverged  0"


def test_printed_table() -> None:
    history = a_history()
    history.add(Round(40, diverged=(0, 1)))
    history.add(Round(41, diverged=(0, 3)))
    lines = str(history).splitlines()
    assert lines[0] == "Balance: 4 clients, 1 malicious, 42 rounds"
    assert "max_error           0.05" in lines
    assert lines[-1] == "diverged            2, the first in round 40"
    assert repr(history) == "History(n=4, malicious=1, rounds=42)"


@pytest.mark.parametrize(
    ("values", "worst"),
    [
        ((NAN, 1.0), NAN),
        ((1.0, NAN), NAN),
        ((INF, NAN), NAN),
        ((1.0, INF), INF),
        ((-INF, INF), INF),
        ((-INF, 0.0), 0.0),
    ],
)
def test_nonfinite_values_show(values: tuple[float, ...], worst: float) -> None:
    history = History(3, malicious=[2], rounds=[Round(0, {"error": (*values, NAN)})])
    assert history.worst("error")[1] == pytest.approx([worst], nan_ok=True)
    assert history.summary()["max_error"] == pytest.approx(worst, nan_ok=True)
    assert history.summary()["tail_error"] == pytest.approx(worst, nan_ok=True)
    assert not math.isfinite(history.summary()["mean_error"])


def test_malicious_values_ignored() -> None:
    history = History(2, malicious=[1], rounds=[Round(0, {"error": (0.5, NAN)}, diverged=(1,))])
    assert history.summary() == {
        "rounds": 1,
        "max_error": 0.5,
        "mean_error": 0.5,
        "tail_error": 0.5,
        "diverged": 0,
    }


def test_nan_rates_are_left_out() -> None:
    rates = [NAN, 0.5, NAN, 1.0]
    history = History(
        1, rounds=[Round(t, values={"accepted_malicious": x}) for t, x in enumerate(rates)]
    )
    assert history.summary()["accepted_malicious"] == 0.75
    assert math.isnan(History(1, rounds=[history[0]]).summary()["accepted_malicious"])


@pytest.mark.parametrize("name", ["consensus", "loss"])
def test_nan_in_values_shows(name: str) -> None:
    history = History(1, rounds=[Round(0, values={name: 1.0}), Round(1, values={name: NAN})])
    assert math.isnan(history.summary()[name])


def test_first_divergence_counts() -> None:
    rounds = [Round(3, diverged=(2, 0)), Round(4, diverged=(0, 1)), Round(9, diverged=(2,))]
    assert History(3, malicious=[1], rounds=rounds).diverged == {0: 3, 2: 3}


def test_extended_copies() -> None:
    before = a_history()
    records = list(before)
    after = before.extended(Round(40, {"error": (0.1, 0.2, 0.3, NAN)}, diverged=(3,)))
    assert list(before) == records
    assert (len(before.evaluated), before.diverged) == (8, {})
    assert (len(after), len(after.evaluated), after.diverged) == (41, 9, {3: 40})
    assert (after.name, after.malicious) == (before.name, before.malicious)
    with pytest.raises(ValueError, match="round must come after round 40"):
        after.extended(Round(40))
    assert len(after) == 41
