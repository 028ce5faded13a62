"""The client of cluster deploy mode: sends an application's files, submits it, waits for its end.

File names are resolved as in Spark: a path without a scheme, or with ``file:``, is a file of this
machine, and is sent; ``local:`` is a file that each node has; any other URI is read by the driver's
node. All files are checked before any is sent.

A file is read twice: for its hash, and to be sent. The master checks the whole against the hash,
and this client that the file's time and size are unchanged, so a file that changes in between is
refused.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import hashlib
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import grpc

from hrm import ownership_keys, rpc, tls
from hrm.core.vocabulary.wakefulness import Patience
from hrm.errors import (
    HrmError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StaleEpoch,
    TlsFailed,
    Unavailable,
)
from hrm.executor_size import memory_mib
from hrm.spark import hrm_settings, spark_settings, submit_conf
from hrm.spark.submit_options import Options
from hrm.spark_servers import INTERNAL, SERVERS, server_of
from hrm.text import shown
from hrm.v1 import submission_pb2 as pb
from hrm.v1 import submission_pb2_grpc

__all__ = [
    "ENDED",
    "SERIAL_KEY",
    "LocalFile",
    "SubmissionClient",
    "add_conf",
    "connect",
    "driver_spec",
    "exit_status",
    "state_name",
]

PIECE_BYTES = 1024 * 1024
CALL_TIMEOUT_S = 30.0
UPLOAD_RETRY_LIMIT_S = 120.0
WATCH_RETRY_LIMIT_S = 3600.0
RETRY_S = 0.5
TIE_S = 60.0
TIES_A_LEASE = 4
TIED, SERIAL_KEY = "spark.hrm.submit.tied", "spark.hrm.submit.key"
_DURATION = re.compile(r"(\d{1,9})(s|m|min|h)?")
_UNIT_S: dict[str | None, int] = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3_600}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
VCORES_MAX, MEMORY_MIB_MAX = 1_000_000, 1 << 30
OVERHEAD_FACTOR_MAX = 1_000.0
_OVERHEAD_MIN_MIB = 384
_OVERHEAD_JVM, _OVERHEAD_PYTHON = 0.1, 0.4
"""A Python driver is a second process next to its JVM; the factor is Spark on Kubernetes'."""

ENDED = frozenset(
    {pb.SUBMISSION_STATE_FINISHED, pb.SUBMISSION_STATE_FAILED, pb.SUBMISSION_STATE_KILLED}
)
_LISTS = {
    "spark.jars": pb.RESOURCE_ROLE_JAR,
    "spark.submit.pyFiles": pb.RESOURCE_ROLE_PY_FILE,
    "spark.files": pb.RESOURCE_ROLE_FILE,
    "spark.archives": pb.RESOURCE_ROLE_ARCHIVE,
}
_DEFAULTS_FILES = {"spark.master", "spark.submit.deployMode", *_LISTS}


def state_name(state: int) -> str:
    """As Spark Standalone writes it."""
    return pb.SubmissionState.Name(state).removeprefix("SUBMISSION_STATE_")


@dataclass(slots=True)
class LocalFile:
    """A file of this machine that is to be sent to the master."""

    path: Path
    size: int
    changed_ns: int
    sha256: str = ""
    data: bytes = b""
    """Its contents, where it was made in memory; there is no file then."""

    @classmethod
    def at(cls, path: Path, what: str) -> LocalFile:
        """Raises InvalidRequest where there is no readable file."""
        try:
            status = path.stat()
        except OSError as error:
            raise InvalidRequest(
                f"{what} {path} does not exist here; correct the path, or write local:/PATH for a "
                f"file that every node has"
            ) from error
        if not path.is_file():
            raise InvalidRequest(f"{what} {path} is no file; name files, or an archive of it")
        if not os.access(path, os.R_OK):
            raise InvalidRequest(f"{what} {path} is not readable for you")
        return cls(path, status.st_size, status.st_mtime_ns)

    @classmethod
    def made(cls, name: str, data: bytes) -> LocalFile:
        """A file that is in memory alone."""
        return cls(Path(name), len(data), 0, data=data)

    def read_digest(self) -> None:
        with self.open() as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self.check()

    def open(self) -> BufferedReader | BytesIO:
        """Raises InvalidRequest if it is no longer readable."""
        if self.data:
            return BytesIO(self.data)
        try:
            return self.path.open("rb")
        except OSError as error:
            raise self._gone(error) from error

    def check(self) -> None:
        """Raises InvalidRequest if the file has changed."""
        if self.data:
            return
        try:
            status = self.path.stat()
        except OSError as error:
            raise self._gone(error) from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self.changed_ns):
            raise InvalidRequest(
                f"{self.path} has changed while it was sent; submit again when nothing writes to it"
            )

    def _gone(self, error: OSError) -> InvalidRequest:
        return InvalidRequest(
            f"{self.path} disappeared while it was sent ({error.strerror}); put it back and submit "
            f"again"
        )

    def message(self) -> pb.FileDigest:
        return pb.FileDigest(sha256=self.sha256, size_bytes=self.size, name=str(self.path))


def driver_spec(options: Options) -> tuple[pb.DriverSpec, dict[str, LocalFile]]:
    """The submission, and its local files by their name in the driver's directory.

    Raises:
        InvalidRequest: an option is missing or impossible.
    """
    shell = options.shell()
    if shell:
        raise InvalidRequest(
            f"deploy mode cluster cannot run {shell}: its driver would be on a node, away from "
            f"your terminal; leave --deploy-mode cluster out"
        )
    conf = options.conf
    _check_texts(options)
    _check_main(options)
    spark_settings.check_submission(conf)
    hrm_settings.check_values(conf)
    server_of(options.main_class, conf, options.arguments)  # its port
    spec = pb.DriverSpec(
        name=conf.get("spark.app.name") or options.main_class or Path(options.main).name,
        user=os.environ.get("SPARK_USER") or getpass.getuser(),
        main_class=options.main_class,
        arguments=options.arguments,
        supervise=options.supervise,
        options=options.passed_on,
        tie_s=_tie_s(options),
        serial_key=conf.get(SERIAL_KEY, ""),
    )
    files: dict[str, LocalFile] = {}
    _add(spec, files, options.main, pb.RESOURCE_ROLE_MAIN, "the application")
    for setting, role in _LISTS.items():
        for named in filter(None, (x.strip() for x in conf.get(setting, "").split(","))):
            for one in _expanded(named):
                _add(spec, files, one, role, f"the file of {setting}")
    for key, value in conf.items():
        if key not in _DEFAULTS_FILES:
            spec.conf.add(key=key, value=value)
    _size(spec, conf, is_python=options.main.endswith(".py"))
    return spec, files


def _tie_s(options: Options) -> float:
    """For how long the submission outlives the last sign of its client; 0: for ever.

    Raises:
        InvalidRequest: the setting is no such time, or the client does not wait.
    """
    text = options.conf.get(TIED, "false").strip().lower()
    if text in ("", "false"):
        return 0.0
    if not options.waits:
        raise InvalidRequest(
            f"{TIED} ties the driver to this command, and spark.hrm.submit.waitAppCompletion=false "
            f"ends it at once; leave one of the two out"
        )
    if text == "true":
        return TIE_S
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"{TIED} is {text!r}; write true, false or a time such as 2m")
    return float(int(found[1]) * _UNIT_S[found[2]])


def add_conf(
    spec: pb.DriverSpec, files: dict[str, LocalFile], environment: Mapping[str, str]
) -> list[str]:
    """Add the configuration directories of this machine; returns why which are not sent.

    Raises:
        InvalidRequest: a file of the application has the archive's name.
    """
    data, warnings = submit_conf.conf_archive(environment)
    name = submit_conf.ARCHIVE_NAME
    if name in files:
        raise InvalidRequest(f"{name} is where the settings of this machine go; rename your file")
    if data:
        files[name] = LocalFile.made(name, data)
        spec.resources.add(role=pb.RESOURCE_ROLE_CONF, name=name)
    return warnings


def _check_texts(options: Options) -> None:
    """Raises InvalidRequest where a text that is to be sent is not valid UTF-8."""
    hrm_settings.check_text("the application", options.main)
    hrm_settings.check_text("the class", options.main_class)
    for argument in (*options.arguments, *options.passed_on):
        hrm_settings.check_text("the argument", argument)
    for key, value in options.conf.items():
        hrm_settings.check_text("the setting", key)
        hrm_settings.check_text(f"the value of {key}", value)


def _check_main(options: Options) -> None:
    """Raises InvalidRequest where what is to run is not named, or cannot be run."""
    main, main_class = options.main, options.main_class
    if main_class in SERVERS:
        if main != INTERNAL or (options.arguments and not options.arguments[0].startswith("-")):
            other = main if main != INTERNAL else options.arguments[0]
            raise InvalidRequest(
                f"{SERVERS[main_class]} has no application file, and {other!r} is none of its "
                f"options; name jars with --jars"
            )
    elif not main:
        raise InvalidRequest(
            f"name the application: a jar or a Python file, after all options; {INTERNAL} where "
            f"the class is in Spark's own jars"
        )
    elif main == INTERNAL and not main_class:
        raise InvalidRequest(
            f"{INTERNAL} stands for a class of Spark's own jars, or of --jars; name it with --class"
        )
    elif not main_class and not main.partition("#")[0].lower().endswith((".py", ".jar", ".r")):
        raise InvalidRequest(
            f"{main} is neither a Python file (.py) nor a jar (.jar): name one of them after all "
            f"options, or --class NAME for what this file has"
        )


def _finding(files: Iterable[LocalFile]) -> pb.FindFilesRequest:
    return pb.FindFilesRequest(files=[file.message() for file in files])


def _expanded(named: str) -> list[str]:
    path, _, fragment = named.partition("#")
    if _SCHEME.match(path) or not glob.has_magic(path) or Path(path).exists():
        return [named]
    found = sorted(glob.glob(path))  # noqa: PTH207 - patterns may be absolute
    if not found:
        raise InvalidRequest(f"no file matches {path}")
    return [f"{one}#{fragment}" if fragment else one for one in found]


def _add(
    spec: pb.DriverSpec, files: dict[str, LocalFile], named: str, role: Any, what: str
) -> None:
    uri, _, fragment = named.partition("#")
    resource = spec.resources.add(role=role, fragment=fragment)
    parsed = urlparse(uri)
    if role == pb.RESOURCE_ROLE_MAIN and named == INTERNAL:
        resource.uri = named
        return
    if _SCHEME.match(uri) and parsed.scheme.lower() != "file":
        resource.uri = uri
        return
    path = Path(unquote(parsed.path) if parsed.scheme else os.path.expanduser(uri))  # noqa: PTH111
    known = files.get(path.name)
    if known is not None and known.path.resolve() != path.resolve():
        raise InvalidRequest(
            f"{known.path} and {path} have one name, and all files of an application go into one "
            f"directory; rename one"
        )
    if known is not None:
        # Mentioned before, perhaps in another list or with another name; it is sent once.
        same = [x for x in spec.resources if x.name == path.name]
        if any(x.role != role for x in same):
            raise InvalidRequest(f"{path} is named in two lists; name it in one")
        if any(x.fragment == fragment for x in same):
            del spec.resources[-1]
            return
    files.setdefault(path.name, LocalFile.at(path, what))
    resource.name = path.name


def _size(spec: pb.DriverSpec, conf: dict[str, str], *, is_python: bool) -> None:
    """Cores and memory of the container."""
    cores = conf.get("spark.driver.cores", "1")
    if not (cores.isdecimal() and len(cores) < 10 and 1 <= int(cores) <= VCORES_MAX):
        raise InvalidRequest(
            f"spark.driver.cores is {cores!r}; give a whole number from 1 to {VCORES_MAX}"
        )
    heap_mib = memory_mib(conf.get("spark.driver.memory", "1g"), "spark.driver.memory")
    overhead = conf.get("spark.driver.memoryOverhead")
    if overhead:
        overhead_mib = memory_mib(overhead, "spark.driver.memoryOverhead")
    else:
        default = _OVERHEAD_PYTHON if is_python else _OVERHEAD_JVM
        text = conf.get("spark.driver.memoryOverheadFactor", str(default))
        try:
            factor = float(text)
        except ValueError:
            factor = -1.0
        if not 0.0 <= factor < OVERHEAD_FACTOR_MAX:
            raise InvalidRequest(
                f"spark.driver.memoryOverheadFactor is {text!r}; give a number such as 0.1"
            )
        overhead_mib = max(_least_overhead_mib(conf), int(heap_mib * factor))
    if heap_mib + overhead_mib > MEMORY_MIB_MAX:
        raise InvalidRequest(
            f"spark.driver.memory and its overhead are {heap_mib + overhead_mib} MiB; at most "
            f"{MEMORY_MIB_MAX} can be asked for"
        )
    spec.vcores, spec.heap_mib, spec.memory_mib = int(cores), heap_mib, heap_mib + overhead_mib


def _least_overhead_mib(conf: Mapping[str, str]) -> int:
    name = "spark.driver.minMemoryOverhead"
    return memory_mib(conf[name], name) if name in conf else _OVERHEAD_MIN_MIB


class SubmissionClient:
    """Calls of SubmissionService; every failure is an ``HrmError``."""

    def __init__(self, stub: Any, target: str, notify: Callable[[str], None]) -> None:
        self._stub = stub
        self.target = target
        self._notify = notify
        self._ownership_key = ownership_keys.new_key()

    def submit(
        self, spec: pb.DriverSpec, files: dict[str, LocalFile], tokens: bytes = b""
    ) -> pb.Submission:
        """Send what the master does not have, and submit, with the driver's delegation tokens.

        Raises:
            HrmError: nothing was submitted.
        """
        self.send(list(files.values()))
        for resource in spec.resources:
            if resource.name in files and not resource.uri:
                resource.file.CopyFrom(files[resource.name].message())
        request = pb.SubmitRequest(
            key=uuid.uuid4().hex, driver=spec, ownership_key=self._ownership_key, tokens=tokens
        )
        submission: pb.Submission = self.call("Submit", request)
        return submission

    @contextmanager
    def tied(self, submission_id: str, tie_s: float) -> Iterator[None]:
        """Give signs of this client to the master meanwhile, from a thread; 0: there is no tie.

        A call that fails is repeated: the master counts from the last that it received. It waits
        for a connection: between calls nothing works on one that is broken (``rpc.sync_channel``).
        """
        over = threading.Event()

        def renew() -> None:
            request = pb.TieSubmissionRequest(
                submission_id=submission_id, ownership_key=self._ownership_key
            )
            pause_s = usual_s = tie_s / TIES_A_LEASE
            while not over.wait(pause_s):
                try:
                    self._once("Tie", request, timeout_s=usual_s, connects=True)
                    pause_s = usual_s
                except HrmError:
                    pause_s = min(usual_s, RETRY_S)

        thread = threading.Thread(target=renew, name="hrm-tie", daemon=True)
        if tie_s:
            thread.start()
        try:
            yield
        finally:
            over.set()

    def kill(self, submission_id: str, reason: str) -> pb.Submission:
        """Ask for its end; raises HrmError if it has ended, or the master is away."""
        request = pb.KillSubmissionRequest(submission_id=submission_id, reason=reason)
        killed: pb.Submission = self.call("Kill", request)
        return killed

    def send(self, files: Sequence[LocalFile]) -> None:
        """Send what the master does not have of these; each is read once for its hash.

        Raises:
            HrmError: not all could be sent.
        """
        # By size alone, before anything is read.
        self.call("FindFiles", _finding(files))
        for file in files:
            if not file.sha256:
                file.read_digest()
        offsets = self.call("FindFiles", _finding(files)).offsets
        for file, offset in zip(files, offsets, strict=True):
            if offset < file.size or not file.size:
                self._send(file, offset)

    def _send(self, file: LocalFile, offset: int) -> None:
        """Send from ``offset`` on; after an interruption, resume where the master's part ends,
        unless the master has accepted nothing for ``UPLOAD_RETRY_LIMIT_S``."""
        with file.open() as source:
            gained_s, broken = time.monotonic(), False
            while True:
                try:
                    if broken:
                        (offset,) = self._once("FindFiles", _finding([file])).offsets
                        broken = False
                    for _ in self._send_from(source, file, offset):
                        gained_s = time.monotonic()
                    break
                except (StaleEpoch, Unavailable) as error:
                    if time.monotonic() - gained_s > UPLOAD_RETRY_LIMIT_S:
                        raise
                    if not broken:
                        self._notify(f"sending {file.path} continues after: {error.message}")
                    broken = True
                time.sleep(RETRY_S)
        file.check()

    def _send_from(
        self, source: BufferedReader | BytesIO, file: LocalFile, offset: int
    ) -> Iterator[None]:
        """Send piece by piece; yields after each that the master has accepted."""
        empty = file.size == 0
        while offset < file.size or empty:
            empty = False
            source.seek(offset)
            data = source.read(min(PIECE_BYTES, file.size - offset))
            if not data and file.size:
                raise InvalidRequest(
                    f"{file.path} has become shorter while it was sent; submit again"
                )
            piece = pb.PutPieceRequest(file=file.message(), offset=offset, data=data)
            offset = self._once("PutPiece", piece).offset
            yield

    def call(self, method: str, request: Any) -> Any:
        """A call that may be repeated; retried for a while if the master does not respond."""
        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                return self._once(method, request)
            except Unavailable as error:
                hopeless = method != "Submit" or isinstance(error, TlsFailed)
                if hopeless or time.monotonic() > deadline_s:
                    raise
            time.sleep(RETRY_S)

    def watch(self, submission_id: str) -> Iterator[pb.Submission]:
        """Each change of a submission, until it has ended; waits for a master that is away.

        Raises:
            HrmError: the master does not know it, or was unreachable for ``WATCH_RETRY_LIMIT_S``.
            PermissionDenied: the token is not accepted (any more).
        """
        request = pb.GetSubmissionRequest(submission_id=submission_id)
        patience, away = self._patience(), False
        while True:
            if away:
                self._await_master(request)
            try:
                for submission in self._stub.Watch(request):
                    patience, away = self._patience(), False
                    yield submission
                    if submission.state in ENDED:
                        return
            except grpc.RpcError as broken:
                error = rpc.error_from(broken, self.target)
                if isinstance(error, NotFound | PermissionDenied):
                    raise error from broken
                if not away:
                    patience.contact(time.monotonic())  # from here on there is no stream
                if patience.is_over(time.monotonic()):
                    raise error from broken
                if not away:
                    self._notify(f"still waiting: {error.message}")
                away = True
            time.sleep(RETRY_S)

    def _await_master(self, request: pb.GetSubmissionRequest) -> None:
        """Wait for a while until it responds. Its stream has no time limit, so it cannot wait."""
        with contextlib.suppress(HrmError):
            self._once("Get", request, connects=True)

    @staticmethod
    def _patience() -> Patience:
        """Patience with an unreachable master; time in which this process sleeps does not count."""
        late_s = 2 * CALL_TIMEOUT_S + RETRY_S
        return Patience(time.monotonic(), limit_s=WATCH_RETRY_LIMIT_S, late_s=late_s)

    def _once(
        self,
        method: str,
        request: Any,
        timeout_s: float = CALL_TIMEOUT_S,
        *,
        connects: bool = False,
    ) -> Any:
        """One call. ``connects``: it waits for a connection, and fails only when its time is over;
        why there was none is then not known."""
        waits = {"wait_for_ready": True} if connects else {}
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, **waits)
        except grpc.RpcError as error:
            raise rpc.error_from(error, self.target) from error


@contextmanager
def connect(
    target: str,
    token: Path | str,
    ca_path: Path | None,
    *,
    allow_clear_text: bool | None = None,
) -> Iterator[tuple[SubmissionClient, grpc.Channel]]:
    """A client of the master at ``target`` (host:port). ``token``: or its file. ``ca_path``: of its
    authority; None: clear text, which ``allow_clear_text`` permits, as in ``rpc.channel``.

    Raises:
        HrmError: there is no usable token, or no usable authority.
    """

    def notify(message: str) -> None:
        sys.stderr.write(f"HRM: {shown(message)}\n")

    token = token if isinstance(token, str) else rpc.read_token(token)
    ca = tls.read_ca(ca_path)
    with rpc.sync_channel(target, token, ca, allow_clear_text=allow_clear_text) as channel:
        stub = submission_pb2_grpc.SubmissionServiceStub(channel)
        yield SubmissionClient(stub, target, notify), channel


def exit_status(submission: pb.Submission) -> int:
    """The exit status of spark-submit: the driver's own exit code, where it failed with one."""
    if submission.state == pb.SUBMISSION_STATE_FINISHED:
        return 0
    return submission.exit_code if 0 < submission.exit_code < 256 else 1
