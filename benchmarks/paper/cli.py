"""The command line: ``python -m benchmarks.paper``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper import commands
from benchmarks.paper.registry import ATTACKS, GRAPHS, REGULAR, RULES, check_name
from benchmarks.paper.setting import NONFINITE, PARTITIONS, STARTS, WINDOWS, Setting
from benchmarks.paper.tables import TABLES
from benchmarks.paper.tasks import TASKS, fetch
from equipoise import __version__
from equipoise._utils.command_line import folder, integer_from, positive

ROOT = "EQUIPOISE_DATA"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    about = "Reproduce the BALANCE paper (Fang et al., CCS 2024)."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=about)
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
    _add_list(add("list", help="list rules, attacks, graphs, data sets and tables"))
    _add_run(add("run", help="train one setting"))
    _add_table(add("table", help="run the missing cells of a table or figure"))
    _add_report(add("report", help="print the results next to the paper's figures"))
    _add_compare(add("compare", help="compare two folders of results"))
    _add_theory(add("theory", help="check Theorem 1 on synthetic data"))
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        hint = "; the same command resumes" if options.command in ("run", "table") else ""
        print(f"Interrupted{hint}.", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"{options.command}: {_in_options(str(error))}", file=sys.stderr)
        return 2
    return code


def _in_options(message: str) -> str:
    """Replace the advice of a loader by the options of the command line."""
    advice = ", name another folder with --root, or give --download"
    return message.replace(", or load it with download=True", advice)


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=lambda options: commands.show_names())


def _add_run(parser: argparse.ArgumentParser) -> None:
    default = Setting()

    def add(name: str, about: str, default: object = None, **how: object) -> None:
        shown = "depends on the data set" if default in ("", 0, 0.0) else default
        parser.add_argument(name, default=default, help=f"{about} (default: {shown})", **how)  # type: ignore[arg-type]

    def add_name(name: str, about: str, default: str, known: Sequence[str]) -> None:
        # Setting checks names: unlike argparse, it suggests the nearest one.
        add(name, f"{about}: {', '.join(known)}", default, metavar="NAME")

    add_name("--data", "data set", default.data, list(TASKS))
    add_name("--rule", "aggregation rule", default.rule, list(RULES))
    add_name("--attack", "attack", default.attack, list(ATTACKS))
    add_name("--graph", "graph", "", [*REGULAR, *GRAPHS])
    add("--malicious", "share of malicious clients", default.malicious, type=float, metavar="SHARE")
    add_name("--partition", "division of the examples between clients", "", PARTITIONS)
    add(
        "--alpha",
        "weight of the client's own model: a number, per-client or each-round (random)",
        default.alpha,
    )
    parser.add_argument(
        "--own",
        action="store_true",
        help="aggregate the own model together with the received ones, without alpha",
    )
    add_name("--start", "initial models of the clients", default.start, STARTS)
    parser.add_argument(
        "--disconnect",
        type=float,
        default=default.disconnect,
        metavar="P",
        help="probability that a client is offline in a round (default: 0)",
    )
    add_name("--window", "rounds with an attack", default.window, WINDOWS)
    add("--gamma", "Balance's acceptance radius", default.gamma, type=float)
    add("--kappa", "decay of Balance's acceptance radius", default.kappa, type=float)
    add("--rounds", "rounds of training", 0, type=integer_from(1))
    add("--step", "factor of the paper's learning rate", 0.0, type=positive)
    add("--batch", "examples per batch", default.batch, type=integer_from(1))
    add("--local-steps", "steps of training per round", default.local_steps, type=integer_from(1))
    add_name("--nonfinite", "messages with NaN or infinities", default.nonfinite, NONFINITE)
    _add_seed(parser)
    parser.add_argument(
        "--test-last",
        type=integer_from(0),
        default=0,
        metavar="COUNT",
        help="also evaluate the models after each of the last COUNT rounds",
    )
    _add_folders(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    setting = Setting(**{name: getattr(options, name) for name in Setting.names()})
    if options.download:
        fetch(setting.data, options.root)
    return commands.run_one(setting, options.seed, options.root, options.results, options.test_last)


def _add_table(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help=f"one of: {', '.join(TABLES)}")
    add(
        "--seeds",
        type=integer_from(1),
        default=1,
        metavar="COUNT",
        help="number of seeds, from 0 (default: 1)",
    )
    add(
        "--processes",
        type=integer_from(1),
        default=os.cpu_count() or 1,
        help="worker processes, one thread each (default: number of cores)",
    )
    add("--rows", nargs="+", default=(), metavar="NAME", help="run only these rows")
    add("--columns", nargs="+", default=(), metavar="NAME", help="run only these columns")
    add(
        "--rounds",
        type=integer_from(1),
        default=0,
        help="rounds of training (default: those of the table)",
    )
    _add_folders(parser)
    parser.set_defaults(run=_table)


def _table(options: argparse.Namespace) -> int:
    check_name("NAME", options.name, TABLES)
    if options.download:
        for name in {setting.data for _, _, setting in TABLES[options.name].cells()}:
            fetch(name, options.root)
    return commands.run_table(
        options.name,
        range(options.seeds),
        options.rows,
        options.columns,
        options.rounds,
        options.processes,
        options.root,
        options.results,
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    known = ", ".join(TABLES)
    add(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"tables (default: all that have results), of: {known}",
    )
    add(
        "--output",
        type=folder,
        metavar="DIR",
        help="also write the report, a CSV file for each table, and pictures to this folder",
    )
    add(
        "--rounds",
        type=integer_from(1),
        default=0,
        help="report results with this number of rounds (default: that of the table)",
    )
    add(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder of the results (default: results)",
    )
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    return commands.report(options.names, options.results, options.rounds, options.output)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help="a folder of results")
    parser.set_defaults(run=lambda options: commands.compare(options.first, options.second))


def _add_theory(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_seed(parser)
    add("--rounds", type=integer_from(1), default=0, help="rounds of training (default: 300)")
    add(
        "--output",
        type=folder,
        default=".",
        metavar="DIR",
        help="folder for the numbers and a picture (default: the current one)",
    )
    parser.set_defaults(run=_theory)


def _theory(options: argparse.Namespace) -> int:
    return commands.check_theorem(options.seed, options.rounds, options.output)


def _add_seed(parser: argparse.ArgumentParser) -> None:
    about = "seed of all random choices (default: 0)"
    parser.add_argument("--seed", type=integer_from(0), default=0, help=about)


def _add_folders(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    root = os.environ.get(ROOT, "data")
    add(
        "--root",
        default=root,
        metavar="DIR",
        help=f"folder of the data sets (default: ${ROOT}, else data; now: {root})",
    )
    add("--download", action="store_true", help="download the data set first if it is missing")
    add(
        "--results",
        type=folder,
        default="results",
        metavar="DIR",
        help="folder for the results (default: results)",
    )
