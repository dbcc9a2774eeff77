"""The form of the notebooks, and the scripts.

`examples/run.py` executes the notebooks and peers.py. It takes minutes and is a separate step.
"""

from __future__ import annotations

import importlib.util
import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import equipoise as eq

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
DIRTY = {
    "cells": [
        {
            "cell_type": "markdown",
            "id": "title",
            "metadata": {"collapsed": True},
            "source": "# Title\n\ntext\n",
        },
        {
            "cell_type": "code",
            "id": "code",
            "metadata": {"tags": ["hide-cell"], "execution": {"iopub.status.busy": "2026"}},
            "source": ["print(1)\n", "print(2)"],
            "execution_count": 7,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}],
        },
    ],
    "metadata": {
        "kernelspec": {"name": "my-env", "display_name": "mine", "language": "python"},
        "toc": 1,
    },
    "nbformat": 4,
    "nbformat_minor": 5,
}
by_name = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def script(name: str) -> ModuleType:
    """Import a script of the examples as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


# Notebooks


def test_notebooks_are_numbered() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("1234567")


@by_name
def test_notebooks_are_stripped(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    assert text == script("strip").canonical(text), "run python examples/strip.py"


@by_name
def test_cells_have_names(notebook: Path) -> None:
    names = [cell["id"] for cell in cells(notebook)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names), (
        "replace ids made by an editor by names"
    )


@by_name
def test_shown_code_fits_the_column(notebook: Path) -> None:
    shown = [
        cell["source"]
        for cell in cells(notebook)
        if cell["cell_type"] == "code" and not cell["metadata"]
    ]
    assert [line for source in shown for line in source if len(line.rstrip()) > 90] == []


@by_name
def test_notebooks_end_with_checks(notebook: Path) -> None:
    last = cells(notebook)[-1]
    assert last["metadata"] == {"tags": ["hide-cell"]}
    assert sum(line.lstrip().startswith("assert ") for line in last["source"]) >= 5


@pytest.mark.parametrize("page", [*NOTEBOOKS, EXAMPLES / "README.md"], ids=lambda path: path.stem)
def test_links_exist(page: Path) -> None:
    links = re.findall(r"\]\(([\w.]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (EXAMPLES / link).exists()] == []


def test_index_lists_all_examples() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = (
        *("defend.py", "grid.py", "many_processes.py", "own_training_loop.py"),
        *("peer.py", "peers.py"),
    )
    scripts = [EXAMPLES / name for name in names]
    assert [path.name for path in [*NOTEBOOKS, *scripts] if f"]({path.name})" not in index] == []


# The grid

GRID = (EXAMPLES / "grid.py").read_text(encoding="utf-8")


def test_grid_takes_few_lines() -> None:
    """A grid of 4 rules, 3 attacks, 3 graphs and 3 seeds, with a table and a plot."""
    code = GRID.rpartition('"""')[2].splitlines()
    assert len([line for line in code if line and not line.startswith(("import", "from"))]) < 15


def test_grid_gives_table_and_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    # Few rounds and one seed: what is tested is the script.
    short = GRID.replace("total=100", "total=1").replace("range(3)", "range(1)")
    names: dict[str, Any] = {}
    exec(compile(short, "grid.py", "exec"), names)
    plt.close("all")
    table = capsys.readouterr().out
    assert [rule for rule in ("FedAvg", "Median", "SCClip", "Balance") if rule in table]
    assert (len(names["results"]), names["results"].failures) == (36, ())
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


# Tools


def test_strip_keeps_sources() -> None:
    strip = script("strip")
    text = strip.canonical(json.dumps(DIRTY))
    markdown, code = json.loads(text)["cells"]
    assert markdown == {
        "cell_type": "markdown",
        "id": "title",
        "metadata": {},
        "source": ["# Title\n", "\n", "text"],
    }
    assert (code["id"], code["metadata"]) == ("code", {"tags": ["hide-cell"]})
    assert (code["source"], code["outputs"], code["execution_count"]) == (
        ["print(1)\n", "print(2)"],
        [],
        None,
    )
    assert json.loads(text)["metadata"] == strip.METADATA
    assert strip.canonical(text) == text


def test_strip_checks_and_rewrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strip = script("strip")
    path = tmp_path / "dirty.ipynb"
    path.write_text(json.dumps(DIRTY), encoding="utf-8")
    assert strip.main(["--check"], tmp_path) == 1
    assert json.loads(path.read_text(encoding="utf-8")) == DIRTY
    assert strip.main([], tmp_path) == 0
    assert strip.main(["--check"], tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "dirty.ipynb: run python examples/strip.py",
        "dirty.ipynb: stripped",
    ]


@pytest.mark.filterwarnings("default")  # warnings of nbclient and its dependencies
@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("assert 1 == 1", 0, "passed"),
        ("assert 1 == 2", 1, "AssertionError"),
        ("import warnings\nwarnings.warn('careless')", 1, "UserWarning"),
    ],
)
def test_run_fails_if_a_cell_does(
    source: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nbclient", reason="needs the extra examples")
    path = tmp_path / "one.ipynb"
    cell = {
        "cell_type": "code",
        "id": "one",
        "metadata": {},
        "source": source,
        "execution_count": None,
        "outputs": [],
    }
    path.write_text(json.dumps(DIRTY | {"cells": [cell]}), encoding="utf-8")
    assert script("run").main([path]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("print(1)", 0, "passed"),
        ("raise SystemExit(3)", 1, "exit status 3"),
        ("import warnings\nwarnings.warn('careless')", 1, "UserWarning"),
    ],
)
def test_run_fails_if_a_script_does(
    source: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nbclient", reason="needs the extra examples")
    path = tmp_path / "one.py"
    path.write_text(source, encoding="utf-8")
    assert script("run").main([path]) == code
    assert said in capsys.readouterr().out


# Scripts


def test_defend_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    defend = script("defend")
    defend.ATTACKS = {"MinMax": defend.ATTACKS["MinMax"]}  # one column is enough for the format
    defend.main(rounds=2)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["rule", *defend.ATTACKS]
    assert [row.split()[0] for row in rows] == list(defend.RULES)
    assert all(0 <= float(number) <= 1 for row in rows for number in row.split()[1:])


def test_balance_defends() -> None:
    defend = script("defend")
    attack = eq.attacks.Gaussian()
    assert defend.worst_error(eq.FedAvg(), attack, rounds=60) > 0.7
    assert defend.worst_error(eq.Balance(), attack, rounds=60) < 0.2
    assert defend.worst_error(None, attack, rounds=60) > 0.35


def test_own_loop_is_robust(capsys: pytest.CaptureFixture[str]) -> None:
    script("own_training_loop").main()
    lines = capsys.readouterr().out.splitlines()
    errors = {line.split()[0]: float(line.split()[-1]) for line in lines}
    assert list(errors) == ["FedAvg", "Balance"]
    assert errors["Balance"] < 0.1 < 0.2 < errors["FedAvg"]


def test_own_loop_stays_close() -> None:
    module = script("own_training_loop")
    models = eq.stack_models(module.after(module.load()[0], eq.Balance())[1:])
    apart = torch.cdist(models, models).max() / models.norm(dim=1).min()
    assert apart < 0.3


@pytest.mark.parametrize("name", ["ordinary-code", "after-code"])
def test_notebook_equals_script(name: str) -> None:
    (source,) = [
        cell["source"]
        for cell in cells(EXAMPLES / "4_own_training_loop.ipynb")
        if cell["id"] == name
    ]
    assert "".join(source) in (EXAMPLES / "own_training_loop.py").read_text(encoding="utf-8")


def test_peers_continue_from_their_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    script("peers").prepare(tmp_path)
    for total in (2, 4):
        network = eq.peers.InMemoryNetwork()
        found = [
            eq.Peer(name, [other], transport=network.transport(name))
            for name, other in (("site-a", "site-b"), ("site-b", "site-a"))
        ]
        run = partial(script("peer").run, rule=eq.Balance(), total=total, deadline=60.0)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, found, [tmp_path] * 2))
    lines = (tmp_path / "site-a.jsonl").read_text(encoding="utf-8").splitlines()
    history = [json.loads(line) for line in lines]
    assert [entry["t"] for entry in history] == [0, 1, 2, 3]
    assert all(entry["neighbors"].keys() == {"site-b"} for entry in history)


def test_peers_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    peers = script("peers")
    histories = {}
    for name in peers.NAMES:
        rounds = [0, 1, 2, 8, 9] if name == peers.KILLED else range(10)
        others = dict(zip(peers.NAMES, ["accepted", "rejected", "absent"] * 2, strict=True))
        del others[name]
        histories[name] = [{"t": t, "error": 0.5, "neighbors": others} for t in rounds]
    peers.draw(histories, 2, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 0


def test_commands_of_peers_name_neighbors(tmp_path: Path) -> None:
    peers = script("peers")
    commands = peers.commands(tmp_path, rounds=3, rule="FedAvg")
    assert [name for name in commands if "--rehearse" in commands[name]] == [peers.MALICIOUS]
    for name, command in commands.items():
        entries = [entry.partition("=") for entry in command if "=" in entry]
        for other, _, address in entries:
            listening = commands[other]
            assert listening[listening.index("--listen") + 1] == address
            assert any(entry.startswith(f"{name}=") for entry in listening)
        assert len(entries) == 4
