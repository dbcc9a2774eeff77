"""Files that are written as a whole, or not at all."""

from __future__ import annotations

import glob
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ABANDONED = 3600.0  # seconds after which nobody is still writing a file


@contextmanager
def replacing(path: str | os.PathLike[str], what: str = "file") -> Iterator[IO[bytes]]:
    """A file that takes the place of another when it is complete and on the disk, and not before.

    Whoever is killed meanwhile, finds the disk full, or looks at the file, has the one before. ``what`` is how errors
    call it.
    """
    path = Path(path).resolve()
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _delete_abandoned(path)
    except OSError as error:
        raise OSError(error.errno, f"{what} could not be saved: {error.strerror}", str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _delete_abandoned(path: Path) -> None:
    """Delete what processes left that were killed while they wrote."""
    for part in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 32}.part"):
        with suppress(OSError):  # somebody else was faster
            if time.time() - part.stat().st_mtime > ABANDONED:
                part.unlink()
