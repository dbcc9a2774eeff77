"""The command line: ``equipoise`` or ``python -m equipoise``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from equipoise import __version__, demo
from equipoise._utils.command_line import folder, integer_from, name_from
from equipoise.peers._command_line import add_peers_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="equipoise", description="Byzantine-robust decentralized aggregation for PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    summary = "compare eleven rules under attack; print a table and save a figure"
    _add_demo_options(commands.add_parser("demo", help=summary, description=demo.__doc__))
    summary = "prepare peers: clients that are processes of their own"
    add_peers_commands(commands.add_parser("peers", help=summary, description=summary))
    # None: argparse then reads sys.argv.
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells report it
    # Expected errors: one line without a traceback, and the exit code of argparse.
    except (ValueError, OSError, ImportError) as error:
        print(f"equipoise {options.command}: {error}", file=sys.stderr)
        return 2
    return code


def _add_demo_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--seed",
        type=integer_from(0),
        default=0,
        help="seed of data, graph and training (default: 0)",
    )
    add(
        "--rounds",
        type=integer_from(1),
        default=demo.ROUNDS,
        help=f"number of training rounds (default: {demo.ROUNDS})",
    )
    add(
        "--rules",
        nargs="+",
        type=name_from(demo.RULES),
        default=tuple(demo.RULES),
        metavar="RULE",
        help=f"rules to compare: {', '.join(demo.RULES)} (default: all)",
    )
    add(
        "--attacks",
        nargs="+",
        type=name_from(demo.ATTACKS),
        default=demo.SHOWN,
        metavar="ATTACK",
        help=f"attacks to run: {', '.join(demo.ATTACKS)} (default: {', '.join(demo.SHOWN)})",
    )
    add(
        "--output",
        type=folder,
        default=".",
        metavar="DIR",
        help="folder for the figure (default: the current folder)",
    )
    # Each command sets the function that `main` calls.
    parser.set_defaults(run=_run_demo)


def _run_demo(options: argparse.Namespace) -> int:
    rules = tuple(dict.fromkeys(options.rules))  # a name given twice runs once
    attacks = tuple(dict.fromkeys(options.attacks))
    try:
        demo.run(options.seed, options.rounds, rules, attacks, options.output)
    except ImportError as error:
        # The cause names the missing module; the error itself names one extra only.
        reason = error.__cause__ or error
        command = 'pip install "equipoise[data,plots,sweeps]"'
        print(f"The demo needs further packages ({reason}): {command}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
