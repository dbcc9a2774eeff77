"""X.509: what is made and checked with the package cryptography, which only this module imports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 7300  # 20 years: an authority must outlast the certificates that it signs
# The clock of another machine may be behind; it would reject a certificate that is valid from now.
CLOCK_SKEW = timedelta(days=1)


def checked_name(authority: bytes, certificate: bytes, key: bytes) -> str:
    """The name of the peer; raise `ValueError` unless the three belong together and are valid."""
    issuer = _parse_certificate("authority", authority)
    issued = _parse_certificate("certificate", certificate)
    _check_issuer(issuer)
    _check_valid("certificate", issued)
    try:
        issued.verify_directly_issued_by(issuer)
    # ValueError: another issuer, or another kind of signature. TypeError: a key that cannot sign.
    except (InvalidSignature, ValueError, TypeError):
        raise ValueError(
            "certificate must be signed by the authority, found another signature"
        ) from None
    if _parse_key("key", key).public_key() != issued.public_key():
        raise ValueError("key must belong to the certificate, found the key of another one")
    try:
        names = list(issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        names = []
    if len(names) != 1 or not isinstance(names[0], x509.DNSName):
        expected = "exactly one subject alternative name, of DNS"
        raise ValueError(f"certificate must state {expected}, found {len(names)} names")
    return names[0].value


def make_key() -> bytes:
    """A new private key in PEM, not encrypted."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_authority(key: bytes) -> bytes:
    """A self-signed certificate that can sign those of peers, but not further authorities."""
    signer = _signing_key("authority.key", key)
    subject = _subject("equipoise authority")
    builder = _begin(subject, signer.public_key(), AUTHORITY_DAYS).issuer_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)


def check_authority(authority: bytes, key: bytes) -> None:
    """Raise `ValueError` unless the authority is valid and can sign with this key."""
    issuer = _parse_certificate("authority.pem", authority)
    _check_issuer(issuer)
    if _signing_key("authority.key", key).public_key() != issuer.public_key():
        raise ValueError("authority.key must belong to authority.pem, found another key")


def make_certificate(name: str, key: bytes, days: int, issuer: bytes, issuer_key: bytes) -> bytes:
    """The certificate of a peer, signed by the authority, for both ends of a connection."""
    authority = _parse_certificate("authority.pem", issuer)
    signer = _signing_key("authority.key", issuer_key)
    public = _signing_key(f"{name}.key", key).public_key()
    if datetime.now(UTC) + timedelta(days=days) > authority.not_valid_after_utc:
        end = authority.not_valid_after_utc.date()
        raise ValueError(f"days must end before the authority does, on {end}, found {days}")
    builder = _begin(_subject(name), public, days).issuer_name(authority.subject)
    # gRPC compares the name that it dials with the alternative name.
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectAlternativeName([x509.DNSName(name)]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(authority=False), True),
        # Every peer accepts connections and opens them.
        (
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            False,
        ),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)


def _begin(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    """Authorities sign certificates and revocations; peers sign handshakes."""
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _parse_certificate(what: str, pem: bytes) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        found = []
    # gRPC trusts all certificates of the file, so a second one would be trusted without a check.
    if len(found) != 1:
        raise ValueError(f"{what} must be one certificate in PEM, found {len(found)}")
    return found[0]


def _parse_key(what: str, pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    # TypeError: the key is encrypted. The cause could quote the key, so it is left out.
    except (ValueError, TypeError, UnsupportedAlgorithm):
        expected = "a private key in PEM without a password"
        raise ValueError(f"{what} must be {expected}, found something else") from None


def _signing_key(what: str, pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = _parse_key(what, pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{what} must be an elliptic curve key, found {type(key).__name__}")
    return key


def _check_issuer(authority: x509.Certificate) -> None:
    _check_valid("authority", authority)
    try:
        allowed = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        allowed = False
    if not allowed:
        raise ValueError("authority must be the certificate of an authority, found one of a peer")


def _check_valid(what: str, certificate: x509.Certificate) -> None:
    begin = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    now = datetime.now(UTC)
    if not begin <= now <= end:
        raise ValueError(
            f"{what} must be valid now, {now:%Y-%m-%d %H:%M} UTC, "
            f"found one for {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
        )
