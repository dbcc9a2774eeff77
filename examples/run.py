"""Execute the notebooks from top to bottom, each in a new kernel and an empty folder; exit with 1 if one fails.

    python -m pip install -c constraints.txt -e ".[examples]"
    python examples/run.py                        # all of them
    python examples/run.py examples/2_defend.ipynb

A cell may take two minutes. Warnings are errors. The files stay as they are.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

HERE = Path(__file__).parent
SECONDS = 120  # for one cell
STRICT = """import warnings
warnings.simplefilter("error")
warnings.filterwarnings("default", module=".*(ipykernel|matplotlib_inline)")  # what the kernel itself does is not ours
"""


def execute(path: Path) -> str | None:
    """What went wrong, if something did."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        try:
            NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return str(error)
    return None


def main(paths: list[Path]) -> int:
    failed = 0
    for path in paths:
        start = time.perf_counter()
        problem = execute(path)
        print(f"{path.name}: {'failed' if problem else 'passed'} after {time.perf_counter() - start:.0f} s", flush=True)
        if problem:
            print(problem, flush=True)
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main([Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb"))))
