"""The figures that the BALANCE paper prints (Fang et al., CCS 2024), as far as we have them.

Rows are methods, columns are attacks, both by the paper's labels; the mappings have our names.
``Backdoor`` has two figures, Max.TER / Max.ASR; ``>100`` is infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.paper.registry import ATTACK_LABELS, NO_ATTACK, RULE_LABELS

Figure = tuple[float, ...]
Figures = Mapping[tuple[str, str], Figure]

COLUMNS = "No LF Feature Gauss Krum Trim Backdoor Adapt"


def _read(columns: str, text: str) -> Figures:
    """Read a table as it is printed: a label and a figure for each column."""
    rules = {label: name for name, label in RULE_LABELS.items()}
    attacks = {label: name for name, label in ATTACK_LABELS.items()}
    found: dict[tuple[str, str], Figure] = {}
    for line in text.strip().splitlines():
        row, *cells = line.split()
        for column, cell in zip(columns.split(), cells, strict=True):
            values = (math.inf if x == ">100" else float(x) for x in cell.split("/"))
            found[rules[row], attacks[column]] = tuple(values)
    return found


MNIST = _read(
    COLUMNS,
    """
    FedAvg    0.10 0.10 0.90 0.90 0.91 0.91 0.90/1.00 0.90
    Krum      0.10 0.12 0.90 0.10 0.10 0.15 0.15/0.01 0.14
    Trim-mean 0.11 0.12 0.49 0.11 0.82 0.81 0.83/0.72 0.87
    Median    0.14 0.14 0.45 0.15 0.52 0.63 0.66/0.01 0.66
    FLTrust   0.10 0.11 0.90 0.13 0.10 0.88 0.10/0.73 0.10
    UBAR      0.14 0.14 0.90 0.14 0.14 0.14 0.15/0.01 0.14
    LEARN     0.10 0.10 0.30 0.12 0.18 0.57 0.12/0.03 0.44
    SCCLIP    0.10 0.10 0.10 0.11 0.91 0.91 0.10/0.01 0.91
    BALANCE   0.10 0.10 0.11 0.10 0.10 0.11 0.11/0.01 0.11
    """,
)
FASHION = _read(
    COLUMNS,
    """
    FedAvg    0.16 0.21 0.90 0.90 0.90 0.90 0.90/1.00 0.90
    Krum      0.26 0.27 0.90 0.40 0.37 0.48 0.28/0.03 0.42
    Trim-mean 0.25 0.27 0.90 0.27 0.77 0.87 0.90/1.00 0.76
    Median    0.26 0.26 0.90 0.28 0.54 0.74 0.90/1.00 0.69
    FLTrust   0.19 0.20 0.19 0.90 0.25 0.90 0.19/0.99 0.90
    UBAR      0.21 0.23 0.90 0.21 0.22 0.22 0.24/0.03 0.23
    LEARN     0.23 0.26 0.47 0.23 0.34 0.37 0.23/0.90 0.51
    SCCLIP    0.20 0.25 0.90 0.33 0.89 0.89 0.90/1.00 0.52
    BALANCE   0.16 0.17 0.17 0.16 0.17 0.17 0.17/0.02 0.17
    """,
)
HAR = _read(
    COLUMNS,
    """
    FedAvg    0.04 0.04 0.45 0.98 0.32 0.38 0.82/1.00 0.99
    Krum      0.10 0.10 0.10 0.10 0.10 0.10 0.10/0.01 0.10
    Trim-mean 0.05 0.06 0.06 0.06 0.09 0.17 0.08/0.01 0.09
    Median    0.06 0.06 0.08 0.06 0.07 0.17 0.07/0.01 0.08
    FLTrust   0.04 0.04 0.08 0.07 0.04 0.31 0.04/0.47 0.05
    UBAR      0.06 0.06 0.06 0.06 0.06 0.12 0.08/0.03 0.06
    LEARN     0.04 0.04 0.04 0.04 0.06 0.13 0.05/0.04 0.06
    SCCLIP    0.05 0.05 0.13 0.07 0.27 0.32 0.06/0.02 0.12
    BALANCE   0.04 0.05 0.04 0.05 0.04 0.05 0.04/0.01 0.05
    """,
)
CELEBA = _read(
    COLUMNS,
    """
    FedAvg    0.10 0.16 0.48 0.48 0.53 0.53 0.48/0.01 0.48
    Krum      0.18 0.26 0.48 0.30 0.31 0.18 0.20/0.26 0.18
    Trim-mean 0.12 0.24 0.35 0.15 0.15 0.26 0.22/0.09 0.19
    Median    0.13 0.17 0.31 0.15 0.15 0.26 0.21/0.15 0.19
    FLTrust   0.10 0.14 0.10 0.11 0.11 0.53 0.12/0.06 0.10
    UBAR      0.12 0.13 0.48 0.13 0.12 0.14 0.14/0.13 0.13
    LEARN     0.31 0.41 0.37 0.35 0.51 0.53 0.32/0.09 0.53
    SCCLIP    0.10 0.17 0.14 0.12 0.43 0.53 0.48/0.01 0.53
    BALANCE   0.10 0.12 0.11 0.11 0.11 0.11 0.12/0.02 0.13
    """,
)
SYNTHETIC = _read(
    "No LF Feature Gauss Krum Trim Adapt",
    """
    FedAvg    0.36 0.39 >100 >100  72.18 58.50 90.29
    Krum      1.11 1.23 >100 1.19  1.18  1.18  1.19
    Trim-mean 0.38 0.39 3.45 0.40  4.17  5.41  5.41
    Median    0.39 0.40 2.37 0.42  1.22  3.93  3.93
    FLTrust   0.41 0.46 >100 22.87 10.12 8.00  0.42
    UBAR      0.40 0.40 >100 0.40  0.40  0.40  0.40
    LEARN     0.42 0.42 0.42 0.64  5.36  17.78 1.60
    SCCLIP    0.36 0.39 >100 0.42  5.63  5.12  4.83
    BALANCE   0.36 0.36 0.36 0.36  0.36  0.36  0.36
    """,
)
FEATURE: Figures = {
    (row, reading): figure
    for (row, column), figure in SYNTHETIC.items()
    for reading in ("absent", "kept")
    if column == "FeatureNoise"
}
CONSENSUS = _read(
    COLUMNS,
    """
    FedAvg    0.01 0.01 >100  >100 >100 0.01 >100 >100
    Krum      0.01 0.01 >100  0.01 0.01 0.01 0.01 0.01
    Trim-mean 0.01 0.01 0.01  0.01 0.01 0.01 0.02 0.01
    Median    0.01 0.01 0.01  0.01 0.01 0.01 0.56 0.01
    FLTrust   0.01 0.01 45.32 2.13 0.01 1.71 0.01 0.01
    UBAR      0.01 0.01 >100  0.01 0.01 0.01 0.01 0.01
    LEARN     0.01 0.01 0.01  0.01 0.01 0.01 0.01 0.01
    SCCLIP    0.01 0.01 0.02  0.01 0.01 0.01 >100 0.01
    BALANCE   0.01 0.01 0.01  0.01 0.01 0.01 0.01 0.01
    """,
)
OWN_INCLUDED = _read(
    COLUMNS,
    """
    FedAvg    0.09 0.09 0.90 0.90 0.91 0.91 0.90/1.00 0.90
    Krum      0.18 0.18 0.13 0.18 0.22 0.18 0.18/0.01 0.18
    Trim-mean 0.17 0.49 0.17 0.17 0.89 0.89 0.90/1.00 0.89
    Median    0.19 0.38 0.23 0.31 0.83 0.87 0.78/0.01 0.88
    FLTrust   0.11 0.11 0.11 0.11 0.11 0.90 0.11/0.90 0.12
    UBAR      0.25 0.25 0.26 0.25 0.27 0.27 0.25/0.01 0.23
    LEARN     0.10 0.15 0.11 0.10 0.35 0.55 0.10/0.19 0.81
    SCCLIP    0.10 0.10 0.10 0.10 0.90 0.91 0.46/0.04 0.91
    BALANCE   0.09 0.09 0.09 0.10 0.09 0.09 0.09/0.01 0.10
    """,
)
MIXED_RULES = _read(
    COLUMNS,
    """
    Case-III 0.14 0.14 0.90 0.24 0.91 0.89 0.16/0.01 0.90
    Case-IV  0.17 0.19 0.90 0.09 0.75 0.90 0.23/0.05 0.80
    """,
)
TIME_VARYING = _read(
    COLUMNS,
    """
    FedAvg    0.10 0.15 0.90 0.90 0.91 0.90 0.90/1.00 0.90
    Krum      0.13 0.15 0.90 0.90 0.15 0.14 0.90/1.00 0.90
    Trim-mean 0.27 0.27 0.90 0.90 0.91 0.91 0.90/1.00 0.90
    Median    0.24 0.28 0.90 0.90 0.91 0.91 0.90/1.00 0.90
    FLTrust   0.11 0.16 0.90 0.89 0.89 0.89 0.89/0.09 0.89
    UBAR      0.15 0.17 0.90 0.90 0.15 0.19 0.15/0.01 0.90
    LEARN     0.19 0.19 0.38 0.90 0.91 0.91 0.90/1.00 0.90
    SCCLIP    0.11 0.16 0.34 0.15 0.91 0.91 0.23/0.02 0.64
    BALANCE   0.11 0.12 0.12 0.12 0.11 0.12 0.11/0.01 0.12
    """,
)
LIE_DISSENSUS = _read(
    "No LIE Dissensus",
    """
    FedAvg    0.10 0.13 0.91
    Krum      0.10 0.10 0.15
    Trim-mean 0.11 0.16 0.86
    Median    0.14 0.18 0.87
    FLTrust   0.10 0.10 0.12
    UBAR      0.14 0.14 0.23
    LEARN     0.10 0.10 0.69
    SCCLIP    0.10 0.10 0.91
    BALANCE   0.10 0.10 0.10
    """,
)
VARIANTS = _read(
    COLUMNS,
    """
    Variant-I  0.10 0.11 0.12 0.11 0.11 0.11 0.11/0.01 0.14
    Variant-II 0.10 0.10 0.13 0.16 0.11 0.18 0.11/0.01 0.16
    BALANCE    0.10 0.10 0.11 0.10 0.10 0.11 0.11/0.01 0.11
    """,
)
# Figures in the text of the paper, from tables that we do not have.
SENTENCES: Figures = {
    ("Alone", NO_ATTACK): (0.29,),
    ("server-assisted", NO_ATTACK): (0.09,),
    ("first-half", "TrimAttack"): (0.55,),
    ("second-half", "TrimAttack"): (0.38,),
    ("all", "TrimAttack"): (0.63,),
    ("UBAR", f"by_classes(3) {NO_ATTACK}"): (0.42,),
    ("Median", "by_classes(3) LabelFlip"): (0.89,),
}
