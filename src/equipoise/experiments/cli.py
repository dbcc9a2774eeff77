"""The command line: ``equipoise`` or ``python -m equipoise``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise.experiments import demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="equipoise", description="Byzantine-robust decentralized aggregation.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands.add_parser("demo", help="train 20 clients under attack with every rule: a table and a picture"))
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return code


def _add_demo(parser: argparse.ArgumentParser) -> None:
    rules, attacks = list(demo.RULES), list(demo.ATTACKS)
    add = parser.add_argument
    add("--seed", type=_integer(0), default=0, help="decides everything that is random (default: 0)")
    add("--rounds", type=_integer(1), default=demo.ROUNDS, help=f"of training (default: {demo.ROUNDS})")
    add("--rules", nargs="+", choices=rules, default=rules, metavar="RULE", help=f"of: {', '.join(rules)}")
    add("--attacks", nargs="+", choices=attacks, default=demo.SHOWN, metavar="ATTACK", help=f"of: {', '.join(attacks)}")
    add("--output", type=_folder, default=".", metavar="DIR", help="where the picture goes (default: here)")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    rules, attacks = (tuple(dict.fromkeys(names)) for names in (options.rules, options.attacks))
    try:
        demo.run(options.seed, options.rounds, rules, attacks, options.output)
    except ImportError as error:
        why = error.__cause__ or error
        print(f'The demo needs scikit-learn ({why}): pip install "equipoise[data,plots]"', file=sys.stderr)
        return 2
    return 0


def _integer(least: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"must be an integer >= {least}, found {text}")
        return number

    return integer


def _folder(text: str) -> Path:
    """A folder that can be written to; it is made if there is none."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"must be a folder, found {text}: {error.strerror}") from error
    if not os.access(text, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"must be a folder that can be written to, found {text}")
    return Path(text)
