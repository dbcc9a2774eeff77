"""UCI HAR in miniature: layouts, subjects, and damaged or missing files."""

from __future__ import annotations

import hashlib
import importlib
import io
import math
import os
import re
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.data import by_client, har
from equipoise.data._download import Source

module = importlib.import_module("equipoise.data._har")  # the function of this name hides it

# Rows per subject, as (subject, rows). Unlike in the official files, subject 5 is in both parts.
PARTS = {"train": [(5, 3), (1, 8), (30, 1)], "test": [(2, 4), (5, 2)]}
ROWS = {1: 8, 2: 4, 5: 5, 30: 1}


def tables(part: str) -> tuple[Tensor, list[int], list[int]]:
    subjects = [subject for subject, rows in PARTS[part] for _ in range(rows)]
    generator = torch.Generator().manual_seed(len(part))
    x = torch.rand(len(subjects), 561, generator=generator) * 2 - 1
    x[:, 0] = torch.tensor(
        [subjects[i] / 100 for i in range(len(subjects))]
    )  # so that a row tells whose it is
    return x, [i % 6 + 1 for i in range(len(subjects))], subjects


def files() -> dict[str, str]:
    contents = {"README.txt": "not read", "features.txt": "1 tBodyAcc-mean()-X\n"}
    for part in PARTS:
        x, y, subjects = tables(part)
        contents[f"{part}/X_{part}.txt"] = "".join(
            "".join(f" {v: .7e}" for v in row) + "\n" for row in x.tolist()
        )
        contents[f"{part}/y_{part}.txt"] = "".join(f"{label}\n" for label in y)
        contents[f"{part}/subject_{part}.txt"] = "".join(f"{subject}\n" for subject in subjects)
    return contents


def archive(contents: dict[str, str | bytes], prefix: str = "UCI HAR Dataset/") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in contents.items():
            target.writestr(prefix + name, content)
    return buffer.getvalue()


def write(folder: Path, contents: dict[str, str]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


NAME, OUTER = "UCI HAR Dataset", "human+activity+recognition+using+smartphones.zip"
INNER = archive(files())
NESTED = archive({f"{NAME}.zip": INNER, f"{NAME}.names": "text", "__MACOSX/x": "junk"}, prefix="")
LAYOUTS = {
    "original zip": {f"{NAME}.zip": INNER},
    "zip in a zip": {f"{NAME}.zip": NESTED},
    "zip in a zip as offered": {OUTER: NESTED},
    "zip without a folder": {f"{NAME}.zip": archive(files(), prefix="")},
    "folder": {f"{NAME}/{name}": content.encode() for name, content in files().items()},
    "folder itself": {name: content.encode() for name, content in files().items()},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, tmp_path: Path):
    root, reference = tmp_path / "root", har(write(tmp_path / "reference", files()))
    for name, content in LAYOUTS[layout].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    before = list(os.walk(tmp_path))
    data = har(root)
    assert torch.equal(data.x, reference.x)
    assert torch.equal(data.y, reference.y)
    assert torch.equal(data.test_x, reference.test_x)
    assert list(os.walk(tmp_path)) == before


@pytest.mark.parametrize("content", [INNER, NESTED], ids=["original", "nested"])
def test_root_is_the_archive(content: bytes, tmp_path: Path):
    (tmp_path / "mine.zip").write_bytes(content)
    assert len(har(tmp_path / "mine.zip").x) == 14


def test_rows_and_labels(tmp_path: Path):
    data = har(write(tmp_path, files()))
    found = {tuple(x): y for x, y in zip(data.x.tolist(), data.y.tolist(), strict=True)}
    found |= {tuple(x): y for x, y in zip(data.test_x.tolist(), data.test_y.tolist(), strict=True)}
    expected = {}
    for part in PARTS:
        x, y, _ = tables(part)
        expected |= {
            tuple(round(v, 5) for v in row): label - 1
            for row, label in zip(x.tolist(), y, strict=True)
        }
    assert {tuple(round(v, 5) for v in row): label for row, label in found.items()} == expected
    assert len(data.x) + len(data.test_x) == 18
    assert (data.classes, data.name, data.x.dtype, data.x.shape[1]) == (
        6,
        "HAR",
        torch.float32,
        561,
    )


@pytest.mark.parametrize("share", [0.25, 0.2, 0.3, 0.7])
def test_subjects_are_clients(share: float, tmp_path: Path):
    data = har(write(tmp_path, files()), test_share=share)
    assert data.owners is not None
    percent = round(100 - 100 * share)
    assert data.owners.bincount().tolist() == [
        math.ceil(ROWS[s] * percent / 100) for s in (1, 2, 5, 30)
    ]
    assert torch.equal(
        data.x[:, 0].mul(100).round().long(), torch.tensor([1, 2, 5, 30])[data.owners]
    )
    assert [len(part) for part in by_client(data)] == data.owners.bincount().tolist()


def test_seed(tmp_path: Path):
    root = write(tmp_path, files())
    assert torch.equal(har(root, seed=3).x, har(root, seed=3).x)
    assert not torch.equal(har(root, seed=3).x, har(root, seed=4).x)


def replaced(content: str, row: int, change: str) -> str:
    lines = content.splitlines()
    lines[row] = change
    return "\n".join(lines) + "\n"


X, Y, SUBJECT = "train/X_train.txt", "train/y_train.txt", "train/subject_train.txt"
GOOD = files()
SHORT_ROW = " ".join(["0.5"] * 560)
DAMAGE = {
    "a word": (
        X,
        replaced(GOOD[X], 2, SHORT_ROW + " oops"),
        "must hold rows of 561 numbers, found other content: .*oops.*row",
    ),
    "a short row": (
        X,
        replaced(GOOD[X], 2, SHORT_ROW),
        "must hold rows of 561 numbers, found other content: .*561 to 560",
    ),
    "a comment": (
        X,
        replaced(GOOD[X], 2, SHORT_ROW + " #"),
        "must hold rows of 561 numbers, found other content: .*#",
    ),
    "fewer columns": (X, (SHORT_ROW + "\n") * 12, "must hold rows of 561 numbers, found 560"),
    "empty": (X, "", "must hold rows of 561 numbers, found other content: .*no data"),
    "bytes": (X, "\x00\x01\u00ff" * 30, "must hold rows of 561 numbers, found other content: "),
    "nan": (
        X,
        replaced(GOOD[X], 2, SHORT_ROW + " nan"),
        "must hold finite numbers, found nan in row 3",
    ),
    "inf": (
        X,
        replaced(GOOD[X], 0, SHORT_ROW + " -inf"),
        "must hold finite numbers, found -inf in row 1",
    ),
    "a label fewer": (
        Y,
        "1\n" * 11,
        "must have 12 rows, one for every row of X_train.txt, found 11",
    ),
    "a subject more": (
        SUBJECT,
        "1\n" * 13,
        "must have 12 rows, one for every row of X_train.txt, found 13",
    ),
    "label 0": (Y, "0\n" * 12, "must hold whole numbers from 1 to 6, found 0"),
    "label 7": (Y, replaced("1\n" * 12, 4, "7"), "must hold whole numbers from 1 to 6, found 7"),
    "half a label": (
        Y,
        replaced("1\n" * 12, 4, "1.5"),
        "must hold whole numbers from 1 to 6, found 1.5",
    ),
    "a label in words": (
        Y,
        replaced("1\n" * 12, 4, "WALKING"),
        "must hold rows of 1 numbers, found other content: .*WALKING",
    ),
    "two labels": (Y, "1 2\n" * 12, "must hold rows of 1 numbers, found 2"),
    "subject 0": (SUBJECT, "0\n" * 12, "must hold whole numbers from 1, found 0"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("name", "content", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_files(name: str, content: str, message: str, zipped: bool, tmp_path: Path):
    contents = files() | {name: content}
    root = tmp_path / "it.zip" if zipped else tmp_path
    if zipped:
        root.write_bytes(archive(contents))
    else:
        write(tmp_path, contents)
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(root))}.*{re.escape(Path(name).name)} {message}"
    ):
        har(root)


def test_missing_row(tmp_path: Path):
    root = write(tmp_path, files() | {X: GOOD[X].split("\n", 1)[1]})
    with pytest.raises(
        ValueError,
        match=r"y_train\.txt must have 11 rows, one for every row of X_train\.txt, found 12",
    ):
        har(root)


@pytest.mark.parametrize(
    "name", [f"{part}/{kind}_{part}.txt" for part in PARTS for kind in ("X", "y", "subject")]
)
def test_missing_file(name: str, tmp_path: Path):
    contents = files()
    del contents[name]
    message = f"expected the file .*{Path(name).name}, found no such file"
    with pytest.raises(FileNotFoundError, match=message):
        har(write(tmp_path / NAME, contents).parent)
    (tmp_path / "it.zip").write_bytes(archive(contents))
    with pytest.raises(FileNotFoundError, match=message):
        har(tmp_path / "it.zip")


@pytest.mark.parametrize("content", [INNER[:-500], NESTED[: len(NESTED) // 2], b"<html>"])
def test_truncated_archive(content: bytes, tmp_path: Path):
    (tmp_path / f"{NAME}.zip").write_bytes(content)
    with pytest.raises(
        ValueError,
        match=f"{NAME}.zip must be a zip archive, found another or an incomplete file",
    ):
        har(tmp_path)


def test_damaged_archive(tmp_path: Path):
    content = bytearray(INNER)
    start = content.index(b"X_train.txt")
    content[start + 2000 : start + 2100] = bytes(100)
    (tmp_path / f"{NAME}.zip").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"X_train\.txt cannot be unpacked, the archive is corrupt or truncated: "
    ):
        har(tmp_path)


BOMBS = {
    "one line": (b"1 " * 25_000_000, "found other content: line 1 has more than 17952 bytes"),
    "short lines": (b"1\n" * 25_000_000, "found other content: it has more than 10299 lines"),
    "empty lines": (b"\n" * 50_000_000, "found other content: it has more than 10299 lines"),
}


@pytest.mark.parametrize(("content", "message"), BOMBS.values(), ids=BOMBS)
def test_zip_bomb(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "it.zip").write_bytes(archive({X: content}))
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=rf"X_train\.txt must hold rows of 561 numbers, {message}"
        ):
            har(tmp_path / "it.zip")
        # The 50 MB and what zipfile copies, not the 800 MB that numpy would take.
        assert tracemalloc.get_traced_memory()[1] < 160e6
    finally:
        tracemalloc.stop()


def test_limit_of_labels(tmp_path: Path):
    (tmp_path / "it.zip").write_bytes(archive(files() | {Y: "1\n" * 200_000}))
    with pytest.raises(
        ValueError, match=r"y_train\.txt must hold at most 329568 bytes, found 400000"
    ):
        har(tmp_path / "it.zip")


MUTATIONS = st.lists(
    st.tuples(st.integers(0, 2**16), st.binary(max_size=4)), min_size=1, max_size=4
)


@settings(max_examples=50)
@given(st.sampled_from([X, Y, SUBJECT, "zip"]), MUTATIONS)
def test_mutated_bytes(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: list[tuple[int, bytes]]
):
    def mutated(content: bytes) -> bytes:
        for place, inserted in changes:
            position = place % len(content)
            content = content[:position] + inserted + content[position + 2 :]
        return content

    contents = {file: GOOD[file].encode() for file in (X, Y, SUBJECT)}
    if name != "zip":
        contents[name] = mutated(contents[name])
    packed = archive(contents)
    path = tmp_path_factory.getbasetemp() / "mutated.zip"
    path.write_bytes(mutated(packed) if name == "zip" else packed)
    tracemalloc.start()
    try:
        with module.opened(path, NAME) as folder:
            x, y, subjects = module._read_part(folder, "train")
        assert x.shape[1] == 561
        assert len(x) == len(y) == len(subjects)
    except ValueError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    except FileNotFoundError as error:  # the name of a member has changed
        assert name == "zip"
        assert str(path) in str(error)  # noqa: PT017
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8e6


def test_empty_folder(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    places = f"{NAME}.zip or the folder {NAME} in {tmp_path}, or one of them as root"
    expected = f"expected {places}, found notes.txt in"
    with pytest.raises(FileNotFoundError, match=re.escape(expected)):
        har(tmp_path)


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0, "test_share must be a number between 0 and 1, found 0"),
        (0.05, "test_share must be larger, found no test"),
    ],
)
def test_bad_share(share: float, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        har(write(tmp_path, files()), test_share=share)


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path, checksum: str | None = None) -> None:
    (folder / "served.zip").write_bytes(NESTED)
    digest = checksum or hashlib.sha256(NESTED).hexdigest()
    sources = (
        Source((folder / "gone.zip").as_uri(), "0", len(NESTED)),
        Source((folder / "served.zip").as_uri(), digest, len(NESTED)),
    )
    monkeypatch.setattr(module, "HAR_SOURCES", sources)


def test_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    serve(monkeypatch, tmp_path)
    with pytest.raises(FileNotFoundError, match="load it with download=True"):
        har(tmp_path / "root")
    assert len(har(tmp_path / "root", download=True, progress=False).x) == 14
    assert os.listdir(tmp_path / "root") == [f"{NAME}.zip"]
    (tmp_path / "served.zip").unlink()
    assert len(har(tmp_path / "root", download=True).x) == 14


def test_wrong_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    serve(monkeypatch, tmp_path, checksum="0" * 64)
    failures = "from .*gone.zip: .*; nor from .*served.zip: expected SHA-256 0000"
    message = f"{NAME}.zip could not be downloaded {failures}"
    with pytest.raises(FileNotFoundError, match=message):
        har(tmp_path / "root", download=True, progress=False)
    assert os.listdir(tmp_path / "root") == []


def test_checksums():
    assert all(re.fullmatch("[0-9a-f]{64}", source.sha256) for source in module.HAR_SOURCES)
    assert list(module.ARCHIVES) == [f"{NAME}.zip", OUTER]
