"""Atomic writes of files."""

from __future__ import annotations

import glob
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

# Seconds after which a temporary file counts as left behind by a killed process. An hour is longer
# than any write takes; a shorter time could delete a file that another process is still writing.
ABANDONED = 3600.0


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], what: str = "file", *, private: bool = False
) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` when the block ends.

    Atomic: an interrupted write, or one that fills the disk, keeps the previous file, and readers
    never see a part of the new one. Errors call the file ``what``. A ``private`` file has mode 0600
    from its creation on.
    """
    path = Path(path).resolve()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "xb", opener=_open_private if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # the name must not reach the disk before the content
        os.replace(temporary, path)
        _delete_abandoned(path)
    except OSError as error:
        raise OSError(
            error.errno, f"{what} could not be saved: {error.strerror}", str(path)
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _delete_abandoned(path: Path) -> None:
    """Delete the temporary files of processes that were killed while writing."""
    for part in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 32}.part"):
        with suppress(OSError):  # another process deleted it first
            if time.time() - part.stat().st_mtime > ABANDONED:
                part.unlink()
