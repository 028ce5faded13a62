"""A user's warm Connect server: found or started, awaited until it is warm, addressed.

It is a submitted driver like any other (``hrm.spark.submit``), of Spark's own server class. What is
added: a token of its own, which only this user has; defaults that suit a service; and
``spark.hrm.connect.idle``, by which HRM's plugin rehearses in the server and ends it when it has
been idle (``ConnectServer.scala``). The rehearsal's outcome is one line of the driver's log, read
from there, so that a server at the loopback of another machine is awaited, too.

One server for a user and a set of options: a record on this machine (``hrm.cli.server_record``),
locked while a server is looked for, and a serial key at the master. A submission that is to wait
for another of its key is withdrawn: that other one is the server.

Spark has no TLS for Connect's port. So a server listens at its node's loopback, unless clear text
is allowed there as for HRM's own calls (``hrm.clear_text``).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import grpc

from hrm import clear_text, errors
from hrm.cli import driver_submit
from hrm.cli.server_record import ServerRecord, ServerRecordFile, new_token
from hrm.spark import submit, submit_options
from hrm.spark.submit import ENDED, SubmissionClient, state_name
from hrm.spark_servers import CONNECT_CLASS, CONNECT_HOST, CONNECT_PORT, CONNECT_TOKEN
from hrm.v1 import submission_pb2 as pb
from hrm.v1.admin_pb2 import ExplainApplicationRequest, ReadLogsRequest
from hrm.v1.admin_pb2_grpc import AdminServiceStub

__all__ = [
    "IDLE",
    "ConnectOptions",
    "WarmConnectServer",
    "await_warm",
    "check_reached",
    "find_or_start",
    "remote",
    "restart",
    "spark_version",
    "stop",
]

IDLE = "spark.hrm.connect.idle"
AUTHENTICATES_SINCE = 4
"""Spark's first major version whose Connect server can require a token."""
NAME = "connect"
LOOPBACK = "127.0.0.1"
POLL_S = 0.5
CALL_TIMEOUT_S = 10.0
LOG_TAIL_BYTES = 1 << 18
EXPLAIN_AFTER_S = 3.0
OUTCOME_LIMIT_S = 300.0
"""After a driver's start: more than its rehearsal may take (``ConnectServer.scala``)."""
STOP_LIMIT_S = 60.0
PORTS = range(20_000, 30_000)
"""Of which a server takes one: below those that systems give to clients."""
PORTS_TRIED_MAX = 3
_TAKEN = "the server cannot listen at"
_OUTCOME = re.compile(r"^HRM: the Connect server is ((?:not )?warm\b.*)$", re.MULTILINE)
_WAITS_FOR = re.compile(r"waits for (driver-[\w-]+), which has its key")
_RELEASE = "/spark.connect.SparkConnectService/ReleaseSession"
_TOKEN_SETTING = "spark.connect.authenticate.token"  # nosec B105 # noqa: S105 - a name
_VARIABLE = f"spark.hrm.driverEnv.{CONNECT_TOKEN}"
DEFAULTS = {
    "spark.driver.memory": "1g",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "60s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "60s",
}
"""Where neither the command nor spark-defaults.conf says otherwise. One executor stays; others go,
although they have shuffle files of queries that have ended: Spark alone would keep them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """``conf``: the settings of the command. ``version``: of Spark, that the server is to run;
    empty: its node's, which may be too old for a token. ``clear_text``: the token may go over the
    network as it is."""

    target: str
    conf: Mapping[str, str]
    version: str = ""
    clear_text: bool = False

    @property
    def authenticates(self) -> bool:
        """Whether the server will require its token."""
        major = self.version.partition(".")[0]
        return major.isdecimal() and int(major) >= AUTHENTICATES_SINCE

    @property
    def loopback(self) -> bool:
        """Whether it is to listen at its node's loopback alone."""
        return CONNECT_HOST not in self.conf and not (self.clear_text and self.authenticates)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmConnectServer:
    """A server that is up: its submission, its record."""

    submission: pb.Submission
    record: ServerRecord


def spark_version(versions: Iterable[Sequence[str]]) -> str:
    """Of the nodes' versions of Spark, each node's default first, the one to run: the default of
    most nodes that can require a token; else that of most; empty: there is no node."""
    defaults = Counter(node[0] for node in versions if node)
    modern = [x for x in defaults if ConnectOptions(target="", conf={}, version=x).authenticates]
    return max(modern or defaults, key=lambda x: (defaults[x], x), default="")


def find_or_start(
    client: SubmissionClient,
    wanted: ConnectOptions,
    file: ServerRecordFile,
    environment: Mapping[str, str],
    notify: Callable[[str], None],
) -> ServerRecord:
    """The record of the live server; it is submitted if there is none.

    Raises:
        HrmError: there is none, and it could not be submitted.
    """
    with file.locked():
        known = file.read()
        if known is not None and _is_live(client, known.submission_id):
            return known
        interrupted = known is not None and not known.submission_id
        record = ServerRecord(token=new_token(), loopback=wanted.loopback)
        if known is not None and interrupted:
            record = known
        file.write(record)
        try:
            submission = _submit(client, wanted, record, file.kind, environment, notify)
        except errors.HrmError as error:
            if not isinstance(error, errors.Unavailable):  # refused: there is none
                file.remove()
            raise
        holder = _holder(client, submission)
        if holder:
            client.kill(submission.submission_id, f"{holder} is the server already")
            if not interrupted:
                file.remove()
                raise errors.AlreadyExists(
                    f"{holder} is your Connect server with these options, and its token is where "
                    f"it was started: run hrm connect there, or end it (hrm submission kill "
                    f"{holder}) and run this again"
                )
        record = replace(record, submission_id=holder or submission.submission_id)
        file.write(record)
        return record


def restart(
    client: SubmissionClient,
    wanted: ConnectOptions,
    file: ServerRecordFile,
    record: ServerRecord,
    environment: Mapping[str, str],
    notify: Callable[[str], None],
) -> ServerRecord:
    """Submit it again, at another port; the new record.

    Raises:
        HrmError: it could not be submitted.
    """
    with file.locked():
        with contextlib.suppress(errors.HrmError):  # it has ended by itself
            client.kill(record.submission_id, "its port is taken")
        record = replace(record, submission_id="", attempt=0, warmth="")
        submission = _submit(client, wanted, record, file.kind, environment, notify)
        record = replace(record, submission_id=submission.submission_id)
        file.write(record)
        return record


def _is_live(client: SubmissionClient, submission_id: str) -> bool:
    if not submission_id:
        return False
    try:
        found = client.call("Get", pb.GetSubmissionRequest(submission_id=submission_id))
    except errors.NotFound:
        return False
    return found.state not in (*ENDED, pb.SUBMISSION_STATE_KILLING)


def _holder(client: SubmissionClient, submission: pb.Submission) -> str:
    """The live submission that has the key of this one; empty: this one is the first, or what it
    waits for ends."""
    matched = _WAITS_FOR.match(submission.message)
    if matched is None or submission.attempt:
        return ""
    return matched[1] if _is_live(client, matched[1]) else ""


def _submit(
    client: SubmissionClient,
    wanted: ConnectOptions,
    record: ServerRecord,
    kind: str,
    environment: Mapping[str, str],
    notify: Callable[[str], None],
) -> pb.Submission:
    options = submit_options.parse(
        ["--class", CONNECT_CLASS, "--supervise", *_as_options(wanted.conf)], environment
    )
    conf = options.conf
    conf.setdefault("spark.app.name", NAME)
    for name, value in DEFAULTS.items():
        conf.setdefault(name, value)
    conf.setdefault(CONNECT_PORT, str(secrets.choice(PORTS)))
    if wanted.version:
        conf.setdefault("spark.hrm.submit.spark.version", wanted.version)
    if wanted.loopback:
        conf[CONNECT_HOST] = LOOPBACK
    conf[submit.SERIAL_KEY] = f"hrm-connect-{kind}"
    conf.pop(_TOKEN_SETTING, None)  # it would go before the variable
    conf[_VARIABLE] = record.token
    spec, files = submit.driver_spec(options)
    warnings = submit.add_conf(spec, files, environment) if options.sends_conf else []
    for warning in (*options.warnings, *warnings):
        notify(f"warning: {warning}")
    submission = client.submit(spec, files, driver_submit.delegation_tokens(options))
    notify(f"submitted {submission.submission_id} to hrm://{client.target}")
    return submission


def _as_options(conf: Mapping[str, str]) -> list[str]:
    return [each for name, value in conf.items() for each in ("--conf", f"{name}={value}")]


def await_warm(
    client: SubmissionClient,
    channel: grpc.Channel,
    record: ServerRecord,
    deadline_s: float,
    notify: Callable[[str], None],
) -> WarmConnectServer:
    """Wait until its driver runs and has rehearsed; ``deadline_s``: of the monotonic clock.

    A server whose rehearsal failed serves, too: the record has the reason.

    Raises:
        LaunchFailed: its port is taken at its node.
        Unavailable: it is not ready by then.
        HrmError: it has ended.
    """
    admin = AdminServiceStub(channel)
    begun_s, shown, explained = time.monotonic(), "", False
    while True:
        found = client.call("Get", pb.GetSubmissionRequest(submission_id=record.submission_id))
        _check_alive(found)
        line = f"{found.submission_id} {state_name(found.state)}"
        line += f" on {found.node}" if found.node else ""
        if found.state == pb.SUBMISSION_STATE_RUNNING and found.server_address:
            if record.attempt == found.attempt:
                return WarmConnectServer(submission=found, record=record)
            warmth = _warmth(admin, found)
            if warmth:
                warm = replace(record, attempt=found.attempt, warmth=warmth)
                return WarmConnectServer(submission=found, record=warm)
        if line != shown:
            notify(line)
            shown = line
        late = time.monotonic() > deadline_s
        if late or not (explained or found.node or time.monotonic() < begun_s + EXPLAIN_AFTER_S):
            why = _why(admin, found)
            if late:
                raise errors.Unavailable(
                    f"{line}, and no warm server yet ({why}); it goes on: run hrm connect again, "
                    f"with a longer --timeout, see hrm app why {found.submission_id}, or end it: "
                    f"hrm connect --stop"
                )
            notify(why)
            explained = True
        time.sleep(POLL_S)


def _check_alive(found: pb.Submission) -> None:
    message = found.message
    if _TAKEN in message:
        raise errors.LaunchFailed(message)
    if found.state in (*ENDED, pb.SUBMISSION_STATE_KILLING):
        because = f": {message}" if message else ""
        raise errors.Unavailable(
            f"the Connect server {found.submission_id} is {state_name(found.state)}{because}; "
            f"its log: hrm submission logs {found.submission_id}; to start another: hrm connect"
        )


def _warmth(admin: Any, found: pb.Submission) -> str:
    """How the rehearsal of this driver ended; empty: it has not, or its log cannot be read now."""
    request = ReadLogsRequest(
        application_id=found.submission_id,
        executor_id=str(found.attempt),
        stream="stderr",
        tail_bytes=LOG_TAIL_BYTES,
    )
    try:
        call = admin.ReadLogs(request, timeout=CALL_TIMEOUT_S)
        text = b"".join(chunk.data for chunk in call).decode(errors="replace")
    except grpc.RpcError:
        return ""  # the driver's node has not made its log yet, or is away for a moment
    matched = _OUTCOME.search(text)
    if matched:
        return matched[1].strip()
    late = time.time() - found.started_at_s > OUTCOME_LIMIT_S
    return "up; how its rehearsal ended is not in its log any more" if late else ""


def _why(admin: Any, found: pb.Submission) -> str:
    request = ExplainApplicationRequest(application_id=found.submission_id)
    try:
        return str(admin.ExplainApplication(request, timeout=CALL_TIMEOUT_S).summary)
    except grpc.RpcError as error:
        return f"the master does not say why: {error.details()}"


def remote(server: WarmConnectServer) -> tuple[dict[str, str], str]:
    """The variables that a client needs, and how they reach it from here; empty: as they are.

    A client of Spark sends its token in clear text to the host ``localhost`` alone, by a variable
    of its own. Elsewhere the same header is part of the address.
    """
    host, port = _listens(server)
    if server.record.loopback or clear_text.is_local(f"{host}:{port}"):
        remark = ""
        if not _is_here(host, port):
            remark = (
                f"it listens at the loopback of {host} alone, because Spark's Connect has no "
                f"encryption; from here: ssh -N -L {port}:localhost:{port} {host} - or allow "
                f"clear text: hrm connect --stop, export {clear_text.VARIABLE}=true, hrm connect"
            )
        variables = {"SPARK_REMOTE": f"sc://localhost:{port}", CONNECT_TOKEN: server.record.token}
        return variables, remark
    bearer = quote(f"Bearer {server.record.token}")
    shown = f"[{host}]" if ":" in host else host
    return {"SPARK_REMOTE": f"sc://{shown}:{port}/;authorization={bearer}"}, ""


def check_reached(server: WarmConnectServer) -> str:
    """One call with the token, which changes nothing; returns why it cannot be reached from here,
    empty: it can, or is at another machine's loopback.

    Raises:
        PermissionDenied: it requires another token.
    """
    host, port = _listens(server)
    if server.record.loopback:
        if not _is_here(host, port):
            return ""
        host = LOOPBACK
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    bearer = (("authorization", f"Bearer {server.record.token}"),)
    session = str(uuid.uuid4()).encode()
    # A ReleaseSessionRequest: session_id, and user_context with its user_id.
    request = b"\x0a" + bytes([len(session)]) + session + b"\x12\x05\x0a\x03hrm"
    with grpc.insecure_channel(target) as channel:
        try:
            release = channel.unary_unary(
                _RELEASE, request_serializer=None, response_deserializer=None
            )
            release(request, timeout=CALL_TIMEOUT_S, metadata=bearer)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise errors.PermissionDenied(
                    f"{server.submission.submission_id} requires another token than the one kept "
                    f"here; end it, and start another: hrm connect --stop, hrm connect"
                ) from error
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return f"{target} cannot be reached from here: {error.details()}"
    return ""


def _listens(server: WarmConnectServer) -> tuple[str, int]:
    """The node's host, without brackets, and the server's port."""
    host, _, port = server.submission.server_address.removeprefix("sc://").rpartition(":")
    return host.strip("[]"), int(port)


def _is_here(host: str, port: int) -> bool:
    """Whether a node's address is one of this machine."""
    if clear_text.is_local(f"{host}:{port}"):
        return True
    try:
        family, kind, protocol, _, found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(found)
    except OSError:
        return False
    return True


def stop(client: SubmissionClient, file: ServerRecordFile) -> pb.Submission | None:
    """End the server, within ``STOP_LIMIT_S``; None: there is none.

    Raises:
        HrmError: it could not be ended.
    """
    with file.locked():
        record = file.read()
        if record is None or not _is_live(client, record.submission_id):
            file.remove()
            return None
        found = client.kill(record.submission_id, "hrm connect --stop")
        deadline_s = time.monotonic() + STOP_LIMIT_S
        while found.state not in ENDED:
            if time.monotonic() > deadline_s:
                raise errors.Unavailable(
                    f"{found.submission_id} has not ended within {STOP_LIMIT_S:.0f} s; see "
                    f"hrm submission show {found.submission_id}"
                )
            time.sleep(POLL_S)
            request = pb.GetSubmissionRequest(submission_id=record.submission_id)
            found = client.call("Get", request)
        file.remove()
        return found
