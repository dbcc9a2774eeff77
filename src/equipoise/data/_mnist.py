"""MNIST and Fashion-MNIST, from their IDX files."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from equipoise.data._download import CHUNK, Source, as_path, fetch, missing
from equipoise.data.dataset import Dataset

IMAGES, LABELS = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"
FILES = tuple(name.format(part) for part in ("train", "t10k") for name in (IMAGES, LABELS))
ADVICE = "Put it there, or load it with download=True"


@dataclass(frozen=True)
class Collection:
    """Images that are distributed as four IDX files.

    ``folder`` is what torchvision calls it; ``md5`` are the checksums of ``FILES``, as distributed, with .gz;
    ``labels_md5`` is that of the training labels themselves.
    """

    name: str
    folder: str
    mirrors: tuple[str, ...]
    md5: tuple[str, ...]
    labels_md5: str

    def sources(self, file: str) -> list[Source]:
        """Where a file can be had."""
        return [Source(f"{mirror}{file}.gz", f"md5:{self.md5[FILES.index(file)]}") for mirror in self.mirrors]


MNIST = Collection(
    name="MNIST",
    folder="MNIST",
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    labels_md5="e86ee40d66677c011a9abda399ec8c4d",
)
FASHION_MNIST = Collection(
    name="Fashion-MNIST",
    folder="FashionMNIST",
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    labels_md5="3236f6424fc25388b2834cb19942cf7e",
)


def mnist(root: str | os.PathLike[str], *, download: bool = False, progress: bool = True) -> Dataset:
    """MNIST: 60,000 handwritten digits to train on, 10,000 to test on, 28 x 28 pixels, scaled to [0, 1].

    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document recognition", 1998.

    The four files ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
    ``t10k-labels-idx1-ubyte``, each with or without ``.gz``, are looked for in ``root/MNIST/raw``, where torchvision
    keeps them, in ``root/raw`` and in ``root``; they are taken from the first of these that has any of them.

    Args:
        root: the folder.
        download: whether to download files that are not there, from the mirrors that torchvision uses, about 12 MB.
        progress: whether to show a bar while downloading.

    Raises:
        FileNotFoundError: a file is not there, or cannot be downloaded.
        ValueError: a file is truncated, corrupt, or not what its name says.

    >>> data = eq.data.mnist("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: expected train-images-idx3-ubyte.gz and ..., found no folder nowhere. Put ..., or load it with
    download=True
    """
    return _load(MNIST, as_path(root), download, progress)


def fashion_mnist(root: str | os.PathLike[str], *, download: bool = False, progress: bool = True) -> Dataset:
    """Fashion-MNIST: 60,000 articles of clothing to train on, 10,000 to test on, 28 x 28 pixels, scaled to [0, 1].

    H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms",
    2017.

    The files have the names of those of `mnist`, and are looked for in ``root/FashionMNIST/raw``, ``root/raw`` and
    ``root``. To find the digits of MNIST instead is an error.

    Args:
        root: the folder.
        download: whether to download files that are not there, about 31 MB.
        progress: whether to show a bar while downloading.

    Raises:
        FileNotFoundError: a file is not there, or cannot be downloaded.
        ValueError: a file is truncated, corrupt, or not what its name says.

    >>> data = eq.data.fashion_mnist("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: expected train-images-idx3-ubyte.gz and ..., found no folder nowhere. Put ..., or load it with
    download=True
    """
    return _load(FASHION_MNIST, as_path(root), download, progress)


def read_idx(path: Path, dims: int) -> Tensor:
    """An IDX file of unsigned bytes, gzipped or not, as a uint8 tensor with that many dimensions."""
    try:
        with path.open("rb") as start:
            zipped = start.read(2) == b"\x1f\x8b"  # not the name: browsers like to unpack and to keep the .gz
        with gzip.open(path) if zipped else path.open("rb") as file:
            return _parse(file, path, dims)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} cannot be unpacked, it is truncated or corrupt: {error}") from error


def _parse(file: BufferedReader | gzip.GzipFile, path: Path, dims: int) -> Tensor:
    magic, header = file.read(4), file.read(4 * dims)
    expected = bytes([0, 0, 8, dims])
    if magic != expected:
        raise ValueError(f"{path} must begin with the magic number {expected.hex()}, found {magic.hex() or 'nothing'}")
    if len(header) < 4 * dims:
        raise ValueError(f"{path} must have {dims} sizes after the magic number, found {len(header)} bytes")
    shape = struct.unpack(f">{dims}I", header)
    size = math.prod(shape)
    content = _read_at_most(file, size + 1)
    if len(content) != size or not size:
        found = f"{len(content)} bytes" if len(content) <= size else "more"
        raise ValueError(f"{path} must hold {' x '.join(map(str, shape))} = {size} bytes, at least one, found {found}")
    return torch.frombuffer(content, dtype=torch.uint8).view(shape)


def _read_at_most(file: BufferedReader | gzip.GzipFile, size: int) -> bytearray:
    content = bytearray()  # a corrupt header may ask for terabytes: never allocate what is not there
    while chunk := file.read(min(CHUNK, size - len(content))):
        content += chunk
    return content


def _load(collection: Collection, root: Path, download: bool, progress: bool) -> Dataset:
    folder = _folder(collection, root)
    if folder is None and not download:
        places = f"{root / collection.folder / 'raw'}, {root / 'raw'} or {root}"
        raise missing(f"{FILES[0]}.gz and the other files of {collection.name} in {places}", root, ADVICE)
    folder = folder or root / collection.folder / "raw"
    paths = [_file(collection, folder, name, download, progress) for name in FILES]
    (x, y), (test_x, test_y) = _examples(*paths[:2]), _examples(*paths[2:])
    _check_origin(collection, paths[1], y)
    return Dataset(_scaled(x), y.long(), _scaled(test_x), test_y.long(), classes=10, name=collection.name)


def _folder(collection: Collection, root: Path) -> Path | None:
    folders = (root / collection.folder / "raw", root / "raw", root)
    return next((folder for folder in folders if any(_find(folder, name) for name in FILES)), None)


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _file(collection: Collection, folder: Path, name: str, download: bool, progress: bool) -> Path:
    path = _find(folder, name)
    if path is None and not download:
        raise missing(f"{name}.gz of {collection.name}, or {name}, in {folder}", folder, ADVICE)
    if path is None:
        path = folder / f"{name}.gz"
        fetch(collection.sources(name), path, progress=progress)
    return path


def _check_origin(collection: Collection, path: Path, labels: Tensor) -> None:
    """The files of all collections have the same names, and one could pass for another without a word."""
    digest = hashlib.md5(labels.numpy().tobytes(), usedforsecurity=False).hexdigest()
    for other in (MNIST, FASHION_MNIST):
        if other.name != collection.name and digest == other.labels_md5:
            raise ValueError(f"{path} must be of {collection.name}, found the labels of {other.name}")


def _examples(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if x.shape[1:] != (28, 28):
        raise ValueError(f"{images} must hold images of 28 x 28 pixels, found {x.shape[1]} x {x.shape[2]}")
    if len(x) != len(y):
        raise ValueError(f"{labels} must hold a label for each of the {len(x)} images of {images.name}, found {len(y)}")
    if y.max() > 9:
        raise ValueError(f"{labels} must hold labels from 0 to 9, found {int(y.max())}")
    return x, y


def _scaled(images: Tensor) -> Tensor:
    return images.unsqueeze(1).float().div_(255)
