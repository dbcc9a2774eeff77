"""The README's examples run and print the documented output, and its counts are true."""

import inspect
import re
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.topology import library_rules

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_readme_is_short() -> None:
    assert len(EXAMPLES) == 2
    assert len(README.splitlines()) < 135


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_print_their_output(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    expected = re.findall(r"print\(.*?\) +# (.*)", example)
    assert capsys.readouterr().out.splitlines() == expected
    assert {"out", "history"} & names.keys()


def test_counts_are_true() -> None:
    wrappers = {eq.ARC, eq.Bucketing, eq.NNM, eq.PerClient, eq.PerGroup, eq.StaticClip}
    assert f"**Rules**: {len({*library_rules} - wrappers)}," in README

    restrictions = {"Combined", "InModelSpace", "OnlyClients", "Window"}
    protocols = {"DataAttack", "MessageAttack"}
    names = set(eq.attacks.__all__) - restrictions - protocols
    members = [getattr(eq.attacks, name) for name in names]
    attacks = [one for one in members if hasattr(one, "forge") or hasattr(one, "poison")]
    assert f"**Attacks**: {len(attacks)} " in README

    constructors = [name for name, _ in inspect.getmembers(eq.Topology, inspect.ismethod)]
    graphs = [name for name in constructors if not name.startswith(("_", "from_"))]
    assert f"**Graphs**: {len(graphs)} kinds" in README
