"""A server's certificate: what is refused at its start, and how it is renewed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog.testing
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from hrm import certificates, errors
from hrm.agent.containers.log_links import LogLinks
from hrm.agent.containers.logs import LogPages, Logs
from hrm.certificates import Pair
from hrm.tls_server import ServerTls
from tests.test_tls import SERVING, Authority, ask, ours, serving

__all__ = ["ours"]


def _missing(pair: Pair) -> None:
    pair.key.unlink()


def _a_directory(pair: Pair) -> None:
    pair.cert.unlink()
    pair.cert.mkdir()


def _open_to_others(pair: Pair) -> None:
    pair.key.chmod(0o640)


def _of_another(pair: Pair) -> None:
    (other,) = certificates.make(pair.cert.parent, ["other"])
    pair.key.write_bytes(other.key.read_bytes())


def _no_certificate(pair: Pair) -> None:
    pair.cert.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")


def _no_key(pair: Pair) -> None:
    pair.key.write_text("no key")


def _with_passphrase(pair: Pair) -> None:
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    form = serialization.PrivateFormat.PKCS8
    hidden = serialization.BestAvailableEncryption(b"secret")
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, hidden))


def _of_a_kind_that_grpc_lacks(pair: Pair) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (_missing, r"tls_key: cannot read .*localhost\.key: No such file .*hrm tls"),
        (_a_directory, r"tls_cert: cannot read .*localhost\.pem: Is a directory"),
        (_open_to_others, "accessible to other users .mode 0640.; chmod 600"),
        (_of_another, "is not the key of"),
        (_no_certificate, "holds no certificate"),
        (_no_key, "holds no private key"),
        (_with_passphrase, "is encrypted.* openssl pkey"),
        (_of_a_kind_that_grpc_lacks, "neither RSA nor ECDSA"),
    ],
)
def test_a_pair_that_is_none_is_refused_with_the_cure(
    ours: Authority, spoil: Callable[[Pair], None], cause: str
) -> None:
    spoil(ours.pair)
    with pytest.raises(errors.InvalidConfig, match=cause):
        ours.server()


def test_a_certificate_out_of_its_time_is_refused(
    ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CLOCK_SKEW", certificates.CLOCK_SKEW * -1)
    with pytest.raises(errors.InvalidConfig, match=r"is valid from .* and it is .*renew it"):
        ServerTls(*ours.issue("not-yet"))


def _bring(pair: Pair, other: Pair, part: str) -> None:
    path: Path = getattr(pair, part)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(getattr(other, part).read_bytes())
    fresh.chmod(0o600)
    fresh.replace(path)


async def test_a_renewed_pair_is_in_force_without_a_restart(
    ours: Authority, tmp_path: Path
) -> None:
    new = Authority(tmp_path / "new")
    async with serving(ours.server()) as port:
        target = f"127.0.0.1:{port}"
        assert await ask(target, ours.ca) == SERVING
        with structlog.testing.capture_logs() as logs:
            _bring(ours.pair, new.pair, "key")
            assert await ask(target, ours.ca) == SERVING, "half of a pair changes nothing"
            assert await ask(target, ours.ca) == SERVING
        assert [entry["event"] for entry in logs] == ["a new certificate is invalid"]
        _bring(ours.pair, new.pair, "cert")
        assert await ask(target, new.ca) == SERVING
        with pytest.raises(errors.TlsFailed, match="is not trusted"):
            await ask(target, ours.ca)
        ours.pair.cert.unlink()
        assert await ask(target, new.ca) == SERVING


async def _page(port: int, path: str, ca: Path) -> str:
    context = ssl.create_default_context(cafile=str(ca))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    response = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return response


async def test_log_pages_are_encrypted_too_and_renewed(ours: Authority, tmp_path: Path) -> None:
    new = Authority(tmp_path / "new")
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "stdout").write_text("what it said")
    links = LogLinks("k" * 64, asked_s=60.0, keep_s=60.0)
    logs = Logs(tmp_path, links, lambda _container: True)
    server = await LogPages(logs, ours.server()).start("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    logs.address = f"127.0.0.1:{port}"
    url = logs.url("c1", "stdout", "ada")
    path = "/containers/c1/stdout"
    assert url == f"https://127.0.0.1:{port}{path}?{links.of_application(path, 'ada')}"
    wanted = url.partition(str(port))[2]
    async with asyncio.timeout(20), server:
        assert "what it said" in await _page(port, wanted, ours.ca_path)
        for part in ("key", "cert"):
            _bring(ours.pair, new.pair, part)
        assert "what it said" in await _page(port, wanted, new.ca_path)
        with pytest.raises(ssl.SSLCertVerificationError):
            await _page(port, wanted, ours.ca_path)
