"""Where HRM works without TLS: on loopback, or where that is allowed by name."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from hrm import clear_text, rpc
from hrm.errors import InvalidConfig, Unavailable


@pytest.mark.parametrize(
    "target",
    ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1", "unix:/a/b"],
)
def test_loopback_and_sockets_of_the_file_system_are_this_machine(target: str) -> None:
    assert clear_text.is_local(target)
    clear_text.check_server(target, allow=False)
    clear_text.check_client(target, allow=False)


@pytest.mark.parametrize(
    "target",
    [
        "10.0.0.1:1", "0.0.0.0:1", "[::]:1", "[2001:db8::1]:1", "198.51.100.7:1",
    ],
)  # fmt: skip
def test_everything_else_is_not(target: str) -> None:
    with pytest.raises(InvalidConfig, match=r"hrm tls .*--tls-cert.* allow_clear_text = true"):
        clear_text.check_server(target, allow=False)
    with pytest.raises(InvalidConfig, match=r"hrm tls.*ca\.pem.*HRM_ALLOW_CLEAR_TEXT=true"):
        clear_text.check_client(target, allow=False)
    clear_text.check_server(target, allow=True)
    clear_text.check_client(target, allow=True)


def test_a_name_that_does_not_resolve_is_not_advised_to_do_without_encryption() -> None:
    for check in (clear_text.check_client, clear_text.check_server):
        with pytest.raises(
            Unavailable, match=r"host nowhere\.invalid of nowhere\.invalid:1 does not"
        ):
            check("nowhere.invalid:1", allow=False)
        for text in (":1", "node-7", "node-7:", "7480"):
            with pytest.raises(InvalidConfig, match="is no address; write HOST:PORT"):
                check(text, allow=False)
        check("nowhere.invalid:1", allow=True)


def test_a_name_is_loopback_only_if_all_that_it_means_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["127.0.0.1", "10.0.0.1"]

    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 0)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert not clear_text.is_local("both:1")
    found.pop()
    assert clear_text.is_local("both:1")


@pytest.mark.parametrize("make", [rpc.channel, rpc.sync_channel])
async def test_no_client_sends_the_token_so_unless_the_environment_allows_it(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(clear_text.VARIABLE, raising=False)
    with pytest.raises(InvalidConfig, match="will not send the cluster's token to 192"):
        make("192.0.2.1:7480", "secret")
    monkeypatch.setenv(clear_text.VARIABLE, "maybe")
    with pytest.raises(InvalidConfig, match=r"HRM_ALLOW_CLEAR_TEXT is 'maybe'; .* true or false"):
        make("192.0.2.1:7480", "secret")
    for allowed in ({"allow_clear_text": True}, {"ca": b"any"}):
        assert make("192.0.2.1:7480", "secret", **allowed) is not None
    monkeypatch.setenv(clear_text.VARIABLE, "True")
    assert make("192.0.2.1:7480", "secret") is not None
