"""Credentials, and what a real handshake makes of them."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from equipoise.peers import Credentials, make_certificates
from equipoise.peers.credentials import authenticated_name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make_certificates(made, ["site-a", "site-b"])
    return made


@pytest.fixture(scope="module")
def a(folder: Path) -> Credentials:
    return Credentials.load(folder, "site-a")


@pytest.fixture(scope="module")
def b(folder: Path) -> Credentials:
    return Credentials.load(folder, "site-b")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Peer b of another authority."""
    other = tmp_path_factory.mktemp("other")
    make_certificates(other, ["site-b"])
    return Credentials.load(other, "site-b")


def issue(
    folder: Path,
    names: list[x509.GeneralName],
    *,
    start: int = -1,
    end: int = 1,
    common_name: str = "site-a",
) -> tuple[bytes, bytes]:
    """A certificate with arbitrary names, signed by the authority, and its key."""
    authority = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    signer = load_pem_private_key((folder / "authority.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=start))
        .not_valid_after(now + datetime.timedelta(days=end))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)
    return certificate, _pem(key)


def _pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, password: str = "") -> bytes:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


# The checks of credentials


def test_certificates_state_the_name(a: Credentials, b: Credentials) -> None:
    assert (a.name, b.name) == ("site-a", "site-b")


def test_repr_hides_the_key(a: Credentials) -> None:
    assert repr(a) == str(a) == "Credentials(name='site-a')"


def test_credentials_are_frozen(a: Credentials) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.key = b""  # type: ignore[misc]


@pytest.mark.parametrize("part", ["authority", "certificate", "key"])
@pytest.mark.parametrize("found", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_malformed_pem_is_rejected(a: Credentials, part: str, found: bytes) -> None:
    with pytest.raises(ValueError, match=f"^{part} must be (one certificate|a private key) in PEM"):
        dataclasses.replace(a, **{part: found})


def test_paths_are_not_pem(a: Credentials) -> None:
    with pytest.raises(ValueError, match=r"^key must be bytes in PEM, found str$"):
        Credentials(a.authority, a.certificate, "site-a.key")  # type: ignore[arg-type]


def test_second_authority_is_rejected(a: Credentials, stranger: Credentials) -> None:
    with pytest.raises(ValueError, match="authority must be one certificate in PEM, found 2"):
        dataclasses.replace(a, authority=a.authority + stranger.authority)


def test_peer_is_no_authority(a: Credentials, b: Credentials) -> None:
    with pytest.raises(ValueError, match="must be the certificate of an authority, found one of"):
        dataclasses.replace(a, authority=b.certificate)


def test_authority_must_say_so(folder: Path, a: Credentials) -> None:
    certificate, _ = issue(folder, [])
    with pytest.raises(ValueError, match="must be the certificate of an authority, found one of"):
        dataclasses.replace(a, authority=certificate)


def test_other_authority_is_rejected(a: Credentials, stranger: Credentials) -> None:
    with pytest.raises(ValueError, match="certificate must be signed by the authority"):
        dataclasses.replace(a, authority=stranger.authority)


def test_key_of_another_is_rejected(a: Credentials, b: Credentials) -> None:
    with pytest.raises(ValueError, match="key must belong to the certificate"):
        dataclasses.replace(a, key=b.key)


def test_key_of_another_kind_is_rejected(a: Credentials) -> None:
    with pytest.raises(ValueError, match="key must belong to the certificate"):
        dataclasses.replace(a, key=_pem(ed25519.Ed25519PrivateKey.generate()))


def test_encrypted_key_is_rejected(a: Credentials) -> None:
    key = _pem(ec.generate_private_key(ec.SECP256R1()), "secret")
    with pytest.raises(ValueError, match="key must be a private key in PEM without a password"):
        dataclasses.replace(a, key=key)


@pytest.mark.parametrize(("start", "end"), [(-2, -1), (1, 2)])
def test_certificate_must_be_valid_now(folder: Path, a: Credentials, start: int, end: int) -> None:
    certificate, key = issue(folder, [x509.DNSName("site-a")], start=start, end=end)
    with pytest.raises(ValueError, match=r"^certificate must be valid now, .* UTC, found one for"):
        Credentials(a.authority, certificate, key)


@pytest.mark.parametrize(
    "names",
    [
        [],
        [x509.DNSName("site-a"), x509.DNSName("site-b")],
        [x509.UniformResourceIdentifier("site-a")],
    ],
)
def test_certificate_must_state_one_name(
    folder: Path, a: Credentials, names: list[x509.GeneralName]
) -> None:
    certificate, key = issue(folder, names)
    with pytest.raises(ValueError, match="must state exactly one subject alternative name"):
        Credentials(a.authority, certificate, key)


def test_wildcards_are_no_names(folder: Path, a: Credentials) -> None:
    certificate, key = issue(folder, [x509.DNSName("*.example")])
    with pytest.raises(ValueError, match="the name in the certificate must be at most 64"):
        Credentials(a.authority, certificate, key)


# Loading


@pytest.mark.parametrize("file", ["authority.pem", "site-c.pem", "site-c.key"])
def test_missing_file_names_the_command(tmp_path: Path, file: str) -> None:
    make_certificates(tmp_path, ["site-c"])
    (tmp_path / file).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        Credentials.load(tmp_path, "site-c")
    command = f"equipoise peers certificates --names site-c --output {tmp_path}"
    source = f"copy it from the machine where you make certificates: {command}"
    assert str(caught.value) == f"{tmp_path / file} is missing; {source}"


def test_renamed_files_are_rejected(folder: Path, tmp_path: Path) -> None:
    for source, target in [("authority", "authority"), ("site-a", "site-c")]:
        (tmp_path / f"{target}.pem").write_bytes((folder / f"{source}.pem").read_bytes())
    (tmp_path / "site-c.key").write_bytes((folder / "site-a.key").read_bytes())
    with pytest.raises(
        ValueError, match=r"site-c.pem in .* must be of site-c, found one of site-a"
    ):
        Credentials.load(tmp_path, "site-c")


def test_mixed_files_are_rejected(folder: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["site-a"])
    (tmp_path / "site-a.key").write_bytes((folder / "site-a.key").read_bytes())
    with pytest.raises(ValueError, match=r"credentials of site-a in .*: key must belong to the"):
        Credentials.load(tmp_path, "site-a")


def test_names_leave_no_folder(folder: Path) -> None:
    with pytest.raises(ValueError, match="name must be at most 64 lower-case letters"):
        Credentials.load(folder / "deeper", "../site-a")


# Handshakes


@contextmanager
def server(credentials: Credentials) -> Iterator[tuple[int, list[str | None]]]:
    """A server on loopback that notes who calls; yields its port and the notes."""
    callers: list[str | None] = []

    def note(request: bytes, context: grpc.ServicerContext) -> bytes:
        callers.append(authenticated_name(context.auth_context()))
        return request

    handlers = {"note": grpc.unary_unary_rpc_method_handler(note)}
    running = grpc.server(futures.ThreadPoolExecutor(1))
    running.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    pair = (credentials.key, credentials.certificate)
    tls = grpc.ssl_server_credentials([pair], credentials.authority, require_client_auth=True)
    port = running.add_secure_port("127.0.0.1:0", tls)
    running.start()
    try:
        yield port, callers
    finally:
        running.stop(0).wait()


def call(port: int, tls: grpc.ChannelCredentials, *, dialed: str = "site-a") -> bytes:
    options = [("grpc.ssl_target_name_override", dialed)]
    with grpc.secure_channel(f"127.0.0.1:{port}", tls, options) as channel:
        answer: bytes = channel.unary_unary("/test/note")(b"I am site-a", timeout=10)
        return answer


def client(credentials: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        credentials.authority, credentials.key, credentials.certificate
    )


def test_handshake_tells_who_calls(a: Credentials, b: Credentials) -> None:
    """The certificate decides, whatever the message says."""
    with server(a) as (port, callers):
        assert call(port, client(b)) == b"I am site-a"
    assert callers == ["site-b"]


@pytest.mark.parametrize(
    "name", ["a", "1", "site_a", "a.b-c.d_e", "127.0.0.1", "a" * 63, "a.a" * 21]
)
def test_legal_names_pass_a_handshake(tmp_path: Path, name: str) -> None:
    make_certificates(tmp_path, [name])
    own = Credentials.load(tmp_path, name)
    with server(own) as (port, callers):
        call(port, client(own), dialed=name)
    assert callers == [name]


def without_certificate(a: Credentials, stranger: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(a.authority)


def of_another_authority(a: Credentials, stranger: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(a.authority, stranger.key, stranger.certificate)


@pytest.mark.parametrize("make", [without_certificate, of_another_authority])
def test_unauthenticated_clients_are_refused(
    a: Credentials,
    stranger: Credentials,
    make: Callable[[Credentials, Credentials], grpc.ChannelCredentials],
) -> None:
    with server(a) as (port, callers):
        with pytest.raises(grpc.RpcError) as caught:
            call(port, make(a, stranger))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert callers == []


def test_servers_prove_their_name(a: Credentials, b: Credentials, stranger: Credentials) -> None:
    """Neither another peer nor another authority can answer in place of the neighbor."""
    for impostor, dialed in [(b, "site-a"), (stranger, "site-b")]:
        with server(impostor) as (port, callers):
            with pytest.raises(grpc.RpcError) as caught:
                call(port, client(a), dialed=dialed)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert callers == []


@pytest.mark.parametrize(
    "names",
    [
        [],
        [x509.DNSName("site-a"), x509.DNSName("site-b")],
        [x509.UniformResourceIdentifier("site-a")],
        [x509.DNSName("site-a"), x509.UniformResourceIdentifier("site-b")],
    ],
)
def test_ambiguous_certificates_authenticate_nobody(
    folder: Path, a: Credentials, names: list[x509.GeneralName]
) -> None:
    certificate, key = issue(folder, names)
    with server(a) as (port, callers):
        call(port, grpc.ssl_channel_credentials(a.authority, key, certificate))
    assert callers == [None]


@pytest.mark.parametrize("name", [b"\xff", b"site-\xc3\xa9"])
def test_names_of_other_bytes_are_none(name: bytes) -> None:
    assert authenticated_name({}) is None
    context = {"x509_subject_alternative_name": [name], "peer_dns": [name]}
    assert authenticated_name(context) is None
