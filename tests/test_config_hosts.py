"""The address that a daemon listens on: what can stand before a port, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hrm import config
from hrm.errors import InvalidConfig
from hrm.tls_server import server_tls

DAEMONS = (config.MasterSettings, config.AgentSettings)


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "node-7.example", "[::1]", "0.0.0.0"])
def test_names_and_addresses(daemon: Any, host: str) -> None:
    assert config.load(daemon, host=host).host == host


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize(
    ("host", "fields"),
    [
        ("", "no host name"),
        ("[]", "no host name"),
        ("a b", "no host name"),
        ("unix:/tmp/socket", "no host name"),
        ("unix:socket", "no host name"),
        ("http://node-7", "no host name"),
        ("::1", r"in brackets, \[::1\]"),
        ("node-7:7480", "a setting of its own"),
    ],
)
def test_what_is_neither(daemon: Any, host: str, fields: str) -> None:
    with pytest.raises(InvalidConfig, match=fields):
        config.load(daemon, host=host)


def test_clear_text_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    settings = config.load(
        config.MasterSettings, host="192.0.2.1", port=0, token_file=tmp_path / "token",
        allow_clear_text=False,
    )  # fmt: skip
    with pytest.raises(InvalidConfig, match=r"will not listen on 192\.0\.2\.1 in clear text"):
        server_tls(settings)
    assert not list(tmp_path.iterdir())
