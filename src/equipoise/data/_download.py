"""Find, read and download the files of data sets.

Files are untrusted: limits bound the memory and disk space that a damaged or malicious one takes.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple, TypeAlias

from equipoise._utils.optional import import_optional

Place: TypeAlias = Path | zipfile.Path
"""A file or folder, on disk or in a zip archive. Archives are never unpacked to disk."""

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without an answer
# A zip in a zip is compressed already and barely shrinks; an uncompressed one of text shrinks to a
# quarter.
NESTED_RATIO = 8
# zipfile.Path stores every parent of every member: one name of 64 kB, "a/a/a/...", would cost 1 GB.
DEPTH = 16


class Source(NamedTuple):
    """A URL of a file, the SHA-256 digest of the file in hex, and its size in bytes."""

    url: str
    sha256: str
    size: int


def as_path(root: str | os.PathLike[str]) -> Path:
    """Convert the argument ``root`` of a loader."""
    try:
        return Path(root).expanduser()
    except TypeError as error:
        raise ValueError(f"root must be a path, found {root!r}") from error


def need(module: str) -> ModuleType:
    """Import a module of a package that the extra ``data`` installs."""
    return import_optional(module, "data")


def missing(expected: str, root: Path) -> FileNotFoundError:
    """Return the error for a missing file, with the files that are there instead."""
    advice = "Put it there, or load it with download=True"
    return FileNotFoundError(f"expected {expected}, found {_contents(root)}. {advice}")


def read(place: Place, limit: int) -> bytes:
    """Read a file of at most ``limit`` bytes, on disk or in an archive."""
    if not place.is_file():
        raise FileNotFoundError(f"expected the file {place}, found no such file")
    if isinstance(place, Path):
        _check_size(place, place.stat().st_size, limit)
        return place.read_bytes()
    member = place.root.getinfo(place.at)
    _check_size(place, member.file_size, limit)
    # For these two, zipfile decompresses at most the requested size. For others it does not.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{place} must be stored or deflated, found another compression")
    try:
        with place.open("rb") as file:
            # The size may be false: without a limit, zipfile unpacks everything before it notices.
            return file.read(member.file_size + 1)
    except Exception as error:  # zipfile and its decompressors raise a dozen types of exceptions
        reason = f"the archive is corrupt or truncated: {error}"
        raise ValueError(f"{place} cannot be unpacked, {reason}") from error


def _check_size(place: Place, size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"{place} must hold at most {limit} bytes, found {size}")


@contextmanager
def opened(path: Path, folder: str) -> Iterator[Place]:
    """Open a folder: ``path`` itself, or the named folder in a zip archive.

    The archive may contain the folder, its contents, or an archive of the folder.
    """
    if path.is_dir():
        yield path
        return
    with path.open("rb") as file, _archive(file, str(path)) as outer:
        inner = outer / f"{folder}.zip"
        if not inner.exists():
            yield _top(outer, folder)
            return
        limit = NESTED_RATIO * path.stat().st_size
        with _archive(io.BytesIO(read(inner, limit)), str(inner)) as nested:
            yield _top(nested, folder)


def _top(archive: zipfile.Path, folder: str) -> zipfile.Path:
    return archive / folder if (archive / folder).is_dir() else archive


@contextmanager
def _archive(file: IO[bytes], name: str) -> Iterator[zipfile.Path]:
    try:
        # A file instead of a path: with a path, zipfile counts readers without a lock.
        archive = zipfile.ZipFile(file)
    except Exception as error:
        found = f"another or an incomplete file: {error}"
        raise ValueError(f"{name} must be a zip archive, found {found}") from error
    with archive:
        if any(member.count("/") > DEPTH for member in archive.namelist()):
            raise ValueError(f"{name} must hold folders at most {DEPTH} deep, found a deeper one")
        archive.filename = name
        yield zipfile.Path(archive)


def fetch(sources: Sequence[Source], path: Path, *, progress: bool = True) -> None:
    """Download a file from the first source that has it.

    Atomic: the file has a temporary name until it is complete and its checksum is correct. A source
    that sends too much is cut off, so a download never takes more space than the genuine file.
    """
    failures: list[str] = []
    for source in sources:
        # A new name per attempt: two processes may download the same file. The same folder, because
        # os.replace is atomic only within one file system.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            _receive(source, temporary, path.name, progress)
            os.replace(temporary, path)
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{source.url}: {error}")
            cause = error
            if isinstance(error, urllib.error.HTTPError):
                # An HTTPError holds the open response.
                error.close()
        finally:
            temporary.unlink(missing_ok=True)
    raise FileNotFoundError(
        f"{path.name} could not be downloaded from {'; nor from '.join(failures)}."
        f" Put the file at {path} yourself"
    ) from cause


def _receive(source: Source, temporary: Path, name: str, progress: bool) -> None:
    tqdm = need("tqdm").tqdm
    digest = hashlib.sha256()
    # Identify the client: servers may refuse the default User-Agent of urllib.
    request = urllib.request.Request(source.url, headers={"User-Agent": "equipoise"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        length = response.headers.get("Content-Length")
        # Fail before the first byte is stored, for instance on an HTML page instead of the file.
        if length is not None and int(length) != source.size:
            raise ValueError(f"expected {source.size} bytes, found {int(length)} announced")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        with (
            open(temporary, "xb") as file,
            tqdm(
                total=source.size, desc=name, unit="B", unit_scale=True, disable=not progress
            ) as bar,
        ):
            while chunk := response.read(CHUNK):
                if file.tell() + len(chunk) > source.size:
                    raise ValueError(f"expected {source.size} bytes, found more")
                file.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
            received = file.tell()
    if received != source.size:
        raise ValueError(f"expected {source.size} bytes, found {received}")
    # The size was checked first: its error is easier to understand than that of the digest.
    if digest.hexdigest() != source.sha256:
        raise ValueError(f"expected SHA-256 {source.sha256}, found {digest.hexdigest()}")


def _contents(root: Path) -> str:
    if not root.is_dir():
        return f"a file at {root}, not a folder" if root.exists() else f"no folder {root}"
    names = sorted(entry.name for entry in root.iterdir())
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more} in {root}" if names else f"nothing in {root}"
