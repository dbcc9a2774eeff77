"""A private authority, and the certificates of peers."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from equipoise._utils.atomic_write import atomic_write
from equipoise._utils.optional import import_optional
from equipoise._utils.validation import check_count, check_flag
from equipoise.peers.credentials import Credentials, check_peer_name

LONGEST = 3650
"""The longest validity of a certificate, in days."""


def make_certificates(
    folder: str | PathLike[str], names: Iterable[str], *, days: int = 365, renew: bool = False
) -> tuple[str, ...]:
    """Make a private authority and a certificate for each peer; return the names that are new.

    Writes ``authority.pem``, ``authority.key``, and ``NAME.pem`` and ``NAME.key`` for each name.
    Copy ``authority.pem``, ``NAME.pem`` and ``NAME.key`` to the machine of the peer. Keep
    ``authority.key`` on the machine where you add peers: whoever has it can pretend to be any of
    them. To add a peer later, call this again for the same folder: the authority is used again,
    and existing certificates are kept. An interrupted call is completed by the same call.

    Args:
        folder: created if it does not exist.
        names: names of peers, as neighbors call them.
        days: validity of the certificates.
        renew: replace existing certificates. The private keys stay if they are in the folder, so
            that only ``NAME.pem`` has to be copied.

    Raises:
        ValueError: a name cannot be used, or files in the folder are not valid; nothing was made
            after that file.

    >>> import tempfile
    >>> from equipoise.peers.certificates import make_certificates
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     make_certificates(folder, ["site-a", "site-b"])
    ...     make_certificates(folder, ["site-b", "site-c"])
    ('site-a', 'site-b')
    ('site-c',)
    """
    # A string is an iterable of names of one letter.
    if isinstance(names, str):
        raise ValueError(f"names must be a list of names, found the string {names!r}")
    names = tuple(names)
    for name in names:
        check_peer_name("each name", name)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"names must be different and at least one, found {names}")
    check_count("days", days, 1, LONGEST)
    check_flag("renew", renew)
    import_optional("cryptography.x509", "peers")
    from equipoise.peers import _x509

    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    issuer, issuer_key = _ensure_authority(folder)
    new = []
    for name in names:
        path = folder / f"{name}.pem"
        if renew or not path.is_file():
            # The key first: a certificate without its key would be half a pair.
            key = _ensure_key(folder / f"{name}.key")
            made = _x509.make_certificate(name, key, days, issuer, issuer_key)
            _write(path, made, private=False)
            new.append(name)
        try:
            Credentials.load(folder, name)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"{error}; renew=True or --renew replaces it") from error
    return tuple(new)


def _ensure_authority(folder: Path) -> tuple[bytes, bytes]:
    from equipoise.peers import _x509

    path = folder / "authority.pem"
    key_path = folder / "authority.key"
    if path.is_file() and not key_path.is_file():
        place = "certificates are made where it is kept; a new authority needs another folder"
        raise FileNotFoundError(f"{key_path} is missing: {place}")
    key = _ensure_key(key_path)
    if not path.is_file():
        _write(path, _x509.make_authority(key), private=False)
    authority = path.read_bytes()
    _x509.check_authority(authority, key)
    return authority, key


def _ensure_key(path: Path) -> bytes:
    from equipoise.peers import _x509

    if not path.is_file():
        _write(path, _x509.make_key(), private=True)
    return path.read_bytes()


def _write(path: Path, content: bytes, *, private: bool) -> None:
    with atomic_write(path, path.name, private=private) as file:
        file.write(content)
