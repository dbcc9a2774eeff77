"""The command line: ``python -m benchmarks.paper``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper import commands
from benchmarks.paper.registry import ATTACKS, GRAPHS, REGULAR, RULES
from benchmarks.paper.setting import PARTITIONS, WINDOWS, Setting
from benchmarks.paper.tables import TABLES
from benchmarks.paper.tasks import TASKS, fetch
from equipoise import __version__
from equipoise._utils.command_line import folder, integer_from, positive

ROOT = "EQUIPOISE_DATA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="Reproduce the BALANCE paper.")
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
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
        print(f"{options.command}: {_in_options(str(error))}", file=sys.stderr)
        return 2
    return code


def _in_options(message: str) -> str:
    """What a loader advises, in the words of the command line."""
    return message.replace(", or load it with download=True", ", name another folder with --root, or give --download")


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
    add("--rounds", type=integer_from(1), default=0, help="of training (default: those of the data set)")
    add("--step", type=positive, default=0.0, help="times the paper's learning rate (default: as calibrated)")
    add("--batch", type=integer_from(1), default=default.batch, help=f"examples in a batch (default: {default.batch})")
    add("--local-steps", type=integer_from(1), default=1, help="steps of local training in a round (default: 1)")
    add("--nonfinite", choices=("absent", "kept"), default="absent", help="messages with NaN (default: absent)")
    add("--seed", type=integer_from(0), default=0, help="decides everything that is random (default: 0)")
    add("--test-last", type=integer_from(0), default=0, metavar="COUNT", help="test after each of the last rounds, too")
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
    add("--seeds", type=integer_from(1), default=1, metavar="COUNT", help="how many seeds, from 0 on (default: 1)")
    add(
        "--processes", type=integer_from(1), default=os.cpu_count() or 1, help="of one thread each (default: all cores)"
    )
    add("--rows", nargs="+", default=(), metavar="NAME", help="only these (default: all)")
    add("--columns", nargs="+", default=(), metavar="NAME", help="only these (default: all)")
    add("--rounds", type=integer_from(1), default=0, help="of training (default: those of the table)")
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
    add("--output", type=folder, metavar="DIR", help="also write a CSV file for each table, and pictures, there")
    add("--rounds", type=integer_from(1), default=0, help="of results (default: those of the table)")
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
    add("--seed", type=integer_from(0), default=0, help="decides everything that is random (default: 0)")
    add("--rounds", type=integer_from(1), default=0, help="of training (default: 300)")
    add("--output", type=folder, default=".", metavar="DIR", help="where numbers and a picture go (default: here)")
    parser.set_defaults(run=lambda options: commands.check_theorem(options.seed, options.rounds, options.output))


def _add_folders(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    root = os.environ.get(ROOT, "data")
    add("--root", default=root, metavar="DIR", help=f"where data sets are (default: ${ROOT}, or data; now {root})")
    add("--download", action="store_true", help="first download what is missing of the data set")
    add("--results", type=folder, default="results", metavar="DIR", help="where results go (default: results)")
