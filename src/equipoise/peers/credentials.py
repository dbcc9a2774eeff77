"""The proof of a peer's name, and the authority that neighbors' names are checked against."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from equipoise._utils.optional import import_optional

# Lower case: gRPC ignores the case of names, so Site-A could answer in place of site-a. No
# wildcard, dot at the end or colon: gRPC reads them as a pattern, as no dot, as an address.
_LABEL = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST = 64  # the bound of a common name, RFC 5280


@dataclass(frozen=True)
class Credentials:
    """The certificate and the private key of a peer, and the authority that it trusts.

    All three are bytes in PEM. A neighbor is who its certificate says, if the same authority signed
    it. `make_certificates` makes what you need; certificates of an authority of your own work too
    if each states exactly one DNS name, the name of the peer.

    Raises:
        ValueError: the parts are malformed, do not belong together or are not valid now.

    >>> import tempfile
    >>> from equipoise.peers.certificates import make_certificates
    >>> from equipoise.peers.credentials import Credentials
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = make_certificates(folder, ["site-a", "site-b"])
    ...     Credentials.load(folder, "site-a")
    Credentials(name='site-a')
    """

    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    name: str = field(init=False)
    """The name of the peer, as its certificate states it."""

    def __post_init__(self) -> None:
        for part in ("authority", "certificate", "key"):
            found = getattr(self, part)
            # The value stays out of the message: it may be the key.
            if not isinstance(found, bytes):
                raise ValueError(f"{part} must be bytes in PEM, found {type(found).__name__}")
        import_optional("cryptography.x509", "peers")
        from equipoise.peers import _x509

        name = _x509.checked_name(self.authority, self.certificate, self.key)
        check_peer_name("the name in the certificate", name)
        object.__setattr__(self, "name", name)

    @classmethod
    def load(cls, folder: str | PathLike[str], name: str) -> Credentials:
        """Read ``authority.pem``, ``NAME.pem`` and ``NAME.key`` from a folder.

        Raises:
            FileNotFoundError: a file is missing; the message has the command that makes it.
            ValueError: the files are not the credentials of ``name``.
        """
        check_peer_name("name", name)
        parts = []
        for file in ("authority.pem", f"{name}.pem", f"{name}.key"):
            path = Path(folder) / file
            if not path.is_file():
                command = f"equipoise peers certificates --names {name} --output {folder}"
                source = f"copy it from the machine where you make certificates: {command}"
                raise FileNotFoundError(f"{path} is missing; {source}")
            parts.append(path.read_bytes())
        try:
            made = cls(*parts)
        except ValueError as error:
            raise ValueError(f"credentials of {name} in {folder}: {error}") from error
        if made.name != name:
            raise ValueError(f"{name}.pem in {folder} must be of {name}, found one of {made.name}")
        return made


def authenticated_name(auth_context: Mapping[str, Iterable[bytes]]) -> str | None:
    """The name in the certificate of the other end of a connection, or None if there is none.

    ``auth_context`` is what gRPC has of a call, ``context.auth_context()``. A certificate counts if
    its only alternative name is one DNS name; the common name does not matter.

    >>> from equipoise.peers.credentials import authenticated_name
    >>> names = {"x509_subject_alternative_name": [b"site-a"], "peer_dns": [b"site-a"]}
    >>> authenticated_name(names)
    'site-a'
    """
    # The first list has names of all kinds, so site-a may be a URI there; the second has DNS names.
    names = list(auth_context.get("x509_subject_alternative_name", ()))
    if len(names) != 1 or list(auth_context.get("peer_dns", ())) != names:
        return None
    try:
        return names[0].decode("ascii")
    except UnicodeDecodeError:
        return None


def check_peer_name(argument: str, name: object) -> None:
    """Raise unless ``name`` can be the name of a peer in a certificate and of its files."""
    if isinstance(name, str) and len(name) <= _LONGEST and _NAME.fullmatch(name):
        # The files of the authority have this name.
        if name == "authority":
            raise ValueError(f"{argument} must be free, found {name!r}, the name of the authority")
        return
    expected = "lower-case letters, digits, hyphens and underscores, in parts joined by dots"
    raise ValueError(
        f"{argument} must be at most {_LONGEST} {expected}, "
        f"each part beginning and ending with a letter or a digit, found {name!r}"
    )
