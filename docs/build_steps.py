"""What happens around a build: pictures are drawn, notebooks are fetched, and names find their public place."""

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

HERE = Path(__file__).parent
NOTEBOOKS, GALLERY = HERE.parent / "examples", HERE / "examples"
BENCHMARKS = HERE.parent / "benchmarks" / "README.md"
MODULES = ("", "attacks", "data", "kernels", "metrics", "models", "plots", "rules", "testing", "types")
ROW = re.compile(r"^\| \[((\d)\w+)\.ipynb\]\([\w.]+\) \| (.*) \|$", flags=re.MULTILINE)  # of examples/README.md
INDEX = """# Examples

Notebooks that were run while this site was built. Each stands on its own, takes less than two minutes on two cores, and
downloads nothing. Start with the first, or with the fourth if you have a training loop already.

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
:alt: A drawing of what the example is about.
:target: {page}.html

**[{title}]({page}.ipynb)**<br>{text}
:::"""


def connect(app):
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    fetch_notebooks(NOTEBOOKS, GALLERY)  # before documents are looked for
    app.connect("builder-inited", lambda app: pictures.draw_all(HERE / "_generated"))
    app.connect("builder-inited", keep_outputs_inside, priority=900)  # after myst-nb has set its own folder
    app.connect("source-read", link_to_pages)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("missing-reference", find_public_name)
    app.connect("doctree-resolved", link_names)


def fetch_notebooks(source, target):
    """Copy notebooks and the scripts that they name to where Sphinx sees them, with an index.

    Copies are not under version control, so that a notebook has one place.
    """
    target.mkdir(exist_ok=True)
    found = sorted(source.glob("*.ipynb"))
    for copy in target.glob("*.ipynb"):
        copy.unlink()
    scripts = [
        path for path in source.glob("*.py") if any(path.name in notebook.read_text("utf-8") for notebook in found)
    ]
    for path in [*found, *scripts]:
        shutil.copy(path, target)
    rows = ROW.findall((source / "README.md").read_text("utf-8"))
    cards = [CARD.format(number=n, page=page, title=title_of(source / f"{page}.ipynb"), text=t) for page, n, t in rows]
    (target / "index.md").write_text(INDEX.format(cards="\n".join(cards)), encoding="utf-8")


def keep_outputs_inside(app):
    """Save the outputs of notebooks inside the output folder of the build; myst-nb saves them beside it."""
    folder = Path(app.doctreedir) / "notebooks"
    app.env.mystnb_config = app.env.mystnb_config.copy(output_folder=str(folder))


def title_of(notebook):
    return json.loads(notebook.read_text("utf-8"))["cells"][0]["source"][0].removeprefix("# ").strip()


def link_to_pages(app, docname, content):
    """Links between files of the repository, which work there, lead to pages of the site here."""
    if docname == "benchmarks":
        app.env.note_dependency(str(BENCHMARKS))
        text = BENCHMARKS.read_text(encoding="utf-8").replace("](../docs/", "](")
        content[0] = re.sub(r"\]\((?=\w+\.json\))", "](../benchmarks/", text)
    content[0] = content[0].replace("](../benchmarks/README.md", "](benchmarks.md")


def keep_colons(app, what, name, obj, options, lines):
    """Napoleon takes "Number of slots: the largest in-degree" for a type and a text, unless it follows a comment."""
    if what in ("property", "attribute", "data"):
        lines[:0] = ["..", ""]


def shorten_defaults(app, what, name, obj, options, signature, returns):
    """Defaults like ``<factory>`` and ``<function f>`` are no Python, and garble the rest of a signature.

    Protocols have none: they are not made.
    """
    if getattr(obj, "_is_protocol", False) and what == "class":
        return "", None
    plain = re.sub(r"<function (\w+)>", r"\1", (signature or "").replace("<factory>", "..."))
    return plain or None, returns


def write_math(writer, node):
    """Formulas as MathML, which browsers draw by themselves; one that cannot be converted is an error."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def find_public_name(app, env, node, contnode):
    """Resolve ``equipoise.inbox.Inbox``, as annotations have it, or ``Inbox``, as docstrings do, to the public name."""
    target = node.get("reftarget", "")
    name = public_names().get(target)
    if node.get("refdomain") != "py" or name is None or name == target:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], env.app.builder, "obj", name, node, contnode)


def link_names(app, doctree, docname):
    """Make links of names in the text, such as ``Balance(kappa=0)``, ``eq.flatten`` or ``Topology.deliver``.

    In the sources they are plain code, which is easier to read and to write.
    """
    objects = app.env.get_domain("py").objects
    for node in list(doctree.findall(nodes.literal)):
        place = place_of(node.astext(), objects)
        if place is None or isinstance(node.parent, nodes.reference | nodes.title):
            continue
        found, text = objects[place], nodes.literal("", node.astext())
        link = make_refnode(app.builder, docname, found.docname, found.node_id, text, place)
        link["classes"].append("name")
        node.replace_self(link)


def place_of(code, objects):
    """The documented object that a piece of code names, or None; a word like ``graph`` means nothing by itself."""
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
    """From where an object is defined, and from what it is called in a module, to what users call it."""
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
