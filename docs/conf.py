"""Configure the site: ``python -m sphinx -W --keep-going -n -b html docs OUT``.

The build draws the figures and runs the notebooks; a notebook that fails is an error. Set
``EQUIPOISE_DOCS_NOTEBOOKS=off`` in the environment to show notebooks without running them.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import build_steps  # noqa: E402

import equipoise  # noqa: E402

project = "equipoise"
author = "the equipoise authors"
copyright = author
version = release = equipoise.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = True

# Docstrings

default_role = "py:obj"  # `Simulator` in a docstring is a link; unknown names are errors
add_module_names = False
maximum_signature_line_length = 76
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

EXTERNAL = (
    *("torch", "nn", "numpy", "np", "hypothesis", "networkx", "pandas", "matplotlib"),
    *("collections", "typing", "typing_extensions", "os", "pathlib"),
)
# Type aliases, whose values are in the text, and internal base classes.
UNDOCUMENTED = (
    *(
        "Clients",
        "Graph",
        "GraphMeasures",
        "Init",
        "Label",
        "MeanTable",
        "ModuleT",
        "Names",
        "Parts",
        "ReceivedMessages",
        "Rule",
        "SeedBand",
        "Task",
        "TooLittle",
        "ValueT",
    ),
    *("Perturbation", "RecycledMemory", "Scope", "SettingT", "Space", "ValueT", "WeightedRule"),
    "_AlongPerturbation",
)
nitpick_ignore_regex = [
    # Inventories of other projects are on the network; the build works offline.
    ("py:.*", rf"({'|'.join(EXTERNAL)})\..*"),
    ("py:.*", "Axes|DataFrame|Tensor"),
    ("py:.*", rf"(.*\.)?({'|'.join(UNDOCUMENTED)})"),
]

# Markdown and notebooks

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = os.environ.get("EQUIPOISE_DOCS_NOTEBOOKS", "force")
nb_execution_raise_on_error = True
# A cell takes up to a minute and a half, but much longer on a machine that others use.
nb_execution_timeout = 1800
nb_merge_streams = True

# HTML

html_theme = "furo"
html_title = "equipoise"
html_static_path = ["_static"]
html_css_files = ["equipoise.css"]
html_favicon = "_static/logo.svg"
pygments_dark_style = "github-dark"
html_copy_source = False
html_use_index = html_domain_indices = False  # the API pages and the search replace them
html_math_renderer = "mathml"  # see build_steps: needs no script and no network
html_theme_options = {
    "light_logo": "logo.svg",
    "dark_logo": "logo-dark.svg",
    "light_css_variables": {"color-brand-primary": "#00588a", "color-brand-content": "#00588a"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ee", "color-brand-content": "#7cc4ee"},
}


def setup(app):
    build_steps.connect(app)
