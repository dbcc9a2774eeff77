"""Write each Python example of README.md to its own file: readme_examples.py README.md FOLDER."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> None:
    """Write the files and say how many there are."""
    readme, folder = Path(sys.argv[1]), Path(sys.argv[2])
    examples = re.findall(
        r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert examples, f"{readme} has no Python examples"
    for number, example in enumerate(examples, start=1):
        (folder / f"example_{number}.py").write_text(example, encoding="utf-8")
    print(f"{len(examples)} examples of {readme.name}")


if __name__ == "__main__":
    main()
