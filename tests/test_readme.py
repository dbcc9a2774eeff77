"""The README's examples run and print the documented output."""

import re
from pathlib import Path

import pytest

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
