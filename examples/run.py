"""Execute the notebooks, each in a new kernel and an empty folder; exit with 1 if one fails.

    python -m pip install -c constraints.txt -e ".[examples]"
    python examples/run.py                        # all of them
    python examples/run.py examples/2_defend.ipynb

A cell may take two minutes. Warnings are errors. The notebook files are not modified.
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
SECONDS = 120  # per cell
STRICT = """import warnings
warnings.simplefilter("error")
# Warnings of the kernel itself are not ours.
warnings.filterwarnings("default", module=".*(ipykernel|matplotlib_inline)")
"""


def execute(path: Path) -> str | None:
    """Execute a notebook; return the error, if there is one."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        try:
            client = NotebookClient(
                notebook, timeout=SECONDS, kernel_name="python3", resources=resources
            )
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return str(error)
    return None


def main(paths: list[Path]) -> int:
    failed = 0
    for path in paths:
        start = time.perf_counter()
        problem = execute(path)
        seconds = time.perf_counter() - start
        result = "failed" if problem else "passed"
        print(f"{path.name}: {result} after {seconds:.0f} s", flush=True)
        if problem:
            print(problem, flush=True)
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    chosen = [Path(name) for name in sys.argv[1:]]
    raise SystemExit(main(chosen or sorted(HERE.glob("*.ipynb"))))
