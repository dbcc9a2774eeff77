"""Results as small files: one for each setting, with all of its seeds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.paper.run import Run
from benchmarks.paper.setting import Setting
from equipoise._utils.atomic_write import atomic_write
from equipoise.optional import import_optional

LOCK = ".lock"  # one for the whole folder: adding takes milliseconds, a run takes minutes
FIELDS: dict[str, type | tuple[type, ...]] = {"seed": int, "rounds": int, "seconds": (int, float), "evaluated": list}


class DamagedError(ValueError):
    """A file that should hold results holds something else."""


class Store:
    """A folder of results, to which several processes may add at the same time.

    >>> import tempfile
    >>> from benchmarks.paper import Setting
    >>> store = Store(tempfile.mkdtemp())
    >>> setting = Setting(data="synthetic", rule="Krum")
    >>> store.add(setting, {"seed": 3, "rounds": 300, "seconds": 1.0, "evaluated": [299], "max_MSE": [1.2]})
    >>> [run["seed"] for run in store.runs(setting)], store.path(setting).name
    ([3], 'Krum.No.json')
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        # Made here, and not in add: a missing package is an error before hours of training, not after.
        self._lock = import_optional("filelock", "benchmarks").FileLock(self.folder / LOCK)

    def path(self, setting: Setting) -> Path:
        """The file of a setting."""
        return self.folder / f"{setting.slug}.json"

    def checkpoint(self, setting: Setting, seed: int) -> Path:
        """Where an unfinished run is kept."""
        return self.folder / f"{setting.slug}.{seed}.unfinished"

    def settings(self) -> list[Setting]:
        """All settings that there are results of.

        Raises:
            DamagedError: a file holds something else.
        """
        return [_setting(path) for path in sorted(self.folder.glob("*/*.json"))]

    def runs(self, setting: Setting) -> list[Run]:
        """What is known about a setting, by seed; nothing if there is no file.

        Raises:
            DamagedError: the file is not what `add` writes, or is about another setting.
        """
        path = self.path(setting)
        try:
            content = json.loads(path.read_bytes())
            runs: list[Run] = content["runs"]
            known = content["setting"]
            correct = all(isinstance(run[name], kind) for run in runs for name, kind in FIELDS.items())
            measured = [f"max_{name}" for name in (setting.task.metric, *(["ASR"] if setting.backdoor else []))]
            correct &= all(len(run[name]) == len(run["evaluated"]) > 0 for run in runs for name in measured)
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{path} must hold results, found {type(error).__name__}: {error}") from error
        if not correct or known != _plain(setting):
            raise DamagedError(f"{path} must hold results of {setting}, found those of another setting, or none")
        return runs

    def add(self, setting: Setting, run: Run) -> None:
        """Keep one more run; it takes the place of an earlier one with the same seed, and of a damaged file."""
        path = self.path(setting)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Adding reads the file and replaces it. Without a lock, a process that reads before another
        # one has replaced the file would drop what the other one added. If a process is killed, the
        # operating system releases its lock.
        with self._lock:
            try:
                known = self.runs(setting)
            except DamagedError:
                known = []
            runs = [one for one in known if one["seed"] != run["seed"]]
            runs.append(run)
            runs.sort(key=lambda one: one["seed"])
            lines = ",\n  ".join(json.dumps(one, allow_nan=False) for one in runs)
            about = json.dumps(_plain(setting))
            head = f'{{"command": {json.dumps(str(setting))},\n "setting": {about},\n'
            text = f'{head} "runs": [\n  {lines}\n ]}}\n'
            with atomic_write(path, "result") as file:
                file.write(text.encode())


def _setting(path: Path) -> Setting:
    try:
        return Setting(**json.loads(path.read_bytes())["setting"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} must hold results, found {type(error).__name__}: {error}") from error


def _plain(setting: Setting) -> dict[str, Any]:
    """All fields, the defaults too: a result stays what it is if a default is changed later."""
    known: dict[str, Any] = json.loads(json.dumps(asdict(setting)))
    return known
