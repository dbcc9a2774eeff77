"""Histories as tables, CSV and JSON."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise._utils.atomic_write import atomic_write
from equipoise.simulation.history import History, Round
from tests.simulation.histories import INF, NAN, a_history


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
    assert benign.groupby("round").value.max().to_dict() == dict(
        zip(*history.worst("error"), strict=True)
    )
    assert frame.dtypes.astype(str)[["round", "client", "malicious", "value"]].tolist() == [
        "int64",
        "Int64",
        "boolean",
        "float64",
    ]
    assert frame.client.isna().sum() == (frame.metric != "error").sum()
    assert History(1).frame().columns.tolist() == frame.columns.tolist()
    assert isinstance(History(1).frame(), pandas.DataFrame)


def test_frame_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("", "") if row["client"] is None else (str(row["client"]), str(row["malicious"]))
        for row in written
    ]
    assert [repr(float(row["value"])) for row in read] == [repr(row["value"]) for row in written]


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
def test_json_roundtrip(tmp_path_factory: pytest.TempPathFactory, history: History) -> None:
    path = tmp_path_factory.getbasetemp() / "run.json"
    history.to_json(path)
    again = History.from_json(path)
    assert again == history
    assert repr(again.to_dict()) == repr(
        history.to_dict()
    )  # seconds, the name and the sign of zero too
    assert (again.diverged, again.evaluated) == (history.diverged, history.evaluated)
    assert again.summary() == pytest.approx(history.summary(), nan_ok=True)


def test_json_format(tmp_path: Path) -> None:
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


def test_truncated_files(saved: Path) -> None:
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
def test_foreign_file(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=f"(?s)other.json is not a history that to_json wrote: .*({text})"
    ):
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
        (
            {"rounds": [{"t": 0}]},
            "rounds must hold t, clients, values, seconds, diverged each, found {'t': 0}",
        ),
        ({"rounds": [Round(0).to_dict() | {"t": "0"}]}, "t must be an integer"),
        (
            {"rounds": [Round(0).to_dict() | {"clients": {"error": [1, 2, 3, "many"]}}]},
            "error must be numbers",
        ),
        (
            {"rounds": [Round(0).to_dict() | {"clients": {"error": {"0": 1}}}]},
            "error must be a list",
        ),
        (
            {"rounds": [Round(0).to_dict() | {"values": None}]},
            "values must map names to numbers, found None",
        ),
        (
            {"rounds": [Round(0).to_dict() | {"diverged": [None]}]},
            "diverged must be numbers, found None",
        ),
        ({"rounds": [Round(1).to_dict(), Round(0).to_dict()]}, "after round 1, found round 0"),
    ],
    ids=str,
)
def test_edited_file(saved: Path, change: dict[str, Any], text: str) -> None:
    saved.write_text(
        json.dumps(json.loads(saved.read_text(encoding="utf-8")) | change), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=f"run.json is not a history that to_json wrote: .*{text}"):
        History.from_json(saved)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        History.from_json(tmp_path / "none.json")


@pytest.mark.parametrize("write", [History.to_csv, History.to_json])
def test_atomic_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
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


def test_partial_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    path.write_text("old", encoding="utf-8")
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_text(encoding="utf-8")))
    with atomic_write(path) as file:
        file.write(b"new\n")
    assert seen == ["old"]
    assert path.read_bytes() == b"new\n"


def test_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(OSError, match=r"history could not be saved: .*run"):
        History(2).to_csv(tmp_path / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_only_malicious_acceptance() -> None:
    history = History(2, rounds=[Round(0, values={"accepted_malicious": 0.0})])
    assert history.summary()["alone"] == 1
    assert "alone" in str(history)
