"""The commit that a result is labeled with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise as eq
from benchmarks.paper import run
from tests.benchmarks.paper.helpers import (
    ROOT,
    SHORT,
)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def test_commit_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source may change during the run."""
    run._origin.cache_clear()
    monkeypatch.setattr(run, "_commit", lambda: "first")
    one = run.simulator(SHORT, 0, ".")
    monkeypatch.setattr(run, "_commit", lambda: "second")
    one.run()
    found = run.summary(one)
    run._origin.cache_clear()
    assert found["commit"] == "first"


def committed(folder: Path, *files: str) -> str:
    """Create a repository with one commit of these files; returns the commit."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for arguments in (
        ["init", "-q"],
        ["add", "-f", *files],
        [*identity, "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def a_clone(folder: Path, name: str = "equipoise") -> Path:
    """Create a project with this name; returns the folder of its package."""
    package = folder / "src/equipoise"
    package.mkdir(parents=True)
    for path in ("__init__.py", "rules.py"):
        (package / path).write_text("")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    return package


@needs_git
def test_commit_of_a_clone(tmp_path: Path) -> None:
    package = a_clone(tmp_path)
    commit = committed(tmp_path, "src", "pyproject.toml")
    (tmp_path / "notes.txt").write_text("untracked")
    assert run._commit(package) == commit
    (package / "rules.py").write_text("changed")
    assert run._commit(package) == f"{commit}+"


@needs_git
@pytest.mark.parametrize("tracked", ["README", "README .venv"])
def test_no_commit_if_installed(tracked: str, tmp_path: Path) -> None:
    """Even if the virtual environment is committed."""
    packages = tmp_path / ".venv/lib/site-packages"
    source = Path(eq.__file__).parent
    shutil.copytree(source, packages / "equipoise", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "README").write_text("somebody's project")
    committed(tmp_path, *tracked.split())
    code = """import equipoise
from benchmarks.paper import run
print(equipoise.__file__, run._origin()["commit"])"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.split() == [str(packages / "equipoise/__init__.py"), "None"]


@needs_git
def test_no_commit_beside_a_clone(tmp_path: Path) -> None:
    """An installed copy may be older than the clone."""
    package = a_clone(tmp_path)
    installed = tmp_path / ".venv/lib/site-packages/equipoise"
    shutil.copytree(package, installed)
    committed(tmp_path, "src", "pyproject.toml")
    assert run._commit(installed) is None
    vendored = a_clone(tmp_path / "other", name="other")
    committed(tmp_path / "other", "src", "pyproject.toml")
    assert run._commit(vendored) is None
