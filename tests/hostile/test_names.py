"""Control characters, escapes, bidirectional marks and NUL in every name that others see: none
reaches a terminal, a page or a log as it is."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hrm.v1 import application_pb2, common_pb2, node_pb2, node_pb2_grpc
from tests.hostile.application import Application
from tests.hostile.attack import Attack
from tests.hostile.cluster import Cluster, wait_until

EVIL = "\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.exe\u2066\u200b\x00\x85\x9b31m"
"""Clears a screen, sets a title, overwrites a line, reverses a name, ends a C string."""

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]")
"""What must not be output: control characters except tab and newline, and marks of direction."""

COMMANDS = (
    ("status",),
    ("nodes",),
    ("node", "show", "node-1"),
    ("node", "show", "odd"),
    ("apps", "--all"),
    ("app", "show", "ID"),
    ("app", "why", "ID"),
    ("events",),
    ("submissions", "--all"),
    ("pipeline", "list"),
    ("policy", "show"),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.start_master()
        made.start_agent()
        yield made


def odd_node(cluster: Cluster) -> tuple[grpc.Channel, object]:
    """A node whose every text is ``EVIL``; if that is refused, one of plain text."""
    channel = grpc.insecure_channel(cluster.address)
    call = {"metadata": (("authorization", f"Bearer {cluster.token}"),)}
    for text in (EVIL, "plain"):
        unit = node_pb2.ResourceUnit(
            resource_unit_id="odd/0",
            capacity=common_pb2.Resources(vcores=1, memory_mib=64),
            run_limit=1,
        )
        register = node_pb2.RegisterNode(
            name="odd", identity="odd", incarnation="odd-1", endpoint="127.0.0.1:1",
            host=text, isolation=text, platform=text, spark_versions=[text], remarks=[text],
            resource_units=[unit],
        )  # fmt: skip
        messages = iter([node_pb2.NodeMessage(sequence=1, register=register)])
        stream = node_pb2_grpc.NodeServiceStub(channel).Connect(messages, **call)
        try:
            next(iter(stream))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
        else:
            return channel, stream
    raise AssertionError("the node was refused")


def odd_application(cluster: Cluster) -> Application:
    """Like ``odd_node``."""
    for text in (EVIL, "plain"):
        fields = dict.fromkeys(("name", "user", "spark_version", "driver_host", "web_url"), text)
        command = r"printf '\033[2J\033]0;owned\007 <script>alert(1)</script>\n'; sleep 600"
        try:
            return Application(cluster.address, cluster.token, command=command, **fields)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    raise AssertionError("the application was refused")


@pytest.mark.hostile
def test_no_text_of_others_comes_out_raw(cluster: Cluster) -> None:
    master = cluster.daemons[0]
    with Attack("12", "escapes and marks in every name and reason", on=master) as seen:
        channel, _stream = odd_node(cluster)
        application = odd_application(cluster)
        with application:
            application.request("1")
            wait_until(lambda: application.containers, "it has a container")
            evidence = application_pb2.ClassChanged(
                workload_class=common_pb2.WORKLOAD_CLASS_STREAM, evidence=EVIL
            )
            application.send(application_pb2.ApplicationUpdate(class_changed=evidence))
            application.wait_running(1)
            found = [
                *shown(cluster, application.application_id),
                *page(link(cluster, application.application_id)),
            ]
            finish = application_pb2.ApplicationFinished(
                state=common_pb2.APPLICATION_STATE_FAILED, message=EVIL
            )
            application.send(application_pb2.ApplicationUpdate(finished=finish))
            wait_until(
                lambda: application.ended or "failed" in why(cluster, application), "the end"
            )
        found += shown(cluster, application.application_id)
        for daemon in cluster.daemons:
            found += raw(f"the log of {daemon.name}", daemon.log_file.read_bytes())
        channel.close()
        seen.outcome = f"{2 * len(COMMANDS)} outputs, a log page and the daemons' logs: none raw"
        assert not found, found


def why(cluster: Cluster, application: Application) -> str:
    return cluster.hrm("app", "why", application.application_id).stdout.decode(errors="replace")


def shown(cluster: Cluster, application_id: str) -> list[str]:
    """Where raw characters are in the output of the command line, as a table or as JSON."""
    found = []
    for command in COMMANDS:
        words = [application_id if word == "ID" else word for word in command]
        for more in ((), ("--output", "json")):
            done = cluster.hrm(*words, *more)
            name = " ".join(("hrm", *command, *more))
            found += raw(name, done.stdout + done.stderr)
            if more and done.returncode == 0:
                check_json(done.stdout.decode())
    return found


def check_json(text: str) -> None:
    """One document after another, and nothing else."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        _, end = decoder.raw_decode(text)
        text = text[end:]


def link(cluster: Cluster, application_id: str) -> str:
    """To the page of its first executor's log."""
    done = cluster.hrm("app", "logs", application_id, "--executor", "1", "--link")
    assert done.returncode == 0, done.stderr
    (url,) = [word for word in done.stdout.decode().split() if word.startswith("http")]
    return url


def page(url: str) -> list[str]:
    """The same for a log page as a browser gets it."""
    request = urllib.request.Request(url, headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=20) as response:
        text = response.read()
    found = raw("a log page", text)
    return [*found, "a log page runs scripts"] if b"<script>" in text else found


def raw(name: str, output: bytes) -> list[str]:
    text = output.decode("utf-8", errors="surrogateescape")
    matched = RAW.search(text)
    return (
        [f"{name}: {text[max(0, matched.start() - 30) : matched.end() + 30]!r}"] if matched else []
    )


def test_the_check_sees_what_is_raw() -> None:
    """And accepts what a table may contain."""
    assert raw("x", b"a\x1bb") and raw("x", "a\u202eb".encode()) and raw("x", b"\r")
    assert not raw("x", "┌ü─┐\n\t👩 \\x1b[2J\n".encode())
