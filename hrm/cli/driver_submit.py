"""``hrm submit``: an application's files, its submission, its end.

It takes spark-submit's own options; ``spark-submit --deploy-mode cluster`` with an ``hrm://``
master becomes it, by way of HRM's ``spark-env.sh``. No JVM starts here, unless the program that
called this one follows it by Spark's SparkLauncher; nor do typer or rich: a service that submits
hundreds of applications starts this program for each, and those two would take longer than the
submission. ``main`` is the program without the tree of ``hrm.cli.app``.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm import address, errors
from hrm.cli import console

if TYPE_CHECKING:
    from hrm.cli.launcher_relay import LauncherRelay
    from hrm.spark.submit import LocalFile, SubmissionClient
    from hrm.spark.submit_options import Options
    from hrm.v1 import submission_pb2 as pb

__all__ = ["delegation_tokens", "main", "run_submit"]

BAD_USAGE = 2
REFUSED = 77
"""The watch of a driver was refused; ``EX_NOPERM`` of sysexits.h."""
INTERRUPTED = 130
SIGNALLED = 128
KILL_LIMIT_S = 60.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TIMEOUT_S = 10.0
TAIL_BYTES = 65_536
TAIL_LINES = 20
_ALLOW_CLEAR_TEXT = "spark.hrm.allowClearText"
_LAUNCHER = "_SPARK_LAUNCHER_PORT"
"""Set by Spark's SparkLauncher for what it starts."""
_CHATTER = re.compile(r"[\d/]+ [\d:]+ INFO |\s+at [\w$.]+[./]|\s+\.\.\. \d+ (?:more|common )")
"""Spark's log at level INFO, of which a failing driver prints a page, and the stack frames of a
Java exception."""
HELP = """\
Usage: hrm submit [options] APP [APP's arguments]
       hrm submit --status ID | --kill ID [--master hrm://HOST:PORT]

Runs an application with its driver on a node of the cluster. The options are those of
spark-submit; spark-submit --deploy-mode cluster --master hrm://HOST:PORT does the same.

  --master hrm://HOST:PORT  default: $HRM_MASTER, else the cluster that `hrm up` started
  --class NAME, --name NAME, --conf NAME=VALUE, --properties-file FILE
  --py-files, --jars, --files, --archives, --packages LIST
  --queue NAME              of the application; hrm queues lists them
  --driver-memory 2g, --driver-cores 1, --num-executors 2, --executor-memory 2g, ...
  --supervise               start the driver again when it fails

Files of this machine are sent to the master; local:/PATH is a file that every node has, and any
other URI is read by the driver's node. The command waits for the end, unless --conf
spark.hrm.submit.waitAppCompletion=false is given. With --conf spark.hrm.submit.tied=true the driver
ends with the command, however that ends.

Exit status: that of the driver; 1 if it ended without one, or if the master refused or could not
be reached; 2 if the arguments are wrong; 77 if the master accepts the token no more while the
command waits, whatever becomes of the driver; 130 after Ctrl-C, which does not end the driver
unless it is tied; 128 and the number of the signal that ended both.
"""


def main(arguments: Sequence[str]) -> int:
    """The program ``hrm submit``; its exit status. Errors end here, as in ``hrm.cli.app``."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        return run_submit(arguments)
    except (errors.HrmError, BrokenPipeError) as error:
        return console.report_failure(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def run_submit(arguments: Sequence[str]) -> int:
    """Execute ``hrm submit`` with these arguments; returns its exit status.

    That is the driver's own one; 2 if the arguments are wrong.

    Raises:
        HrmError: the master refused the submission, or was away for too long (exit status 1).
    """
    if not arguments:
        sys.stderr.write(HELP)
        console.error_line("hrm submit needs an application, --status ID or --kill ID")
        return BAD_USAGE
    if arguments[0] in ("--help", "-h"):
        sys.stdout.write(HELP)
        return 0
    try:
        options, master = _parsed(arguments)
        asks = bool(options.status or options.kill)
        tokens = b"" if asks else delegation_tokens(options)
        spec, files = (None, {}) if asks else _spec(options)
    except errors.InvalidRequest as error:
        console.error_line(error.message)
        return BAD_USAGE
    named = options.conf.get("spark.hrm.token.file")
    token = address.token_file(master or None, Path(named) if named else None)
    from hrm import clear_text, tls
    from hrm.spark import submit

    ca = tls.ca_file(token, options.conf.get("spark.hrm.tls.ca"))
    target = address.default_master(master or None)
    allowed = options.conf.get(_ALLOW_CLEAR_TEXT)
    allow = clear_text.parse(allowed, _ALLOW_CLEAR_TEXT) if allowed else None
    with submit.connect(target, token, ca, allow_clear_text=allow) as (client, channel):
        if spec is None:
            return _status_or_kill(client, options.status, options.kill)
        with _launcher() as launcher:
            submission = client.submit(spec, files, tokens)
            submission_id = submission.submission_id
            console.note(f"HRM: submitted {submission_id} to hrm://{client.target}")
            if launcher is not None:
                launcher.show(submission)
            if not options.waits:
                console.line(submission_id)
                return 0
            return _wait(client, submission_id, spec.tie_s, channel, launcher)


def _wait(
    client: SubmissionClient,
    submission_id: str,
    tie_s: float,
    channel: Any,
    launcher: LauncherRelay | None,
) -> int:
    """Follow a submission to its end, or to that of this command; returns the exit status."""
    with client.tied(submission_id, tie_s), _ends_with_its_driver(client, submission_id, tie_s):
        try:
            return _follow(client, submission_id, channel, launcher)
        except KeyboardInterrupt:
            console.note(
                f"HRM: {submission_id} continues to run; to end it: "
                f"hrm submit --master hrm://{client.target} --kill {submission_id}"
            )
            return INTERRUPTED
        except errors.PermissionDenied as error:
            return _refused(client, submission_id, error, tied=tie_s > 0)


def _refused(
    client: SubmissionClient, submission_id: str, error: errors.HrmError, *, tied: bool
) -> int:
    """Its driver is not to be watched any more; says what becomes of it."""
    console.error_line(error.message)
    if tied:
        goes_on = "is killed when the time of spark.hrm.submit.tied has passed"
    else:
        goes_on = "is not ended by this"
    console.note(
        f"HRM: {submission_id} {goes_on}; to see how it ends, with a token that is valid: "
        f"hrm submit --master hrm://{client.target} --status {submission_id}"
    )
    return REFUSED


def _launcher() -> AbstractContextManager[LauncherRelay | None]:
    """The way to a program that follows this one by SparkLauncher; None: nothing does."""
    if _LAUNCHER not in os.environ:
        return nullcontext()
    from hrm.cli.launcher_relay import relay

    return relay()


@contextmanager
def _ends_with_its_driver(
    client: SubmissionClient, submission_id: str, tie_s: float
) -> Iterator[None]:
    """Where the driver is tied to this command, the signals that end one end both.

    The handler only notes the signal: an exception from it could be lost wherever gRPC happens to
    be. A thread kills the driver, and ends this process.
    """
    received: list[int] = []
    over = threading.Event()

    def note(number: int, _frame: object) -> None:
        received.append(number)
        over.set()

    def end() -> None:
        over.wait()
        if received:
            status = _kill_tied(client, submission_id, received[0])
            sys.stderr.flush()
            os._exit(status)

    before = {each: signal.signal(each, note) for each in _ENDING} if tie_s else {}
    ending = threading.Thread(target=end, name="hrm-signals", daemon=True)
    if tie_s:
        ending.start()
    try:
        yield
    finally:
        if received:
            ending.join(KILL_LIMIT_S)
        for each, handler in before.items():
            signal.signal(each, handler)
        over.set()


def _kill_tied(client: SubmissionClient, submission_id: str, number: int) -> int:
    """Kill the driver; returns the status of a command that ends by this signal."""
    name = signal.Signals(number).name
    try:
        client.kill(submission_id, f"its client was ended by {name} (spark.hrm.submit.tied)")
        console.note(f"HRM: {submission_id} is killed, since {name} ended this command")
    except errors.HrmError as error:
        console.note(
            f"HRM: {submission_id} could not be killed ({error.message}); the master kills it "
            f"when the time of spark.hrm.submit.tied has passed"
        )
    return SIGNALLED + number


def _parsed(arguments: Sequence[str]) -> tuple[Options, str]:
    """The options, and the master that they name.

    Raises:
        InvalidRequest: they are wrong, or not for this command.
    """
    from hrm.spark import hrm_settings, submit_options

    options = submit_options.parse(arguments, os.environ)
    hrm_settings.check_text("the id", options.status or options.kill)
    if options.conf.get("spark.submit.deployMode", "cluster") != "cluster":
        raise errors.InvalidRequest(
            "hrm submit runs drivers on nodes; for a driver here use hrm spark-submit"
        )
    for warning in options.warnings:
        console.note(f"HRM: warning: {warning}")
    master = options.conf.get("spark.master", "").replace("spark+hrm://", "hrm://")
    if master and not master.startswith("hrm://"):
        raise errors.InvalidRequest(f"{master} is no HRM master; write hrm://HOST:PORT")
    if master:
        address.parse_master(master)
    return options, master


def delegation_tokens(options: Options) -> bytes:
    """Delegation tokens for the driver, where Hadoop's settings demand Kerberos and it has no
    keytab. They are the proxy user's, as which it then runs: it could not become another there.

    Raises:
        HrmError: there are none to be had.
    """
    from hrm.spark import delegation_tokens as kerberos
    from hrm.spark.conf import DRIVER_ENVIRONMENT
    from hrm.spark.submit_options import KEYTAB

    conf = options.conf
    if conf.get(KEYTAB) or not kerberos.demands_kerberos(conf, os.environ):
        return b""
    proxy_user = options.proxy_user
    tokens, warnings = kerberos.obtain(conf, os.environ, options.main, proxy_user)
    for warning in warnings:
        console.note(f"HRM: {warning}")
    if proxy_user:
        options.passed_on = ()
        options.conf[DRIVER_ENVIRONMENT.replace("NAME", "SPARK_USER")] = proxy_user
    return tokens


def _spec(options: Options) -> tuple[pb.DriverSpec, dict[str, LocalFile]]:
    from hrm.spark import submit

    spec, files = submit.driver_spec(options)
    for warning in submit.add_conf(spec, files, os.environ) if options.sends_conf else []:
        console.note(f"HRM: warning: {warning}")
    return spec, files


def _status_or_kill(client: SubmissionClient, status: str, kill: str) -> int:
    from hrm.spark.submit import ENDED
    from hrm.v1 import submission_pb2 as pb

    if kill:
        request = pb.KillSubmissionRequest(submission_id=kill, reason="killed on request")
        found = client.call("Kill", request)
    else:
        found = client.call("Get", pb.GetSubmissionRequest(submission_id=status))
    console.line(_line(found))
    if kill and found.state not in ENDED:
        try:
            for found in client.watch(kill):  # noqa: B007 - the last one counts
                pass
        except errors.PermissionDenied as error:
            return _refused(client, kill, error, tied=False)
        console.line(_line(found))
    return 0


def _follow(
    client: SubmissionClient, submission_id: str, channel: Any, launcher: LauncherRelay | None
) -> int:
    """Print the changes of a submission until its end; returns its driver's exit status."""
    from hrm.spark.submit import exit_status
    from hrm.v1 import submission_pb2 as pb

    if launcher is not None:
        launcher.on_stop(lambda: _stop_for_launcher(client, submission_id))
    last_line, last = "", pb.Submission()
    for last in client.watch(submission_id):
        if launcher is not None:
            launcher.show(last)
        line = _line(last)
        if line != last_line:
            console.note(f"HRM: {line}")
        last_line = line
    if last.state == pb.SUBMISSION_STATE_FAILED and last.node:
        _print_log_tail(last, channel)
    return exit_status(last)


def _stop_for_launcher(client: SubmissionClient, submission_id: str) -> None:
    try:
        client.kill(submission_id, "the program that launched it has stopped it")
    except errors.HrmError as error:
        console.error_line(f"{submission_id} cannot be stopped: {error.message}")


def _print_log_tail(submission: pb.Submission, channel: Any) -> None:
    """The end of the driver's logs, as far as its node still has them. What a Python driver writes
    to either comes to stdout, by way of its JVM."""
    import grpc

    for stream in ("stderr", "stdout"):
        try:
            lines = _tail(submission, stream, channel)
        except grpc.RpcError as error:
            console.note(f"HRM: the driver's log cannot be read: {error.details()}")
            return
        if lines:
            where = f"{stream} on {submission.node or 'its node'}"
            console.note(f"HRM: the last lines of the driver's {where}:")
        for line in lines:
            console.note(f"  {line}")
    console.note(
        f"HRM: all of it: hrm submission logs {submission.submission_id} --stream stdout|stderr"
    )


def _tail(submission: pb.Submission, stream: str, channel: Any) -> list[str]:
    from hrm.v1.admin_pb2 import ReadLogsRequest
    from hrm.v1.admin_pb2_grpc import AdminServiceStub

    request = ReadLogsRequest(
        application_id=submission.submission_id,
        executor_id=str(submission.attempt),
        stream=stream,
        tail_bytes=TAIL_BYTES,
    )
    call = AdminServiceStub(channel).ReadLogs(request, timeout=TIMEOUT_S)
    text = b"".join(chunk.data for chunk in call).decode(errors="replace")
    lines = text.expandtabs(4).splitlines()
    return [line for line in lines if not _CHATTER.match(line)][-TAIL_LINES:]


def _line(submission: pb.Submission) -> str:
    from hrm.spark.submit import state_name

    text = f"{submission.submission_id} {state_name(submission.state)}"
    if submission.node:
        text += f" on {submission.node}"
    if submission.server_address:
        text += f" at {submission.server_address}"
    if submission.attempt > 1:
        text += f", driver {submission.attempt}"
    if submission.application_ids:
        text += f", application {submission.application_ids[-1]}"
    if submission.restart_at_s:
        text += f", starts again in {max(0.0, submission.restart_at_s - time.time()):.0f} s"
    return f"{text}: {submission.message}" if submission.message else text
