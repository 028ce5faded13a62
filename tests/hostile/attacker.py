"""An attack of ``http2`` in a process of its own, so that it uses no processor time of the test::

    python -m tests.hostile.attacker rapid_reset '{"target": "127.0.0.1:7480", "path": "/x/y"}'

``run`` starts one, and ends it early if the attacked daemon has grown so much that the machine
would be harmed: the result is known by then.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from tests.hostile import http2
from tests.hostile.cluster import ROOT, Daemon

__all__ = ["run"]

ENOUGH_MIB = 1_500.0
MARGIN_S = 30.0


def run(attack: str, on: Daemon, *, seconds: float, **arguments: Any) -> http2.Tally:
    """Run an attack; returns its tally."""
    given = json.dumps({"seconds": seconds, **arguments})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.attacker", attack, given],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    before_mib = on.memory_mib()
    until_s = time.monotonic() + seconds + MARGIN_S
    try:
        while process.poll() is None and time.monotonic() < until_s:
            if on.memory_mib() - before_mib > ENOUGH_MIB:
                break
            time.sleep(0.05)
    finally:
        process.kill()
        outcome_text, _ = process.communicate()
    return http2.Tally(**json.loads(outcome_text)) if outcome_text else http2.Tally()


def _connect(target: str, secure: ssl.SSLContext | None = None) -> http2.Peer:
    """Like ``http2.connect``, also to Unix sockets (``unix:PATH``)."""
    if not target.startswith("unix:"):
        return _connect_tcp(target, secure)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(target.removeprefix("unix:"))
        settings = http2.frame(http2.SETTINGS, 0, 0)
        connection.sendall(http2.PREFACE + settings + http2.frame(http2.SETTINGS, http2.ACK, 0))
    except OSError:
        connection.close()
        raise
    return http2.Peer(connection)


_connect_tcp = http2.connect

if __name__ == "__main__":
    http2.connect = _connect
    print(json.dumps(asdict(getattr(http2, sys.argv[1])(**json.loads(sys.argv[2])))))
