"""Strip the notebooks of outputs, execution counts and all metadata except tags.

With --check, only list the notebooks that would change, and exit with 1:

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
    """Return the committed form of a notebook, in the layout of nbformat."""
    cells = [stripped(cell) for cell in json.loads(text)["cells"]]
    notebook = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def stripped(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell with its id, tags and source, without surrounding blank lines."""
    tags = cell["metadata"].get("tags")
    source = "".join(cell["source"]).strip("\n").splitlines(keepends=True)
    metadata = {"tags": tags} if tags else {}
    kept = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": metadata}
    code = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
    return kept | code | {"source": source}


def main(arguments: list[str] | None = None, folder: Path = HERE) -> int:
    parser = argparse.ArgumentParser(description="Strip the notebooks of outputs and metadata.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit with 1 if a notebook is not stripped",
    )
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
