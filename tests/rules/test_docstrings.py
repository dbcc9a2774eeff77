"""The description of each rule has a formula, a source and an example, and says what breaks it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.topology import library_rules

FAILURES = Path(__file__).parents[2] / "docs" / "failures.md"
NO_PAPER = {"PerClient", "PerGroup"}

every_rule = pytest.mark.parametrize("rule", library_rules, ids=lambda rule: rule.__name__)
papers = [rule for rule in library_rules if rule.__name__ not in NO_PAPER]


@pytest.mark.parametrize("rule", papers, ids=lambda rule: rule.__name__)
def test_formula_and_source(rule: type) -> None:
    text = rule.__doc__ or ""
    assert ".. math::" in text
    assert re.search(r"\*[^*`]{15,}\*, [\w, ]*\d{4}", re.sub(r"\s+", " ", text)), "title, year"


@every_rule
def test_example(rule: type) -> None:
    assert ">>> " in (rule.__doc__ or "")


@every_rule
def test_failure(rule: type) -> None:
    titles = re.findall(r"^## (.*):", FAILURES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert any(re.search(rf"\b{rule.__name__}\b", title) for title in titles)
