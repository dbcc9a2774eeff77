"""The command line: ``equipoise`` or ``python -m equipoise``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from equipoise.experiments import demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="equipoise", description="Byzantine-robust decentralized aggregation.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser("demo", help="train 20 clients under attack with every rule, and print a table")
    show.add_argument("--seed", type=int, default=0, help="decides the graph, the data and the noise (default 0)")
    options = parser.parse_args(arguments)
    demo.run(options.seed)
    return 0
