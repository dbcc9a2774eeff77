"""Measure how a source tree reads: sizes, complexity, annotations, comments, line lengths, names.

    python -m benchmarks.style src/equipoise tests
    python -m benchmarks.style ../torchjd/src/torchjd ../torchjd/tests

The first argument is a package, the second, optional one the folder of its tests. The figures of
other projects in benchmarks/README.md were made by the same command.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from radon.complexity import cc_visit

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPLEX = 10
WIDE = 100


def measure(package: Path, tests: Path | None = None) -> dict[str, str]:
    """One row of figures per property, as the table in benchmarks/README.md shows them."""
    files = sorted(package.rglob("*.py"))
    texts = [file.read_text() for file in files]
    lines = [line for text in texts for line in text.splitlines()]
    trees = [ast.parse(text) for text in texts]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, Function)]
    assignments = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assign)
    ]
    modules = [file for file in files if not file.name.startswith("__")]
    found = {
        "files": f"{len(files)}",
        "lines": f"{len(lines)}",
        "file lines, median / p90 / max": spread([len(text.splitlines()) for text in texts]),
        "function body, median / p90 / max": spread([body_lines(node) for node in functions]),
        f"cyclomatic complexity > {COMPLEX}": f"{sum(map(complex_functions, texts))}",
        "annotated": percent(map(is_annotated, functions)),
        "comment density": f"{100 * sum(map(comment_lines, texts)) / len(lines):.1f} %",
        "`a, b = x, y` packing": percent(map(is_packed, assignments)),
        f"lines over {WIDE} columns": percent(len(line) > WIDE for line in lines),
        "underscore modules": f"{sum(map(is_private, modules))} of {len(modules)}",
    }
    if tests is not None:
        names = list(test_names(tests))
        found["test name, median length"] = f"{statistics.median(map(len, names)):.0f}"
    return found


def spread(values: Sequence[int]) -> str:
    ninety = sorted(values)[int(0.9 * len(values))]
    return f"{statistics.median(values):.0f} / {ninety} / {max(values)}"


def percent(marks: Iterator[bool]) -> str:
    chosen = list(marks)
    return f"{100 * sum(chosen) / max(1, len(chosen)):.1f} %"


def body_lines(function: Function) -> int:
    """Lines of the statements, without signature and docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def complex_functions(text: str) -> int:
    blocks = [block for found in cc_visit(text) for block in getattr(found, "methods", [found])]
    return len({block.lineno for block in blocks if block.complexity > COMPLEX})


def is_annotated(function: Function) -> bool:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named = [argument for argument in named if argument.arg not in ("self", "cls")]
    return function.returns is not None and all(argument.annotation for argument in named)


def comment_lines(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def is_packed(node: ast.Assign) -> bool:
    """Whether one statement assigns several values to several names, as in ``a, b = x, y``."""
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def is_private(module: Path) -> bool:
    """Whether a module, or a package that it is in, is marked as internal."""
    return any(part.startswith("_") for part in module.parts)


def test_names(tests: Path) -> Iterator[str]:
    for file in [*tests.rglob("test_*.py"), *tests.rglob("*_test.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, Function) and node.name.startswith("test_"):
                yield node.name


def main() -> None:
    package, *tests = map(Path, sys.argv[1:])
    for name, value in measure(package, *tests).items():
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
