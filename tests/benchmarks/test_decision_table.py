"""The tables of "Choose a rule" are those of the rules."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

import equipoise as eq
from benchmarks import decision_table
from benchmarks.decision_facts import RULES, WRAPPERS
from equipoise.topology import Neighbors, Spectral, library_rules

EVERYTHING = RULES | WRAPPERS


def test_page_shows_the_rules() -> None:
    times = json.loads(decision_table.TIMES.read_text())
    found = decision_table.BLOCK.search(decision_table.PAGE.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == decision_table.tables(times), "run python -m benchmarks.decision_table"


def test_every_rule_has_a_row() -> None:
    assert {type(facts.rule) for facts in EVERYTHING.values()} == set(library_rules)
    variants = re.findall(r'Bridge\("(.)"\)', " ".join(EVERYTHING))
    assert variants == ["T", "M", "K", "B"]


def test_rows_have_the_names_of_their_rules() -> None:
    for name, facts in EVERYTHING.items():
        assert re.match(r"\w+", name)[0] == type(facts.rule).__name__  # type: ignore[index]


def test_every_rule_is_measured() -> None:
    times = json.loads(decision_table.TIMES.read_text())["ms"]
    assert set(times) == {name for name, facts in EVERYTHING.items() if facts.is_measured}


def test_one_exchange_sends_one_model() -> None:
    for facts in EVERYTHING.values():
        assert (facts.sends == "1") is not isinstance(facts.rule, eq.MultiExchange)


@pytest.mark.parametrize("t", range(10))
def test_learn_sends_as_many_models_as_declared(t: int) -> None:
    sent = []

    def exchange(model: torch.Tensor) -> torch.Tensor:
        sent.append(model)
        return torch.ones(3, 4)

    rule = eq.LEARN(tolerated=1)
    eq.run_exchanges(rule, torch.ones(4), exchange, t=t, update=torch.zeros(4))
    formula = RULES["LEARN"].sends.replace("⌈log₂", "ceil(log2").replace("⌉", ")")
    assert len(sent) == eval(formula, {"ceil": math.ceil, "log2": math.log2, "t": t})


@pytest.mark.parametrize(("per_malicious", "more"), [(2, 1), (2, 3), (4, 3)])
def test_breakdown_by_count(per_malicious: int, more: int) -> None:
    rule = eq.Median()
    object.__setattr__(rule, "guarantee", Neighbors(per_malicious, more))
    assert decision_table.breakdown(rule) == f"{(100 - more) // per_malicious}"


def test_breakdown_by_spectrum() -> None:
    # In a complete graph, mu_2 > 2 rho b is n - f > 2 rho f.
    rule = eq.Gossip()
    object.__setattr__(rule, "guarantee", Spectral(3.0))
    assert decision_table.breakdown(rule) == f"{101 // 7}"


def test_write_changes_the_tables_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- rules -->\nold\n<!-- end of rules -->\nafter\n")
    decision_table.write(page, "new\n")
    decision_table.write(page, "newer\n")
    assert page.read_text() == "before\n<!-- rules -->\nnewer\n<!-- end of rules -->\nafter\n"
