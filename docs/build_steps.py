"""Hooks of the build: draw figures, copy notebooks, and link names to their documentation."""

import inspect
import json
import re
import shutil
from functools import cache
from pathlib import Path

import pictures
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.nodes import make_refnode

import equipoise
import equipoise.testing
from equipoise.topology import library_rules

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "examples"
GALLERY = HERE / "examples"
BENCHMARKS = HERE.parent / "benchmarks" / "README.md"
FAILURES = HERE / "failures.md"
MODULES = (
    *("", "attacks", "data", "kernels", "messages", "metrics"),
    *("models", "peers", "plots", "rules", "sweeps", "testing", "types"),
)
# A section of failures.md: rules, and what breaks them.
FAILURE = re.compile(r"^## ([^:\n]+): (.*)$", flags=re.MULTILINE)
# A row of the table in examples/README.md.
ROW = re.compile(r"^\| \[((\d)\w+)\.ipynb\]\([\w.]+\) \| (.*) \|$", flags=re.MULTILINE)
INDEX = """# Examples

Notebooks, executed while this site was built. Each is self-contained, takes less than two minutes
on two cores, and downloads nothing. Start with the first, or with the fourth if you already have a
training loop.

::::{{container}} gallery two
{cards}
::::

```{{toctree}}
:hidden:
:glob:
*
```
"""
CARD = """:::{{figure}} ../_generated/example-{number}.svg
:alt: Thumbnail of the example.
:target: {page}.html

**[{title}]({page}.ipynb)**<br>{text}
:::"""


def connect(app):
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    fetch_notebooks(NOTEBOOKS, GALLERY)  # before Sphinx collects documents
    app.connect("builder-inited", lambda app: pictures.draw_all(HERE / "_generated"))
    app.connect(
        "builder-inited", keep_outputs_inside, priority=900
    )  # after myst-nb has set its own folder
    app.connect("source-read", link_to_pages)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", link_to_failure, priority=600)  # after napoleon
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("missing-reference", find_public_name)
    app.connect("doctree-resolved", link_names)


def fetch_notebooks(source, target):
    """Copy notebooks and the scripts that they name into the source folder, with an index.

    Git ignores the copies, so that every notebook has one place.
    """
    target.mkdir(exist_ok=True)
    found = sorted(source.glob("*.ipynb"))
    for copy in target.glob("*.ipynb"):
        copy.unlink()
    texts = [notebook.read_text("utf-8") for notebook in found]
    scripts = [path for path in source.glob("*.py") if any(path.name in text for text in texts)]
    for path in [*found, *scripts]:
        shutil.copy(path, target)
    rows = ROW.findall((source / "README.md").read_text("utf-8"))
    cards = [
        CARD.format(number=number, page=page, title=title_of(source / f"{page}.ipynb"), text=text)
        for page, number, text in rows
    ]
    (target / "index.md").write_text(INDEX.format(cards="\n".join(cards)), encoding="utf-8")


def keep_outputs_inside(app):
    """Save notebook outputs inside the output folder; myst-nb would save them beside it."""
    folder = Path(app.doctreedir) / "notebooks"
    app.env.mystnb_config = app.env.mystnb_config.copy(output_folder=str(folder))


def title_of(notebook):
    return (
        json.loads(notebook.read_text("utf-8"))["cells"][0]["source"][0].removeprefix("# ").strip()
    )


def link_to_pages(app, docname, content):
    """Turn links between files of the repository into links between pages of the site."""
    if docname == "benchmarks":
        app.env.note_dependency(str(BENCHMARKS))
        text = BENCHMARKS.read_text(encoding="utf-8").replace("](../docs/", "](")
        content[0] = re.sub(r"\]\((?=\w+\.(?:json|csv)\))", "](../benchmarks/", text)
    content[0] = content[0].replace("](../benchmarks/README.md", "](benchmarks.md")


def keep_colons(app, what, name, obj, options, lines):
    """Prevent Napoleon from parsing "Number of slots: the largest in-degree" as a type."""
    if what in ("property", "attribute", "data"):
        lines[:0] = ["..", ""]


def link_to_failure(app, what, name, obj, options, lines):
    """End the description of a rule with a link to what breaks it."""
    if obj not in library_rules:
        return
    for rules, failure in FAILURE.findall(FAILURES.read_text("utf-8")):
        if re.search(rf"\b{obj.__name__}\b", rules):
            anchor = re.sub(r"[^a-z ]", "", f"{rules} {failure}".lower()).replace(" ", "-")
            lines += ["", f"How it fails: `{failure} <../failures.html#{anchor}>`__."]


def shorten_defaults(app, what, name, obj, options, signature, returns):
    """Replace defaults like ``<factory>`` and ``<function f>``, which break the signature.

    Protocols get no signature, because they are not constructed.
    """
    if getattr(obj, "_is_protocol", False) and what == "class":
        return "", None
    plain = re.sub(r"<function (\w+)>", r"\1", (signature or "").replace("<factory>", "..."))
    return plain or None, returns


def write_math(writer, node):
    """Write formulas as MathML, which browsers render; a failed conversion is an error."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def find_public_name(app, env, node, contnode):
    """Resolve defining modules (in annotations) and bare names (in docstrings) to public names."""
    target = node.get("reftarget", "")
    name = public_names().get(target)
    if node.get("refdomain") != "py" or name is None or name == target:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], env.app.builder, "obj", name, node, contnode)


def link_names(app, doctree, docname):
    """Link names in the text, such as ``Balance(kappa=0)``, ``eq.flatten`` or ``Topology.deliver``.

    In the sources they are plain code, which is easier to read and write.
    """
    objects = app.env.get_domain("py").objects
    for node in list(doctree.findall(nodes.literal)):
        place = place_of(node.astext(), objects)
        if place is None or isinstance(node.parent, nodes.reference | nodes.title):
            continue
        found = objects[place]
        text = nodes.literal("", node.astext())
        link = make_refnode(app.builder, docname, found.docname, found.node_id, text, place)
        link["classes"].append("name")
        node.replace_self(link)


def place_of(code, objects):
    """Return the documented object that ``code`` names, or None for a plain word like ``graph``."""
    match = re.fullmatch(r"(eq\.)?((?:[a-z]+\.)?)(\w+)((?:\.\w+)?)(\(.*\))?", code)
    if match is None:
        return None
    prefix, module, name, member, call = match.groups(default="")
    whole = f"equipoise.{module}{name}" if prefix or module else public_names().get(name, "")
    is_word = not (prefix or module or call) and name.islower() and not hasattr(equipoise, name)
    place = whole + member
    return place if place in objects and not is_word else None


@cache
def public_names():
    """Map the name and the defining module of each object to its public name."""
    names = {}
    for module in MODULES:
        owner = getattr(equipoise, module) if module else equipoise
        for name in getattr(owner, "__all__", vars(owner)):
            value = getattr(owner, name)
            place = f"{owner.__name__}.{name}"
            if name.startswith("_") or inspect.ismodule(value):
                continue
            names.setdefault(name, place)
            if hasattr(value, "__qualname__"):
                names.setdefault(f"{value.__module__}.{value.__qualname__}", place)
    return names
