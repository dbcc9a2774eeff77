"""Packages that are not installed by default."""

from __future__ import annotations

import importlib
from types import ModuleType


def import_optional(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Raises:
        ImportError: the package is missing. The message has the pip command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # matplotlib.pyplot is a module of the package matplotlib.
        package = module.partition(".")[0]
        advice = f'pip install "equipoise[{extra}]"'
        raise ImportError(f"{package} is not installed: {advice}") from error
