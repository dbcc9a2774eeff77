"""Human activity recognition with smartphones: every subject is a client."""

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

FOLDER, ARCHIVE = "UCI HAR Dataset", "UCI HAR Dataset.zip"
FEATURES, CLASSES = 561, 6
ROWS = 10_299  # of both parts: more than any genuine file has
WIDTH = 32  # bytes of a number and its separator: 16 as distributed, 26 from np.savetxt
SOURCES = (  # the first one is an archive with the second one in it
    Source(
        "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
        61_005_872,
    ),
    Source(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
        "2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
        60_999_314,
    ),
)
ARCHIVES = (ARCHIVE, SOURCES[0].url.rsplit("/", 1)[1])


def har(
    root: str | os.PathLike[str],
    *,
    test_share: float = 0.25,
    seed: int = 0,
    download: bool = False,
    progress: bool = True,
) -> Dataset:
    """UCI HAR: 10,299 examples of 561 features, six activities, 30 subjects; 7,732 are to train on, 2,567 to test on.

    D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz, "A public domain dataset for human activity recognition
    using smartphones", ESANN 2013.

    Every subject is a client: ``owners`` numbers the subjects, in ascending order, from 0. The official training and
    test files are united, and of every subject a random share is for testing, so that every client trains: 25 % as in
    FLTrust (Cao et al., NDSS 2021) and in the BALANCE paper. Classes 0 to 5 are the activities 1 to 6 of the data:
    walking, upstairs, downstairs, sitting, standing, laying.

    Args:
        root: a folder that holds ``UCI HAR Dataset.zip``, the archive that UCI offers now with that one in it,
            or the unpacked folder ``UCI HAR Dataset``; or one of these itself, whatever it is called.
        test_share: which share of every subject's examples is for testing, rounded down.
        seed: decides which examples these are.
        download: whether to download the archive if it is not there, 61 MB.
        progress: whether to show a bar while downloading.

    Raises:
        FileNotFoundError: a file is not there, or cannot be downloaded.
        ValueError: a file is truncated, corrupt, or does not fit the other ones.

    >>> data = eq.data.har("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: expected UCI HAR Dataset.zip or the folder UCI HAR Dataset in nowhere, ...
    """
    share, place = as_share("test_share", test_share), _find(as_path(root))
    if place is None:
        place = _without_data(as_path(root), download, progress)
    with opened(place, FOLDER) as folder:
        parts = [_examples(folder, part) for part in ("train", "test")]
    x, y, subjects = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    owners = subjects.unique(return_inverse=True)[1]
    train, test = hold_out(owners, lambda size: int(share * size), stream(seed, "har"))
    return Dataset(x[train], y[train], x[test], y[test], CLASSES, owners[train], "HAR")


def _find(root: Path) -> Path | None:
    if root.is_file() or (root / "train").is_dir():
        return root
    return next((place for name in (FOLDER, *ARCHIVES) if (place := root / name).exists()), None)


def _without_data(root: Path, download: bool, progress: bool) -> Path:
    if not download:
        expected = f"{ARCHIVE} or the folder {FOLDER} in {root}, or one of them as root"
        raise missing(expected, root, "Put it there, or load it with download=True")
    fetch(SOURCES, root / ARCHIVE, progress=progress)
    return root / ARCHIVE


def _examples(folder: Place, part: str) -> tuple[Tensor, Tensor, Tensor]:
    """Features, classes from 0, and subjects, one row for every example."""
    files = [folder / part / f"{kind}_{part}.txt" for kind in ("X", "y", "subject")]
    x, y, subjects = (_table(file, columns) for file, columns in zip(files, (FEATURES, 1, 1), strict=True))
    for file, table in zip(files[1:], (y, subjects), strict=True):
        if len(table) != len(x):
            raise ValueError(
                f"{file} must have {len(x)} rows, one for every row of {files[0].name}, found {len(table)}"
            )
    _check_whole(files[1], y, CLASSES)
    _check_whole(files[2], subjects, None)
    return torch.from_numpy(x), torch.from_numpy(y[:, 0]).long() - 1, torch.from_numpy(subjects[:, 0]).long()


def _table(file: Place, columns: int) -> NDArray[np.float32]:
    content = read(file, ROWS * columns * WIDTH)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a file without data
            table = np.loadtxt(_lines(content, columns), dtype=np.float32, comments=None, ndmin=2)
    except (ValueError, UserWarning) as error:
        raise ValueError(f"{file} must hold rows of {columns} numbers, found otherwise: {error}") from error
    if table.shape[1] != columns:
        raise ValueError(f"{file} must hold rows of {columns} numbers, found {table.shape[1]}")
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise ValueError(f"{file} must hold finite numbers, found {table[row, column]} in row {row + 1}")
    return table


def _lines(content: bytes, columns: int) -> Iterator[bytes]:
    """Yield the lines; refuse too many or too long ones.

    ``np.loadtxt`` takes up to 16 bytes of memory for each byte of a long line.
    """
    file = io.BytesIO(content)
    for number in itertools.count(1):
        line = file.readline(columns * WIDTH + 1)
        if not line:
            return
        if len(line) > columns * WIDTH:
            raise ValueError(f"line {number} has more than {columns * WIDTH} bytes")
        if number > ROWS:
            raise ValueError(f"it has more than {ROWS} lines")
        yield line


def _check_whole(file: Place, values: NDArray[np.float32], most: int | None) -> None:
    wrong = (values < 1) | (values % 1 != 0) | (values > (most or np.inf))
    if wrong.any():
        expected = "from 1" if most is None else f"from 1 to {most}"
        raise ValueError(f"{file} must hold whole numbers {expected}, found {values[wrong][0]:g}")
