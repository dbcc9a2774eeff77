"""The warnings in the log of a peer."""

from __future__ import annotations

import pytest

from equipoise.peers._alarms import Alarms


def test_long_silence_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms("a", after=3)
    for _ in range(10):
        alarms.note_absences(["b", "c"], {"b": "silent: no message"})
    assert caplog.messages == [
        "peer a: neighbor b was absent (silent: no message) in 3 exchanges in a row"
    ]


def test_return_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="equipoise.peers")
    alarms = Alarms("a", after=2)
    for reasons in ({"b": "late"}, {"b": "late"}, {}, {}):
        alarms.note_absences(["b", "c"], reasons)
    assert caplog.messages[1:] == ["peer a: neighbor b is no longer absent"]


def test_short_silence_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="equipoise.peers")
    alarms = Alarms("a", after=2)
    for reasons in ({"b": "late"}, {}, {"b": "late"}, {}):
        alarms.note_absences(["b", "c"], reasons)
    assert caplog.messages == []


def test_long_rejection_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms("a", after=2)
    for _ in range(5):
        alarms.note_rejections(["c"], ["b"])
    assert caplog.messages == [
        "peer a: neighbor b was rejected by the rule in 2 exchanges in a row"
    ]


def test_loneliness_is_logged_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms("a", after=100)
    for accepted, rejected in (([], ["b"]), ([], ["b"]), (["b"], []), ([], ["b"])):
        alarms.note_rejections(accepted, rejected)
    text = "peer a: alone, the rule accepted no message; its model is its own"
    assert caplog.messages == [text, text]


def test_each_silence_of_all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the loop never records what the rule accepted, or the rule has no weights."""
    alarms = Alarms("a", after=100)
    for reasons in ({"b": "silent"}, {"b": "silent"}, {}, {"b": "silent"}):
        alarms.note_absences(["b"], reasons)
    text = "peer a: alone, no neighbor sent a usable message; its model is its own"
    assert caplog.messages == [text, text]


def test_silence_of_all_is_loneliness(caplog: pytest.LogCaptureFixture) -> None:
    Alarms("a", after=100).note_absences(["b"], {"b": "silent"})
    assert caplog.messages == [
        "peer a: alone, no neighbor sent a usable message; its model is its own"
    ]
