"""Checks of an installed equipoise: it is complete, imports nothing heavy, and imports fast."""

from __future__ import annotations

import sys
import time
from importlib.metadata import entry_points, version
from importlib.resources import files

import networkx  # noqa: F401  (what equipoise cannot do without is not its import time)
import numpy  # noqa: F401
import torch  # noqa: F401

HEAVY = {"cryptography", "grpc", "hypothesis", "matplotlib", "pandas", "scipy", "sklearn"}
SECONDS = 2.0


class Watch:
    """Notes which heavy packages are asked for, installed or not."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing, so that the import goes on as it would."""
        self.seen |= {name.partition(".")[0]} & HEAVY


def main() -> None:
    """Import equipoise and say what was found."""
    watch = Watch()
    sys.meta_path.insert(0, watch)  # type: ignore[arg-type]
    start = time.perf_counter()
    import equipoise

    seconds = time.perf_counter() - start
    print(
        f"equipoise {equipoise.__version__}, imported in {seconds:.2f} s on top of torch, "
        f"networkx and numpy"
    )
    assert "site-packages" in str(equipoise.__file__), (
        f"not the installed package: {equipoise.__file__}"
    )
    assert equipoise.__version__ == version("equipoise"), f"metadata says {version('equipoise')}"
    assert files("equipoise").joinpath("py.typed").is_file(), "py.typed is missing"
    assert not watch.seen, f"import equipoise asks for {sorted(watch.seen)}"
    assert seconds < SECONDS, f"import equipoise takes more than {SECONDS} s"
    (script,) = entry_points(group="console_scripts", name="equipoise")
    assert callable(script.load()), f"{script.value} cannot be called"


if __name__ == "__main__":
    main()
