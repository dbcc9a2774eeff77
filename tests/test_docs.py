"""Examples in the docs print the documented output, and API pages list all public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import equipoise as eq
import equipoise.testing
import equipoise.types

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = {"_build", "_generated", "examples"}  # by a build
PAGES = {
    str(path.relative_to(DOCS).with_suffix("")): path
    for path in DOCS.rglob("*.md")
    if path.relative_to(DOCS).parts[0] not in GENERATED
}
BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", flags=re.DOTALL | re.MULTILINE
)
GUIDES = [
    *("index", "start", "training-loop", "peers", "receiving", "partial-models", "simulator"),
    *(
        "sweeps",
        "checkpoints",
        "topologies",
        "data",
        "attacks",
        "your-own",
        "threat-model",
        "failures",
    ),
    *("transport-threats", "kernels"),
]
MODULES = [
    *(eq, equipoise.testing, equipoise.types),
    *(getattr(eq, name) for name in eq.__all__ if inspect.ismodule(getattr(eq, name))),
]


def read(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for files that examples save, and no windows."""
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("page", sorted(page for page in PAGES if BLOCK.search(read(page))))
def test_examples_print_their_output(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for number, (example, output) in enumerate(BLOCK.findall(read(page)), start=1):
        exec(compile(example, f"{PAGES[page]}, block {number}", "exec"), names)
        expected = output.splitlines() or re.findall(
            r"^\s*print\(.*\)  # (.*)$", example, flags=re.MULTILINE
        )
        assert capsys.readouterr().out.splitlines() == expected, f"block {number}"


def test_guides_have_examples() -> None:
    assert [page for page in GUIDES if not BLOCK.search(read(page))] == []


def test_pages_have_one_kind() -> None:
    """Every page is in one of the four tables of contents, and in one only."""
    tables = re.findall(r"```{toctree}\n(.*?)```", read("index"), flags=re.DOTALL)
    captions = [re.findall(r":caption: (.*)", table)[0] for table in tables]
    assert captions == ["Tutorials", "How-to guides", "Explanation", "Reference"]
    listed = [line for table in tables for line in table.splitlines() if line[:1] not in (":", "")]
    top = [page for page in PAGES if "/" not in page and page != "index"]
    assert sorted(listed) == sorted([*top, "examples/index", "api/index"])


@pytest.mark.parametrize("page", sorted(PAGES))
def test_all_python_is_run(page: str) -> None:
    """The pattern above finds all blocks of Python."""
    fences = re.findall(
        r"^\s*(?:`{3,}|~{3,}|:{3,}) *(.*(?:py|doctest).*)$", read(page), flags=re.MULTILINE
    )
    assert set(fences) <= {"python"}
    assert len(fences) == len(BLOCK.findall(read(page)))


@pytest.mark.parametrize("page", sorted(PAGES))
def test_figures_have_alt_text(page: str) -> None:
    assert re.findall(r"!\[\s*\]\(", read(page)) == []
    figures = re.findall(r"\{(?:figure|image)\} .*\n(.*)", read(page))
    assert [line for line in figures if not re.match(r":alt: \S", line)] == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_code_fits_the_column(page: str) -> None:
    lines = [line for example, _ in BLOCK.findall(read(page)) for line in example.splitlines()]
    assert [line for line in lines if len(line) > 90] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_are_documented(module: ModuleType) -> None:
    names = public_names(module)
    if module is not eq:
        names = [name for name in names if getattr(eq, name, None) is not getattr(module, name)]
    missing = {f"{module.__name__}.{name}" for name in names} - set(documented())
    assert sorted(missing) == []


def test_documented_names_exist() -> None:
    found = documented()
    assert len(found) == len(set(found)) > 100
    assert [name for name in found if resolve(name) is None] == []


def public_names(module: ModuleType) -> list[str]:
    """The names in ``__all__``, or else the classes and functions that the module defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and callable(value)
        if not hasattr(eq, name)
    ]


def documented() -> list[str]:
    directive = re.compile(r"^\.\. (?:auto\w+|py:type|py:data):: (\S+)$", flags=re.MULTILINE)
    return [
        name for page in PAGES if page.startswith("api/") for name in directive.findall(read(page))
    ]


def resolve(name: str) -> object:
    """The object with a dotted name, or None."""
    found: object = equipoise
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found
