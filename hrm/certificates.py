"""Certificates for a cluster without an authority of its own: one authority, one pair per host.

The authority is created once (``ca.pem``, ``ca.key``) and signs all others. Its key can sign for
any name that this cluster's clients trust: it belongs on no node. Keys are ECDSA P-256, mode 0600.
A pair is renewed by creating it again; servers notice that without a restart.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hrm.durable import write_durably
from hrm.errors import InvalidConfig, InvalidRequest
from hrm.tls import CA_FILE

__all__ = ["DAYS", "Pair", "make"]

DAYS = 397
AUTHORITY_DAYS = 3650
CLOCK_SKEW = datetime.timedelta(hours=1)
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    cert: Path
    key: Path


def make(directory: Path, hosts: Sequence[str], days: int = DAYS) -> list[Pair]:
    """A pair for each of ``hosts``, signed by the authority of ``directory``, created if missing.

    Each host is the names and addresses by which it is reached, separated by commas; the first
    names its files. Valid for ``days``, and no longer than the authority.

    Raises:
        InvalidRequest: a name is malformed.
        InvalidConfig: the directory cannot be written, or its authority is unusable.
    """
    wanted = [(_files(directory, names), names) for names in map(_names, hosts)]
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority, key = _authority(directory)
        for pair, names in wanted:
            _issue(pair, names, authority, key, days)
    except OSError as error:
        raise InvalidConfig(
            f"cannot write certificates to {directory}: {error.strerror}; choose another directory"
        ) from error
    return [pair for pair, _ in wanted]


def _names(host: str) -> list[x509.GeneralName]:
    return [_name(text.strip()) for text in host.split(",")]


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if not _NAME.fullmatch(text):
        raise InvalidRequest(
            f"{text!r} is no host name and no address; give --host NAME[,NAME|ADDRESS...]"
        )
    return x509.DNSName(text)


def _files(directory: Path, names: list[x509.GeneralName]) -> Pair:
    stem = str(names[0].value).replace("*", "_").replace(":", "_")
    if stem == Path(CA_FILE).stem:
        raise InvalidRequest(
            f"a certificate named {stem} would take the place of the authority; give another name "
            f"first, as in --host {stem}.local,{stem}"
        )
    return Pair(directory / f"{stem}.pem", directory / f"{stem}.key")


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    files = Pair(directory / CA_FILE, directory / "ca.key")
    if not files.cert.exists() and not files.key.exists():
        return _new_authority(files)
    try:
        authority = x509.load_pem_x509_certificate(files.cert.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidConfig(
            f"cannot sign with {files.cert} and {files.key}: {error}; bring the missing one back, "
            f"or choose an empty directory for a new authority"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != (
        authority.public_key()
    ):
        raise InvalidConfig(
            f"{files.key} is not the key of {files.cert}, as hrm tls made it; bring back the "
            f"right one, or choose an empty directory for a new authority"
        )
    if authority.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise InvalidConfig(
            f"the authority {files.cert} has expired; choose an empty directory for a new one, and "
            f"give every machine both until all have new certificates: cat OLD/ca.pem NEW/ca.pem"
        )
    return authority, key


def _new_authority(files: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities in one bundle must not have one name.
    name = _subject(f"HRM authority {secrets.token_hex(4)}")
    use = _key_usage(signs_certificates=True)
    builder = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use, critical=True)
    )
    authority = builder.sign(key, hashes.SHA256())
    _write(files, authority, key)
    return authority, key


def _issue(
    pair: Pair,
    names: list[x509.GeneralName],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(str(names[0].value)[:64])
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    left = authority.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    builder = (
        _builder(subject, authority.subject, key, min(days, left.days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signer, critical=False)
    )
    _write(pair, builder.sign(authority_key, hashes.SHA256()), key)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _write(pair: Pair, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_durably(pair.key, secret, 0o600)
    write_durably(pair.cert, cert.public_bytes(serialization.Encoding.PEM), 0o644)
