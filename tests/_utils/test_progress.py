"""The progress bar: what it counts, and when it computes its note."""

from __future__ import annotations

import io
import sys

import pytest

from equipoise._utils.progress import advance, progress_bar, skip


def test_note_only_when_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    notes = iter(range(1000))
    with progress_bar(1000, "round") as bar:
        for _ in range(1000):
            advance(bar, lambda: f"note {next(notes)}")
    # Everything within the first seconds: only the last step is drawn.
    assert next(notes) == 1
    assert "1000/1000" in capsys.readouterr().err


def test_skipped_steps_do_not_count_for_speed() -> None:
    with progress_bar(10, "round", done=2) as bar:
        skip(bar, 3)
        advance(bar, str)
        assert bar.n == 6
        assert bar.format_dict["n"] - bar.format_dict["initial"] == 1


def test_missing_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r'tqdm is not installed: pip install "equipoise\[progre'):
        progress_bar(1, "round")


def test_closed_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with progress_bar(2, "round") as bar:
        advance(bar, lambda: "note")
    assert bar.disable
