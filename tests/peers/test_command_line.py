"""``equipoise peers``, and what runs without its extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from equipoise import __main__ as cli
from equipoise.peers import Credentials

Capture = pytest.CaptureFixture[str]
COMMAND = ["peers", "certificates", "--names", "site-a", "site-b"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_command_makes_and_explains(here: Path, capsys: Capture) -> None:
    assert cli.main(COMMAND) == 0
    out, err = capsys.readouterr()
    copied = "authority.pem, site-b.pem and site-b.key to its machine"
    assert out.splitlines()[1] == f"site-b: made, valid for 365 days; copy {copied}"
    assert "Keep authority.key here" in out
    assert err == ""
    assert Credentials.load(here / "certificates", "site-b").name == "site-b"


def test_second_run_keeps_or_renews(here: Path, capsys: Capture) -> None:
    folder = ["--output", "other"]
    cli.main([*COMMAND, *folder])
    before = (here / "other" / "site-a.pem").read_bytes()
    assert cli.main([*COMMAND, *folder]) == 0
    assert "site-a: exists, kept;" in capsys.readouterr().out
    assert (here / "other" / "site-a.pem").read_bytes() == before
    assert cli.main([*COMMAND, "site-a", *folder, "--days", "7", "--renew"]) == 0
    assert "site-a: made, valid for 7 days;" in capsys.readouterr().out
    assert (here / "other" / "site-a.pem").read_bytes() != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--names", "Site A"], "each name must be at most 64 lower-case letters"),
        (["--names", "a", "--output", "file"], "File exists: 'file'"),
        (["--names", "a", "--output", "half"], "half/authority.key is missing"),
        (["--names", "a", "--days", "99999"], "days must be an integer from 1 to 3650"),
    ],
)
def test_errors_are_one_line(here: Path, capsys: Capture, options: list[str], message: str) -> None:
    (here / "file").touch()
    (here / "half").mkdir()
    (here / "half" / "authority.pem").touch()
    assert cli.main(["peers", "certificates", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("equipoise peers: ")
    assert message in err
    assert err.count("\n") == 1


def test_missing_extra_names_the_command(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("cryptography", "cryptography.x509"):
        monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(COMMAND) == 2
    message = 'cryptography is not installed: pip install "equipoise[peers]"'
    assert capsys.readouterr().err == f"equipoise peers: {message}\n"
    assert not (here / "certificates").exists()


def test_import_needs_no_extra() -> None:
    code = """import sys, equipoise, equipoise.peers, equipoise.__main__
assert not {"cryptography", "grpc"} & sys.modules.keys()"""
    subprocess.run([sys.executable, "-c", code], check=True)
