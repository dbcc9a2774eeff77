"""The README's examples run as they are, and print what they say."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_three_examples() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run_and_print_what_they_say(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    promised = re.findall(r"print\(.*?\) +# (.*)", example)
    assert capsys.readouterr().out.splitlines() == promised
    assert {"out", "history"} & names.keys()
