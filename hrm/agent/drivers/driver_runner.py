"""The parent of one driver on a node: fetches its files, holds its lease, and reports its end.

    shim ──► runner ──► spark-submit, which becomes the driver's JVM ──► AppMaster, Python
              │ acquires a lease from the master before it starts the driver, then renews it
              └ kills the driver when the lease is refused or expires

See ``hrm.core.submission.submissions`` for why that keeps two drivers from running at once. A
killed runner takes its driver with it (parent-death signal). It cannot kill while it is itself
stopped (SIGSTOP, a debugger) and the driver is not.

The exit status is the driver's: 128 plus the signal's number where a signal ended it. Before the
runner exits it lets the AppMaster detach, and reports to the master that the driver is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from hrm import rpc, tls
from hrm.agent.containers import shim
from hrm.agent.containers.unpack import BadArchive, unpack
from hrm.agent.drivers.driver_conf import settle
from hrm.agent.drivers.driver_files import bring
from hrm.agent.drivers.driver_process import APPLICATION_DIR, ENVIRONMENT_SETTING
from hrm.core.submission.driver_lease import DriverLease, LeaseLimits, LeaseState
from hrm.core.vocabulary.wakefulness import Patience
from hrm.errors import HrmError, InvalidConfig, LaunchFailed, Unavailable
from hrm.spark.conf import conf_dir, properties_text
from hrm.spark.node_conf import DIST_CLASSPATH, HADOOP_VARIABLES
from hrm.spark_servers import (
    CONNECT_CLASS,
    CONNECT_HOST,
    CONNECT_RETRIES,
    CONNECT_TOKEN,
    SERVERS,
    THRIFT_HOST,
    THRIFT_PORT,
    Server,
    server_of,
)  # fmt: skip
from hrm.text import shown
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc

__all__ = ["DriverRunner", "Lease", "main", "spark_submit_arguments"]

FAILED = 1
LEASE_LIMITS = LeaseLimits()
TOKENS_LIMIT_S = 30.0
EXIT_WAIT_MAX_S = 35.0
EXIT_POLL_PERIOD_S = 0.05
LATE_S = 2.0
"""A wake this much later than due means that this process was suspended: limits start again."""
EXIT_FILE = "exit-code"
NO_TICKETS = "no-tickets"
CONF_DIR = "conf"
"""The driver's directories of settings, below its home."""

_PR_SET_CHILD_SUBREAPER = 36
_PYTHON_LIMIT_S = 30.0
_TIED = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or os._exit(127);os.execv(sys.argv[2],sys.argv[2:])"
)
"""Runs a program that dies with its parent. Not a ``preexec_fn``: gRPC's threads do not survive
a fork."""

_NOT_FROM_THE_CLIENT = (
    *("spark.master", "spark.submit.deployMode", "spark.driver.host", "spark.driver.bindAddress"),
    *("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles"),
    *("spark.hrm.token.file", "spark.hrm.tls.ca", "spark.hrm.python"),
    *("spark.hrm.allowClearText", "spark.launcher.port", "spark.launcher.secret"),
)
_CONF = "conf"
"""The role of the submitter's settings among the resources."""
_LIMIT_PROCESSORS = "spark.driver.limitActiveProcessorCount.enabled"
"""Spark itself obeys it on YARN alone."""
_LISTS = {"py-file": "--py-files", "jar": "--jars", "file": "--files", "archive": "--archives"}


def log_line(message: str) -> None:
    sys.stderr.write(f"HRM: {shown(message)}\n")
    sys.stderr.flush()


class Lease:
    """The right to run the driver: carries out the commands of ``DriverLease``."""

    def __init__(
        self, stub: Any, master: str, submission_id: str, attempt: int, ownership_key: str
    ) -> None:
        self._stub = stub
        self._master = master
        self._request = pb.LeaseDriverRequest(
            submission_id=submission_id, attempt=attempt, ownership_key=ownership_key
        )
        self._core = DriverLease(_now_s(), LEASE_LIMITS)
        self._let_go = threading.Event()

    def take(self) -> None:
        """Acquire the first one; waits for an unreachable master.

        Raises:
            HrmError: it is refused, or no master responds within ``LEASE_LIMITS.start_limit_s``.
        """
        while self._core.state is LeaseState.ASKING:
            self._go_on()
        if self._core.error is not None:
            raise self._core.error

    def check(self) -> None:
        """Check that its time is not over, before the driver starts.

        Raises:
            Unavailable: it is: this process was suspended, and another driver may run by now.
        """
        if self._core.has_run_out(_now_s()):
            raise Unavailable("the driver's lease expired before the driver could start")

    def hold(self) -> str:
        """Renew it until refused or expired; returns why. Empty: ``let_go`` was called."""
        while self._core.state is LeaseState.HELD and not self._let_go.is_set():
            self._go_on()
        return "" if self._core.error is None else self._core.error.message

    def let_go(self) -> None:
        self._let_go.set()

    def give_back(self) -> None:
        """Release the lease of a dead driver, for its successor. Best effort."""
        request = pb.LeaseDriverRequest(gone=True)
        request.MergeFrom(self._request)
        with contextlib.suppress(grpc.RpcError):
            self._stub.Lease(request, timeout=2.0, wait_for_ready=True)

    def _go_on(self) -> None:
        """Make one request, or pause before it."""
        asked = self._core.step(_now_s())
        if asked is None:
            due_s = self._core.due_s()
            if due_s is not None:
                self._let_go.wait(max(0.0, due_s - _now_s()))
            return
        # Only a call that waits connects again soon (rpc.sync_channel); the first ones fail at
        # once instead, and say why there is no connection.
        held = self._core.state is LeaseState.HELD
        try:
            response = self._stub.Lease(self._request, timeout=asked.timeout_s, wait_for_ready=held)
        except grpc.RpcError as error:
            self._core.failed(asked.number, rpc.error_from(error, self._master), _now_s())
        else:
            self._core.granted(
                asked.number, lease_s=response.lease_s, renew_s=response.renew_s, now=_now_s()
            )


class DriverRunner:
    """One driver, from its files to its end."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._dir = Path.cwd()
        self._app_dir = self._dir / APPLICATION_DIR
        self._driver: subprocess.Popen[bytes] | None = None
        self._variables: dict[str, str | None] = {}
        self._starts = False
        self._end_requested = False

    def run(self) -> int:
        """Run the driver; returns its exit status.

        Raises:
            HrmError: no driver could be started.
        """
        document = self._document
        master = document["master"]
        _become_subreaper()
        signal.signal(signal.SIGTERM, self._end_asked)
        token_file = Path(document["token_file"])
        token_file.chmod(0o600)
        ca = tls.read_ca(Path(document["tls_ca"]) if document["tls_ca"] else None)
        with rpc.sync_channel(master, rpc.read_token(token_file), ca) as channel:
            stub = submission_pb2_grpc.SubmissionServiceStub(channel)
            self._bring_files(stub)
            self._settle_conf()
            conf = self._conf()
            lease = Lease(
                stub, master, document["submission_id"], document["attempt"],
                document.get("ownership_key", ""),
            )  # fmt: skip
            lease.take()
            try:
                self._bring_tokens(stub)
                lease.check()
                self._start(conf)
            except BaseException:
                lease.give_back()
                raise
            holding = threading.Thread(target=self._hold, args=(lease,), daemon=True)
            holding.start()
            assert self._driver is not None
            code = self._driver.wait()
            code = 128 - code if code < 0 else code
            lease.let_go()
            self._write_exit_code(code)
            _wait_for_appmasters()
            _kill_all()
            lease.give_back()
        return code

    def _end_asked(self, *_: object) -> None:
        """SIGTERM. A driver gets it, too, and handles it; until there is one, it ends the runner.

        It does not raise: an exception could come anywhere, and gRPC holds locks.
        """
        self._end_requested = True
        if not self._starts:
            with contextlib.suppress(OSError):
                for half in Path(self._document["cache_dir"]).glob(f"*.{os.getpid()}.part"):
                    half.unlink(missing_ok=True)
            os.write(2, b"HRM: stopped before the driver has started\n")
            os._exit(128 + signal.SIGTERM)

    def _bring_files(self, stub: Any) -> None:
        self._app_dir.mkdir(mode=0o700, exist_ok=True)

        def fetch(digest: str, offset: int) -> Iterator[bytes]:
            try:
                for piece in stub.GetFile(pb.GetFileRequest(sha256=digest, offset=offset)):
                    yield piece.data
            except grpc.RpcError as error:
                raise rpc.error_from(error, self._document["master"]) from error

        # One file may be there under several names.
        sent = {each["name"]: each for each in self._document["resources"] if each["sha256"]}
        for name, resource in sent.items():
            cache = None if resource["role"] == _CONF else Path(self._document["cache_dir"])
            bring(fetch, resource["sha256"], self._app_dir / name, cache)
        self._name_files()
        self._unpack_archives()

    def _bring_tokens(self, stub: Any) -> None:
        """Delegation tokens that came with the submission, as a file in this process's memory.

        It is named by way of this process, which outlives the driver, so that programs that the
        driver starts find it, too; the kernel shows it to no other user. Tickets of the driver's
        user on this node are not the submitter's, so none are looked for.

        Raises:
            HrmError: the master has none.
        """
        document = self._document
        if not document.get("has_tokens"):
            return
        request = pb.GetTokensRequest(
            submission_id=document["submission_id"],
            attempt=document["attempt"],
            ownership_key=document.get("ownership_key", ""),
        )
        try:
            tokens = stub.GetTokens(request, timeout=TOKENS_LIMIT_S, wait_for_ready=True).tokens
        except grpc.RpcError as error:
            raise rpc.error_from(error, document["master"]) from error
        descriptor = os.memfd_create("delegation-tokens")
        with open(descriptor, "wb", closefd=False) as file:
            file.write(tokens)
        self._variables |= {
            "HADOOP_TOKEN_FILE_LOCATION": f"/proc/{os.getpid()}/fd/{descriptor}",
            "KRB5CCNAME": str(self._dir / NO_TICKETS),
        }

    def _name_files(self) -> None:
        """As on YARN: ``--files a.txt#b.txt`` is a file b.txt. Spark itself knows no such names.

        Raises:
            LaunchFailed: the name is none, or has been taken.
        """
        for resource in self._document["resources"]:
            name = _file_name(resource)
            if not name or name == resource["name"]:
                continue
            if Path(name).name != name or name == "..":
                raise LaunchFailed(f"{resource['name']}#{name}: give a file's name after '#'")
            try:
                # Not a symbolic link: Spark copies such a link itself, to where it leads nowhere.
                (self._app_dir / name).hardlink_to(self._app_dir / resource["name"])
            except OSError as error:
                raise LaunchFailed(
                    f"{resource['name']} cannot be named {name}: {error.strerror}"
                ) from error

    def _unpack_archives(self) -> None:
        """As on YARN: the driver's own Python may be in one of them. Spark unpacks them again, for
        ``SparkFiles``.

        Raises:
            LaunchFailed: one cannot be unpacked.
        """
        bytes_left = self._document.get("unpacked_bytes_max", 1 << 40)
        for resource in self._document["resources"]:
            if resource["role"] != "archive" or not resource["sha256"] or not resource["fragment"]:
                continue
            name, fragment = resource["name"], resource["fragment"]
            if Path(fragment).name != fragment or fragment == "..":
                raise LaunchFailed(f"{name}#{fragment}: give the name of a directory after '#'")
            try:
                bytes_left -= unpack(self._app_dir / name, self._app_dir / fragment, bytes_left)
            except (BadArchive, OSError) as error:
                raise LaunchFailed(f"cannot unpack {name} to {fragment}: {error}") from error

    def _settle_conf(self) -> None:
        """Lay out the directories of settings that were sent, and the node's.

        Raises:
            LaunchFailed: they cannot be.
        """
        document = self._document
        sent = [x["name"] for x in document["resources"] if x["role"] == _CONF and x["sha256"]]
        of_node = document.get("spark_conf_dir", "")
        names = filter(None, map(_file_name, document["resources"]))
        try:
            self._variables = settle(
                self._dir / CONF_DIR,
                archive=self._app_dir / sent[0] if sent else None,
                files=[self._app_dir / name for name in names],
                of_node=Path(of_node) if of_node else None,
                of_hrm=conf_dir(),
            )
        except OSError as error:
            raise LaunchFailed(f"the driver's settings cannot be laid out: {error}") from error
        for name in sent:
            (self._app_dir / name).unlink(missing_ok=True)
        for key, _ in document["conf"]:  # what the user has set explicitly stays
            name = key.removeprefix(ENVIRONMENT_SETTING)
            if name in HADOOP_VARIABLES:
                self._variables.pop(name, None)

    def _conf(self) -> list[tuple[str, str]]:
        document = self._document
        conf = {key: value for key, value in document["conf"] if key not in _NOT_FROM_THE_CLIENT}
        # It is in the environment; sessions, the UI and event logs show settings.
        conf.pop(ENVIRONMENT_SETTING + CONNECT_TOKEN, None)
        conf["spark.driver.host"] = document["host"]
        conf.setdefault("spark.ui.port", "0")  # several drivers may be on one node
        # So that an application that leaves its context running ends with its main program.
        is_server = document["main_class"] in SERVERS  # the main program of one may only start it
        conf.setdefault("spark.submit.callSystemExitOnMainExit", str(not is_server).lower())
        conf |= self._serve(conf)
        conf.setdefault("spark.driver.memory", f"{document['heap_mib']}m")
        options = conf.get("spark.driver.extraJavaOptions", "")
        own = f"-Djava.io.tmpdir={os.environ.get('TMPDIR', self._dir)}"
        if conf.get(_LIMIT_PROCESSORS, "").strip().lower() == "true":
            own += f" -XX:ActiveProcessorCount={conf.get('spark.driver.cores', '1').strip()}"
        conf["spark.driver.extraJavaOptions"] = f"{own} {options}".strip()
        main = next(each for each in document["resources"] if each["role"] == "main")
        if (main["name"] or main["uri"]).endswith(".py"):
            conf |= _python_conf(conf, self._app_dir)
        return list(conf.items())

    def _serve(self, conf: dict[str, str]) -> dict[str, str]:
        """Settings of a server: it listens where the master says that it does.

        Raises:
            LaunchFailed: another process has its port.
        """
        document = self._document
        server = server_of(document["main_class"], conf, document["arguments"])
        if server is None:
            return {}
        connects = document["main_class"] == CONNECT_CLASS
        given = conf.get(CONNECT_HOST) if connects else os.environ.get(THRIFT_HOST)
        host = given or document["host"]
        _check_port(host, server)
        if connects:
            return {CONNECT_HOST: host, CONNECT_RETRIES: "0"}  # it takes this port or none
        os.environ |= {THRIFT_HOST: host, THRIFT_PORT: str(server.port)}
        return {}

    def _start(self, conf: list[tuple[str, str]]) -> None:
        properties = self._dir / "spark.properties"
        properties.touch(mode=0o600)
        properties.write_text(properties_text(conf))
        (self._dir / EXIT_FILE).unlink(missing_ok=True)
        command = spark_submit_arguments(self._document, self._app_dir, properties)
        tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
        environment = {**os.environ, "HRM_DRIVER_EXIT_FILE": str(self._dir / EXIT_FILE)}
        # As on YARN; its files, which go before settings, are in the directory of settings, too.
        entries = (environment.get(DIST_CLASSPATH), f"{self._app_dir}/")
        environment[DIST_CLASSPATH] = os.pathsep.join(filter(None, entries))
        for name, value in self._variables.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        if not os.access(environment.get("HRM_HOME", ""), os.W_OK):
            environment.pop("HRM_HOME", None)  # the agent's; the driver runs as another user
        self._starts = True
        self._driver = subprocess.Popen(
            tied, cwd=self._app_dir, env=environment, stdin=subprocess.DEVNULL
        )
        if self._end_requested:  # the driver may not have handled the signal
            self._driver.terminate()

    def _write_exit_code(self, code: int) -> None:
        """For the AppMaster, which notices the end of the driver but not its cause."""
        partial = self._dir / f".{EXIT_FILE}"
        partial.write_text(str(code))
        partial.replace(self._dir / EXIT_FILE)

    def _hold(self, lease: Lease) -> None:
        """In a thread of its own, so that nothing else can delay it."""
        problem = "the runner failed"
        try:
            problem = lease.hold()
        finally:
            if problem:
                log_line(f"the driver is killed: {problem}")
                _kill_all()


def spark_submit_arguments(document: dict[str, Any], app_dir: Path, properties: Path) -> list[str]:
    """The spark-submit of this node, in client mode."""

    def place(resource: dict[str, Any]) -> str:
        if name := _file_name(resource):
            return str(app_dir / name)
        where = str(app_dir / resource["name"]) if resource["sha256"] else resource["uri"]
        return f"{where}#{resource['fragment']}" if resource["fragment"] else str(where)

    command = [
        document["spark_submit"],
        *("--master", f"hrm://{document['master']}"),
        *("--deploy-mode", "client"),
        *("--properties-file", str(properties)),
    ]
    if document["name"]:
        command += ["--name", document["name"]]
    if document["main_class"]:
        command += ["--class", document["main_class"]]
    for role, option in _LISTS.items():
        places = [place(each) for each in document["resources"] if each["role"] == role]
        if places:
            command += [option, ",".join(places)]
    command += document["options"]
    main = next(each for each in document["resources"] if each["role"] == "main")
    # spark-submit itself adds what stands for the file of a server.
    mains = [] if document["main_class"] in SERVERS else [place(main)]
    return [*command, *mains, *document["arguments"]]


def _file_name(resource: dict[str, Any]) -> str:
    """The name in the driver's directory of what was sent with ``--files``; empty: it was not."""
    sent = resource["role"] == "file" and resource["sha256"]
    return str(resource["fragment"] or resource["name"]) if sent else ""


def _check_port(host: str, server: Server) -> None:
    """Raises LaunchFailed where nothing can listen there: Spark would take long to find out."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, server.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise LaunchFailed(
            f"the server cannot listen at {host}:{server.port} of this node: {error.strerror}; "
            f"where another server runs here, give this one a port of its own with {server.setting}"
        ) from error


def _python_conf(conf: dict[str, str], app_dir: Path) -> dict[str, str]:
    """Names the driver's Python to nodes that would otherwise choose their own. A relative one is
    in an archive of the application, unpacked to ``app_dir``.

    Raises:
        InvalidConfig: the driver's Python cannot be run on this node.
    """
    workers = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    driver = (
        conf.get("spark.pyspark.driver.python")
        or os.environ.get("PYSPARK_DRIVER_PYTHON")
        or workers
        or "python3"
    )
    ask = [driver, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(
            ask, capture_output=True, text=True, timeout=_PYTHON_LIMIT_S, check=True, cwd=app_dir
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidConfig(
            f"the driver's Python, {driver}, cannot be run on this node ({error}); install it "
            f"here, or name another with spark.pyspark.python"
        ) from error
    return {} if workers else {"spark.executorEnv.HRM_DRIVER_PYTHON": done.stdout.strip()}


def _now_s() -> float:
    """Seconds of a clock that cannot be set, and that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _become_subreaper() -> None:
    """Orphaned processes stay below this process, and are found and killed from here."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise LaunchFailed(f"prctl: {os.strerror(ctypes.get_errno())}")


def _kill_all() -> None:
    for _ in range(100):
        below = shim.descendants(os.getpid())
        if not below:
            return
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(EXIT_POLL_PERIOD_S)


def _wait_for_appmasters() -> None:
    """An AppMaster may have last messages for the master; no other process may stay."""
    patience = Patience(_now_s(), limit_s=EXIT_WAIT_MAX_S, late_s=LATE_S)
    while not patience.is_over(_now_s()):
        if not any(_is_appmaster(pid) for pid in shim.descendants(os.getpid())):
            return
        time.sleep(EXIT_POLL_PERIOD_S)


def _is_appmaster(pid: int) -> bool:
    try:
        return b"hrm.spark.appmaster" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main() -> int:
    """Run the driver that the document named by the first argument describes."""
    document = json.loads(Path(sys.argv[1]).read_text())
    try:
        return DriverRunner(document).run()
    except HrmError as error:
        log_line(error.message)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
