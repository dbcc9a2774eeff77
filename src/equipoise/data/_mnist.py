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

# Images and labels for training, then for testing: `_load` relies on this order.
MNIST_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
LIMIT = 70_000 * 28 * 28  # bytes of training and test images together, more than any genuine file


@dataclass(frozen=True)
class Collection:
    """Images that are distributed as four IDX files.

    ``folder`` is the name of its folder in torchvision. ``sha256`` and ``sizes`` are the digests
    and the bytes of ``MNIST_FILES`` as distributed, with .gz. ``labels_sha256`` is the digest of
    the training labels, unpacked and without their header.
    """

    name: str
    folder: str
    mirrors: tuple[str, ...]
    sha256: tuple[str, ...]
    sizes: tuple[int, ...]
    labels_sha256: str

    def sources(self, file: str) -> list[Source]:
        """Return the mirrors of a file."""
        digest = self.sha256[MNIST_FILES.index(file)]
        size = self.sizes[MNIST_FILES.index(file)]
        return [Source(f"{mirror}{file}.gz", digest, size) for mirror in self.mirrors]


MNIST = Collection(
    name="MNIST",
    folder="MNIST",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    sha256=(
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    sizes=(9_912_422, 28_881, 1_648_877, 4_542),
    labels_sha256="1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
)
FASHION_MNIST = Collection(
    name="Fashion-MNIST",
    folder="FashionMNIST",
    mirrors=(  # the authors' repository, and their bucket, which has no https
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    sha256=(
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    sizes=(26_421_880, 29_515, 4_422_102, 5_148),
    labels_sha256="657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
)


def mnist(
    root: str | os.PathLike[str], *, download: bool = False, progress: bool = True
) -> Dataset:
    """Load MNIST: 60,000 + 10,000 handwritten digits of 28 x 28 pixels, scaled to [0, 1].

    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
    recognition", 1998.

    The four files are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
    ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, each with or without ``.gz``. They
    are read from the first of these folders that has any of them: ``root/MNIST/raw``, as in
    torchvision, ``root/raw`` and ``root``.

    Args:
        root: the folder.
        download: whether to download missing files, about 12 MB.
        progress: whether to show a progress bar while downloading.

    Raises:
        FileNotFoundError: a file is missing, or cannot be downloaded.
        ValueError: a file is truncated, corrupt, or has other content than its name says.

    >>> data = eq.data.mnist("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: expected train-images-idx3-ubyte.gz and ..., found no folder nowhere. Put it
    there, or load it with download=True
    """
    return _load(MNIST, as_path(root), download, progress)


def fashion_mnist(
    root: str | os.PathLike[str], *, download: bool = False, progress: bool = True
) -> Dataset:
    """Load Fashion-MNIST: 60,000 + 10,000 images of clothing, 28 x 28 pixels, scaled to [0, 1].

    H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine
    learning algorithms", 2017.

    The files have the same names as those of `mnist`. They are read from ``root/FashionMNIST/raw``,
    ``root/raw`` or ``root``. Files of MNIST in their place are an error.

    Args:
        root: the folder.
        download: whether to download missing files, about 31 MB.
        progress: whether to show a progress bar while downloading.

    Raises:
        FileNotFoundError: a file is missing, or cannot be downloaded.
        ValueError: a file is truncated, corrupt, or has other content than its name says.

    >>> data = eq.data.fashion_mnist("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: expected train-images-idx3-ubyte.gz and ..., found no folder nowhere. Put it
    there, or load it with download=True
    """
    return _load(FASHION_MNIST, as_path(root), download, progress)


def read_idx(path: Path, dims: int) -> Tensor:
    """Read an IDX file of unsigned bytes, gzipped or not, with ``dims`` dimensions."""
    try:
        with path.open("rb") as start:
            # Not the name: some browsers unpack a download and keep its suffix .gz.
            zipped = start.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            return _parse(file, path, dims)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = f"it is truncated or corrupt: {error}"
        raise ValueError(f"{path} cannot be unpacked, {reason}") from error


def _parse(file: BufferedReader | gzip.GzipFile, path: Path, dims: int) -> Tensor:
    # IDX: two zero bytes, the type of the values, the number of dimensions; then one big-endian
    # size of four bytes per dimension; then the values.
    magic = file.read(4)
    header = file.read(4 * dims)
    expected = bytes([0, 0, 8, dims])  # 8: unsigned bytes
    if magic != expected:
        found = magic.hex() or "nothing"
        raise ValueError(f"{path} must begin with the magic number {expected.hex()}, found {found}")
    if len(header) < 4 * dims:
        found = f"{len(header)} bytes"
        raise ValueError(f"{path} must have {dims} sizes after the magic number, found {found}")
    shape = struct.unpack(f">{dims}I", header)
    # Exact in Python integers: sizes up to 2**32 each would overflow int64 in numpy.
    size = math.prod(shape)
    promised = f"{' x '.join(map(str, shape))} = {size}"
    if size > LIMIT:
        raise ValueError(f"{path} must hold at most {LIMIT} bytes, found {promised} in its header")
    # One byte more than announced, to notice a file that continues.
    content = _read_at_most(file, size + 1)
    if len(content) != size or not size:
        found = f"{len(content)} bytes" if len(content) <= size else "more"
        raise ValueError(f"{path} must hold {promised} bytes, at least one, found {found}")
    return torch.frombuffer(content, dtype=torch.uint8).view(shape)


def _read_at_most(file: BufferedReader | gzip.GzipFile, size: int) -> bytearray:
    content = bytearray()  # grown chunk by chunk: the header may announce bytes that do not exist
    while chunk := file.read(min(CHUNK, size - len(content))):
        content += chunk
    return content


def _load(collection: Collection, root: Path, download: bool, progress: bool) -> Dataset:
    folder = _folder(collection, root)
    if folder is None and not download:
        places = f"{root / collection.folder / 'raw'}, {root / 'raw'} or {root}"
        expected = f"{MNIST_FILES[0]}.gz and the other files of {collection.name} in {places}"
        raise missing(expected, root)
    # torchvision finds downloads there too.
    folder = folder or root / collection.folder / "raw"
    paths = [_file(collection, folder, name, download, progress) for name in MNIST_FILES]
    x, y = _read_pair(*paths[:2])
    test_x, test_y = _read_pair(*paths[2:])
    _check_origin(collection, paths[1], y)
    return Dataset(
        _scaled(x), y.long(), _scaled(test_x), test_y.long(), classes=10, name=collection.name
    )


def _folder(collection: Collection, root: Path) -> Path | None:
    folders = (root / collection.folder / "raw", root / "raw", root)
    # One folder for all four files: a mixture of two collections would go unnoticed.
    for folder in folders:
        if any(_idx_file(folder, name) for name in MNIST_FILES):
            return folder
    return None


def _idx_file(folder: Path, name: str) -> Path | None:
    # The unpacked file first: it needs no decompression.
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _file(collection: Collection, folder: Path, name: str, download: bool, progress: bool) -> Path:
    path = _idx_file(folder, name)
    if path is None and not download:
        raise missing(f"{name}.gz of {collection.name}, or {name}, in {folder}", folder)
    if path is None:
        path = folder / f"{name}.gz"
        fetch(collection.sources(name), path, progress=progress)
    return path


def _check_origin(collection: Collection, path: Path, labels: Tensor) -> None:
    """Raise if the labels are those of the other collection, whose files have the same names."""
    # The labels alone identify a collection, and are cheaper to hash than the images.
    digest = hashlib.sha256(labels.numpy().tobytes()).hexdigest()
    # Only the known confusion is an error: your own data in IDX files may have any labels.
    for other in (MNIST, FASHION_MNIST):
        if other.name != collection.name and digest == other.labels_sha256:
            raise ValueError(
                f"{path} must be of {collection.name}, found the labels of {other.name}"
            )


def _read_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    x = read_idx(images, 3)
    y = read_idx(labels, 1)
    if x.shape[1:] != (28, 28):
        found = f"{x.shape[1]} x {x.shape[2]}"
        raise ValueError(f"{images} must hold images of 28 x 28 pixels, found {found}")
    if len(x) != len(y):
        expected = f"a label for each of the {len(x)} images of {images.name}"
        raise ValueError(f"{labels} must hold {expected}, found {len(y)}")
    # Every size is at least one, or read_idx would have raised: max is defined.
    if y.max() > 9:
        raise ValueError(f"{labels} must hold labels from 0 to 9, found {int(y.max())}")
    return x, y


def _scaled(images: Tensor) -> Tensor:
    # (N, 28, 28) bytes become (N, 1, 28, 28) float32; divided in place, as a copy takes 188 MB.
    return images.unsqueeze(1).float().div_(255)
