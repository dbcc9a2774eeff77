"""Bring the notebooks to the form in which they are committed: no outputs, no counts, no metadata but tags.

Rewrites what differs; with --check, only says what does, and exits with 1:

    python examples/strip.py
    python examples/strip.py --check
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def canonical(text: str) -> str:
    """A notebook as it is committed, laid out as nbformat would write it."""
    cells = [stripped(cell) for cell in json.loads(text)["cells"]]
    notebook = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def stripped(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with its id, its tags and its source, without blank lines around it."""
    tags = cell["metadata"].get("tags")
    source = "".join(cell["source"]).strip("\n").splitlines(keepends=True)
    kept = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": {"tags": tags} if tags else {}}
    code = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
    return kept | code | {"source": source}


def main(arguments: list[str] | None = None, folder: Path = HERE) -> int:
    parser = argparse.ArgumentParser(description="Strip the notebooks of outputs and metadata.")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if something would change")
    check = parser.parse_args(arguments).check
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ipynb"))}
    dirty = {path: canonical(text) for path, text in texts.items() if canonical(text) != text}
    for path, text in dirty.items():
        print(f"{path.name}: {'run python examples/strip.py' if check else 'stripped'}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(dirty))


if __name__ == "__main__":
    raise SystemExit(main())
