"""The package loads on demand and works without assertions."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from equipoise import testing


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_loaded_on_demand() -> None:
    code = (
        "import equipoise, sys; assert not {'hypothesis', 'equipoise.testing'} & set(sys.modules)"
    )
    assert run(code).returncode == 0


def test_missing_hypothesis() -> None:
    found = run("import sys; sys.modules['hypothesis'] = None; import equipoise.testing").stderr
    assert found.endswith(
        'ImportError: equipoise.testing needs hypothesis: pip install "equipoise[testing]"\n'
    )


def test_no_assert_statements() -> None:
    """``python -O`` leaves assertions out, so that there must be none."""
    files = list(Path(testing.__file__).parent.glob("*.py"))
    assert "_laws.py" in {file.name for file in files}
    trees = {file.name: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    assert [
        name
        for name, tree in trees.items()
        if any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    ] == []
