"""CelebA: faces of celebrities; each celebrity is a client, as in LEAF."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise._utils.rng import stream
from equipoise._utils.validation import check_count
from equipoise.data._download import Place, Source, as_path, fetch, missing, need, opened, read
from equipoise.data.dataset import Dataset, as_share, hold_out

CELEBA_IMAGES = "img_align_celeba"
ATTRIBUTES = "list_attr_celeba.txt"
IDENTITIES = "identity_CelebA.txt"
# For each file: the names under which it may exist. The last one can be downloaded.
CELEBA_FILES = ((ATTRIBUTES,), (IDENTITIES,), (CELEBA_IMAGES, f"{CELEBA_IMAGES}.zip"))
SUBFOLDERS = ("", "celeba", "raw", "Img", "Anno")  # of torchvision, LEAF, and the authors (two)
DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
CELEBA_SOURCES = {  # identifiers as in torchvision; digests and sizes as in TensorFlow Datasets
    f"{CELEBA_IMAGES}.zip": Source(
        f"{DRIVE}0B7EVK8r0v71pZjFTYXZWM3FlRnM",
        "46fb89443c578308acf364d7d379fe1b9efb793042c0af734b6112e4fd3a8c74",
        1_443_490_838,
    ),
    ATTRIBUTES: Source(
        f"{DRIVE}0B7EVK8r0v71pblRyaVFSWGxPY0U",
        "f0e5da289d5ccf75ffe8811132694922b60f2af59256ed362afa03fefba324d0",
        26_721_026,
    ),
    IDENTITIES: Source(
        f"{DRIVE}1_ee_0u7vcNLOfNLegJRHmolfH5ICW-XS",
        "c6143857c3e2630ac2da9f782e9c1232e5e59be993a9d44e8a7916c78a6158c0",
        3_424_458,
    ),
}
# Limits far above the genuine files: lists of 27 and 3 MB, images of 178 x 218 pixels, about 7 kB.
LIST_BYTES = 1 << 26
IMAGE_BYTES = 1 << 20
PIXELS = 1 << 22
BATCH = 64  # images per task of a thread


def celeba(
    root: str | os.PathLike[str],
    *,
    label: str = "Smiling",
    size: int = 84,
    gray: bool = False,
    minimum: int = 5,
    limit: int | None = None,
    test_share: float = 0.1,
    seed: int = 0,
    download: bool = False,
    progress: bool = True,
) -> Dataset:
    """Load CelebA: is this celebrity smiling? Each celebrity is a client, as in LEAF.

    Z. Liu, P. Luo, X. Wang, X. Tang, "Deep learning face attributes in the wild", ICCV 2015; for
    non-commercial research only. Clients, labels and sizes are those of LEAF (Caldas et al.,
    2018): one client for each celebrity with at least five images, 200,288 images of 9,343
    celebrities in total, resized to 84 x 84 pixels with three channels. Here they are scaled to
    [0, 1]. ``owners`` numbers the celebrities in the order of their identities. Of each
    celebrity's images, 90 % rounded down are for training, as in LEAF.

    ``root``, or a folder ``celeba``, ``raw``, ``Img`` or ``Anno`` in it, contains the images as
    ``img_align_celeba`` or ``img_align_celeba.zip``, and ``list_attr_celeba.txt`` and
    ``identity_CelebA.txt``. An image takes 85 kB of memory at the default size, and all of them 17
    GB: see ``limit``.

    Args:
        root: the folder.
        label: the attribute to predict: class 1 has it.
        size: height and width of an image.
        gray: one channel instead of three.
        minimum: the number of images that a celebrity must have to be a client.
        limit: read at most this number of images, of randomly chosen celebrities, all images of
            each; None for all. LEAF samples in this way.
        test_share: share of each client's images that is for testing, rounded up, but never all.
        seed: determines the celebrities and the test images.
        download: whether to download missing files, 1.4 GB, from the authors' Google Drive, which
            may refuse it.
        progress: whether to show a progress bar while downloading and reading.

    Raises:
        FileNotFoundError: a file is missing, or cannot be downloaded.
        ValueError: a file is truncated, corrupt, or inconsistent with the others.

    >>> data = eq.data.celeba("nowhere", limit=10_000)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: expected list_attr_celeba.txt in nowhere or a folder ..., found no folder ...
    """
    share = as_share("test_share", test_share)
    generator = stream(seed, "celeba")
    check_count("size", size, 1)
    check_count("minimum", minimum, 1)
    if limit is not None:
        check_count("limit", limit, 1)
    provided = [_provide(as_path(root), names, download, progress) for names in CELEBA_FILES]
    # Both lists are small. All their errors appear before the first image is read.
    labels = _labels(provided[0], label)
    identities = _identities(provided[1])
    names, owners = _choose_images(identities, minimum, limit, generator)
    y = torch.tensor(_labels_of(names, labels, provided), device="cpu")
    # Round the training images down, as LEAF does, but keep one.
    train, test = hold_out(
        owners, lambda images: images - max(1, int((1 - share) * images)), generator
    )
    with opened(provided[2], CELEBA_IMAGES) as folder:
        _check_complete(folder, names)
        x, test_x = (
            _read_images(folder, [names[i] for i in part], size, gray, progress)
            for part in (train, test)
        )
    return Dataset(x, y[train], test_x, y[test], classes=2, owners=owners[train], name="CelebA")


def _provide(root: Path, names: Sequence[str], download: bool, progress: bool) -> Path:
    """Return the first of these files that exists, or download the last."""
    paths = (root / folder / name for name in names for folder in SUBFOLDERS)
    found = next((path for path in paths if path.exists()), None)
    if found is None and not download:
        places = f"{root} or a folder {', '.join(SUBFOLDERS[1:])} in it"
        raise missing(f"{' or '.join(names)} in {places}", root)
    if found is None:
        found = root / names[-1]
        fetch([CELEBA_SOURCES[names[-1]]], found, progress=progress)
    return found


def _labels(file: Path, label: str) -> dict[str, int]:
    """Read whether each image has an attribute.

    Line 1 is the number of images, line 2 the names of the attributes.
    """
    lines = _numbered_lines(file)
    count = next(lines, (1, []))[1]
    names = next(lines, (2, []))[1]
    if len(count) != 1 or not count[0].isdecimal():
        found = f"{' '.join(count)!r:.60}"
        raise ValueError(f"{file} must begin with the number of images, found {found}")
    if label not in names:
        known = ", ".join(names) or "the attributes"
        raise ValueError(f"label must be one of {known} in {file}, found {label!r}")
    # The name of the image is column 0 of a row, but not of the header.
    column = names.index(label) + 1
    labels = {}
    for number, row in lines:
        if len(row) != len(names) + 1 or row[column] not in ("1", "-1"):
            expected = f"the name of an image and {len(names)} times 1 or -1"
            found = f"{' '.join(row)!r:.60}"
            raise ValueError(f"{file} must hold {expected} in line {number}, found {found}")
        labels[row[0]] = int(row[column] == "1")
    if len(labels) != int(count[0]):
        expected = f"{count[0]} images, as its first line says"
        raise ValueError(f"{file} must hold {expected}, found {len(labels)}")
    return labels


def _identities(file: Path) -> dict[str, int]:
    """Read the identity of the celebrity on each image."""
    identities: dict[str, int] = {}
    for number, row in _numbered_lines(file):
        if len(row) != 2 or not row[1].isdecimal() or row[0] in identities:
            expected = "the name of another image and a number"
            found = f"{' '.join(row)!r:.60}"
            raise ValueError(f"{file} must hold {expected} in line {number}, found {found}")
        identities[row[0]] = int(row[1])
    if not identities:
        raise ValueError(
            f"{file} must hold the names of images and a number for each, found no line"
        )
    return identities


def _numbered_lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Iterate over numbered lines, from 1, split into words, without empty lines."""
    # Undecodable bytes become U+FFFD, and the checks of each row report their line.
    lines = enumerate(read(file, LIST_BYTES).decode(errors="replace").splitlines(), start=1)
    return ((number, words) for number, line in lines if (words := line.split()))


def _choose_images(
    identities: dict[str, int], minimum: int, limit: int | None, generator: torch.Generator
) -> tuple[list[str], Tensor]:
    """Return the images to use, and the client of each."""
    persons = torch.tensor([*identities.values()], device="cpu")
    # celebrity: the index in `found` of each image's celebrity; images: (celebrities,) counts.
    found, celebrity, images = persons.unique(return_inverse=True, return_counts=True)
    chosen = images >= minimum
    if not chosen.any():
        most = int(images.max())
        raise ValueError(
            f"minimum must be at most {most}, the images of one celebrity here, found {minimum}"
        )
    if limit is not None:
        order = torch.randperm(len(found), generator=generator, device="cpu")
        # Permute before filtering: a celebrity keeps its place in the order if `minimum` changes.
        order = order[chosen[order]]
        total = images[order].cumsum(0)
        # The first client alone exceeds the limit: there would be no client.
        if total[0] > limit:
            expected = f"at least {int(total[0])}, the images of the first client"
            raise ValueError(f"limit must be {expected}, found {limit}")
        chosen[order[total > limit]] = False
    used = chosen[celebrity]
    names = [name for name, use in zip(identities, used.tolist(), strict=True) if use]
    # cumsum numbers the chosen celebrities from 0 without gaps, in the order of identities.
    return names, (chosen.cumsum(0) - 1)[celebrity[used]]


def _labels_of(names: Sequence[str], labels: dict[str, int], files: Sequence[Path]) -> list[int]:
    unknown = next((name for name in names if name not in labels), None)
    if unknown is not None:
        raise ValueError(f"{files[0]} must hold every image of {files[1]}, found no {unknown}")
    return [labels[name] for name in names]


def _check_complete(folder: Place, names: Sequence[str]) -> None:
    """Raise if images are missing, before an hour of reading.

    Names that lead out of the folder are not in the listing either.
    """
    # One listing: a lookup for each of 200,000 names would be slow.
    there = {entry.name for entry in folder.iterdir()}
    absent = [name for name in names if name not in there]
    if absent:
        more = f" and {len(absent) - 1} more" if absent[1:] else ""
        raise FileNotFoundError(
            f"expected {absent[0]}{more} in {folder}, found {len(there)} other files there"
        )


def _read_images(
    folder: Place, names: Sequence[str], size: int, gray: bool, progress: bool
) -> Tensor:
    # Without Pillow, fail before memory is allocated and threads are started.
    need("PIL.Image")
    # Allocated once and filled in place: stacking the images would take twice the memory.
    images = torch.empty(
        len(names), 1 if gray else 3, size, size, dtype=torch.float32, device="cpu"
    )

    def fill(start: int) -> int:
        rows = range(start, min(start + BATCH, len(names)))
        for row in rows:
            # Each thread writes to its own rows, so no lock is needed.
            torch.div(_image(folder / names[row], size, gray).float(), 255, out=images[row])
        return len(rows)

    bar = need("tqdm").tqdm(total=len(names), desc="CelebA", unit=" images", disable=not progress)
    # Pillow releases the global interpreter lock while it decodes and resizes.
    with ThreadPoolExecutor(os.cpu_count()) as pool, bar:
        for count in pool.map(fill, range(0, len(names), BATCH)):
            bar.update(count)
    return images


def _image(file: Place, size: int, gray: bool) -> Tensor:
    """Read one image as (channels, size, size) bytes.

    As in LEAF, it is resized regardless of proportions.
    """
    pillow: Any = need("PIL.Image")
    content = read(file, IMAGE_BYTES)
    try:
        # formats: Pillow would otherwise try all its decoders on an untrusted file.
        with pillow.open(io.BytesIO(content), formats=("JPEG",)) as image:
            # The size is in the header: check it before the pixels are decoded.
            if image.width * image.height > PIXELS:
                found = f"{image.width} x {image.height}"
                raise ValueError(f"{file} must have at most {PIXELS} pixels, found {found}")
            resized = image.resize((size, size), pillow.Resampling.BICUBIC)
            resized = resized.convert("L" if gray else "RGB")
    except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
        found = f"a corrupt or truncated file: {error}"
        raise ValueError(f"{file} must be a JPEG image, found {found}") from error
    # (size, size) or (size, size, 3) becomes (channels, size, size).
    return torch.from_numpy(np.array(resized)).view(size, size, -1).permute(2, 0, 1)
