"""Edited checkpoints with valid checksums are refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulation.checkpoint_runs import (
    MALICIOUS,
    N,
    edited,
    everything,
    refused,
    saved_array,
    trained,
)

# Most trainers here are functions of the models and the round.
pytestmark = pytest.mark.filterwarnings("ignore:trainer has no state_dict")

LAYOUT = {"layouts": [[[], [], []]], "rounds": [[0, 0, []], [1, 0, []]]}


FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "settings are missing": ({"settings": None}, "TypeError"),
    "t is negative": ({"t": -1}, "t must be an integer from 0 to 5, found -1"),
    "t is a word": ({"t": "two"}, "t must be an integer from 0 to 5, found 'two'"),
    "t is a float": ({"t": 2.0}, "t must be an integer from 0 to 5, found 2.0"),
    "t is beyond total": ({"t": 10**9}, "t must be an integer from 0 to 5, found 1000000000"),
    "t is beyond the history": ({"t": 3}, "one record for each of the t = 3 rounds, found 2"),
    "t is before the history": ({"t": 1}, "one record for each of the t = 1 rounds, found 2"),
    "no layout": ({"history": LAYOUT | {"layouts": []}}, "IndexError"),
    "no numbers": ({"history": LAYOUT}, r"numbers float64 \(\d+,\) instead of float64 \(0,\)"),
    "more numbers": ({"history": LAYOUT | {"layouts": [[[], ["a"], []]]}}, r"of float64 \(2,\)"),
    "history of nothing": ({"history": {}}, "KeyError"),
    "dtypes are missing": ({"dtypes": {}}, r"members .*'models.npy'.* instead of \['about.json'\]"),
    "dtypes are a list": ({"dtypes": []}, "members"),
    "a state is missing": ({"dtypes": {"models": "float32", "rule/a": "float32"}}, "members"),
    "stateful is a number": ({"stateful": 1}, "stateful 1"),
}


@pytest.mark.parametrize(("edit", "match"), FORGERIES.values(), ids=list(FORGERIES))
def test_forged_field(edit: dict[str, Any], match: str, small: Path) -> None:
    edited(small, about=lambda about: about | edit)
    refused(small, f"format 3, found another file, or a damaged one: .*{match}")


@pytest.mark.parametrize(
    ("layout", "diverged", "match"),
    [
        ([["size"], ["bytes", "bytes"], []], [], "rounds that would not be written like this"),
        ([["size"], "ab", []], [], "rounds that would not be written like this"),
        ([["size"], [1, 2], []], [], "values must map names to numbers"),
        ([["size"], ["bytes", "consensus"], []], [N], "diverged must be an integer from 0 to 5"),
        ([["size"], ["bytes", "consensus"], []], "one", "diverged must be"),
    ],
    ids=str,
)
def test_forged_records(layout: Any, diverged: Any, match: str, small: Path) -> None:
    history = {"layouts": [layout], "rounds": [[0, 0, diverged], [1, 0, []]]}
    numbers = saved_array(np.ones(2 * (N + 2)))
    edited(small, about=lambda about: about | {"history": history}, numbers=numbers)
    refused(small, match)


@pytest.mark.parametrize(
    ("rounds", "match"),
    [
        ([0, 2], "history must hold consecutive rounds, found round 2 in place of 1"),
        ([1, 2], "history must hold consecutive rounds, found round 1 in place of 0"),
        ([1, 0], "round must come after round 1, found round 0"),
        ([0, 0], "round must come after round 0, found round 0"),
        ([0, 10**9], "history must hold consecutive rounds, found round 1000000000 in place of 1"),
        ([-1, 0], "t must be an integer at least 0, found -1"),
    ],
    ids=str,
)
def test_rounds_not_consecutive(rounds: list[int], match: str, small: Path) -> None:
    def renumbered(about: dict[str, Any]) -> dict[str, Any]:
        history = about["history"]
        records = [[t, *old[1:]] for t, old in zip(rounds, history["rounds"], strict=True)]
        return about | {"history": history | {"rounds": records}}

    edited(small, about=renumbered)
    refused(small, match)


def leaves(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in nested lists and dicts, and of the lists and dicts themselves."""
    if place:
        yield place
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from leaves(data[key], (*place, key))


def test_every_value_matters(small: Path) -> None:
    """Except for names of metrics, the clients that diverged, and an empty state instead of none.

    A checkpoint without a total fits any.
    """
    with zipfile.ZipFile(small) as archive:
        about = json.loads(archive.read("about.json"))
    original = small.read_bytes()
    run = trained()
    before = everything(run, seconds=True)
    free = {("history", "layouts", 0, kind, i) for kind in range(3) for i in range(9)}
    free |= {("history", "rounds", t, 2) for t in range(2)}
    places = [place for place in leaves(about) if place not in free]
    harmless = [(("settings", "total"), None), (("stateful",), True)]
    assert len(places) > 30
    for place in places:
        for forged in (None, -1, 10**9, 0.5, "forged", [], {}, [[]], True):
            changed = json.loads(json.dumps(about))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            if inner[place[-1]] == forged or (place, forged) in harmless:
                continue
            inner[place[-1]] = forged
            edited(small, about=lambda _, changed=changed: changed)
            with pytest.raises(ValueError, match="must be a checkpoint of"):
                run.load(small)
            assert everything(run, seconds=True) == before, (place, forged)
            small.write_bytes(original)


def test_forged_nonfinite_models(small: Path) -> None:
    models = np.zeros((N, 15), dtype=np.float32)
    for broken in (np.nan, np.inf, -np.inf):
        forged = models.copy()
        forged[4, 7] = broken
        edited(small, models=saved_array(forged))
        refused(small, "models must be finite unless the history says otherwise, found client 4")

    def diverged(about: dict[str, Any]) -> dict[str, Any]:
        first, last = about["history"]["rounds"]
        return about | {"history": about["history"] | {"rounds": [first, [*last[:2], [4]]]}}

    edited(small, about=diverged)
    run = trained()
    run.load(small)
    assert run.history.diverged == {4: 1}


def test_nonfinite_malicious_models(small: Path) -> None:
    models = np.zeros((N, 15), dtype=np.float32)
    models[MALICIOUS] = np.nan
    edited(small, models=saved_array(models))
    run = trained()
    run.load(small)
    assert run.models.isnan().any(1).nonzero().flatten().tolist() == MALICIOUS


ARRAYS: dict[str, tuple[str, Any, str]] = {
    "fewer clients": ("models", np.ones((N - 1, 15), "f4"), r"models float32 \(5, 15\) instead of"),
    "fewer parameters": ("models", np.ones((N, 14), "f4"), r"models float32 \(6, 14\) instead of"),
    "another dtype": ("models", np.ones((N, 15)), "models of dtype float64 instead of float32"),
    "integers": ("models", np.ones((N, 15), "i4"), "models of dtype int32 instead of float32"),
    "one model": ("models", np.ones(15, "f4"), r"models float32 \(15,\) instead of float32"),
    "big-endian": ("models", np.ones((N, 15), dtype=">f4"), "byte order"),
    "no number": ("numbers", np.ones(0), r"numbers float64 \(0,\) instead of float64"),
    "a number more": ("numbers", np.ones(999), r"numbers float64 \(999,\) instead of float64"),
    "numbers in rows": ("numbers", np.ones((7, 6)), r"numbers float64 \(7, 6\) instead of float64"),
    "a smaller momentum": ("trainer/velocity", np.ones((N, 14), "f4"), "found another trainer"),
}


@pytest.mark.parametrize(("name", "array", "match"), ARRAYS.values(), ids=list(ARRAYS))
def test_forged_array(name: str, array: Any, match: str, small: Path) -> None:
    edited(small, **{name: saved_array(array)})
    refused(small, match)


def test_unknown_arrays(small: Path) -> None:
    extra = saved_array(np.ones(3, dtype=np.float32))
    content = small.read_bytes()
    edited(small, **{"rule/sum": extra})
    refused(small, "members .* instead of")
    for name in ("rule/sum", "other"):
        small.write_bytes(content)
        edited(
            small,
            about=lambda about, name=name: about | {"dtypes": about["dtypes"] | {name: "float32"}},
            **{name: extra},
        )
        refused(small, f"arrays of unknown use, {name}")


def test_array_size_matches_shape(small: Path) -> None:
    """numpy would first allocate what a header asks for."""
    header = saved_array(np.ones((N, 15), dtype=np.float32))
    edited(small, models=header.replace(b"(6, 15), }       ", b"(6, 15000000000)}"))
    refused(small, r"models of shape \(6, 15000000000\) in 360 bytes")
    edited(small, models=header + b"more")
    refused(small, r"models of shape \(6, 15\) in 364 bytes")


def test_compressed_file(small: Path) -> None:
    """So that a small file cannot take much memory."""
    with zipfile.ZipFile(small) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    refused(small, "compressed members")


def test_overlapping_members(small: Path) -> None:
    with zipfile.ZipFile(small, "a") as archive:
        archive.filelist.extend([archive.getinfo("models.npy")] * 100)
        archive._didModify = True  # type: ignore[attr-defined]
    refused(small, "members that are larger than the file")


def test_missing_setting(small: Path) -> None:
    def without(about: dict[str, Any], entry: str) -> dict[str, Any]:
        settings = {key: value for key, value in about["settings"].items() if key != entry}
        return about | {"settings": settings}

    content = small.read_bytes()
    for entry in ("malicious", "total", "samples", "data", "rule", "trainer", "seed"):
        edited(small, about=partial(without, entry=entry))
        refused(small, f"{entry}")
        small.write_bytes(content)


def test_missing_entry(small: Path) -> None:
    for entry in ("format", "settings", "t", "history", "stateful", "dtypes"):
        content = small.read_bytes()
        edited(
            small,
            about=lambda about, entry=entry: {key: about[key] for key in about if key != entry},
        )
        refused(small, f"KeyError: '{entry}'")
        small.write_bytes(content)
