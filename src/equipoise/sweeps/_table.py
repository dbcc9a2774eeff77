"""A table of means and standard deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise._utils.optional import import_optional


@dataclass(frozen=True, eq=False)
class Table:
    """Means over seeds with their standard deviations, as ``pandas.DataFrame`` of one shape.

    ``eq.plots.heatmap(table)`` draws it.

    Args:
        mean: the means; NaN if a seed is not finite, and where no cell has finished.
        sd: the standard deviations with n - 1 in the denominator; NaN for one seed.
        count: the number of seeds.
        value: the name of the value.
        over: the arguments that were averaged over.
    """

    mean: Any
    sd: Any
    count: Any
    value: str
    over: tuple[str, ...]

    def text(self, digits: int = 2, plus_minus: str = " ± ") -> Any:
        """A ``pandas.DataFrame`` of texts such as ``0.12 ± 0.03``.

        A cell of one seed has no deviation; one that has not finished is ``-``.
        """
        found = self.mean.astype(object).copy()
        for row, column in np.ndindex(self.mean.shape):
            found.iloc[row, column] = self._cell(row, column, digits, plus_minus)
        return found

    def _cell(self, row: int, column: int, digits: int, plus_minus: str) -> str:
        # A cell of a table that no seed has finished.
        if not self.count.iloc[row, column] > 0:
            return "-"
        mean = f"{self.mean.iloc[row, column]:.{digits}f}"
        if not self.count.iloc[row, column] > 1:
            return mean
        return f"{mean}{plus_minus}{self.sd.iloc[row, column]:.{digits}f}"

    def __str__(self) -> str:
        options = ("display.max_rows", None, "display.max_columns", None, "display.width", None)
        with import_optional("pandas", "sweeps").option_context(*options):
            return str(self.text().to_string())

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return str(self.text().to_html())

    def to_latex(self, digits: int = 2, **options: Any) -> str:
        """The table in LaTeX, for the packages booktabs and multirow.

        ``options`` are those of ``pandas.DataFrame.to_latex``, such as ``caption`` and ``label``.
        """
        text = self.text(digits, " PLUSMINUS ")
        # Escape names such as max_error first: pandas would also escape the dollars.
        latex = text.to_latex(**{"escape": True, "multicolumn_format": "c"} | options)
        return str(latex).replace(" PLUSMINUS ", r" $\pm$ ")
