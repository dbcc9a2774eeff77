"""Downloads that fail or stop, and archives that are damaged or malicious."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

import equipoise.data._download as files
from equipoise.data._download import Source, fetch, need, opened, read

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)


class Handler(BaseHTTPRequestHandler):
    released = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/none":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path not in ("/unknown-length", "/endless"):
            announced = {"/nonsense": "many", "/huge": str(10**12)}
            self.send_header("Content-Length", announced.get(self.path, str(len(CONTENT))))
        self.end_headers()
        if self.path == "/endless":
            with contextlib.suppress(ConnectionError):  # the client hangs up
                while not self.released.is_set():
                    self.wfile.write(CONTENT)
            return
        self.wfile.write(CONTENT if self.path in ("/file", "/unknown-length") else CONTENT[:5000])
        if self.path == "/stall":
            self.wfile.flush()
            self.released.wait(20)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    Handler.released.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        Handler.released.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.parametrize("page", ["file", "unknown-length"])
def test_download(server: str, page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fetch([Source(f"{server}/{page}", SHA256, SIZE)], tmp_path / "new" / "folder" / "it.gz")
    assert (tmp_path / "new" / "folder" / "it.gz").read_bytes() == CONTENT
    assert os.listdir(tmp_path / "new" / "folder") == ["it.gz"]
    bar = capsys.readouterr().err
    assert "it.gz" in bar
    assert "10.2k" in bar


def test_no_progress_bar(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fetch([Source(f"{server}/file", SHA256, SIZE)], tmp_path / "it", progress=False)
    assert capsys.readouterr().err == ""


def test_file_permissions(server: str, tmp_path: Path):
    fetch([Source(f"{server}/file", SHA256, SIZE)], tmp_path / "it", progress=False)
    (tmp_path / "other").touch()
    assert (tmp_path / "it").stat().st_mode == (tmp_path / "other").stat().st_mode


FAILURES = {
    "truncated": ("/short", SHA256, "expected 10240 bytes, found 5000"),
    "wrong checksum": ("/file", "0" * 64, f"expected SHA-256 {'0' * 64}, found {SHA256}"),
    "absent": ("/none", SHA256, "HTTP Error 404: Not Found"),
    "nonsense": ("/nonsense", SHA256, "'many'"),
    "announced too large": ("/huge", SHA256, "expected 10240 bytes, found 1000000000000 announced"),
    "endless": ("/endless", SHA256, "expected 10240 bytes, found more"),
}


@pytest.mark.parametrize(("page", "checksum", "reason"), FAILURES.values(), ids=FAILURES)
def test_failed_download(server: str, page: str, checksum: str, reason: str, tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught:
        fetch([Source(f"{server}{page}", checksum, SIZE)], tmp_path / "it.gz", progress=False)
    start = f"it.gz could not be downloaded from {server}{page}: "
    assert str(caught.value).startswith(start)
    assert reason in str(caught.value)
    assert str(caught.value).endswith(f". Put the file at {tmp_path / 'it.gz'} yourself")
    assert caught.value.__cause__ is not None
    assert os.listdir(tmp_path) == []


def test_offline(tmp_path: Path):
    source = Source((tmp_path / "server" / "it.gz").as_uri(), SHA256, SIZE)
    with pytest.raises(
        FileNotFoundError, match=f"from {source.url}: .*No such file.* Put the file at .*root"
    ):
        fetch([source], tmp_path / "root" / "it.gz", progress=False)
    assert os.listdir(tmp_path) == []


def test_timeout(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "TIMEOUT", 0.2)
    with pytest.raises(FileNotFoundError, match="/stall: timed out"):
        fetch([Source(f"{server}/stall", SHA256, SIZE)], tmp_path / "it.gz", progress=False)
    assert os.listdir(tmp_path) == []


def test_all_sources_are_tried(server: str, tmp_path: Path):
    sources = [Source(f"{server}/none", SHA256, SIZE), Source(f"{server}/short", SHA256, SIZE)]
    with pytest.raises(
        FileNotFoundError,
        match=r"/none: HTTP Error 404: Not Found; nor from .*/short: expected 10240",
    ):
        fetch(sources, tmp_path / "it.gz", progress=False)
    fetch([*sources, Source(f"{server}/file", SHA256, SIZE)], tmp_path / "it.gz", progress=False)
    assert (tmp_path / "it.gz").read_bytes() == CONTENT


def test_interrupted_download(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Interrupted(need("tqdm").tqdm):  # type: ignore[misc]
        def update(self, n: float | None = 1) -> None:
            assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "need", lambda name: SimpleNamespace(tqdm=Interrupted))
    with pytest.raises(KeyboardInterrupt):
        fetch([Source(f"{server}/file", SHA256, SIZE)], tmp_path / "it.gz")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill")
def test_killed_download(server: str, tmp_path: Path):
    code = f"""
        from pathlib import Path
        from equipoise.data._download import Source, fetch
        source = Source("{server}/stall", "{SHA256}", {SIZE})
        fetch([source], Path(r"{tmp_path / "it.gz"}"), progress=False)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        deadline = time.monotonic() + 60
        while not os.listdir(tmp_path) and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    fetch([Source(f"{server}/file", SHA256, SIZE)], tmp_path / "it.gz", progress=False)
    assert (tmp_path / "it.gz").read_bytes() == CONTENT


def test_extras_are_lazy():
    extras = {"sklearn", "pandas", "matplotlib", "PIL"}
    code = f"import sys, equipoise.data; print({extras} & {{*sys.modules}})"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )


def test_missing_package():
    with pytest.raises(
        ImportError, match=r'no_such_package is not installed: pip install "equipoise\[data\]"'
    ):
        need("no_such_package.part")


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        {"top/a.txt": b"hello"},
        {"a.txt": b"hello"},
        {"top.zip": archive(**{"top/a.txt": b"hello"}), "notes.txt": b""},
        {"top.zip": archive(**{"a.txt": b"hello"})},
    ],
    ids=["folder", "flat", "nested", "nested-flat"],
)
def test_archives_in_memory(members: dict[str, bytes], tmp_path: Path):
    path = tmp_path / "it.zip"
    path.write_bytes(archive(**members))
    with opened(path, "top") as folder:
        assert read(folder / "a.txt", 1000) == b"hello"
        with pytest.raises(
            FileNotFoundError, match=r"expected the file .*it\.zip.*b\.txt, found no such file"
        ):
            read(folder / "b.txt", 1000)
    assert os.listdir(tmp_path) == ["it.zip"]


def test_path_traversal(tmp_path: Path):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "it.zip"
    path.write_bytes(
        archive(**{"../out.txt": b"evil", "/tmp/out.txt": b"evil", "top/a.txt": b"good"})
    )
    with opened(path, "top") as folder:
        assert read(folder / "a.txt", 1000) == b"good"
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_plain_folder(tmp_path: Path):
    with opened(tmp_path, "top") as folder:
        assert folder == tmp_path


@pytest.mark.parametrize(
    "content", [b"", b"<html>", archive(a=b"hello")[:-10]], ids=["empty", "a web page", "truncated"]
)
def test_no_archive(content: bytes, tmp_path: Path):
    path = tmp_path / "it.zip"
    path.write_bytes(content)
    message = r"it\.zip must be a zip archive, found another or an incomplete file: "
    with pytest.raises(ValueError, match=message), opened(path, "top"):
        pass
    path.write_bytes(archive(**{"top.zip": content}))
    message = r"it\.zip.top\.zip must be a zip archive, found another or an incomplete file"
    with pytest.raises(ValueError, match=message), opened(path, "top"):
        pass


def test_damaged_member(tmp_path: Path):
    content = bytearray(archive(**{"a.txt": os.urandom(1000)}))
    content[500] ^= 255
    (tmp_path / "it.zip").write_bytes(content)
    message = r"it\.zip.a\.txt cannot be unpacked, the archive is corrupt or truncated: "
    with opened(tmp_path / "it.zip", "top") as folder, pytest.raises(ValueError, match=message):
        read(folder / "a.txt", 1000)


@contextlib.contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    """Check the peak of the memory that Python allocates."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * 1e6


BOMB = bytes(50_000_000)


def test_zip_bomb(tmp_path: Path):
    (tmp_path / "it.zip").write_bytes(archive(**{"a.txt": BOMB}))
    message = r"it\.zip.a\.txt must hold at most 1000 bytes, found 50000000"
    with (
        at_most(1),
        opened(tmp_path / "it.zip", "top") as folder,
        pytest.raises(ValueError, match=message),
    ):
        read(folder / "a.txt", 1000)


def test_false_size(tmp_path: Path):
    content = archive(**{"a.txt": BOMB})
    size = len(BOMB).to_bytes(4, "little")
    assert content.count(size) == 2  # in the header of the member, and in the directory
    (tmp_path / "it.zip").write_bytes(content.replace(size, (900).to_bytes(4, "little")))
    message = r"it\.zip.a\.txt cannot be unpacked, the archive is corrupt or truncated: "
    with (
        at_most(1),
        opened(tmp_path / "it.zip", "top") as folder,
        pytest.raises(ValueError, match=message),
    ):
        read(folder / "a.txt", 1000)


def test_nested_zip_bomb(tmp_path: Path):
    (tmp_path / "it.zip").write_bytes(archive(**{"top.zip": BOMB}))
    message = r"it\.zip.top\.zip must hold at most \d{6} bytes, found 50000000"
    with at_most(1), pytest.raises(ValueError, match=message), opened(tmp_path / "it.zip", "top"):
        pass


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unbounded_compression(compression: int, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "it.zip", "w", compression) as target:
        target.writestr("a.txt", b"hello")
    message = r"it\.zip.a\.txt must be stored or deflated, found another"
    with opened(tmp_path / "it.zip", "top") as folder, pytest.raises(ValueError, match=message):
        read(folder / "a.txt", 1000)


def test_deep_folders(tmp_path: Path):
    (tmp_path / "it.zip").write_bytes(archive(**{"a/" * 8000 + "b.txt": b"hello"}))
    message = r"it\.zip must hold folders at most 16 deep"
    with at_most(1), pytest.raises(ValueError, match=message), opened(tmp_path / "it.zip", "top"):
        pass


def test_large_file(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(bytes(1001))
    with pytest.raises(ValueError, match=r"a\.txt must hold at most 1000 bytes, found 1001"):
        read(tmp_path / "a.txt", 1000)
    assert read(tmp_path / "a.txt", 1001) == bytes(1001)


@pytest.mark.parametrize("bit", range(8))
def test_flipped_bits(bit: int, tmp_path: Path):
    good = archive(**{"top/a.txt": b"hello, hello, hello, hello"})
    path, refused = tmp_path / "it.zip", 0
    for position in range(len(good)):
        path.write_bytes(
            good[:position] + bytes([good[position] ^ (1 << bit)]) + good[position + 1 :]
        )
        try:
            with opened(path, "top") as folder:
                assert read(folder / "a.txt", 1000) == b"hello, hello, hello, hello"
        except (ValueError, FileNotFoundError) as error:
            assert "it.zip" in str(error)  # noqa: PT017
            refused += 1
    assert refused > len(good) // 3
