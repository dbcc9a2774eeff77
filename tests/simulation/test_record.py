"""Records of single rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.simulation.history import History, Round
from tests.simulation.histories import NAN, a_history


@pytest.mark.parametrize(
    "values",
    [[0.5, 0.25], (0.5, 0.25), torch.tensor([0.5, 0.25]), np.array([0.5, 0.25], np.float32)],
    ids=repr,
)
def test_kinds_of_values(values: Any) -> None:
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


def test_record_copies_inputs() -> None:
    values, clients = {"bytes": 1.0}, torch.tensor([0.5])
    one = Round(0, {"error": clients}, values)  # type: ignore[dict-item]
    values["bytes"] = 2.0
    clients.zero_()
    assert (one.values, one.clients) == ({"bytes": 1.0}, {"error": (0.5,)})


def test_equality() -> None:
    one = Round(
        0,
        {"error": (0.5, float("nan"))},
        {"consensus": float("nan")},
        {"train": 1.0},
        diverged=(1,),
    )
    again = Round(
        0,
        {"error": (0.5, float("nan"))},
        {"consensus": float("nan")},
        {"train": 2.0},
        diverged=(1,),
    )
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
def test_unequal_results(change: dict[str, Any]) -> None:
    one = Round(0, {"error": (0.5, NAN)}, {"consensus": 1.0}, diverged=(1,))
    assert one != replace(one, **change)
    assert History(2, rounds=[one]) != History(2, rounds=[replace(one, **change)])


def test_unequal_histories() -> None:
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
        (
            lambda: History(2, malicious=[0, 1]),
            "malicious must leave a benign client, found all 2 clients",
        ),
        (lambda: History(2, name=None), "name must be a string, found None"),
        (lambda: History(1, rounds=[Round(1), Round(1)]), "must come after round 1, found round 1"),
        (
            lambda: History(3, rounds=[Round(0, {"error": (1, 2)})]),
            "must hold 3 values of error, .* found 2",
        ),
        (
            lambda: History(2, rounds=[Round(0, diverged=(2,))]),
            "diverged must be an integer from 0 to 1, found 2",
        ),
        (lambda: History(2).worst("error"), r"no metrics: pass Simulator\(..., metrics=\{"),
        (
            lambda: History(2).series("loss"),
            "name must be a recorded value, but the history has none, found 'loss'",
        ),
        (lambda: a_history().mean("mse"), r"metric must be one of \['error'\], found 'mse'"),
        (lambda: a_history().per_client("mse"), r"metric must be one of \['error'\], found 'mse'"),
        (lambda: a_history().per_client("error", 5), r"measured, 4, 9, \.\.\., 34, 39, found 5"),
        (
            lambda: a_history().series("loss"),
            "name must be one of .*'bytes', 'consensus'.*, found 'loss'",
        ),
    ],
)
def test_bad_input_is_named(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_refused_round() -> None:
    history = a_history()
    with pytest.raises(ValueError, match="found 3"):
        history.add(Round(40, {"error": (1.0, 2.0, 3.0)}, diverged=(0,)))
    with pytest.raises(ValueError, match="found 4"):
        history.add(Round(40, {"error": (1.0,) * 4}, diverged=(0, 4)))
    assert history == a_history()
    assert history.diverged == {}
