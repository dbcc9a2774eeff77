"""Run the example grid in one process, and on two nodes of Ray by one changed line."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import equipoise as eq
from tests.sweeps import small


def main(example: Path) -> None:
    """Compare the two, and check what a cluster adds."""
    # Fewer rounds and seeds: what is tested are the processes.
    script = example.read_text().replace("total=100", "total=3").replace("range(3)", "range(1)")
    changed = re.sub(r'folder="grid"', 'folder="ray", backend="ray"', script)
    lines = zip(script.splitlines(), changed.splitlines(), strict=True)
    assert sum(one != other for one, other in lines) == 1
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    try:
        # As a user's script would find it: by its address in the environment.
        os.environ["RAY_ADDRESS"] = cluster.address
        ray.init()
        assert len(ray.nodes()) == 2
        compare(run(script), run(changed))
        check_nodes_and_failures()
        print("Two nodes of Ray return what one process returns.")
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(script: str) -> eq.sweeps.Results:
    """Run a script and return its results."""
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(script, "grid.py", "exec"), names)
    results = names["results"]
    assert isinstance(results, eq.sweeps.Results)
    return results


def compare(one: eq.sweeps.Results, other: eq.sweeps.Results) -> None:
    """Check that all cells finished with equal histories."""
    assert len(one) == len(other) == 36
    for cell, twin in zip(one, other, strict=True):
        assert cell.labels == twin.labels
        assert cell.history is not None
        assert cell.history == twin.history, cell.labels


def check_nodes_and_failures() -> None:
    """Both nodes take part, a failure is a cell, and finished cells do not run again."""

    def node(simulator: eq.Simulator) -> dict[str, str]:
        # Long enough for the process of the other node to start meanwhile.
        time.sleep(2)
        return {"node": ray.get_runtime_context().get_node_id()}

    with tempfile.TemporaryDirectory() as folder:
        options = {"backend": "ray", "folder": folder, "seed": range(6)}
        first = eq.sweep(small.make, measure=node, **options)
        nodes = {cell.measured["node"] for cell in first}
        assert len(nodes) == 2, nodes
        again = eq.sweep(small.make, measure=node, **options)
        assert [cell.measured for cell in again] == [cell.measured for cell in first]
    rules = [eq.Median(), eq.FedAvg()]
    results = eq.sweep(small.fails_on_median, rule=rules, seed=[0], backend="ray")
    assert [bool(cell.failure) for cell in results] == [True, False]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
