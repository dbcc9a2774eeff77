"""The command line: ``equipoise`` or ``python -m equipoise``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise import __version__
from equipoise.experiments import commands, demo
from equipoise.experiments.names import ATTACKS, GRAPHS, REGULAR, RULES
from equipoise.experiments.settings import PARTITIONS, WINDOWS, Setting
from equipoise.experiments.tables import TABLES
from equipoise.experiments.tasks import TASKS, fetch

ROOT = "EQUIPOISE_DATA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="equipoise", description="Byzantine-robust decentralized aggregation.")
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
    _add_demo(add("demo", help="train 20 clients under attack with every rule: a table and a picture"))
    _add_list(add("list", help="the names of rules, attacks, graphs, data sets and tables"))
    _add_run(add("run", help="train one setting of the BALANCE paper"))
    _add_table(add("table", help="run all settings of a table or figure of the BALANCE paper that have not been run"))
    _add_report(add("report", help="what was measured next to what the paper prints"))
    _add_compare(add("compare", help="whether two folders of results say the same"))
    _add_theory(add("theory", help="check Theorem 1 of the BALANCE paper on synthetic data"))
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        again = "; the same command goes on from here" if options.command in ("run", "table") else ""
        print(f"Interrupted{again}.", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"equipoise {options.command}: {_in_options(str(error))}", file=sys.stderr)
        return 2
    return code


def _in_options(message: str) -> str:
    """What a loader advises, in the words of the command line."""
    return message.replace(", or load it with download=True", ", name another folder with --root, or give --download")


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


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=lambda options: commands.show_names())


def _add_run(parser: argparse.ArgumentParser) -> None:
    add, default = parser.add_argument, Setting()
    graphs = (*REGULAR, *GRAPHS)
    add("--data", choices=TASKS, default="mnist", metavar="NAME", help=f"of: {', '.join(TASKS)} (default: mnist)")
    add("--rule", choices=RULES, default="BALANCE", metavar="NAME", help=f"of: {', '.join(RULES)} (default: BALANCE)")
    add("--attack", choices=ATTACKS, default="No", metavar="NAME", help=f"of: {', '.join(ATTACKS)} (default: No)")
    add("--graph", default="", metavar="NAME", help=f"of: {', '.join(graphs)} (default: that of the data set)")
    add("--malicious", type=float, default=0.2, metavar="SHARE", help="of the clients (default: 0.2)")
    add("--partition", default="", metavar="NAME", help=f"{PARTITIONS} (default: that of the data set)")
    add("--alpha", default="0.5", help="the share of own: a number, Case-I or Case-II (default: 0.5)")
    add("--own", action="store_true", help="aggregate own together with what was received, without alpha")
    add("--start", choices=("same", "different"), default="same", help="initial models (default: same)")
    add("--disconnect", type=float, default=0.0, metavar="P", help="probability to be offline in a round (default: 0)")
    add("--window", choices=WINDOWS, default="all", help="rounds in which there is an attack (default: all)")
    add("--gamma", type=float, default=default.gamma, help=f"of BALANCE (default: {default.gamma})")
    add("--kappa", type=float, default=default.kappa, help=f"of BALANCE (default: {default.kappa})")
    add("--rounds", type=_integer(1), default=0, help="of training (default: those of the data set)")
    add("--step", type=_positive, default=0.0, help="times the paper's learning rate (default: as calibrated)")
    add("--batch", type=_integer(1), default=default.batch, help=f"examples in a batch (default: {default.batch})")
    add("--local-steps", type=_integer(1), default=1, help="steps of local training in a round (default: 1)")
    add("--nonfinite", choices=("absent", "kept"), default="absent", help="messages with NaN (default: absent)")
    add("--seed", type=_integer(0), default=0, help="decides everything that is random (default: 0)")
    add("--test-last", type=_integer(0), default=0, metavar="COUNT", help="test after each of the last rounds, too")
    _add_folders(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    setting = Setting(**{name: getattr(options, name) for name in Setting.names()})
    if options.download:
        fetch(setting.data, options.root)
    return commands.run_one(setting, options.seed, options.root, options.results, options.test_last)


def _add_table(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", choices=TABLES, metavar="NAME", help=f"of: {', '.join(TABLES)}")
    add("--seeds", type=_integer(1), default=1, metavar="COUNT", help="how many seeds, from 0 on (default: 1)")
    add("--processes", type=_integer(1), default=os.cpu_count() or 1, help="of one thread each (default: all cores)")
    add("--rows", nargs="+", default=(), metavar="NAME", help="only these (default: all)")
    add("--columns", nargs="+", default=(), metavar="NAME", help="only these (default: all)")
    add("--rounds", type=_integer(1), default=0, help="of training (default: those of the table)")
    _add_folders(parser)
    parser.set_defaults(run=_table)


def _table(options: argparse.Namespace) -> int:
    if options.download:
        for name in {setting.data for _, _, setting in TABLES[options.name].cells()}:
            fetch(name, options.root)
    return commands.run_table(
        *(options.name, range(options.seeds), options.rows, options.columns),
        *(options.rounds, options.processes, options.root, options.results),
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"tables (default: all that have results), of: {', '.join(TABLES)}")
    add("--output", type=_folder, metavar="DIR", help="also write a CSV file for each table, and pictures, there")
    add("--rounds", type=_integer(1), default=0, help="of results (default: those of the table)")
    add("--results", type=Path, default=Path("results"), metavar="DIR", help="where results are (default: results)")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    for name in options.names:
        if name not in TABLES:
            raise ValueError(f"NAME must be one of {', '.join(TABLES)}, found {name!r}")
    return commands.report(options.names, options.results, options.rounds, options.output)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help="a folder of results")
    parser.set_defaults(run=lambda options: commands.compare(options.first, options.second))


def _add_theory(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seed", type=_integer(0), default=0, help="decides everything that is random (default: 0)")
    add("--rounds", type=_integer(1), default=0, help="of training (default: 300)")
    add("--output", type=_folder, default=".", metavar="DIR", help="where numbers and a picture go (default: here)")
    parser.set_defaults(run=lambda options: commands.check_theorem(options.seed, options.rounds, options.output))


def _add_folders(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    root = os.environ.get(ROOT, "data")
    add("--root", default=root, metavar="DIR", help=f"where data sets are (default: ${ROOT}, or data; now {root})")
    add("--download", action="store_true", help="first download what is missing of the data set")
    add("--results", type=_folder, default="results", metavar="DIR", help="where results go (default: results)")


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


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number > 0, found {text}")
    return number


def _folder(text: str) -> Path:
    """A folder that can be written to; it is made if there is none."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"must be a folder, found {text}: {error.strerror}") from error
    if not os.access(text, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"must be a folder that can be written to, found {text}")
    return Path(text)
