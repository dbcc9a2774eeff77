"""The command line and the demo."""

import io
import itertools
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise import __main__ as cli
from equipoise import demo

Capture = pytest.CaptureFixture[str]
SMALL = [
    "demo",
    "--rounds",
    "2",
    "--rules",
    "FedAvg",
    "Balance(kappa=0)",
    "--attacks",
    "none",
    "Gaussian",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo saves its figure in the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the printed table."""
    start = text.index("\nrule ") + 1
    return {
        line.split()[0]: line.split()[1:] for line in text[start:].split("\n\n")[0].splitlines()[1:]
    }


def finished(errors: dict[str, dict[str, float | None]]) -> eq.sweeps.Results:
    """Runs of three clients, one of them malicious; None is a run that did not finish."""
    found = []
    for rule, row in errors.items():
        for attack, error in row.items():
            rounds = [eq.Round(0, {"error": (0.0, error or 0.0, 1.0)})]
            history = None if error is None else eq.History(3, malicious=[2], rounds=rounds)
            found.append(eq.sweeps.CellResult({"rule": rule, "attack": attack}, history))
    return eq.sweeps.Results(found)


# Output


def test_table_and_figure(here: Path, capsys: Capture) -> None:
    assert cli.main([*SMALL, "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    table = rows(out)
    assert {rule: len(cells) for rule, cells in table.items()} == {
        "FedAvg": 2,
        "Balance(kappa=0)": 2,
    }
    assert all(re.fullmatch(r"[01]\.\d{3}\*?", cell) for cells in table.values() for cell in cells)
    assert "Gaussian: malicious clients send noise." in out
    assert "MinMax" not in out
    assert f"Figure: {here / 'equipoise-demo.png'}" in out
    assert (here / "equipoise-demo.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"4/4 \[.*, 0 running, 0 failed\]\n$", err)


def test_lines_fit_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["demo", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert (list(rows(out)), len(rows(out)["Krum"])) == (list(demo.RULES), 4)
    assert all(len(line) < 80 for line in out.splitlines())
    assert all(len(f"{name}: {note}.") < 80 for name, note in demo.NOTES.items())


def test_best_has_an_asterisk() -> None:
    results = finished(
        {
            "Krum": {"no attack": 0.25, "MinMax": 0.5},
            "Median": {"no attack": 0.25, "MinMax": 0.125},
            "Balance": {"no attack": 0.75, "MinMax": None},
        }
    )
    assert demo.table(results).splitlines() == [
        "rule    no attack  MinMax",
        "Krum       0.250*  0.500",
        "Median     0.250*  0.125*",
        "Balance    0.750       -",
    ]


@pytest.mark.parametrize(
    "rules", [list(demo.RULES), ["Krum", "Median", "LEARN"], list(demo.RULES)[:8]], ids=len
)
def test_one_panel_per_rule(rules: list[str]) -> None:
    attacks = [demo.heading(attack) for attack in demo.ATTACKS]
    results = finished({rule: dict.fromkeys(attacks, 0.5) for rule in rules})
    figure = demo.picture(demo.Setting.draw(0), results)
    graph, table, *panels = figure.axes
    assert graph.get_legend_handles_labels()[1] == ["benign", "malicious"]
    assert [text.get_text() for text in table.texts] == ["0.50"] * (len(rules) * len(demo.ATTACKS))
    drawn = [ax for ax in panels if ax.axison]
    assert [ax.get_title() for ax in drawn] == rules
    assert all([line.get_label() for line in ax.lines] == attacks for ax in drawn)
    assert all(len({line.get_color() for line in ax.lines}) == len(attacks) for ax in drawn)
    (legend,) = figure.subfigs[1].legends
    assert [text.get_text() for text in legend.get_texts()] == attacks
    lowest = {ax.get_position().x0: ax for ax in drawn}.values()  # of each column
    assert [ax.get_xlabel() for ax in lowest] == ["round"] * len(lowest)


def test_nothing_overlaps() -> None:
    results = finished({rule: dict.fromkeys(demo.SHOWN, 0.5) for rule in demo.RULES})
    figure = demo.picture(demo.Setting.draw(0), results)
    figure.savefig(io.BytesIO())  # computes the layout
    titles = [ax.title.get_window_extent() for ax in figure.axes[2:]]
    labels = [ax.xaxis.label.get_window_extent() for ax in figure.axes[-demo.PANELS :]]
    boxes = [*titles, *labels, figure.subfigs[1].legends[0].get_window_extent()]
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


# Results


def test_setting_is_as_described() -> None:
    setting = demo.Setting.draw(3)
    assert (setting.graph.n, len(setting.malicious)) == (20, 4)
    assert (setting.graph.degrees == 10).all()
    assert setting.trainer.samples.sum() == 1442


def test_every_rule_and_attack() -> None:
    results = demo.compare(demo.Setting.draw(0), 2, tuple(demo.RULES), tuple(demo.ATTACKS))
    assert len(results) == len(demo.RULES) * len(demo.ATTACKS)
    histories = [cell.history for cell in results]
    assert all(history and len(history) == 2 and not history.diverged for history in histories)


def test_seed_determines_results() -> None:
    def run(seed: int, torch_seed: int) -> list[eq.History | None]:
        torch.manual_seed(torch_seed)
        results = demo.compare(demo.Setting.draw(seed), 3, ("Balance", "LEARN"), ("TrimAttack",))
        return [cell.history for cell in results]

    assert run(1, torch_seed=3) == run(1, torch_seed=4)
    assert run(1, torch_seed=3) != run(2, torch_seed=3)


def test_balance_rejects_noise_only() -> None:
    setting = demo.Setting.draw(0)

    def error(rule: str, attack: str) -> float:
        simulator = setting.simulator(demo.RULES[rule], demo.ATTACKS[attack], demo.ROUNDS)
        return simulator.run().summary()["max_error"]

    calm = error("FedAvg", "none")
    assert error("FedAvg", "Gaussian") > 0.8
    assert error("Balance", "Gaussian") < calm + 0.05
    assert error("Balance", "MinMax") > calm + 0.1


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["demo", "--rules", "balance"],
            r"argument --rules: must be one of Alone, FedAvg, .*, BalanceMedian, found balance; "
            r"did you mean Balance\?\n",
        ),
        (
            ["demo", "--attacks", "Gaussian", "TrimAtack"],
            r"argument --attacks: must be one of none, Gaussian, .*, LabelFlip, found TrimAtack; "
            r"did you mean TrimAttack\?\n",
        ),
        (["demo", "--rules", "xyz"], r"must be one of Alone, .*, BalanceMedian, found xyz\n"),
        (["demo", "--rounds", "0"], "argument --rounds: must be an integer >= 1, found 0"),
        (["demo", "--rounds", "many"], "argument --rounds: must be an integer >= 1, found many"),
        (["demo", "--seed", "-1"], "argument --seed: must be an integer >= 0, found -1"),
        (
            ["demo", "--output", __file__],
            "argument --output: must be a folder, found .*test_demo.py: File exists",
        ),
        (
            ["demo", "--output", "closed"],
            "argument --output: must be a folder that can be written to, found closed",
        ),
        (["nonsense"], "argument COMMAND: invalid choice: 'nonsense' .*demo"),
        ([], "the following arguments are required: COMMAND"),
    ],
    ids=" ".join,
)
def test_bad_options(
    arguments: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != "closed"
    )  # root may write anywhere
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_repeated_names_run_once(here: Path, capsys: Capture) -> None:
    options = [
        "--rounds",
        "1",
        "--rules",
        "Krum",
        "Krum",
        "--attacks",
        "none",
        "none",
        "--output",
        "new/folder",
    ]
    assert cli.main(["demo", *options]) == 0
    out, err = capsys.readouterr()
    assert [len(cells) for cells in rows(out).values()] == [1]
    assert " 1/1 " in err
    assert (here / "new/folder/equipoise-demo.png").exists()


def test_missing_scikit_learn(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert cli.main(SMALL) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r'The demo needs further packages \(.*\): pip install "equipoise\[data,plots,sweeps\]"\n',
        err,
    )


def test_missing_matplotlib(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(SMALL) == 0
    out = capsys.readouterr().out
    assert list(rows(out)) == ["FedAvg", "Balance(kappa=0)"]
    assert out.endswith('For a figure, run again after: pip install "equipoise[plots]"\n')
    assert not list(here.iterdir())


def test_interrupt_prints_results(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(attack: eq.attacks.Gaussian, known: eq.attacks.Knowledge) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(eq.attacks.Gaussian, "forge", interrupted)
    threads = torch.get_num_threads()
    assert cli.main(SMALL) == 130
    out, err = capsys.readouterr()
    assert [cell for cells in rows(out).values() for cell in cells][1:] == ["-"] * 3
    assert "Figure" not in out
    assert err.endswith("Interrupted.\n")
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT")
def test_interrupt_without_traceback() -> None:
    command = [sys.executable, "-W", "error", "-m", "equipoise", "demo", "--rounds", "1000000"]
    pipe = subprocess.PIPE
    repository = Path(__file__).parent.parent
    # The tests may run with SIGINT ignored, which a child process inherits.
    restore_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=repository, preexec_fn=restore_sigint
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.endswith("Interrupted.\n")
    assert "Traceback" not in err
