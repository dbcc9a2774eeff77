"""Mutation testing: change the source in one place, and see whether the tests notice.

    python -m benchmarks.mutation --count 300 --output full.csv -- -m "exhaustive or not exhaustive"
    python -m benchmarks.mutation --count 300 --output default.csv

draws the same mutants of ``rules`` and ``messages`` from all that cosmic-ray can make, and runs
the tests that reach these rooms for each, with the options after ``--``. Every outcome is one row
of the CSV file; the same command continues where it was interrupted. Needs a clone and
``cosmic-ray``.

Mutants work on a copy of the clone: run two commands with ``--part 0/2`` and ``--part 1/2``, and
two files, on two cores.
"""

from __future__ import annotations

import argparse
import ast
import csv
import itertools
import os
import random
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parent.parent
ROOMS = ("rules", "messages")
COLUMNS = ("module", "line", "column", "operator", "occurrence", "outcome", "change")
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "conftest.py", "pyproject.toml")
# A few seconds of tests notice most mutants; the others are run only for the rest.
QUICK_TESTS = (
    *("src/equipoise/rules", "src/equipoise/messages", "tests/rules/test_worked_values.py"),
    *("tests/rules/test_wrong_arguments.py", "tests/messages/test_inbox.py"),
    *("tests/messages/test_lies.py", "tests/messages/test_parsing.py"),
)
TESTS = (
    *("tests/messages", "tests/rules", "tests/error_messages", "tests/test_defaults.py"),
    *("tests/test_acceptance.py", "tests/topology", "tests/simulation/test_attacked_rounds.py"),
)
TIMEOUT = 900  # seconds: a mutant that loops forever counts as noticed


def all_mutants(clone: Path) -> list[MutationSpec]:
    """All mutants of the rooms, without those that cannot change anything."""
    modules = [file for room in ROOMS for file in (clone / "src/equipoise" / room).rglob("*.py")]
    modules = [file for file in sorted(modules) if file.name != "__init__.py"]
    with (
        tempfile.TemporaryDirectory() as folder,
        use_db(str(Path(folder, "mutants.sqlite")), WorkDB.Mode.create) as database,
    ):
        init(modules, database, {})
        found = [item.mutations[0] for item in database.work_items]
    unevaluated = {module: annotated_places(module) for module in modules}
    kept = [one for one in found if tuple(one.start_pos) not in unevaluated[one.module_path]]
    return sorted(kept, key=lambda one: (str(one.module_path), one.operator_name, one.occurrence))


def draw(mutants: list[MutationSpec], count: int, seed: int) -> list[MutationSpec]:
    """Random mutants that are valid Python; others would be noticed without any test."""
    shuffled = random.Random(seed).sample(mutants, len(mutants))
    return list(itertools.islice(filter(compiles, shuffled), count))


def compiles(mutant: MutationSpec) -> bool:
    operator = get_operator(mutant.operator_name)(**mutant.operator_args)
    code = mutate_code(mutant.module_path.read_text(), operator, mutant.occurrence)
    try:
        ast.parse(code or "")
    except SyntaxError:  # such as `>>` for the bare `*` of a signature
        return False
    return code is not None


def annotated_places(module: Path) -> set[tuple[int, int]]:
    """Positions within annotations, which are never evaluated."""
    places = set()
    for node in ast.walk(ast.parse(module.read_text())):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for annotation in annotations:
            if not isinstance(annotation, ast.AST):
                continue
            for line in range(annotation.lineno, annotation.end_lineno + 1):
                places |= {(line, column) for column in columns_of(annotation, line)}
    return places


def columns_of(node: ast.expr, line: int) -> range:
    first = node.col_offset if line == node.lineno else 0
    last = node.end_col_offset if line == node.end_lineno else 1000
    return range(first, last)


def key_of(mutant: MutationSpec, clone: Path) -> tuple[str, str, str]:
    module = str(mutant.module_path.relative_to(clone))
    return module, mutant.operator_name, str(mutant.occurrence)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--part", default="0/1", help="which share of the mutants to run, as 0/2")
    parser.add_argument("--output", type=Path, required=True, help="CSV file of outcomes")
    parser.add_argument("options", nargs="*", help="options for pytest, after --")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    done = set()
    if options.output.exists():
        with open(options.output, newline="") as file:
            done = {
                (row["module"], row["operator"], row["occurrence"]) for row in csv.DictReader(file)
            }
    else:
        options.output.write_text(",".join(COLUMNS) + "\n")
    output = options.output.resolve()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder).resolve()
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, clone / name)
        mutants = all_mutants(clone)
        chosen = draw(mutants, options.count, options.seed)
        os.chdir(clone)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(clone / "src"), str(clone)])
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n0"]
        quick = shlex.join([*words, *options.options, *QUICK_TESTS])
        thorough = shlex.join([*words, *options.options, *TESTS])
        print(f"{len(mutants)} mutants, {len(chosen)} drawn: {thorough}", flush=True)
        for number, mutant in enumerate(chosen):
            key = key_of(mutant, clone)
            if number % parts != part or key in done:
                continue
            result = mutate_and_test([mutant], quick, TIMEOUT)
            if result.test_outcome == TestOutcome.SURVIVED:
                result = mutate_and_test([mutant], thorough, TIMEOUT)
            lines = (result.diff or "").splitlines()
            change = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
            row = [
                key[0],
                *mutant.start_pos,
                key[1],
                key[2],
                result.test_outcome.value,
                " / ".join(change),
            ]
            with open(output, "a", newline="") as file:
                csv.writer(file).writerow(row)
            print(number, *row[:2], row[5], row[6], flush=True)


if __name__ == "__main__":
    main()
