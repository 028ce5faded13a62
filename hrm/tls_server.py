"""The TLS of a server: its certificate and key, checked at the start, renewed while it runs.

Replaced files take effect with the next connection, without a restart: each handshake checks
whether they have changed. An invalid pair (half replaced, say) is logged and leaves the old one in
force.
"""

from __future__ import annotations

import datetime
import ssl
import stat
import threading
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import structlog

from hrm import clear_text, tls
from hrm.config.sources import ServerSettings
from hrm.errors import InvalidConfig, Unavailable

__all__ = ["ServerTls", "listen", "server_tls"]

_log = structlog.get_logger("tls")


def server_tls(settings: ServerSettings) -> ServerTls | None:
    """The TLS of a daemon; None: clear text.

    Raises:
        InvalidConfig: a setting is missing, a file is invalid, or clear text is not
            allowed at that address.
    """
    ca = tls.ca_file(settings.token_file, settings.tls_ca)
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        if ca is None:
            wanted = f"{settings.host}:{settings.port}"
            clear_text.check_server(wanted, allow=settings.allow_clear_text)
            return None
        raise InvalidConfig(
            f"{ca} shows that this cluster uses TLS, and this daemon has no certificate; give it "
            f"one: --tls-cert and --tls-key (hrm tls makes them) - or, if clear text is meant, "
            f"remove {ca} and unset HRM_TLS_CA"
        )
    if cert is None or key is None:
        missing = "tls_cert" if cert is None else "tls_key"
        raise InvalidConfig(f"{missing} is missing; tls_cert and tls_key go together")
    if ca is None:
        raise InvalidConfig(
            "tls_cert is set and tls_ca is not; name the ca.pem that signed the certificates of "
            "this cluster (--tls-ca), or put it next to the token"
        )
    tls.read_ca(ca)
    return ServerTls(cert.expanduser(), key.expanduser())


def listen(
    server: grpc.aio.Server, address: str, secure: ServerTls | None, *, allow_clear_text: bool
) -> int:
    """Make ``server`` listen at ``address`` (host:port; 0: any free one); returns the port.

    Raises:
        InvalidConfig: in clear text, where that is not allowed.
        Unavailable: another process has the port, or the address is not this machine's.
    """
    try:
        if secure is not None:
            port = int(server.add_secure_port(address, secure.credentials()))
        else:
            clear_text.check_server(address, allow=allow_clear_text)
            port = int(server.add_insecure_port(address))
    except RuntimeError:
        port = 0
    if port == 0:
        raise Unavailable(
            f"cannot listen on {address}: the port is in use or the address is not of this "
            f"machine; choose another with --port and --host, or stop what holds it"
        )
    return port


class _Pair(NamedTuple):
    configuration: Any
    context: ssl.SSLContext


class ServerTls:
    """A certificate with its chain and its private key, two PEM files.

    Raises:
        InvalidConfig: they are not a pair that is valid now.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self._changing = threading.Lock()  # handshakes are on gRPC's threads
        self._seen = self._stamp()
        self._pair = _load(cert, key)
        self._given = self._pair

    def credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server."""
        return grpc.dynamic_ssl_server_credentials(self._pair.configuration, self._fetch)

    def context(self) -> ssl.SSLContext:
        """For any other server."""
        context = _context(self._cert, self._key)

        def hello(connection: ssl.SSLSocket | ssl.SSLObject, _name: object, _of: object) -> None:
            connection.context = self._current().context

        context.sni_callback = hello
        return context

    def _fetch(self) -> Any:
        """The configuration for the next handshake; None: as before."""
        pair = self._current()
        if pair is self._given:
            return None
        self._given = pair
        return pair.configuration

    def _current(self) -> _Pair:
        with self._changing:
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                try:
                    self._pair = _load(self._cert, self._key)
                    _log.info("a new certificate is in force", cert=str(self._cert))
                except InvalidConfig as error:
                    _log.warning("a new certificate is invalid", why=error.message)
            return self._pair

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """A value that changes with either file."""
        return tuple(map(_stamp_of, (self._cert, self._key)))


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _load(cert: Path, key: Path) -> _Pair:
    chain, _ = _read("tls_cert", cert)
    secret, mode = _read("tls_key", key)
    if mode & 0o077:
        raise InvalidConfig(
            f"tls_key {key} is accessible to other users (mode {mode:04o}); chmod 600 {key}"
        )
    _check(cert, key, chain, secret)
    configuration = grpc.ssl_server_certificate_configuration([(secret, chain)])
    return _Pair(configuration, _context(cert, key))


def _read(setting: str, path: Path) -> tuple[bytes, int]:
    """The content of the file, and its mode."""
    try:
        return path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InvalidConfig(
            f"{setting}: cannot read {path}: {error.strerror}; correct the setting, or make the "
            f"file: hrm tls"
        ) from error


def _check(cert: Path, key: Path, chain: bytes, secret: bytes) -> None:
    """Check that a client could trust this pair. cryptography is imported only where needed."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
    except ValueError as error:
        raise InvalidConfig(f"tls_cert: {cert} holds no certificate in PEM form") from error
    try:
        private = load_pem_private_key(secret, None)
    except TypeError as error:
        raise InvalidConfig(
            f"tls_key: {key} is encrypted, and a daemon cannot prompt for its passphrase; "
            f"decrypt it: openssl pkey -in {key} -out NEW"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidConfig(f"tls_key: {key} holds no private key in PEM form") from error
    if not isinstance(private, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise InvalidConfig(f"tls_key: {key} is neither RSA nor ECDSA, as gRPC requires")
    if private.public_key() != leaf.public_key():
        raise InvalidConfig(
            f"tls_key {key} is not the key of tls_cert {cert}; name the two that were made together"
        )
    now = datetime.datetime.now(datetime.UTC)
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        raise InvalidConfig(
            f"tls_cert: {cert} is valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M}; "
            f"renew it (hrm tls), or set the clock"
        )


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise InvalidConfig(f"tls_cert {cert} and tls_key {key}: {error}") from error
    return context
