"""Facts that are written down twice are the same in both places."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import equipoise

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_oldest_versions_are_the_bounds() -> None:
    """``.ci/oldest`` tests what pyproject.toml promises."""
    text = (ROOT / ".ci/oldest.txt").read_text(encoding="utf-8").partition("# Not ours")[0]
    oldest = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, flags=re.MULTILINE))
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    tested = ("plots", "progress", "data", "frames", "sweeps", "parquet", "diagnostics")
    tested += ("benchmarks", "testing")
    tested += ("peers", "test")
    wanted += [entry for extra in tested for entry in extras[extra]]
    bounds = dict(entry.split(">=") for entry in wanted if ">=" in entry)
    assert bounds.keys() == oldest.keys()
    for name, bound in bounds.items():
        assert f"{oldest[name]}.0.0".startswith(f"{bound}.0"), (
            f"{name}>={bound} is tested as {oldest[name]}"
        )


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [equipoise.__version__]


def test_constraints_pin_all_extras() -> None:
    """``constraints.txt`` pins whatever an extra asks for."""
    pinned = re.findall(
        r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    names = {name.lower().replace("_", "-") for name in pinned}
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = {
        entry.split(">=")[0]
        for extra in extras
        for entry in extra
        if not entry.startswith("equipoise")
    }
    assert wanted <= names


def test_errors_name_extras_that_exist() -> None:
    """The command that a message or a page advises installs something."""
    extras = set(PROJECT["project"]["optional-dependencies"])
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]
    sources = "".join(path.read_text(encoding="utf-8") for path in files)
    advised = {
        name for names in re.findall(r"equipoise\[([\w,]+)\]", sources) for name in names.split(",")
    }
    imported = re.findall(r'import_optional\([\w".]+, "(\w+)"\)', sources)
    assert set(imported) == {
        *("plots", "progress", "data", "frames", "diagnostics"),
        *("peers", "sweeps", "parquet", "ray"),
    }
    assert advised | set(imported) <= extras


def test_modules_that_take_long_to_import_are_there_when_asked_for() -> None:
    code = """import sys, equipoise
assert "equipoise.testing" not in sys.modules
equipoise.testing.check_rule, equipoise.demo.run"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="module 'equipoise' has no attribute 'testin'"):
        equipoise.testin  # noqa: B018


def test_get_started_lists_every_extra() -> None:
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    table = "".join(re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", table)) == set(PROJECT["project"]["optional-dependencies"])
