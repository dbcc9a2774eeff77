"""CelebA in miniature: clients, labels, images, and damaged or missing files."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import re
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.data import by_client, celeba
from equipoise.data._download import Source

module = importlib.import_module("equipoise.data._celeba")  # the function of this name hides it

CELEBRITIES = {7: 5, 2880: 12, 12: 4, 400: 6}  # how many images each of them has
NAMES = [f"{i:06d}.jpg" for i in range(1, 28)]
OWNERS = [person for turn in range(12) for person, n in CELEBRITIES.items() if turn < n]
IDENTITIES = dict(zip(NAMES, OWNERS, strict=True))
SMILING = {name: i % 3 == 0 for i, name in enumerate(NAMES)}
ATTRIBUTES, IDENTITY = "list_attr_celeba.txt", "identity_CelebA.txt"


def picture(name: str) -> Image.Image:
    """A wide gradient; the blue channel holds the number of the image."""
    pixels = np.zeros((44, 36, 3), dtype=np.uint8)
    pixels[..., 0] = np.linspace(0, 255, 36).astype(np.uint8)
    pixels[..., 1] = np.linspace(0, 255, 44).astype(np.uint8)[:, None]
    pixels[..., 2] = 9 * int(name[:6])
    return Image.fromarray(pixels)


def jpg(name: str) -> bytes:
    buffer = io.BytesIO()
    picture(name).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


JPGS = {name: jpg(name) for name in NAMES}


def attributes() -> str:
    rows = "".join(f"{name} -1  {1 if smiles else -1} 1 \n" for name, smiles in SMILING.items())
    return f"{len(NAMES)}\nBald Smiling Young \n{rows}"


def identities() -> str:
    return "".join(f"{name} {who}\n" for name, who in IDENTITIES.items())


def write(root: Path, *, images: str = "", lists: str = "", zipped: bool = False) -> Path:
    for folder in (root / images, root / lists):
        folder.mkdir(parents=True, exist_ok=True)
    (root / lists / ATTRIBUTES).write_text(attributes())
    (root / lists / IDENTITY).write_text(identities())
    if zipped:
        (root / images / "img_align_celeba.zip").write_bytes(archive())
        return root
    (root / images / "img_align_celeba").mkdir()
    for name, content in JPGS.items():
        (root / images / "img_align_celeba" / name).write_bytes(content)
    return root


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, content in JPGS.items():
            target.writestr(f"img_align_celeba/{name}", content)
    return buffer.getvalue()


def load(root: Path, **options: Any):
    return celeba(root, **({"size": 8, "progress": False} | options))


def numbers(x: torch.Tensor) -> list[int]:
    return x[:, 2].mean((1, 2)).mul(255 / 9).round().long().tolist()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "root")


def test_clients_as_in_leaf(root: Path):
    data = load(root)
    assert data.owners is not None
    trained = [IDENTITIES[NAMES[i - 1]] for i in numbers(data.x)]
    assert trained == [[7, 400, 2880][owner] for owner in data.owners.tolist()]
    assert data.owners.bincount().tolist() == [4, 5, 10]  # 90 % of 5, 6 and 12, rounded down
    used = sorted(numbers(data.x) + numbers(data.test_x))
    assert used == [i for i in range(1, 28) if IDENTITIES[NAMES[i - 1]] != 12]
    assert [len(part) for part in by_client(data)] == [4, 5, 10]


def test_labels_of_images(root: Path):
    data = load(root)
    for x, y in ((data.x, data.y), (data.test_x, data.test_y)):
        assert y.tolist() == [int(SMILING[NAMES[i - 1]]) for i in numbers(x)]
    assert load(root, label="Young").y.tolist() == [1] * 19
    assert (data.classes, data.name) == (2, "CelebA")


def test_resized_and_scaled(root: Path):
    data = load(root, size=84)
    assert data.x.shape == (19, 3, 84, 84)
    for i, image in zip(numbers(data.x), data.x, strict=True):
        with Image.open(io.BytesIO(JPGS[NAMES[i - 1]])) as opened:
            expected = np.array(opened.resize((84, 84), Image.Resampling.BICUBIC))
        assert torch.equal(image, torch.tensor(expected).permute(2, 0, 1).float() / 255)
    assert data.x[:, 0].mean((0, 1)).diff().min() >= 0  # red grows to the right
    assert data.x[:, 1].mean((0, 2)).diff().min() >= 0  # green grows downwards
    assert data.x.max() <= 1


def test_gray_has_one_channel(root: Path):
    gray, colour = load(root, gray=True), load(root)
    assert gray.x.shape == (19, 1, 8, 8)
    expected = (colour.x * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1)
    assert (gray.x[:, 0] - expected).abs().max() < 0.01


@pytest.mark.parametrize(
    ("images", "lists"), [("celeba", "celeba"), ("raw", "raw"), ("Img", "Anno"), ("", "Anno")]
)
@pytest.mark.parametrize("zipped", [True, False])
def test_other_layouts(images: str, lists: str, zipped: bool, root: Path, tmp_path: Path):
    other, expected = (
        load(write(tmp_path / "other", images=images, lists=lists, zipped=zipped)),
        load(root),
    )
    assert torch.equal(other.x, expected.x)
    assert torch.equal(other.test_x, expected.test_x)


def test_minimum_and_share(root: Path):
    assert load(root, minimum=1).owners.bincount().tolist() == [4, 3, 5, 10]
    assert load(root, minimum=6).owners.bincount().tolist() == [5, 10]
    assert load(root, test_share=0.5).owners.bincount().tolist() == [2, 3, 6]
    assert load(root, test_share=0.99).owners.bincount().tolist() == [1, 1, 1]
    with pytest.raises(
        ValueError, match="minimum must be at most 12, the images of one celebrity here, found 13"
    ):
        load(root, minimum=13)


@pytest.mark.parametrize("seed", range(6))
def test_limit_keeps_clients_whole(root: Path, seed: int):
    data = load(root, limit=18, seed=seed)
    used = [IDENTITIES[NAMES[i - 1]] for i in numbers(data.x) + numbers(data.test_x)]
    assert 0 < len(used) <= 18
    assert 12 not in used
    assert all(used.count(who) == CELEBRITIES[who] for who in used)
    assert data.owners.unique().tolist() == list(range(len(set(used))))


def test_limit_too_small(root: Path):
    chosen = {tuple(sorted(numbers(load(root, limit=12, seed=seed).x))) for seed in range(8)}
    assert len(chosen) > 1
    assert torch.equal(load(root, limit=23).x, load(root, limit=10**9).x)
    with pytest.raises(
        ValueError,
        match=r"limit must be at least (5|6|12), the images of the first client, found 4",
    ):
        load(root, limit=4)


def test_seed(root: Path):
    assert torch.equal(load(root, seed=3).x, load(root, seed=3).x)
    assert numbers(load(root, seed=3).x) != numbers(load(root, seed=4).x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be an integer at least 1, found 0"),
        ({"minimum": 0}, "minimum must be an integer at least 1, found 0"),
        ({"limit": 0}, "limit must be an integer at least 1, found 0"),
        ({"test_share": 1.0}, "test_share must be a number between 0 and 1, found 1.0"),
        (
            {"label": "Happy"},
            f"label must be one of Bald, Smiling, Young in .*{ATTRIBUTES}, found 'Happy'",
        ),
    ],
)
def test_bad_options(options: dict[str, Any], message: str, root: Path):
    with pytest.raises(ValueError, match=message):
        load(root, **options)


FIRST = NAMES[0]
LINES = {
    "no number": (
        ATTRIBUTES,
        attributes().split("\n", 1)[1],
        "must begin with the number of images, found 'Bald Smi",
    ),
    "empty": (ATTRIBUTES, "", "must begin with the number of images, found ''"),
    "too few": (
        ATTRIBUTES,
        attributes().rsplit(NAMES[-1], 1)[0],
        "must hold 27 images, as its first line says, found 26",
    ),
    "a short row": (
        ATTRIBUTES,
        attributes().replace(f"{FIRST} -1", FIRST),
        "must hold .* and 3 times 1 or -1 in line 3",
    ),
    "another value": (
        ATTRIBUTES,
        attributes().replace(f"{FIRST} -1  1", f"{FIRST} -1 2"),
        "in line 3, found '000001.jpg -1 2 1",
    ),
    "no image": (
        ATTRIBUTES,
        attributes().replace(FIRST, "other.jpg"),
        f"must hold every image of .*{IDENTITY}, found no {FIRST}",
    ),
    "no name": (
        IDENTITY,
        identities().replace(f"{FIRST} 7", FIRST),
        "must hold .* and a number in line 1, found '000001.jpg'",
    ),
    "no identity": (
        IDENTITY,
        identities().replace(f"{FIRST} 7", f"{FIRST} Ann"),
        "and a number in line 1, found '000001.jpg Ann'",
    ),
    "twice": (
        IDENTITY,
        identities() + identities(),
        "must hold the name of another image and a number in line 28",
    ),
    "nobody": (
        IDENTITY,
        "\n \n",
        "must hold the names of images and a number for each, found no line",
    ),
    "binary": (
        IDENTITY,
        "\x00\xff\xfe",
        "must hold the name of another image and a number in line 1",
    ),
}


@pytest.mark.parametrize(("file", "content", "message"), LINES.values(), ids=LINES)
def test_damaged_lists(file: str, content: str, message: str, root: Path):
    (root / file).write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=f"^{re.escape(str(root / file))} .*{message}"):
        load(root)


PNG = io.BytesIO()
picture(FIRST).save(PNG, "PNG")
PICTURES = {
    "truncated": JPGS[FIRST][:-300],
    "header only": JPGS[FIRST][:30],
    "empty": b"",
    "a web page": b"<html>",
    "not a jpg": PNG.getvalue(),
}


@pytest.mark.parametrize("content", PICTURES.values(), ids=PICTURES)
def test_damaged_images(content: bytes, root: Path):
    path = root / "img_align_celeba" / FIRST
    path.write_bytes(content)
    with pytest.raises(
        ValueError,
        match=f"^{re.escape(str(path))} must be a JPEG image, found a corrupt or truncated file: ",
    ):
        load(root)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((2049, 2048), "must have at most 4194304 pixels, found 2049 x 2048"),
        (None, "must hold at most 1048576 bytes"),
    ],
    ids=["pixels", "bytes"],
)
def test_images_too_large(size: tuple[int, int] | None, message: str, root: Path):
    path = root / "img_align_celeba" / FIRST
    if size is None:
        path.write_bytes(JPGS[FIRST] + bytes(1 << 20))
    else:
        Image.new("L", size).save(path, "JPEG")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} {message}"):
        load(root)


@pytest.mark.parametrize("zipped", [True, False])
def test_missing_images(zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in NAMES[:2]:
        monkeypatch.delitem(JPGS, name)
    monkeypatch.setattr(module, "_read_images", None)
    root = write(tmp_path / "root", zipped=zipped)
    message = r"expected 000001\.jpg and 1 more in .*img_align_celeba.*, found 25 other files there"
    with pytest.raises(FileNotFoundError, match=message):
        load(root)


def test_names_outside_the_folder(root: Path):
    (root / "out.jpg").write_bytes(JPGS[FIRST])
    for file, content in ((ATTRIBUTES, attributes()), (IDENTITY, identities())):
        (root / file).write_text(content.replace(FIRST, "../out.jpg"))
    with pytest.raises(
        FileNotFoundError,
        match=r"expected \.\./out\.jpg in .*img_align_celeba, found 27 other files",
    ):
        load(root)


@pytest.mark.parametrize("name", [ATTRIBUTES, IDENTITY, "img_align_celeba"])
def test_missing_files(name: str, root: Path, tmp_path: Path):
    (root / name).rename(tmp_path / "elsewhere")
    expected = f"{name} or {name}.zip" if name == "img_align_celeba" else name
    places = f"{root} or a folder celeba, raw, Img, Anno in it"
    there = ", ".join(sorted({ATTRIBUTES, IDENTITY, "img_align_celeba"} - {name}))
    message = f"expected {expected} in {places}, found {there} in {root}. Put it there, or"
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        load(root)


def test_truncated_archive(tmp_path: Path):
    root = write(tmp_path / "root", zipped=True)
    (root / "img_align_celeba.zip").write_bytes(archive()[:-50])
    message = "img_align_celeba.zip must be a zip archive, found another or an incomplete file"
    with pytest.raises(ValueError, match=re.escape(message)):
        load(root)


def test_progress_bar(root: Path, capsys: pytest.CaptureFixture[str]):
    load(root, progress=True)
    assert "CelebA: 100%" in capsys.readouterr().err
    load(root)
    assert capsys.readouterr().err == ""


def test_error_stops_threads(root: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[Any] = []

    def fails(file: Any, size: int, gray: bool) -> torch.Tensor:
        read.append(file)
        time.sleep(0.1)
        raise ValueError("broken")

    monkeypatch.setattr(module, "BATCH", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(module, "_image", fails)
    with pytest.raises(ValueError, match="broken"):
        load(root)
    assert 0 < len(read) < 19


def test_batch_size_is_irrelevant(root: Path, monkeypatch: pytest.MonkeyPatch):
    expected = load(root).x
    monkeypatch.setattr(module, "BATCH", 3)
    assert torch.equal(load(root).x, expected)


def test_download_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = write(tmp_path / "server", zipped=True)
    root = tmp_path / "root"
    sources = {}
    for path in server.iterdir():
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        sources[path.name] = Source(path.as_uri(), digest, len(content))
    monkeypatch.setattr(module, "CELEBA_SOURCES", sources)
    with pytest.raises(FileNotFoundError, match=f"expected {ATTRIBUTES} in .*, found no folder"):
        load(root)
    assert torch.equal(load(root, download=True).x, load(server).x)
    assert sorted(os.listdir(root)) == sorted(sources)
    (root / IDENTITY).unlink()
    (server / IDENTITY).write_bytes(bytes(sources[IDENTITY].size))
    url = re.escape(sources[IDENTITY].url)
    message = f"{IDENTITY} could not be downloaded from {url}: expected SHA-256 .*, found "
    with pytest.raises(FileNotFoundError, match=message):
        load(root, download=True)
    assert IDENTITY not in os.listdir(root)


def test_needs_pillow(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match="PIL is not installed"):
        load(root)
