"""The command line: ``equipoise`` or ``python -m equipoise``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from equipoise import __version__, demo
from equipoise._utils.command_line import folder, integer_from


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="equipoise", description="Byzantine-robust decentralized aggregation.")
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
    _add_demo(add("demo", help="train 20 clients under attack with every rule: a table and a picture"))
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"equipoise {options.command}: {error}", file=sys.stderr)
        return 2
    return code


def _add_demo(parser: argparse.ArgumentParser) -> None:
    rules, attacks = list(demo.RULES), list(demo.ATTACKS)
    add = parser.add_argument
    add("--seed", type=integer_from(0), default=0, help="decides everything that is random (default: 0)")
    add("--rounds", type=integer_from(1), default=demo.ROUNDS, help=f"of training (default: {demo.ROUNDS})")
    add("--rules", nargs="+", choices=rules, default=rules, metavar="RULE", help=f"of: {', '.join(rules)}")
    add("--attacks", nargs="+", choices=attacks, default=demo.SHOWN, metavar="ATTACK", help=f"of: {', '.join(attacks)}")
    add("--output", type=folder, default=".", metavar="DIR", help="where the picture goes (default: here)")
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


if __name__ == "__main__":
    sys.exit(main())
