"""History: what is kept of a run, what it amounts to, and what files give back."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise._utils.atomic_write import replacing
from equipoise.simulation.history import History, Round

NAN, INF = math.nan, math.inf


def a_history(**more: Any) -> History:
    """Four clients, one of them malicious and the worst; 40 rounds, evaluated in every fifth."""
    history = History(4, malicious=[1], name="Balance", **more)
    for t in range(40):
        clients = {"error": (1 / (t + 1), 9.0, 2 / (t + 1), 0.0)} if t % 5 == 4 else {}
        values = {"consensus": 0.5**t, "accepted_benign": 1.0, "accepted_malicious": 0.25 * (t % 2), "bytes": 100.0 + t}
        history.add(Round(t, clients, values, {"train": 0.3, "aggregate": 0.1} | ({"measure": 0.8} if clients else {})))
    return history


def test_rounds_are_kept_in_order() -> None:
    history = a_history()
    assert len(history) == 40
    assert [one.t for one in history] == list(range(40))
    assert history[-1].t == 39
    assert [one.t for one in history.evaluated] == [4, 9, 14, 19, 24, 29, 34, 39]
    assert (history.malicious, history.benign, history.name) == ((1,), (0, 2, 3), "Balance")


def test_maximum_and_mean_are_over_benign_clients() -> None:
    rounds, worst = a_history().worst("error")
    assert rounds == [4, 9, 14, 19, 24, 29, 34, 39]
    assert worst == [2 / (t + 1) for t in rounds]
    assert a_history().mean("error")[1] == pytest.approx([1 / (t + 1) for t in rounds])


def test_values_of_clients_include_malicious_ones() -> None:
    assert a_history().per_client("error") == (1 / 40, 9.0, 2 / 40, 0.0)
    assert a_history().per_client("error", t=4) == (1 / 5, 9.0, 2 / 5, 0.0)


def test_series_skips_rounds_without_the_value() -> None:
    history = History(1, rounds=[Round(0, values={"loss": 2.0}), Round(3), Round(5, values={"loss": 1.0})])
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
def test_who_accepts_nobody_is_alone(benign: float, malicious: float, alone: bool) -> None:
    one = Round(0, values={"accepted_benign": benign, "accepted_malicious": malicious})
    assert one.alone is alone
    assert not Round(0).alone, "a rule without weights does not tell"
    history = History(1, rounds=[one, Round(1, values={"accepted_benign": 1.0})])
    assert history.summary()["alone"] == alone
    said = "alone               1 of 2 rounds, in which benign clients accepted no message: check initial models, "
    assert (f"\n{said}learning rate and the rule's limit\n" in str(history)) is alone


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
def test_the_tail_is_the_last_twentieth_of_the_rounds_or_the_last_evaluation(
    evaluated: list[int], total: int, counted: list[int]
) -> None:
    rounds = (Round(t, {"error": (float(t), 0.0)} if t in evaluated else {}) for t in range(total))
    assert History(2, rounds=rounds).summary()["tail_error"] == sum(counted) / len(counted)


def test_metrics_may_be_measured_in_different_rounds() -> None:
    history = History(1, rounds=[Round(0, {"error": (0.5,), "asr": (0.1,)}), Round(1, {"error": (0.25,)})])
    assert history.metrics() == ["error", "asr"]
    assert history.worst("asr") == ([0], [0.1])
    assert {"max_error": 0.25, "max_asr": 0.1}.items() <= history.summary().items()


def test_a_history_without_rounds_has_a_summary() -> None:
    assert History(3).summary() == {"rounds": 0, "diverged": 0}
    assert str(History(3)) == "3 clients, 0 malicious, 0 rounds\ndiverged  0"


def test_printed_as_a_table_that_says_what_diverged() -> None:
    history = a_history()
    history.add(Round(40, diverged=(0, 1)))
    history.add(Round(41, diverged=(0, 3)))
    lines = str(history).splitlines()
    assert lines[0] == "Balance: 4 clients, 1 malicious, 42 rounds"
    assert "max_error           0.05" in lines
    assert lines[-1] == "diverged            2, the first in round 40"
    assert repr(history) == "History(n=4, malicious=1, rounds=42)"


# What is not finite


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
def test_nan_and_infinity_cannot_hide(values: tuple[float, ...], worst: float) -> None:
    history = History(3, malicious=[2], rounds=[Round(0, {"error": (*values, NAN)})])
    assert history.worst("error")[1] == pytest.approx([worst], nan_ok=True)
    assert history.summary()["max_error"] == pytest.approx(worst, nan_ok=True)
    assert history.summary()["tail_error"] == pytest.approx(worst, nan_ok=True)
    assert not math.isfinite(history.summary()["mean_error"])


def test_a_malicious_client_spoils_nothing() -> None:
    history = History(2, malicious=[1], rounds=[Round(0, {"error": (0.5, NAN)}, diverged=(1,))])
    assert history.summary() == {"rounds": 1, "max_error": 0.5, "mean_error": 0.5, "tail_error": 0.5, "diverged": 0}


def test_rounds_without_malicious_messages_do_not_count_as_rejection() -> None:
    rates = [NAN, 0.5, NAN, 1.0]
    history = History(1, rounds=[Round(t, values={"accepted_malicious": x}) for t, x in enumerate(rates)])
    assert history.summary()["accepted_malicious"] == 0.75
    assert math.isnan(History(1, rounds=[history[0]]).summary()["accepted_malicious"])


@pytest.mark.parametrize("name", ["consensus", "loss"])
def test_nan_in_other_values_shows(name: str) -> None:
    history = History(1, rounds=[Round(0, values={name: 1.0}), Round(1, values={name: NAN})])
    assert math.isnan(history.summary()[name])


def test_a_client_diverges_when_it_is_named_first() -> None:
    rounds = [Round(3, diverged=(2, 0)), Round(4, diverged=(0, 1)), Round(9, diverged=(2,))]
    assert History(3, malicious=[1], rounds=rounds).diverged == {0: 3, 2: 3}


# Records


@pytest.mark.parametrize(
    "values", [[0.5, 0.25], (0.5, 0.25), torch.tensor([0.5, 0.25]), np.array([0.5, 0.25], np.float32)], ids=repr
)
def test_values_of_clients_come_as_tensor_array_or_sequence(values: Any) -> None:
    assert Round(np.int64(7), {"error": values}).to_dict() == {  # type: ignore[arg-type]
        "t": 7,
        "clients": {"error": [0.5, 0.25]},
        "values": {},
        "seconds": {},
        "diverged": [],
    }


def test_numbers_become_plain() -> None:
    one = Round(0, {}, {"bytes": 3, "consensus": torch.tensor(0.5)}, {"train": np.float32(0.25)})  # type: ignore[dict-item]
    assert [type(x) for x in (*one.values.values(), *one.seconds.values())] == [float] * 3


def test_a_record_does_not_change_with_what_it_was_made_of() -> None:
    values, clients = {"bytes": 1.0}, torch.tensor([0.5])
    one = Round(0, {"error": clients}, values)  # type: ignore[dict-item]
    values["bytes"] = 2.0
    clients.zero_()
    assert (one.values, one.clients) == ({"bytes": 1.0}, {"error": (0.5,)})


def test_equal_results_are_equal_whatever_the_time_and_the_name() -> None:
    one = Round(0, {"error": (0.5, float("nan"))}, {"consensus": float("nan")}, {"train": 1.0}, diverged=(1,))
    again = Round(0, {"error": (0.5, float("nan"))}, {"consensus": float("nan")}, {"train": 2.0}, diverged=(1,))
    assert one == again
    assert History(2, name="a", rounds=[one]) == History(2, name="b", rounds=[again])


@pytest.mark.parametrize(
    "change",
    [
        {"t": 1},
        {"clients": {"error": (0.5, 0.5)}},
        {"clients": {"asr": (0.5, NAN)}},
        {"values": {"consensus": 2.0}},
        {"values": {}},
        {"diverged": ()},
    ],
    ids=str,
)
def test_other_results_are_not_equal(change: dict[str, Any]) -> None:
    one = Round(0, {"error": (0.5, NAN)}, {"consensus": 1.0}, diverged=(1,))
    assert one != replace(one, **change)
    assert History(2, rounds=[one]) != History(2, rounds=[replace(one, **change)])


def test_other_clients_or_fewer_rounds_are_not_equal() -> None:
    history = a_history()
    assert history == a_history()
    assert history != History(4, malicious=[2], rounds=history)
    assert history != History(4, malicious=[1], rounds=list(history)[:-1])
    assert history != "history"
    assert Round(0) != 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Round(-1), "t must be an integer at least 0, found -1"),
        (lambda: Round(0.5), "t must be an integer at least 0, found 0.5"),
        (lambda: Round(0, {"error": (0.5, "?")}), r"error must be numbers, found '\?'"),
        (lambda: Round(0, {"error": 0.5}), "error must be a list, found 0.5"),
        (lambda: Round(0, {"error": "12"}), "error must be a list, found '12'"),
        (lambda: Round(0, [0.5]), r"clients must map names to numbers, found \[0.5\]"),
        (lambda: Round(0, values={1: 0.5}), "values must map names to numbers, found {1: 0.5}"),
        (lambda: Round(0, values={"bytes": None}), "bytes must be numbers, found None"),
        (lambda: Round(0, values={"bytes": 10**400}), "bytes must be numbers, found 1000"),
        (lambda: Round(0, seconds={"train": "soon"}), "train must be numbers, found 'soon'"),
        (lambda: Round(0, diverged=(0.5,)), "diverged must be numbers, found 0.5"),
        (lambda: Round(0, diverged=3), "diverged must be a list, found 3"),
        (lambda: History(0), "n must be an integer at least 1, found 0"),
        (lambda: History(2, malicious=[2]), "malicious must be .* 0 to 1, found 2"),
        (lambda: History(2, malicious=[0, 1]), "malicious must leave a benign client, found all 2 clients"),
        (lambda: History(2, name=None), "name must be a string, found None"),
        (lambda: History(1, rounds=[Round(1), Round(1)]), "must come after round 1, found round 1"),
        (lambda: History(3, rounds=[Round(0, {"error": (1, 2)})]), "must hold 3 values of error, .* found 2"),
        (lambda: History(2, rounds=[Round(0, diverged=(2,))]), "diverged must be an integer from 0 to 1, found 2"),
        (lambda: History(2).worst("error"), r"no metrics: pass Simulator\(..., metrics=\{"),
        (lambda: History(2).series("loss"), "name must be a recorded value, but the history has none, found 'loss'"),
        (lambda: a_history().mean("mse"), r"metric must be one of \['error'\], found 'mse'"),
        (lambda: a_history().per_client("mse"), r"metric must be one of \['error'\], found 'mse'"),
        (lambda: a_history().per_client("error", 5), r"measured, 4, 9, \.\.\., 34, 39, found 5"),
        (lambda: a_history().series("loss"), "name must be one of .*'bytes', 'consensus'.*, found 'loss'"),
    ],
)
def test_bad_input_is_named(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_a_refused_round_leaves_the_history_as_it_was() -> None:
    history = a_history()
    with pytest.raises(ValueError, match="found 3"):
        history.add(Round(40, {"error": (1.0, 2.0, 3.0)}, diverged=(0,)))
    with pytest.raises(ValueError, match="found 4"):
        history.add(Round(40, {"error": (1.0,) * 4}, diverged=(0, 4)))
    assert history == a_history()
    assert history.diverged == {}


# Tables


def test_tidy_rows() -> None:
    history = History(2, malicious=[1])
    history.add(Round(3, {"error": (0.5, 1.0)}, {"bytes": 8.0}, {"train": 0.25}, diverged=(1,)))
    assert [tuple(row.values()) for row in history.rows()] == [
        (3, 0, False, "error", 0.5),
        (3, 1, True, "error", 1.0),
        (3, 1, True, "diverged", 1.0),
        (3, None, None, "bytes", 8.0),
        (3, None, None, "train_seconds", 0.25),
    ]
    assert list(history.rows()[0]) == ["round", "client", "malicious", "metric", "value"]


def test_frame() -> None:
    pandas = pytest.importorskip("pandas")
    history = a_history()
    frame = history.frame()
    assert len(frame) == len(history.rows())
    benign = frame[(frame.metric == "error") & ~frame.malicious.fillna(True)]
    assert benign.groupby("round").value.max().to_dict() == dict(zip(*history.worst("error"), strict=True))
    assert frame.dtypes.astype(str)[["round", "client", "malicious", "value"]].tolist() == [
        "int64",
        "Int64",
        "boolean",
        "float64",
    ]
    assert frame.client.isna().sum() == (frame.metric != "error").sum()
    assert History(1).frame().columns.tolist() == frame.columns.tolist()
    assert isinstance(History(1).frame(), pandas.DataFrame)


def test_without_pandas_the_error_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'pip install "equipoise\[frames\]"'):
        a_history().frame()


def test_csv_reads_back_exactly(tmp_path: Path) -> None:
    history = a_history()
    history.add(Round(40, {"error": (0.1 + 0.2, NAN, INF, 5e-324)}))
    history.to_csv(tmp_path / "run.csv")
    with open(tmp_path / "run.csv", newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    written = history.rows()
    assert [list(row) for row in read] == [list(row) for row in written]
    assert [(row["client"], row["malicious"]) for row in read] == [
        ("", "") if row["client"] is None else (str(row["client"]), str(row["malicious"])) for row in written
    ]
    assert [repr(float(row["value"])) for row in read] == [repr(row["value"]) for row in written]


# JSON


numbers = st.floats() | st.sampled_from([0.1, -0.0, 5e-324, sys.float_info.max, NAN, INF, -INF])
tables = st.dictionaries(st.text(max_size=5), numbers, max_size=3)


@st.composite
def histories(draw: st.DrawFn) -> History:
    n = draw(st.integers(1, 4))
    malicious = draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    history = History(n, sorted(malicious), draw(st.text(max_size=5)))
    for t in sorted(draw(st.sets(st.integers(0, 99), max_size=4))):
        values = st.lists(numbers, min_size=n, max_size=n).map(tuple)
        clients = draw(st.dictionaries(st.text(max_size=5), values, max_size=2))
        diverged = tuple(sorted(draw(st.sets(st.integers(0, n - 1)))))
        history.add(Round(t, clients, draw(tables), draw(tables), diverged))
    return history


@settings(max_examples=20)  # each of them waits for the disk
@given(histories())
def test_what_is_written_reads_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, history: History) -> None:
    path = tmp_path_factory.getbasetemp() / "run.json"
    history.to_json(path)
    again = History.from_json(path)
    assert again == history
    assert repr(again.to_dict()) == repr(history.to_dict())  # seconds, the name and the sign of zero too
    assert (again.diverged, again.evaluated) == (history.diverged, history.evaluated)
    assert again.summary() == pytest.approx(history.summary(), nan_ok=True)


def test_the_file_is_strict_json_with_a_line_for_each_round(tmp_path: Path) -> None:
    history = a_history()
    history.add(Round(40, {"error": (NAN, INF, -INF, 0.0)}))
    history.to_json(tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text(encoding="utf-8")

    def forbidden(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(text, parse_constant=forbidden)
    assert data["format"] == 1
    assert data["rounds"][-1]["clients"]["error"] == ["nan", "inf", "-inf", 0.0]
    assert len(text.splitlines()) == 41 + 2


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    a_history().to_json(path)
    return path


def test_any_truncated_file_is_an_error(saved: Path) -> None:
    text = saved.read_bytes()
    for end in range(0, len(text) - 2, 97):
        saved.write_bytes(text[:end])
        with pytest.raises(ValueError, match=r"run\.json is not a history that to_json wrote: "):
            History.from_json(saved)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "Expecting value"),
        (b"\x80\x04\x95 pickle", "can't decode byte 0x80"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"[" * 100_000, "recursion|Expecting"),
        (b"[1, 2]", "data must be a mapping, found list"),
        (b"{}", "data must hold format, name, n, malicious, rounds, found "),
        (b'{"loss": 1}', "found loss"),
    ],
)
def test_a_foreign_file_is_an_error_that_names_it(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"(?s)other.json is not a history that to_json wrote: .*({text})"):
        History.from_json(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 2}, "format must be 1, found 2"),
        ({"format": None}, "format must be 1, found None"),
        ({"n": "20"}, "n must be an integer at least 1, found '20'"),
        ({"n": 5}, "must hold 5 values of error"),
        ({"name": 3}, "name must be a string, found 3"),
        ({"malicious": [9]}, "malicious must be"),
        ({"malicious": "all"}, "malicious must be"),
        ({"malicious": [[1]]}, "malicious must be"),
        ({"malicious": [10**30]}, "malicious must be"),
        ({"rounds": 3}, "rounds must be a list, found 3"),
        ({"rounds": {"0": {}}}, "rounds must be a list, found {'0'"),
        ({"rounds": [3]}, "rounds must hold t, clients, values, seconds, diverged each, found 3"),
        ({"n": True}, "n must be an integer at least 1, found True"),
        ({"n": 2**62}, ""),  # memory for so many clients is not to be had
        ({"n": 10**30}, ""),
        ({"rounds": [{"t": 0}]}, "rounds must hold t, clients, values, seconds, diverged each, found {'t': 0}"),
        ({"rounds": [Round(0).to_dict() | {"t": "0"}]}, "t must be an integer"),
        ({"rounds": [Round(0).to_dict() | {"clients": {"error": [1, 2, 3, "many"]}}]}, "error must be numbers"),
        ({"rounds": [Round(0).to_dict() | {"clients": {"error": {"0": 1}}}]}, "error must be a list"),
        ({"rounds": [Round(0).to_dict() | {"values": None}]}, "values must map names to numbers, found None"),
        ({"rounds": [Round(0).to_dict() | {"diverged": [None]}]}, "diverged must be numbers, found None"),
        ({"rounds": [Round(1).to_dict(), Round(0).to_dict()]}, "after round 1, found round 0"),
    ],
    ids=str,
)
def test_a_changed_file_is_an_error_that_says_what_was_found(saved: Path, change: dict[str, Any], text: str) -> None:
    saved.write_text(json.dumps(json.loads(saved.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(ValueError, match=f"run.json is not a history that to_json wrote: .*{text}"):
        History.from_json(saved)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        History.from_json(tmp_path / "none.json")


# Writing


@pytest.mark.parametrize("write", [History.to_csv, History.to_json])
def test_files_are_written_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    path = tmp_path / "run"
    write(a_history(), path)
    before = path.read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(History(2), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run"]  # nothing is left behind


def test_what_is_half_written_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    path.write_text("old", encoding="utf-8")
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_text(encoding="utf-8")))
    with replacing(path) as file:
        file.write(b"new\n")
    assert seen == ["old"]
    assert path.read_bytes() == b"new\n"


def test_a_folder_in_the_way_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(OSError, match=r"history could not be saved: .*run"):
        History(2).to_csv(tmp_path / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_a_history_that_knows_only_about_malicious_clients_can_be_shown() -> None:
    history = History(2, rounds=[Round(0, values={"accepted_malicious": 0.0})])
    assert history.summary()["alone"] == 1
    assert "alone" in str(history)
