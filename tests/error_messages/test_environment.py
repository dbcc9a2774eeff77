"""Missing files and packages, and mistakes on the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import equipoise as eq
from benchmarks.paper import theorem_1 as theory
from equipoise.__main__ import main
from equipoise.data import _download as files
from tests.error_messages.mistakes import (
    RING,
)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (
            eq.data.mnist,
            "train-images-idx3-ubyte.gz and the other files of MNIST in {0}/MNIST/raw, {0}/raw "
            "or {0}",
        ),
        (
            eq.data.har,
            "UCI HAR Dataset.zip or the folder UCI HAR Dataset in {0}, or one of them as root",
        ),
        (eq.data.celeba, "list_attr_celeba.txt in {0} or a folder celeba, raw, Img, Anno in it"),
    ],
)
def test_missing_files(load: Callable[[Any], Any], expected: str, tmp_path: Any) -> None:
    root = tmp_path / "nowhere"
    with pytest.raises(FileNotFoundError) as caught:
        load(root)
    advice = "Put it there, or load it with download=True"
    assert (
        str(caught.value) == f"expected {expected.format(root)}, found no folder {root}. {advice}"
    )


@pytest.mark.parametrize(
    ("package", "use", "message"),
    [
        (
            "matplotlib.pyplot",
            partial(eq.plots.graph, RING),
            'matplotlib is not installed: pip install "equipoise[plots]"',
        ),
        (
            "sklearn.datasets",
            eq.data.digits,
            'sklearn is not installed: pip install "equipoise[data]"',
        ),
        (
            "tqdm",
            lambda: files.need("tqdm"),
            'tqdm is not installed: pip install "equipoise[data]"',
        ),
        (
            "PIL.Image",
            lambda: files.need("PIL.Image"),
            'PIL is not installed: pip install "equipoise[data]"',
        ),
        ("pandas", eq.History(1).frame, 'pandas is not installed: pip install "equipoise[frames]"'),
        (
            "cloudpickle",
            lambda: eq.sweep(lambda n: eq.History(n), n=[1]),
            'cloudpickle is not installed: pip install "equipoise[sweeps]"',
        ),
        (
            "matplotlib.figure",
            lambda: theory.draw({}),
            'matplotlib is not installed: pip install "equipoise[plots]"',
        ),
    ],
)
def test_missing_packages(
    package: str, use: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        use()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"equipoise: error: the following arguments are required: COMMAND\n"),
        (
            ["demmo"],
            r"equipoise: error: argument COMMAND: invalid choice: 'demmo' \(choose from "
            r"'?demo'?, '?peers'?\)\n",
        ),
        (
            ["demo", "--rule", "Balence"],
            r"argument --rules: must be one of Alone, .*, found Balence; did you mean Balance\?\n",
        ),
        (["demo", "--rounds", "0"], r"argument --rounds: must be an integer >= 1, found 0\n"),
        (["demo", "--sed", "3"], r"equipoise: error: unrecognized arguments: --sed 3\n"),
    ],
)
def test_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert re.search(message + r"\Z", capsys.readouterr().err)
