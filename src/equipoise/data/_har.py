"""UCI HAR: human activity recognition with smartphones; each subject is a client."""

from __future__ import annotations

import io
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise.data._download import Place, Source, as_path, fetch, missing, opened, read
from equipoise.data.dataset import Dataset, as_share, hold_out

FOLDER = "UCI HAR Dataset"
ARCHIVE = "UCI HAR Dataset.zip"
FEATURES = 561
CLASSES = 6
ROWS = 10_299  # rows of training and test files together, more than any genuine file
# Limit on the bytes of a number and its separator: 16 as distributed, 26 by np.savetxt.
NUMBER_BYTES = 32
UCI = "https://archive.ics.uci.edu"
HAR_SOURCES = (  # the first archive contains the second one
    Source(
        f"{UCI}/static/public/240/human+activity+recognition+using+smartphones.zip",
        "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
        61_005_872,
    ),
    Source(
        f"{UCI}/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
        "2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
        60_999_314,
    ),
)
ARCHIVES = (ARCHIVE, HAR_SOURCES[0].url.rsplit("/", 1)[1])


def har(
    root: str | os.PathLike[str],
    *,
    test_share: float = 0.25,
    seed: int = 0,
    download: bool = False,
    progress: bool = True,
) -> Dataset:
    """Load UCI HAR: 10,299 examples of 561 features, six activities, 30 subjects.

    D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz, "A public domain dataset for human
    activity recognition using smartphones", ESANN 2013.

    Each subject is a client: ``owners`` numbers the subjects in ascending order from 0. The
    official training and test files are merged, and a random share of each subject's examples is
    for testing, 25 % as in FLTrust (Cao et al., NDSS 2021) and in the BALANCE paper: 7,732
    examples for training and 2,567 for testing. Classes 0 to 5 are the activities 1 to 6 of the
    data: walking, upstairs, downstairs, sitting, standing, laying.

    Args:
        root: a folder with ``UCI HAR Dataset.zip``, with the archive that UCI offers now, which
            contains that one, or with the unpacked folder ``UCI HAR Dataset``; or the path of one
            of these, under any name.
        test_share: share of each subject's examples that is for testing, rounded down.
        seed: determines the test examples.
        download: whether to download the archive if it is missing, 61 MB.
        progress: whether to show a progress bar while downloading.

    Raises:
        FileNotFoundError: a file is missing, or cannot be downloaded.
        ValueError: a file is truncated, corrupt, or inconsistent with the others.

    >>> data = eq.data.har("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: expected UCI HAR Dataset.zip or the folder UCI HAR Dataset in nowhere, ...
    """
    share = as_share("test_share", test_share)
    place = _find_archive(as_path(root))
    if place is None:
        place = _without_data(as_path(root), download, progress)
    with opened(place, FOLDER) as folder:
        parts = [_read_part(folder, part) for part in ("train", "test")]
    x, y, subjects = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    # Subjects are numbered from 1; owners from 0 without gaps, even if a subject is missing.
    owners = subjects.unique(return_inverse=True)[1]
    train, test = hold_out(owners, lambda size: int(share * size), stream(seed, "har"))
    return Dataset(x[train], y[train], x[test], y[test], CLASSES, owners[train], "HAR")


def _find_archive(root: Path) -> Path | None:
    # The root may be an archive of any name, or the unpacked folder itself.
    if root.is_file() or (root / "train").is_dir():
        return root
    return next((place for name in (FOLDER, *ARCHIVES) if (place := root / name).exists()), None)


def _without_data(root: Path, download: bool, progress: bool) -> Path:
    if not download:
        expected = f"{ARCHIVE} or the folder {FOLDER} in {root}, or one of them as root"
        raise missing(expected, root)
    fetch(HAR_SOURCES, root / ARCHIVE, progress=progress)
    return root / ARCHIVE


def _read_part(folder: Place, part: str) -> tuple[Tensor, Tensor, Tensor]:
    """Read features, classes from 0, and subjects; one row for each example."""
    files = [folder / part / f"{kind}_{part}.txt" for kind in ("X", "y", "subject")]
    x = _table(files[0], FEATURES)
    y = _table(files[1], 1)
    subjects = _table(files[2], 1)
    # Row i of the three files describes example i, so a missing row would shift all the others.
    for file, table in zip(files[1:], (y, subjects), strict=True):
        if len(table) != len(x):
            expected = f"{len(x)} rows, one for every row of {files[0].name}"
            raise ValueError(f"{file} must have {expected}, found {len(table)}")
    # Activities and subjects are small whole numbers, which float32 holds exactly.
    _check_whole(files[1], y, CLASSES)
    _check_whole(files[2], subjects, None)
    labels = torch.from_numpy(y[:, 0]).long() - 1
    return torch.from_numpy(x), labels, torch.from_numpy(subjects[:, 0]).long()


def _table(file: Place, columns: int) -> NDArray[np.float32]:
    content = read(file, ROWS * columns * NUMBER_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # np.loadtxt only warns about a file without data
            table = np.loadtxt(
                _bounded_lines(content, columns), dtype=np.float32, comments=None, ndmin=2
            )
    except (ValueError, UserWarning) as error:
        found = f"other content: {error}"
        raise ValueError(f"{file} must hold rows of {columns} numbers, found {found}") from error
    if table.shape[1] != columns:
        raise ValueError(f"{file} must hold rows of {columns} numbers, found {table.shape[1]}")
    if not np.isfinite(table).all():
        # loadtxt accepts "nan" and "inf", and numbers that overflow float32.
        row, column = np.argwhere(~np.isfinite(table))[0]
        found = f"{table[row, column]} in row {row + 1}"
        raise ValueError(f"{file} must hold finite numbers, found {found}")
    return table


def _bounded_lines(content: bytes, columns: int) -> Iterator[bytes]:
    """Iterate over the lines; reject too many or too long ones.

    ``np.loadtxt`` takes up to 16 bytes of memory for each byte of a long line.
    """
    file = io.BytesIO(content)
    for number in itertools.count(1):
        line = file.readline(columns * NUMBER_BYTES + 1)
        if not line:
            return
        if len(line) > columns * NUMBER_BYTES:
            raise ValueError(f"line {number} has more than {columns * NUMBER_BYTES} bytes")
        if number > ROWS:
            raise ValueError(f"it has more than {ROWS} lines")
        yield line


def _check_whole(file: Place, values: NDArray[np.float32], most: int | None) -> None:
    # values % 1 is exact in floating point.
    wrong = (values < 1) | (values % 1 != 0) | (values > (most or np.inf))
    if wrong.any():
        expected = "from 1" if most is None else f"from 1 to {most}"
        raise ValueError(f"{file} must hold whole numbers {expected}, found {values[wrong][0]:g}")
