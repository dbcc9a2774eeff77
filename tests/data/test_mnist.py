"""MNIST and Fashion-MNIST from small files in the IDX format, whole, damaged, and absent."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import equipoise.data._mnist as idx
from equipoise.data import Dataset, fashion_mnist, mnist

LOADERS = [
    pytest.param(mnist, "MNIST", id="mnist"),
    pytest.param(fashion_mnist, "FashionMNIST", id="fashion"),
]
Loader = Callable[..., Dataset]


def idx_bytes(values: Tensor) -> bytes:
    return struct.pack(f">4B{values.dim()}I", 0, 0, 8, values.dim(), *values.shape) + bytes(
        values.flatten().tolist()
    )


def images(n: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (n, 28, 28), generator=torch.Generator().manual_seed(seed))


CONTENTS = {
    "train-images-idx3-ubyte": images(5, 0),
    "train-labels-idx1-ubyte": torch.tensor([3, 0, 9, 9, 1]),
    "t10k-images-idx3-ubyte": images(2, 1),
    "t10k-labels-idx1-ubyte": torch.tensor([7, 2]),
}
NAMES = list(CONTENTS)


def write(folder: Path, *, zipped: bool = True, without: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in CONTENTS.items():
        content = idx_bytes(values)
        if name != without:
            (folder / f"{name}.gz" if zipped else folder / name).write_bytes(
                gzip.compress(content) if zipped else content
            )
    return folder


def check(data: Dataset) -> None:
    assert torch.equal(data.x, CONTENTS[NAMES[0]].float().view(5, 1, 28, 28) / 255)
    assert torch.equal(data.test_x, CONTENTS[NAMES[2]].float().view(2, 1, 28, 28) / 255)
    assert torch.equal(data.y, CONTENTS[NAMES[1]])
    assert torch.equal(data.test_y, CONTENTS[NAMES[3]])
    assert data.classes == 10


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("layout", ["", "raw", "{}/raw"])
@pytest.mark.parametrize(("load", "folder"), LOADERS)
def test_layouts(load: Loader, folder: str, layout: str, zipped: bool, tmp_path: Path):
    write(tmp_path / layout.format(folder), zipped=zipped)
    check(load(tmp_path))
    check(load(str(tmp_path)))


def test_gzip_by_content(tmp_path: Path):
    write(tmp_path)
    for name in NAMES[:2]:  # unpacked by a browser that kept the name
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.decompress(path.read_bytes()))
    for name in NAMES[2:]:
        (tmp_path / f"{name}.gz").rename(tmp_path / name)
    check(mnist(tmp_path))


def test_other_compression(tmp_path: Path):
    write(tmp_path)
    for name in NAMES:
        packed = gzip.compress(idx_bytes(CONTENTS[name]), compresslevel=1, mtime=7)
        (tmp_path / f"{name}.gz").write_bytes(packed)
    check(mnist(tmp_path))


def damaged_gz(content: bytes) -> bytes:
    packed = bytearray(gzip.compress(content))
    packed[-6] ^= 1  # the checksum
    return bytes(packed)


IMAGE, LABEL = NAMES[0], NAMES[1]
FIVE = idx_bytes(CONTENTS[IMAGE])
DAMAGE = {
    "truncated gz": (
        IMAGE,
        gzip.compress(FIVE)[:-100],
        "cannot be unpacked, it is truncated or corrupt: Compressed",
    ),
    "gz header only": (
        IMAGE,
        gzip.compress(FIVE)[:5],
        "cannot be unpacked, it is truncated or corrupt: ",
    ),
    "wrong gz checksum": (
        IMAGE,
        damaged_gz(FIVE),
        "cannot be unpacked, it is truncated or corrupt: CRC check failed",
    ),
    "noise in gz": (
        IMAGE,
        gzip.compress(FIVE)[:60] + bytes(100),
        "cannot be unpacked, it is truncated or corrupt: ",
    ),
    "empty": (IMAGE, b"", "must begin with the magic number 00000803, found nothing"),
    "empty gz": (
        IMAGE,
        gzip.compress(b""),
        "must begin with the magic number 00000803, found nothing",
    ),
    "a web page": (
        IMAGE,
        b"<!DOCTYPE html>",
        "must begin with the magic number 00000803, found 3c21444f",
    ),
    "labels for images": (
        IMAGE,
        idx_bytes(torch.tensor([1])),
        "must begin with the .* 00000803, found 00000801",
    ),
    "images for labels": (LABEL, FIVE, "must begin with the magic number 00000801, found 00000803"),
    "short header": (IMAGE, FIVE[:10], "must have 3 sizes after the magic number, found 6 bytes"),
    "short": (
        IMAGE,
        FIVE[:-1],
        "must hold 5 x 28 x 28 = 3920 bytes, at least one, found 3919 bytes",
    ),
    "long": (IMAGE, FIVE + b"x", "must hold 5 x 28 x 28 = 3920 bytes, at least one, found more"),
    "terabytes": (
        LABEL,
        struct.pack(">4BI", 0, 0, 8, 1, 2**32 - 1),
        "must hold at most 54880000 bytes, .* 4294967295 in",
    ),
    "promised": (
        LABEL,
        struct.pack(">4BI", 0, 0, 8, 1, 50_000_000),
        "must hold 50000000 = 50000000 .* found 0",
    ),
    "no images": (
        IMAGE,
        struct.pack(">4B3I", 0, 0, 8, 3, 0, 28, 28),
        "must hold 0 x 28 x 28 = 0 bytes, at least one",
    ),
    "other pixels": (
        IMAGE,
        idx_bytes(torch.zeros(5, 27, 28).int()),
        "must hold images of 28 x 28 pixels, found 27 x 28",
    ),
    "a label fewer": (
        LABEL,
        idx_bytes(torch.zeros(4).int()),
        f"must hold a label for each of the 5 images of {IMAGE}.* 4",
    ),
    "a label of 10": (
        LABEL,
        idx_bytes(torch.tensor([0, 10, 0, 0, 0])),
        "must hold labels from 0 to 9, found 10",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_damaged_files(name: str, content: bytes, message: str, suffix: str, tmp_path: Path):
    folder = write(tmp_path / "MNIST" / "raw")
    (folder / f"{name}.gz").unlink()
    (folder / f"{name}{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(folder / name))}{suffix} {message}"):
        mnist(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_missing_file(name: str, tmp_path: Path):
    folder = write(tmp_path / "raw", without=name)
    there = ", ".join(sorted(f"{other}.gz" for other in NAMES if other != name))
    message = f"expected {name}.gz of MNIST, or {name}, in {folder}, found {there} in {folder}"
    with pytest.raises(
        FileNotFoundError,
        match=re.escape(f"{message}. Put it there, or load it with download=True"),
    ):
        mnist(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_files(zipped: bool, tmp_path: Path):
    content = idx_bytes(CONTENTS[LABEL])
    content = gzip.compress(content) if zipped else content
    for length in range(len(content)):
        (tmp_path / LABEL).write_bytes(content[:length])
        with pytest.raises(
            ValueError, match=f"{LABEL} (cannot be unpacked|must begin with|must have|must hold)"
        ):
            idx.read_idx(tmp_path / LABEL, 1)
    (tmp_path / LABEL).write_bytes(content)
    assert idx.read_idx(tmp_path / LABEL, 1).tolist() == [3, 0, 9, 9, 1]


def test_flipped_bits(tmp_path: Path):
    content, refused = gzip.compress(idx_bytes(CONTENTS[LABEL]), mtime=0), 0
    for position, bit in itertools.product(range(len(content)), range(8)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        (tmp_path / LABEL).write_bytes(damaged)
        try:
            assert idx.read_idx(tmp_path / LABEL, 1).tolist() == [
                3,
                0,
                9,
                9,
                1,
            ]  # harmless, like the time of packing
        except ValueError as error:
            assert LABEL in str(error)  # noqa: PT017
            refused += 1
    assert refused > 8 * len(content) // 2


@pytest.mark.parametrize(
    ("promised", "peak"), [(100_000_000, 1), (1000, 4)], ids=["honest header", "false header"]
)
def test_gzip_bomb(promised: int, peak: int, tmp_path: Path):
    header = struct.pack(">4BI", 0, 0, 8, 1, promised)
    (tmp_path / LABEL).write_bytes(gzip.compress(header + bytes(50_000_000), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"{LABEL} must hold .*{promised}"):
            idx.read_idx(tmp_path / LABEL, 1)
        assert tracemalloc.get_traced_memory()[1] < peak * 1e6
    finally:
        tracemalloc.stop()


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=4)), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_mutated_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    zipped: bool,
    changes: list[tuple[int, bytes]],
    end: int,
):
    content = bytearray(idx_bytes(torch.arange(100).view(4, 5, 5)))
    content = bytearray(gzip.compress(content)) if zipped else content
    for position, inserted in changes:
        content[position : position + 2] = inserted
    path = tmp_path_factory.getbasetemp() / "mutated-idx3-ubyte"
    path.write_bytes(content[:end])
    tracemalloc.start()
    try:
        assert idx.read_idx(path, 3).dtype == torch.uint8
    except ValueError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4e6


def test_folders_are_not_mixed(tmp_path: Path):
    write(tmp_path)
    write(tmp_path / "MNIST" / "raw", without=NAMES[3])
    with pytest.raises(FileNotFoundError, match=f"expected {NAMES[3]}.gz of MNIST"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], "nothing in {}."),
        (["b", "a"], "a, b in {}."),
        (list("gfedcba"), "a, b, c, d, e and 2 more in {}."),
        (None, "no folder {}."),
    ],
)
def test_empty_folder(files: list[str] | None, found: str, tmp_path: Path):
    root = tmp_path / "data"
    for name in files or []:
        (root / name).mkdir(parents=True)
    if files == []:
        root.mkdir()
    places = f"{root / 'FashionMNIST' / 'raw'}, {root / 'raw'} or {root}"
    names = f"{NAMES[0]}.gz and the other files of Fashion-MNIST"
    expected = f"expected {names} in {places}, found {found.format(root)}"
    with pytest.raises(FileNotFoundError, match=re.escape(expected)):
        fashion_mnist(root)
    assert root.exists() == (files is not None)


def test_root_is_a_file(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    message = f"found a file at {re.escape(str(file))}, not a folder"
    with pytest.raises(FileNotFoundError, match=message):
        mnist(file)
    with pytest.raises(ValueError, match="root must be a path, found None"):
        mnist(None)  # type: ignore[arg-type]


def test_swapped_collections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    digest = hashlib.sha256(bytes(CONTENTS[NAMES[1]].tolist())).hexdigest()
    monkeypatch.setattr(idx, "MNIST", dataclasses.replace(idx.MNIST, labels_sha256=digest))
    write(tmp_path, zipped=False)
    check(mnist(tmp_path))
    message = f"{NAMES[1]} must be of Fashion-MNIST, found the labels of MNIST"
    with pytest.raises(ValueError, match=message):
        fashion_mnist(tmp_path)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is the second mirror of MNIST; the first one has nothing."""
    folder = write(tmp_path / "mirror")
    contents = [(folder / f"{name}.gz").read_bytes() for name in NAMES]
    local = dataclasses.replace(
        idx.MNIST,
        mirrors=((tmp_path / "empty").as_uri() + "/", folder.as_uri() + "/"),
        sha256=tuple(hashlib.sha256(content).hexdigest() for content in contents),
        sizes=tuple(len(content) for content in contents),
    )
    monkeypatch.setattr(idx, "MNIST", local)
    return folder


def test_download(mirror: Path, tmp_path: Path):
    root = tmp_path / "new" / "root"
    check(mnist(root, download=True, progress=False))
    folder = root / "MNIST" / "raw"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in NAMES)
    for path in mirror.iterdir():
        path.unlink()
    check(mnist(root))
    check(mnist(root, download=True))


def test_download_missing_files(mirror: Path, tmp_path: Path):
    folder = write(tmp_path / "root" / "raw", without=NAMES[2], zipped=False)
    check(mnist(tmp_path / "root", download=True, progress=False))
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*NAMES[:2], f"{NAMES[2]}.gz", NAMES[3]]
    )


def test_no_download_by_default(mirror: Path, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="load it with download=True"):
        mnist(tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_failed_download(mirror: Path, tmp_path: Path):
    (mirror / f"{NAMES[1]}.gz").write_bytes(bytes(idx.MNIST.sizes[1]))
    folder = tmp_path / "root" / "MNIST" / "raw"
    with pytest.raises(FileNotFoundError) as caught:
        mnist(tmp_path / "root", download=True, progress=False)
    for part in (
        *idx.MNIST.mirrors,
        f"expected SHA-256 {idx.MNIST.sha256[1]}, found",
        f"Put the file at {folder / NAMES[1]}.gz",
    ):
        assert part in str(caught.value)
    assert [path.name for path in folder.iterdir()] == [f"{NAMES[0]}.gz"]


def test_checksums_and_mirrors():
    for collection in (idx.MNIST, idx.FASHION_MNIST):
        digests = {*collection.sha256, collection.labels_sha256}
        assert len([one for one in digests if re.fullmatch("[0-9a-f]{64}", one)]) == 5
        source = collection.sources(NAMES[3])[0]
        assert source.url.endswith(f"/{NAMES[3]}.gz")
        assert source.sha256 == collection.sha256[3]
        assert source.size == collection.sizes[3]


def test_https_mirrors_come_first():
    for collection in (idx.MNIST, idx.FASHION_MNIST):
        schemes = [mirror.split(":")[0] for mirror in collection.mirrors]
        assert schemes[0] == "https"
        assert schemes == sorted(schemes, reverse=True)
