"""The authority and the certificates that it signs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from equipoise.peers import Credentials, certificates, make_certificates

NAMES = ["site-a", "site-b"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def parse(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_files_of_authority_and_peers(tmp_path: Path) -> None:
    assert make_certificates(tmp_path / "a" / "b", NAMES) == ("site-a", "site-b")
    owners = ["authority", *NAMES]
    expected = {f"{owner}.{kind}" for owner in owners for kind in ("pem", "key")}
    assert files(tmp_path / "a" / "b").keys() == expected


def test_authority_signs_peers_only(tmp_path: Path) -> None:
    make_certificates(tmp_path, NAMES)
    authority = parse(tmp_path / "authority.pem")
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert limits.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert not usage.digital_signature
    key = authority.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_peer_is_server_and_client(tmp_path: Path) -> None:
    make_certificates(tmp_path, NAMES)
    extensions = parse(tmp_path / "site-a.pem").extensions
    both = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == both
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_days_are_the_validity(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["site-a"], days=30)
    made = parse(tmp_path / "site-a.pem")
    # One day of the past, for clocks that are behind.
    assert (made.not_valid_after_utc - made.not_valid_before_utc).days == 31


def test_private_files_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other user can read a key, not even before its content is complete."""
    modes = []
    replace = os.replace

    def watch(source: Path, target: Path) -> None:
        modes.append((target.suffix, stat.S_IMODE(source.stat().st_mode)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "new", ["site-a"])
    finally:
        os.umask(before)
    assert modes == [(".key", 0o600), (".pem", 0o666)] * 2
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_peers_are_added_later(tmp_path: Path) -> None:
    make_certificates(tmp_path, NAMES)
    before = files(tmp_path)
    assert make_certificates(tmp_path, [*NAMES, "site-c"]) == ("site-c",)
    after = files(tmp_path)
    assert after.keys() - before.keys() == {"site-c.pem", "site-c.key"}
    assert before.items() <= after.items()


def test_renewing_replaces_the_certificate_only(tmp_path: Path) -> None:
    make_certificates(tmp_path, NAMES)
    before = files(tmp_path)
    assert make_certificates(tmp_path, ["site-a"], renew=True) == ("site-a",)
    after = files(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"site-a.pem"}


def test_renewing_without_the_key(tmp_path: Path) -> None:
    """The key may have been moved to the machine of the peer; then there is a new one."""
    make_certificates(tmp_path, ["site-a"])
    (tmp_path / "site-a.key").unlink()
    with pytest.raises(ValueError, match=r"site-a.key is missing; .* --renew replaces it"):
        make_certificates(tmp_path, ["site-a"])
    assert make_certificates(tmp_path, ["site-a"], renew=True) == ("site-a",)
    assert Credentials.load(tmp_path, "site-a").name == "site-a"


@pytest.mark.parametrize("written", range(6))
def test_interrupted_calls_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    write = certificates._write
    left = written

    def interrupted(path: Path, content: bytes, *, private: bool) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        write(path, content, private=private)

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_certificates(tmp_path, NAMES)
    before = files(tmp_path)
    assert len(before) == written
    make_certificates(tmp_path, NAMES)
    assert before.items() <= files(tmp_path).items()
    for name in NAMES:
        assert Credentials.load(tmp_path, name).name == name


def test_other_machines_cannot_sign(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["site-a"])
    (tmp_path / "authority.key").unlink()
    with pytest.raises(FileNotFoundError, match=r"authority.key is missing: certificates are made"):
        make_certificates(tmp_path, ["site-b"])
    assert "site-b.key" not in files(tmp_path)


def test_mixed_authorities_are_found(tmp_path: Path) -> None:
    make_certificates(tmp_path / "one", ["site-a"])
    make_certificates(tmp_path / "two", ["site-b"])
    key = tmp_path / "one" / "authority.key"
    (tmp_path / "two" / "authority.key").replace(key)
    with pytest.raises(ValueError, match=r"authority.key must belong to authority.pem"):
        make_certificates(tmp_path / "one", ["site-c"])
    assert "site-c.key" not in files(tmp_path / "one")
    key.write_bytes(b"garbage")
    with pytest.raises(ValueError, match=r"authority.key must be a private key in PEM"):
        make_certificates(tmp_path / "one", ["site-c"])


def test_authority_has_an_elliptic_key(tmp_path: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "authority.key").write_bytes(pem)
    with pytest.raises(
        ValueError, match=r"authority.key must be an elliptic curve key, found Ed255"
    ):
        make_certificates(tmp_path, ["site-a"])


def test_certificates_end_before_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.peers import _x509

    monkeypatch.setattr(_x509, "AUTHORITY_DAYS", 10)
    with pytest.raises(
        ValueError, match=r"days must end before the authority does, on 20.*found 1"
    ):
        make_certificates(tmp_path, ["site-a"], days=11)


@pytest.mark.parametrize(
    "name",
    [
        *("", "Site-A", "a b", "a/b", "..", "../a", "a.", ".a", "a..b", "-a", "a-", "*", "*.b"),
        *("a:1", "a@b", "é", "a\n", "a" * 64, "a.a" * 22, None, 3),
    ],
)
def test_unusable_names_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="each name must be at most 64 lower-case letters, digits"):
        make_certificates(tmp_path / "new", ["site-a", name])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("site-a", "names must be a list of names, found the string 'site-a'"),
        ([], "names must be different and at least one"),
        (["site-a", "site-a"], "names must be different and at least one"),
        (["authority"], "each name must be free, found 'authority', the name of the authority"),
    ],
)
def test_wrong_lists_are_rejected(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_certificates(tmp_path, names)


@pytest.mark.parametrize("days", [0, -1, 3651, 1.5, True])
def test_days_are_a_count(tmp_path: Path, days: int) -> None:
    with pytest.raises(ValueError, match="days must be an integer from 1 to 3650"):
        make_certificates(tmp_path, ["site-a"], days=days)
