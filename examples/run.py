"""Execute the notebooks, lora.py and peers.py, each in an empty folder; exit with 1 if one fails.

    python -m pip install -c constraints.txt -e ".[examples]"
    python examples/run.py                        # all of them
    python examples/run.py examples/2_defend.ipynb

A cell may take two minutes, a script four. Warnings are errors. The notebooks are not modified.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

HERE = Path(__file__).parent
SECONDS = 120  # per cell
SCRIPT_SECONDS = 240
SCRIPTS = [HERE / "lora.py", HERE / "peers.py"]
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


def run_script(path: Path) -> str | None:
    """Run a script; return its output if it fails."""
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                [sys.executable, str(path)],
                cwd=folder,
                env=environment,
                timeout=SCRIPT_SECONDS,
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            return f"{error}\n{error.output}"
    return None


def main(paths: list[Path]) -> int:
    failed = 0
    for path in paths:
        start = time.perf_counter()
        problem = run_script(path) if path.suffix == ".py" else execute(path)
        seconds = time.perf_counter() - start
        result = "failed" if problem else "passed"
        print(f"{path.name}: {result} after {seconds:.0f} s", flush=True)
        if problem:
            print(problem, flush=True)
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    chosen = [Path(name) for name in sys.argv[1:]]
    raise SystemExit(main(chosen or [*sorted(HERE.glob("*.ipynb")), *SCRIPTS]))
