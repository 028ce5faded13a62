"""An embedded cluster: one master and some agents on this machine, each a process of its own.

All their state is under one directory, so that clusters never share files and one ``rm -r``
removes one::

    DIR/token               the cluster's secret, mode 0600
    DIR/ca.pem              with TLS: the CA to trust; DIR/tls/ has the rest
    DIR/master/             the master's store
    DIR/nodes/node-1/       an agent's work directory, its containers in containers/
    DIR/logs/node-1.log     the daemon's output; .log.1 is the run before
    DIR/event-logs/         Spark's own, of applications, for hrm history
    DIR/cluster.json        which processes belong to the cluster: written before they are needed
    DIR/up.lock             held while a command starts or ends the cluster

The daemons outlive the command that started them; ``cluster.json`` is how the next command finds
them. By then a pid may have been reused, so it is stored with the process's start time and the
machine's boot id, and signalled only if all three match.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm import __version__, errors
from hrm.agent.containers.shim import PROCESS_FILE, boot_id, descendants, start_ticks, write_json
from hrm.cli import client, console
from hrm.tls import CA_FILE

if TYPE_CHECKING:
    from hrm.config import AgentSettings, MasterSettings

__all__ = [
    "Cluster",
    "DaemonProcess",
    "Progress",
    "daemon_settings",
    "free_port",
    "locked",
    "start",
    "stop",
]

EVENT_LOGS = "event-logs"
TLS_DIR = "tls"
CERTIFICATE = "localhost"
MASTER_START_TIMEOUT_S = 60.0
AGENTS_START_TIMEOUT_S = 60.0
APPLICATIONS_STOP_TIMEOUT_S = 10.0
AGENT_STOP_TIMEOUT_S = 20.0
MASTER_STOP_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 10.0
APPLICATIONS_LISTED_MAX = 10_000
_POLL_S = 0.05
_CALL_TIMEOUT_S = 2.0
_LOG_TAIL_BYTES = 16_384

Progress = Callable[[str], None]
"""Receives a short description of what is being waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonProcess:
    """One daemon. ``start_ticks`` are the kernel's clock ticks from boot to its start."""

    role: str
    name: str
    pid: int
    start_ticks: int
    log: str

    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still the one that was started."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """What ``cluster.json`` holds."""

    directory: Path
    host: str
    port: int
    nodes: int
    cores: int
    memory_mib: int
    version: str = __version__
    boot_id: str = field(default_factory=boot_id)
    started_at_s: float = field(default_factory=time.time)
    event_log: bool = True
    tls: bool = False
    warm: bool = False
    processes: list[DaemonProcess] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def token(self) -> Path:
        return self.directory / "token"

    @property
    def ca(self) -> Path | None:
        """The file of its authority; None: it speaks clear text."""
        return self.directory / CA_FILE if self.tls else None

    @property
    def event_log_dir(self) -> str:
        """Where Spark's event logs go; empty: they are off."""
        return str(self.directory / EVENT_LOGS) if self.event_log else ""

    def alive(self) -> list[DaemonProcess]:
        if self.boot_id != boot_id():
            return []
        return [process for process in self.processes if process.alive()]

    def save(self) -> None:
        document = asdict(self)
        del document["directory"]
        write_json(record_path(self.directory), document)

    @classmethod
    def read(cls, directory: Path) -> Cluster | None:
        """The cluster whose state is in ``directory``; None if it has none.

        Raises:
            InvalidConfig: its ``cluster.json`` cannot be understood.
        """
        path = record_path(directory)
        try:
            document: dict[str, Any] = json.loads(path.read_text())
            processes = [DaemonProcess(**process) for process in document.pop("processes")]
            return cls(directory=directory, processes=processes, **document)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise errors.InvalidConfig(
                f"{path} is damaged ({error!r}); end the daemons manually (pgrep -af hrm.cli), "
                f"then remove the file"
            ) from error


def record_path(directory: Path) -> Path:
    return directory / "cluster.json"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep others from starting or ending the cluster of ``directory`` at the same time.

    Raises:
        AlreadyExists: another process is starting or ending it.
        InvalidConfig: the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (directory / "up.lock").open("w")
    except OSError as error:
        raise errors.InvalidConfig(
            f"cannot use the state directory {directory}: {error.strerror}; "
            f"choose another with --state-dir"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise errors.AlreadyExists(
                f"another `hrm up` or `hrm down` is running on {directory}; wait until it ends"
            ) from None
        yield


def daemon_settings(directory: Path) -> tuple[MasterSettings, AgentSettings]:
    """The settings that the daemons of the cluster in ``directory``, which is their ``HRM_HOME``,
    take from ``hrm.toml`` and the environment.

    Raises:
        InvalidConfig: one of them is unknown or out of range.
    """
    from hrm import config

    before = os.environ.get("HRM_HOME")
    os.environ["HRM_HOME"] = str(directory)
    try:
        return config.load(config.MasterSettings), config.load(config.AgentSettings)
    finally:
        if before is None:
            del os.environ["HRM_HOME"]
        else:
            os.environ["HRM_HOME"] = before


def free_port(host: str, port: int, other: str = "hrm up --port 0") -> int:
    """``port``, or any free one for 0. ``other``: the command that takes another one.

    Raises:
        Unavailable: the port is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise errors.Unavailable(
                f"port {port} of {host} cannot be used ({error.strerror}); end what listens there, "
                f"or choose another: {other}"
            ) from error
        return int(probe.getsockname()[1])


def start(cluster: Cluster, schedulers: int | None, progress: Progress) -> None:
    """Start master and agents, and wait until every node is in service.

    Args:
        schedulers: parallel ones in the master; None: as it is set.

    Raises:
        HrmError: something did not come up; everything that had started is ended again.
    """
    from hrm import rpc

    rpc.create_token(cluster.token)
    _certify(cluster)
    (cluster.directory / EVENT_LOGS).mkdir(mode=0o700, exist_ok=True)
    try:
        _start(cluster, schedulers, progress)
    except BaseException:
        stop(cluster, lambda _what: None)
        raise


def stop(cluster: Cluster, progress: Progress) -> list[str]:
    """End every process of ``cluster`` and every container of its nodes.

    Returns:
        Descriptions of what was ended.

    Raises:
        Unavailable: something survived SIGKILL (it hangs in the kernel).
    """
    running = cluster.alive()
    ended = []
    if any(process.role == "master" for process in running):
        ended += _end_applications(cluster, progress)
    for role, timeout_s in (("agent", AGENT_STOP_TIMEOUT_S), ("master", MASTER_STOP_TIMEOUT_S)):
        group = [process for process in running if process.role == role]
        if not group:
            continue
        progress(f"ending {', '.join(process.name for process in group)}")
        for process in group:
            # An agent ends its containers then, whatever keep_containers is.
            process.signal(signal.SIGINT if role == "agent" else signal.SIGTERM)
        left = _wait_for_end(group, timeout_s)
        for process in left:
            process.signal(signal.SIGKILL)
        ended += [
            f"{process.name} (pid {process.pid}{', killed' if process in left else ''})"
            for process in group
        ]
    progress("looking for leftover containers")
    ended += sweep_containers(cluster.directory)
    if survivors := _wait_for_end(running, KILL_TIMEOUT_S):
        names = ", ".join(f"{process.name} (pid {process.pid})" for process in survivors)
        raise errors.Unavailable(f"{names} did not end, even by SIGKILL; try hrm down again later")
    record_path(cluster.directory).unlink(missing_ok=True)
    return ended


def _end_applications(cluster: Cluster, progress: Progress) -> list[str]:
    """Kill live applications, so that their drivers end now instead of searching for a master.

    A master that does not respond delays nothing: drivers then detect its end by themselves.
    """
    import grpc

    from hrm.v1 import admin_pb2

    ended: list[str] = []
    try:
        with _connected(cluster) as master:
            listing = admin_pb2.ListApplicationsRequest(limit=APPLICATIONS_LISTED_MAX)
            ask, timeout_s = master.admin.ListApplications, _CALL_TIMEOUT_S
            live = client.all_pages(ask, listing, timeout_s).applications
            for app in live:
                progress(f"ending application {app.application_id} ({app.name})")
                kill = admin_pb2.KillApplicationRequest(
                    application_id=app.application_id, reason="the cluster was ended by hrm down"
                )
                try:
                    master.admin.KillApplication(kill, timeout=_CALL_TIMEOUT_S)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        raise
                    continue  # it has just ended by itself
                ended.append(f"application {app.application_id} ({app.name})")
            deadline = time.monotonic() + APPLICATIONS_STOP_TIMEOUT_S
            while live and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                live = ask(listing, timeout=timeout_s).applications  # the first page will do
    except errors.HrmError as error:
        progress(f"applications could not be ended: {error.message}")
    return ended


def _connected(cluster: Cluster) -> AbstractContextManager[client.Master]:
    return client.connected(cluster.address, cluster.token, cluster.ca)


def sweep_containers(directory: Path) -> list[str]:
    """Kill containers that their agent left behind; returns descriptions of them."""
    ended = []
    here = boot_id()
    for path in sorted(directory.glob(f"nodes/*/containers/*/{PROCESS_FILE}")):
        try:
            document = json.loads(path.read_text())
            if document["boot_id"] != here:
                continue
            shim = (int(document["shim_pid"]), int(document["shim_start_ticks"]))
            command = (int(document["pid"]), int(document["start_ticks"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half-removed, or the command had ended before it was written down
        roots = [root for root in (command, shim) if start_ticks(root[0]) == root[1]]
        if roots:
            _kill_trees(roots)
            ended.append(f"container {path.parent.name} of {path.parents[2].name}")
    for path in sorted(directory.glob("nodes/*/identity")):
        _sweep_groups(path)
    return ended


def _sweep_groups(identity: Path) -> None:
    """Remove the control groups of an agent that was killed; what cannot be removed is reported."""
    from hrm.agent import isolation

    try:
        isolation.sweep(identity.read_text().strip())
    except (OSError, errors.HrmError) as error:
        console.note(f"control groups of {identity.parent.name} are left: {error}")


def _kill_trees(roots: list[tuple[int, int]]) -> None:
    """SIGKILL to the process trees under ``roots`` (pid, start ticks) until none of it is left."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    victims: dict[int, int] = dict(roots)
    while time.monotonic() < deadline:
        for pid, ticks in tuple(victims.items()):
            if start_ticks(pid) == ticks:
                below = {p: start_ticks(p) for p in descendants(pid)}
                victims.update({p: t for p, t in below.items() if t is not None})
        alive = [pid for pid, ticks in victims.items() if start_ticks(pid) == ticks]
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _certify(cluster: Cluster) -> None:
    """Issue a certificate for master and agents at each start; without TLS, remove the old CA.

    Raises:
        InvalidConfig: the CA certificate next to the token belongs to another cluster.
    """
    own, shared_ca = cluster.directory / TLS_DIR / CA_FILE, cluster.directory / CA_FILE
    if shared_ca.exists() and not (own.exists() and own.read_bytes() == shared_ca.read_bytes()):
        raise errors.InvalidConfig(
            f"{shared_ca} was not made by hrm up; if it belongs to another cluster, keep this one "
            f"apart from it: hrm up --state-dir DIR, else remove it"
        )
    shared_ca.unlink(missing_ok=True)
    if cluster.tls:
        from hrm import certificates

        certificates.make(cluster.directory / TLS_DIR, [f"{CERTIFICATE},{cluster.host}"])
        shared_ca.write_bytes(own.read_bytes())


def _tls_flags(cluster: Cluster) -> list[str]:
    if cluster.ca is None:
        return []
    own = cluster.directory / TLS_DIR / CERTIFICATE
    flags = {"ca": cluster.ca, "cert": f"{own}.pem", "key": f"{own}.key"}
    return [word for name, path in flags.items() for word in (f"--tls-{name}", str(path))]


def _start(cluster: Cluster, schedulers: int | None, progress: Progress) -> None:
    directory = cluster.directory
    shared = ["--token-file", str(cluster.token), "--host", cluster.host, *_tls_flags(cluster)]
    progress("starting the master")
    master = ["master", "--port", str(cluster.port), "--state-dir", str(directory / "master")]
    master += [] if schedulers is None else ["--schedulers", str(schedulers)]
    children = [_spawn(cluster, "master", "master", [*master, *shared])]
    _wait(
        children,
        lambda: _accepts(cluster) and _nodes_alive(cluster) is not None,
        MASTER_START_TIMEOUT_S,
        lambda: "the master does not respond",
    )
    names = [f"node-{number}" for number in range(1, cluster.nodes + 1)]
    # All of an embedded cluster belongs to its user: there is no other user to run as.
    _, agent_settings = daemon_settings(directory)
    shared += [] if "run_as" in agent_settings.model_fields_set else ["--run-as", "off"]
    for name in names:
        agent = ["agent", "--master", cluster.address, "--name", name, "--port", "0",
                 "--log-port", "0", "--work-dir", str(directory / "nodes" / name),
                 "--cores", str(cluster.cores),
                 "--memory-mib", str(cluster.memory_mib)]  # fmt: skip
        children.append(_spawn(cluster, "agent", name, [*agent, *shared]))
    missing = set(names)

    def all_alive() -> bool:
        missing.difference_update(_nodes_alive(cluster) or ())
        progress(f"waiting for nodes: {len(names) - len(missing)} of {len(names)} in service")
        return not missing

    _wait(
        children,
        all_alive,
        AGENTS_START_TIMEOUT_S,
        lambda: f"not in service: {', '.join(sorted(missing))}",
    )


def _spawn(
    cluster: Cluster, role: str, name: str, arguments: list[str]
) -> tuple[DaemonProcess, subprocess.Popen[bytes]]:
    """Start a daemon in a session of its own and write it down."""
    log = cluster.directory / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("xb") as output:
        process = subprocess.Popen(
            # -P: a directory called hrm in the current directory must not be imported.
            [sys.executable, "-P", "-m", "hrm.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "HRM_HOME": str(cluster.directory),
                "HRM_EVENT_LOG_DIR": cluster.event_log_dir,
                "HRM_TLS_CA": str(cluster.ca or ""),
                "NO_COLOR": "1",
            },
            start_new_session=True,
        )
    # Our own child keeps its pid until poll() reaps it, so the ticks are certainly its own;
    # None means that it has ended already, which the first wait will report.
    ticks = start_ticks(process.pid)
    record = DaemonProcess(
        role=role, name=name, pid=process.pid, start_ticks=ticks or 0, log=str(log)
    )
    cluster.processes.append(record)
    cluster.save()
    return record, process


def _wait(
    children: list[tuple[DaemonProcess, subprocess.Popen[bytes]]],
    ready: Callable[[], bool],
    timeout_s: float,
    problem: Callable[[], str],
) -> None:
    """Until ``ready``; Unavailable when a child ends before, or the time does."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        for record, process in children:
            code = process.poll()
            if code is not None:
                last_output = last_line(Path(record.log)) or "it printed nothing"
                end = f"signal {-code}" if code < 0 else f"exit status {code}"
                raise errors.Unavailable(
                    f"{record.name} ended at its start ({end}): {last_output} "
                    f"(whole log: {record.log})"
                )
        if time.monotonic() > deadline:
            logs = ", ".join(record.log for record, _ in children)
            raise errors.Unavailable(f"{problem()} after {timeout_s:g} s; see {logs}")
        time.sleep(_POLL_S)


def _wait_for_end(processes: list[DaemonProcess], timeout_s: float) -> list[DaemonProcess]:
    """Those of ``processes`` that are alive after at most ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while left := [process for process in processes if process.alive()]:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return left


def _accepts(cluster: Cluster) -> bool:
    """Whether the port accepts. Cheaper than a gRPC channel, which backs off after a refusal."""
    try:
        socket.create_connection((cluster.host, cluster.port), timeout=_CALL_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _nodes_alive(cluster: Cluster) -> set[str] | None:
    """Names of the nodes in service; None: the master does not respond yet."""
    from hrm.v1 import admin_pb2, common_pb2

    try:
        with _connected(cluster) as master:
            ask = admin_pb2.ListNodesRequest()
            response = client.all_pages(master.admin.ListNodes, ask, _CALL_TIMEOUT_S)
    except errors.Unavailable:
        return None
    return {n.name for n in response.nodes if n.state == common_pb2.NODE_STATE_ALIVE}


def last_line(log: Path) -> str:
    """A daemon's last message: its last ``error:`` line, else its last line of any kind."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines_of_output = [line.strip() for line in lines if line.strip()]
    errors_found = [
        line.removeprefix("error: ") for line in lines_of_output if line.startswith("error: ")
    ]
    return (errors_found or lines_of_output or [""])[-1].removeprefix("hrm agent: ")
