"""The AppMaster: one process per application, on the machine of its driver.

It connects Spark, reached through ``bridge`` (py4j), and the master (gRPC). All decisions are made
by ``hrm.core.appmaster.application_master``. The plugin in the driver starts it, with its whole
input as one JSON line on standard input, because secrets must be neither in arguments nor in the
environment. That input ends when the driver does, however that dies. ::

    read the introduction -> Register -> Session: attached -> events, until the driver finishes
                                ^            |
                                +-- broken --+   the application continues with what it has

At its first start an unreachable master is an error, because a user waits at the prompt; later the
AppMaster waits for it, up to ``spark.hrm.master.timeout``. The driver never waits: an AppMaster
whose final update is not delivered soon releases it and stays alone, for as long as the master
holds an application without a session, so that a success is not recorded as a failure.

Imports are kept light: this process starts with every ``spark-submit``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from hrm import address, clear_text, errors, rpc, tls
from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.appmaster.appmaster_limits import FAILURES_SETTING, AppMasterLimits
from hrm.core.messages import appmaster as messages
from hrm.core.vocabulary import retries
from hrm.core.vocabulary.backoff import Backoff
from hrm.core.vocabulary.bounds import BOUNDS
from hrm.core.vocabulary.latest_timer import LatestTimer, Ring
from hrm.core.vocabulary.model import ApplicationState
from hrm.core.vocabulary.wakefulness import Patience
from hrm.spark.bridge import DriverBridge
from hrm.spark.outgoing import Outgoing
from hrm.spark.spark_settings import without_effect
from hrm.spark.wait_reason import WaitReporter
from hrm.text import shown
from hrm.v1 import application_pb2, application_pb2_grpc
from hrm.wire import appmaster as app_wire

if TYPE_CHECKING:
    from hrm.spark.early_files import EarlyFiles

__all__ = ["AppMaster", "main"]

UPDATES_MAX = 10_000
RECONNECT_DELAY_S = 0.1
RECONNECT_DELAY_MAX_S = 2.0
REGISTER_TIMEOUT_S = 10.0
FINAL_UPDATE_TIMEOUT_S = 2.0
FINAL_UPDATE_MAX_S = BOUNDS.application_grace_s
"""The master's default for an application without a session."""
HEARTBEAT_MIN_S = 0.05
LATE_S = 5.0
"""Two tries to register with this much extra time in between: this process was suspended."""
INT32_MAX = 2**31 - 1
WAIT_CHECK_S = 1.0
EXPLAIN_TIMEOUT_S = 10.0
EXIT_FILE_TIMEOUT_S = 5.0
EXIT_FILE_PERIOD_S = 0.05
_ENDS = {state.name: state for state in ApplicationState if state.ended}
"""As the driver names them."""


class AppMaster:
    """The interpreter of ``AppMasterCore``; runs on one asyncio loop."""

    def __init__(self, introduction: dict[str, Any]) -> None:
        self.hello = introduction
        self.application_id: str = introduction["application_id"]
        # The driver's, so that each of its AppMasters has the same; one started before an upgrade
        # of HRM has none.
        self._ownership_key: str = introduction.get("ownership_key", "")
        validity_ms = float(introduction["failures_validity_ms"])
        self.core = AppMasterCore(
            took_over=bool(introduction["application_id"]),
            application_id=introduction["application_id"],
            limits=AppMasterLimits(
                failures_max=int(introduction["max_failures"]),
                failures_window_s=validity_ms / 1000 if validity_ms > 0 else float("inf"),
                failures_setting=introduction.get("max_failures_setting", FAILURES_SETTING),
                locality_wait_s=float(introduction["locality_wait_ms"]) / 1000,
                backoff_s=float(introduction["retry_delay_ms"]) / 1000,
                backoff_max_s=float(introduction["retry_delay_max_ms"]) / 1000,
            ),
            refuses_profiles=self._understands("profileRefused"),
            limits_executors=self._understands("limitExecutors"),
        )
        self.core.adopt({i: int(p) for i, p in introduction["executors"].items()})
        self._token = self._own_token = ""  # nosec B105 # not known yet
        self._ca: bytes | None = None
        self._allow_clear_text: bool | None = None
        self._progress: application_pb2.ApplicationUpdate | None = None
        self._targets_known = asyncio.Event()
        self._finishing = asyncio.Event()
        self._outgoing: Outgoing | None = None
        self._call: Any = None
        self._token_file = Path()
        self._early: EarlyFiles | None = None
        self._patience = Patience(
            time.monotonic(), limit_s=float(introduction["master_timeout_ms"]) / 1000,
            late_s=REGISTER_TIMEOUT_S + RECONNECT_DELAY_MAX_S + LATE_S,
        )  # fmt: skip
        self._attached_at_s = time.monotonic()
        self._followed = (0, "")
        self._orphaned = False
        self._parting: asyncio.Task[None] | None = None
        self._timer = LatestTimer()
        self._planned: asyncio.TimerHandle | None = None
        self._bridge = DriverBridge(
            int(introduction["port"]), introduction["auth_token"], self._driver_event,
            self._driver_lost,
        )  # fmt: skip

    async def run(self) -> None:
        """Runs until the driver has finished or is gone."""
        _watch_stdin(self._driver_lost)
        self._bridge.start()
        self._warn()
        if not await self._prepare():
            return
        sessions = asyncio.create_task(self._sessions())
        finishing = asyncio.create_task(self._finishing.wait())
        await asyncio.wait({sessions, finishing}, return_when=asyncio.FIRST_COMPLETED)
        if not finishing.done():
            # The sessions are over, and Spark has the reason; it will finish by itself. After a
            # fault of this process, the process ends instead, and is restarted.
            await sessions
            await finishing
        await self._deliver_final_update(sessions)
        sessions.cancel()
        await asyncio.wait({sessions}, timeout=FINAL_UPDATE_TIMEOUT_S)

    async def _deliver_final_update(self, sessions: asyncio.Task[None]) -> None:
        """Waits for delivery: with the driver for a moment, without it for much longer."""
        if self.core.attached and not self._orphaned:
            stop_s = float(self.hello["stop_timeout_ms"]) / 1000
            await asyncio.wait({sessions}, timeout=min(FINAL_UPDATE_TIMEOUT_S, stop_s / 2))
        if sessions.done():
            return
        if not self._orphaned:
            await self._notify_driver("detached")
        _leave_terminal()
        await asyncio.wait({sessions}, timeout=FINAL_UPDATE_MAX_S)

    def _warn(self) -> None:
        """Of settings that do nothing here: once, by the driver's first AppMaster."""
        if self.application_id:
            return
        names = self.hello.get("settings", ())
        lines = without_effect(names)
        if any(name.startswith("spark.hrm.") for name in names):
            from hrm.spark.hrm_settings import unknown_names

            lines += unknown_names(names)
        for line in lines:
            sys.stderr.write(f"HRM: warning: {shown(line)}\n")
        sys.stderr.flush()

    async def _prepare(self) -> bool:
        """Checks the user's settings; False: refused, and the driver is notified."""
        wanted = self.hello["class"].upper()
        if wanted not in ("", "BATCH", "STREAM"):
            await self._notify_failure(
                f"spark.hrm.class must be stream or batch, not '{self.hello['class']}'; leave it "
                f"out to let HRM observe the class"
            )
            return False
        if wanted:
            self._handle(
                messages.ClassObserved(
                    now=time.monotonic(), workload_class=wanted, evidence="spark.hrm.class is set"
                )
            )
        try:
            token_file = self._token_file = address.token_path(self.hello["token_file"])
            self._token = rpc.read_token(token_file)
            self._ca = tls.read_ca(tls.ca_file(token_file, self.hello["tls_ca"]))
            allowed = self.hello["allow_clear_text"]
            if allowed:
                self._allow_clear_text = clear_text.parse(allowed, "spark.hrm.allowClearText")
            if self._ca is None:
                clear_text.check_client(self.hello["master"], allow=self._allow_clear_text)
            if any(self.hello.get("files", {}).values()):
                from hrm.spark.early_files import EarlyFiles

                self._early = await asyncio.to_thread(EarlyFiles, self.hello)  # it copies
                for warning in self._early.warnings:
                    sys.stderr.write(f"HRM: warning: {shown(warning)}\n")
        except errors.HrmError as error:
            await self._notify_failure(error.message)
            return False
        return True

    # The driver's side.

    def _driver_event(self, event: dict[str, Any]) -> None:
        now = time.monotonic()
        match event["event"]:
            case "targets":
                self._handle(
                    messages.TargetsChanged(now=now, targets=app_wire.targets(event["targets"]))
                )
                self._targets_known.set()
            case "kill":
                self._handle(
                    messages.ExecutorsKilled(now=now, executor_ids=tuple(event["executors"]))
                )
            case "class":
                if not self.hello["class"]:
                    self._handle(
                        messages.ClassObserved(
                            now=now, workload_class=event["class"], evidence=event["evidence"]
                        )
                    )
            case "excluded":
                self._handle(messages.ExclusionsChanged(now=now, hosts=tuple(event["hosts"])))
            case "progress":
                report = app_wire.progress(event)
                self._progress = app_wire.counts_alone(report)
                if self._outgoing is not None:
                    self._outgoing.report(report)
            case "finish":
                self._finish(_ENDS.get(event["state"], ApplicationState.FAILED), event["message"])

    def _driver_lost(self, why: str) -> None:
        self._orphaned = True
        exit_file = os.environ.get("HRM_DRIVER_EXIT_FILE")
        if exit_file and self._parting is None:
            self._parting = asyncio.create_task(self._part(Path(exit_file), why))
        elif not exit_file:
            self._finish(ApplicationState.FAILED, f"the driver is gone: {why}")

    async def _part(self, exit_file: Path, why: str) -> None:
        """In cluster mode the driver's runner reports how it ended. Exit code 0 is a success, as on
        YARN, whether or not the context was stopped before."""
        code = await asyncio.to_thread(_exit_code, exit_file)
        if code is None:
            self._finish(ApplicationState.FAILED, f"the driver is gone: {why}")
        else:
            state = ApplicationState.FAILED if code else ApplicationState.SUCCEEDED
            self._finish(state, f"its driver exited with code {code}" if code else "")

    def _finish(self, state: ApplicationState, message: str) -> None:
        if not self._finishing.is_set():
            self._handle(
                messages.DriverFinished(now=time.monotonic(), state=state, message=message)
            )
            self._finishing.set()

    async def _notify_failure(self, message: str) -> None:
        """Reports a permanent failure to the driver; returns when it is delivered."""
        await self._notify_driver("failed", message)

    async def _notify_driver(self, method: str, *arguments: str) -> None:
        """Calls the driver; returns when it is delivered, or after a short limit."""
        done = self._bridge.call(method, *arguments)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done, FINAL_UPDATE_TIMEOUT_S)

    # The master's side.

    async def _sessions(self) -> None:
        """One session after the other, until the application has ended or the limit is reached."""
        channel = rpc.channel(
            self.hello["master"], lambda: self._token, self._ca,
            allow_clear_text=self._allow_clear_text,
        )  # fmt: skip
        async with channel:
            stub = application_pb2_grpc.ApplicationServiceStub(channel)
            reporting = asyncio.create_task(self._report_waiting(channel))
            try:
                await self._one_after_the_other(stub)
            finally:
                reporting.cancel()

    async def _one_after_the_other(self, stub: Any) -> None:
        backoff = Backoff(RECONNECT_DELAY_S, RECONNECT_DELAY_MAX_S, random.random)
        while True:
            began_s = time.monotonic()
            try:
                if await self._session(stub):
                    return
            except errors.HrmError as error:
                self._doubt_token(error)
                if not self._may_retry(error):
                    if not self.core.ended:
                        await self._notify_failure(error.message)
                    return
            if self._attached_at_s > began_s:
                backoff.succeeded()  # this session had been attached
            await asyncio.sleep(backoff.pause_s())

    async def _report_waiting(self, channel: Any) -> None:
        """Prints why no executor runs, for a user who would see nothing happen."""
        reporter = WaitReporter()
        while True:
            await asyncio.sleep(WAIT_CHECK_S)
            if not reporter.asks(time.monotonic(), waits=self.core.waits):
                continue
            from hrm.v1 import admin_pb2, admin_pb2_grpc

            master = admin_pb2_grpc.AdminServiceStub(channel)
            request = admin_pb2.ExplainApplicationRequest(application_id=self.application_id)
            with contextlib.suppress(grpc.RpcError):
                found = await master.ExplainApplication(request, timeout=EXPLAIN_TIMEOUT_S)
                line = reporter.line(self.application_id, found.summary, found.details)
                if line and self.core.waits:
                    sys.stderr.write(f"{shown(line)}\n")
                    sys.stderr.flush()

    def _doubt_token(self, error: errors.HrmError) -> None:
        """A master that has lost its state knows no token of this application's, and one that has
        not may know that of its user no more: the next try is with the other of the two."""
        if not isinstance(error, errors.PermissionDenied) or not self._own_token:
            return
        if self._token != self._own_token:
            self._token = self._own_token
            return
        with contextlib.suppress(errors.HrmError):
            self._token = rpc.read_token(self._token_file)

    def _may_retry(self, error: errors.HrmError) -> bool:
        known = bool(self.application_id)
        over = self._patience.is_over(time.monotonic())
        return retries.APP_MASTER.allows(error, known=known) and not over

    async def _session(self, stub: Any) -> bool:
        """Registers, and runs one session to its end; True: nothing is left to send.

        Raises:
            HrmError: the master refused, or could not be reached.
        """
        await self._send_files()
        try:
            response = await stub.Register(self._registration(), timeout=self._register_timeout_s())
        except grpc.RpcError as error:
            raise rpc.error_from(error, self.hello["master"]) from error
        self.application_id = self.core.application_id = response.application_id
        # Before the session: a master that has lost its store must know that it did not admit it.
        self._followed = (response.epoch, response.epoch_id)
        self._own_token = response.token  # the user's may end before the application
        self._token = self._own_token or self._token
        await self._targets_known.wait()
        attach = app_wire.attach(response.application_id, response.epoch, self._ownership_key)
        outgoing = self._outgoing = Outgoing(attach, UPDATES_MAX)
        call = self._call = stub.Session(
            outgoing.stream(max(HEARTBEAT_MIN_S, response.heartbeat_interval_s))
        )
        try:
            return await self._listen(call, response, outgoing)
        except grpc.RpcError as error:
            raise rpc.error_from(error, self.hello["master"]) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not outgoing.overflowed or (task is not None and task.cancelling()):
                raise
            # The call was cancelled by this process; the task was not.
            raise errors.Unavailable(
                f"the master at {self.hello['master']} has left {UPDATES_MAX} messages unread"
            ) from None
        finally:
            if self.core.attached:
                self._attached_at_s = time.monotonic()
                self._patience.contact(self._attached_at_s)
                self._handle(messages.SessionLost(now=self._attached_at_s))
                if not self.core.ended:
                    self._notify_node_timeout(0.0)
            # The call may be over for the master and still take more from its iterator.
            self._outgoing = self._call = None
            outgoing.close()
            call.cancel()

    async def _send_files(self) -> None:
        """What executors need before they start is with the master before any is requested.

        Raises:
            HrmError: the master could not be reached, or does not take it.
        """
        if not self._early:
            return
        ca = tls.ca_file(self._token_file, self.hello["tls_ca"])
        try:
            await asyncio.to_thread(
                self._early.send, self.hello["master"], self._token, ca, self._allow_clear_text
            )
        except (errors.InvalidRequest, errors.LimitReached) as error:
            if not self.application_id:
                advice = "or leave it to Spark, which brings it later: spark.hrm.localize=none"
                raise type(error)(f"{error.message}; {advice}") from error
            # Such as gone from this machine: an application that runs does not end for that.
            sys.stderr.write(f"HRM: warning: {shown(error.message)}\n")
        self.hello["launch"]["files"] = self._early.described()

    async def _listen(self, call: Any, response: Any, outgoing: Outgoing) -> bool:
        end_ordered = False
        async for notice in call:
            now = time.monotonic()
            kind = notice.WhichOneof("notice")
            if kind == "attached":
                outgoing.attached = True
                if self._progress is not None:
                    outgoing.report(self._progress)
            end_ordered = end_ordered or kind == "end"
            for event in app_wire.events(notice, response.last_executor_number, now):
                self._handle(event)
            if kind == "attached":
                self._bridge.call("registered", self.application_id)
                self._notify_node_timeout(response.node_timeout_s)
        if not outgoing.attached:
            raise errors.Unavailable(f"the master at {self.hello['master']} closed the session")
        return outgoing.final_update_sent or end_ordered

    def _notify_node_timeout(self, timeout_s: float) -> None:
        """How long the driver may wait for the reason of an executor's end; 0: no master is there
        to report it."""
        if self._understands("nodeTimeout"):
            self._bridge.call("nodeTimeout", int(min(timeout_s * 1000, INT32_MAX)))

    def _understands(self, method: str) -> bool:
        """Whether the driver's plugin has this method, which older ones lack."""
        return method in self.hello.get("understands", ())

    def _registration(self) -> application_pb2.RegisterApplicationRequest:
        return app_wire.registration(
            self.hello,
            application_id=self.application_id,
            ownership_key=self._ownership_key,
            submission_id=os.environ.get("HRM_SUBMISSION_ID", ""),
            submission_attempt=int(os.environ.get("HRM_SUBMISSION_ATTEMPT") or 0),
            submission_ownership_key=_submission_ownership_key(),
            followed=self._followed,
        )

    def _register_timeout_s(self) -> float:
        if self.application_id:
            return REGISTER_TIMEOUT_S
        return max(0.5, 0.9 * float(self.hello["registration_timeout_ms"]) / 1000)

    # The core.

    def _handle(self, event: messages.Event) -> None:
        for command in self.core.handle(event):
            self._carry_out(command)
        self._set_timer()

    def _carry_out(self, command: messages.Command) -> None:
        match command:
            case messages.ExecutorStarted():
                self._bridge.call("executorStarted", command.executor_id, command.node)
            case messages.ExecutorEnded():
                self._bridge.call(
                    "executorEnded", command.executor_id, command.exit_code, command.message,
                    command.caused_by_app, command.lost_host,
                )  # fmt: skip
            case messages.FailApplication():
                self._bridge.call("failed", command.message)
            case messages.KeepExecutors():
                self._bridge.call("limitExecutors", command.executors_max)
            case messages.RefuseProfile():
                self._bridge.call("profileRefused", command.profile, command.message)
            case _:
                update = app_wire.update(command)
                assert update is not None
                assert self._outgoing is not None
                self._outgoing.put(update)
                if self._outgoing.overflowed:
                    # The master reads nothing: a new session sends the whole state instead.
                    self._call.cancel()

    def _set_timer(self) -> None:
        if self._planned is not None:
            self._planned.cancel()  # which keeps the loop's list of timers short
            self._planned = None
        now = time.monotonic()
        ring = self._timer.set(self.core.wake_at_s(), now)
        if ring is not None:
            loop = asyncio.get_running_loop()
            self._planned = loop.call_later(ring.at_s - now, self._tick, ring)

    def _tick(self, ring: Ring) -> None:
        if self._timer.rings(ring):
            self._handle(messages.AppMasterTicked(now=time.monotonic()))


def _exit_code(exit_file: Path) -> int | None:
    """The exit record that the driver's runner writes; None: not written in time."""
    deadline_s = time.monotonic() + EXIT_FILE_TIMEOUT_S
    while not exit_file.exists() and time.monotonic() < deadline_s:
        time.sleep(EXIT_FILE_PERIOD_S)
    try:
        return int(exit_file.read_text())
    except (OSError, ValueError):
        return None


def _submission_ownership_key() -> str:
    """In cluster mode, the proof that this is the submission's own driver."""
    path = os.environ.get("HRM_SUBMISSION_OWNERSHIP_KEY_FILE")
    try:
        return Path(path).read_text().strip() if path else ""
    except OSError:
        return ""  # the master's error names what is missing


def _watch_stdin(on_end: Any) -> None:
    """Calls ``on_end`` on the loop when the driver's end of the pipe is closed."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: the AppMaster is ending
            loop.call_soon_threadsafe(on_end, "it ended without a message")

    threading.Thread(target=watch, name="stdin", daemon=True).start()


def _leave_terminal() -> None:
    """Closes the driver's terminal or pipe, whose reader waits until all have closed it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _read_introduction() -> dict[str, Any] | None:
    """The line that the plugin writes; None: the driver ended before it needed an AppMaster."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # Unbuffered and byte-exact: what follows the line belongs to the watcher.
        piece = os.read(0, 65536)
        if not piece:
            return None
        line += piece
    introduction: dict[str, Any] = json.loads(line)
    return introduction


def main() -> int:
    """``python -m hrm.spark.appmaster``, with the introduction on standard input."""
    with contextlib.suppress(OSError):
        os.setsid()  # a Ctrl-C in the driver's terminal is the driver's to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    introduction = _read_introduction()
    if introduction is None:
        # The plugin would have removed these links. A variable that the launcher sets later is with
        # AppMasters that a driver has started: that may go on.
        links = os.environ.get("HRM_RENAMED_DIR")
        if links and "HRM_APPMASTER_PID" not in os.environ:
            shutil.rmtree(links, ignore_errors=True)
        return 0
    if (environment := introduction.pop("environment", None)) is not None:
        # This process waited with a warm driver, and what it was started with was nobody's.
        os.environ.clear()
        os.environ.update(environment)

    async def run() -> None:
        await AppMaster(introduction).run()

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # the daemon threads may be blocked in the driver; do not wait for them
