"""The report of ``hrm up`` on a cluster of which one daemon has died."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hrm import errors
from hrm.agent.containers.shim import start_ticks
from hrm.cli import cluster, embedded


def test_a_half_alive_cluster_names_the_log_of_what_died(tmp_path: Path) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    pid = os.getpid()
    living = embedded.DaemonProcess(
        role="agent", name="node-1", pid=pid, start_ticks=ticks, log="/logs/node-1.log"
    )
    dead = embedded.DaemonProcess(
        role="master", name="master", pid=pid, start_ticks=ticks - 1, log="/logs/master.log"
    )
    old = embedded.Cluster(
        directory=tmp_path,
        host="127.0.0.1",
        port=7480,
        nodes=1,
        cores=1,
        memory_mib=1024,
        processes=[dead, living],
    )
    with pytest.raises(errors.AlreadyExists) as caught:
        cluster._refuse_second(old)
    output = str(caught.value)
    assert "partly down" in output and "master (/logs/master.log)" in output
    assert "/logs/node-1.log" not in output
    assert "hrm down" in output and "hrm up" in output
