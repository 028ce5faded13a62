"""Make the class-data archives of a Spark by running its smallest application.

One run of ``rehearsal.py`` on a cluster of one executor creates both archives. Each is tested with
a JVM of its own, and moved to its place only if Java really takes classes from it. A lock admits
one trainer at a time; an attempt is counted before it begins, so that one that crashes the machine
is not repeated without end.

    python -m hrm.spark.archive_training --root DIR --java JAVA --spark-home DIR --plugins DIR

ends with 0 if there are archives afterwards, 1 if it failed, 3 if another process trains. With
``--held-by-input`` it ends with its standard input, a pipe that its agent holds: a training never
outlives it. Such an end is not a failure, and the attempt is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from hrm.errors import HrmError
from hrm.spark import archive, build
from hrm.spark.archive import (
    KINDS,
    LOCK_FILE,
    STATE_FILE,
    UNFINISHED,
    Archives,
    argument_file,
    write_json,
)

__all__ = ["ATTEMPTS_MAX", "BUSY", "TRAINING_LIMIT_S", "TrainingFailed", "train"]

ATTEMPTS_MAX = 3
"""The default."""
TRAINING_LIMIT_S = 600.0
KEPT_MAX = 4
BUSY = 3
_WORK = "work-"
_TRIAL_LIMIT_S = 120.0
_EXIT_ON_SIGTERM = 128 + signal.SIGTERM
_PR_SET_PDEATHSIG = 1
_TRIALS = {
    "executor": ("org.apache.spark.executor.CoarseGrainedExecutorBackend",),
    "driver": ("org.apache.spark.deploy.SparkSubmit", "--version"),
}
_TAKEN = "shared objects file (top)"
_TAKEN_MIN = 100
_SETTINGS = {
    "spark.authenticate": "true",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.eventLog.enabled": "true",
}


class TrainingFailed(HrmError):
    """The training produced no archive; the message gives the reason."""


class _LetGo(SystemExit):
    """The process that requested the archives has ended: not a failure."""


def train(
    archives: Archives,
    *,
    plugins: Path,
    limit_s: float = TRAINING_LIMIT_S,
    attempts_max: int = ATTEMPTS_MAX,
) -> bool:
    """Make the archives, unless they exist; False: another process is training.

    ``plugins``: where the plugin's jar is kept. ``attempts_max``: failures after which to stop.

    Raises:
        TrainingFailed: this time, or too often before.
    """
    if not build.has_hadoop(map(os.path.basename, archives.jars)):
        raise TrainingFailed("this Spark comes without Hadoop, whose classes no archive would have")
    directory = Path(archives.directory)
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = (directory / LOCK_FILE).open("a")
    except OSError as error:
        raise TrainingFailed(f"cannot write {directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if any(map(archives.problem, KINDS)):
            _attempt(archives, plugins, limit_s, attempts_max)
    _forget_old(archives)
    return True


def _attempt(archives: Archives, plugins: Path, limit_s: float, attempts_max: int) -> None:
    state = archives.state()
    attempts = state.get("attempts", 0)
    before = attempts if isinstance(attempts, int) and state.get("state") != "ready" else 0
    if before >= attempts_max:
        raise TrainingFailed(f"failed {before} times, the last time: {state.get('problem')}")
    record: dict[str, Any] = {
        "state": UNFINISHED,  # what is found where the training was killed
        "attempts": before + 1,
        "problem": "the training run that makes the archive has not ended, or was interrupted",
        "java": archives.java,
        "spark": archives.spark_version,
    }
    _write(archives, record)
    begun = time.monotonic()
    try:
        _make(archives, plugins, record, limit_s)
    except _LetGo:
        _take_back(archives, state)
        raise
    except (TrainingFailed, build.BuildError, OSError, psutil.Error) as error:
        _write(archives, {**record, "state": "failed", "problem": str(error)})
        raise TrainingFailed(str(error)) from error
    took_s = round(time.monotonic() - begun, 1)
    _write(archives, {**record, "state": "ready", "problem": "", "took_s": took_s})


def _take_back(archives: Archives, state: dict[str, object]) -> None:
    """Remove this attempt from the record."""
    path = Path(archives.directory) / STATE_FILE
    if state:
        write_json(str(path), state)
    else:
        path.unlink(missing_ok=True)


def _write(archives: Archives, record: Mapping[str, Any]) -> None:
    write_json(os.path.join(archives.directory, STATE_FILE), {**record, "at_s": time.time()})  # noqa: PTH118


def _make(archives: Archives, plugins: Path, record: dict[str, Any], limit_s: float) -> None:
    """Run, try, move to its place; the files' identities go into ``record``."""
    directory = Path(archives.directory)
    for left in directory.glob(f"{_WORK}*"):  # of a killed training: only the lock's holder runs
        shutil.rmtree(left, ignore_errors=True)
    plugin = build.plugin_jar(archives.spark_home, cache=str(plugins))
    with tempfile.TemporaryDirectory(dir=directory, prefix=_WORK) as name:
        work = Path(name)
        log = directory / "train.log"
        command, environment = _command(archives, plugin, work)
        status = _run(command, environment, work, log, limit_s)
        if status != 0:
            raise TrainingFailed(f"the rehearsal ended with status {status}; see {log}")
        for kind in KINDS:
            made = work / f"{kind}.jsa"
            if not made.is_file():
                raise TrainingFailed(f"Java wrote no {kind} archive; see {log}")
            _try(archives, kind, made, work)
            made.chmod(0o644)
            file_status = made.stat()
            record[kind] = [file_status.st_size, file_status.st_mtime_ns]
            made.replace(archives.path(kind))


def _command(archives: Archives, plugin: str, work: Path) -> tuple[list[str], dict[str, str]]:
    """The rehearsal: exactly how ``spark-submit`` starts a driver that has an archive, and the
    agent an executor, but for the option that creates one."""
    secret = secrets.token_hex(32)
    path = ":".join(archives.jars)
    for directory in ("conf", "events", "local"):
        (work / directory).mkdir()
    properties = work / "spark.properties"
    properties.touch(mode=0o600)
    settings = {
        **_SETTINGS,
        "spark.eventLog.dir": (work / "events").as_uri(),
        "spark.authenticate.secret": secret,
    }
    properties.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    for kind in KINDS:
        write = [f"-XX:ArchiveClassesAtExit={work / f'{kind}.jsa'}", "-Xlog:cds*=off"]
        (work / f"{kind}.args").write_text(argument_file([*write, "-cp", path]))
    executor = [
        archives.java, f"@{work / 'executor.args'}", "-Xmx512m", "{{JAVA_OPTIONS}}",
        "org.apache.spark.executor.CoarseGrainedExecutorBackend",
        "--driver-url", "{{DRIVER_URL}}", "--executor-id", "1", "--hostname", "127.0.0.1",
        "--cores", "1", "--app-id", "{{APP_ID}}", "--resourceProfileId", "0",
    ]  # fmt: skip
    (work / "executor").write_text("\n".join(executor) + "\n")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "LANG": "C.UTF-8",
        "HOME": os.environ.get("HOME", "/"),
        "JAVA_HOME": str(Path(archives.java).parent.parent),
        "SPARK_HOME": archives.spark_home,
        "SPARK_CONF_DIR": str(work / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(work / "local"),
        "TMPDIR": str(work / "local"),
        "SPARK_SUBMIT_OPTS": f"@{work / 'driver.args'}",
        "HRM_REHEARSAL_EXECUTOR": str(work / "executor"),
        "PYSPARK_PYTHON": sys.executable,
    }
    submit = Path(archives.spark_home) / "bin" / "spark-submit"
    application = Path(__file__).with_name("rehearsal.py")
    return [
        str(submit), "--master", "spark+rehearsal", "--properties-file", str(properties),
        "--jars", plugin, str(application), str(work / "data"),
    ], environment  # fmt: skip


def _try(archives: Archives, kind: str, made: Path, work: Path) -> None:
    """Check that Java takes classes from the archive: it would not report if it did not."""
    log = work / f"{kind}.classes"
    arguments = work / f"{kind}.trial"
    flags = [*archive.flags(str(made)), f"-Xlog:class+load:file={log}"]
    arguments.write_text(argument_file([*flags, "-cp", ":".join(archives.jars)]))
    environment = {"PATH": os.environ.get("PATH", os.defpath), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [archives.java, f"@{arguments}", *_TRIALS[kind]]
    _run(command, environment, work, work / f"{kind}.log", _TRIAL_LIMIT_S)
    with contextlib.suppress(OSError), log.open() as lines:
        if sum(_TAKEN in line for line in lines) >= _TAKEN_MIN:
            return
    raise TrainingFailed(f"Java does not accept the {kind} archive that it has just written")


def _run(
    command: Sequence[str], environment: Mapping[str, str], work: Path, log: Path, limit_s: float
) -> int:
    """Run ``command`` in a session of its own; its remaining processes are killed at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=work,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise TrainingFailed(f"not done within {limit_s:.0f} s; see {log}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _forget_old(archives: Archives) -> None:
    """Keep the newest: every change of a jar, or of Java, leaves an archive behind."""
    own = Path(archives.directory)
    made: dict[Path, float] = {}
    for path in Path(archives.root).iterdir():
        with contextlib.suppress(OSError):  # another process may remove it now
            if path.is_dir() and path != own:
                made[path] = path.stat().st_mtime
    for old in sorted(made, key=made.__getitem__, reverse=True)[KEPT_MAX - 1 :]:
        with _unless_locked(old) as free:
            if free:
                shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _unless_locked(directory: Path) -> Iterator[bool]:
    try:
        with (directory / LOCK_FILE).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
    except OSError:
        yield False


def _end_with_input() -> None:
    """Make this process end when its standard input ends."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        signal.pthread_kill(main_thread, signal.SIGTERM)

    main_thread = threading.get_ident()
    threading.Thread(target=watch, name="hrm-input", daemon=True).start()


def _on_sigterm(*, held_by_input: bool) -> NoReturn:
    """SIGTERM, which may come twice: from the watcher and from the agent. The second is ignored,
    because it would interrupt the cleanup after the first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if held_by_input and _input_is_over():
        raise _LetGo(_EXIT_ON_SIGTERM)
    raise SystemExit(_EXIT_ON_SIGTERM)


def _input_is_over() -> bool:
    """Nothing is ever written to it, so it becomes readable only at its end."""
    return bool(select.select([0], [], [], 0)[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train at the lowest priority; prints the result as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m hrm.spark.archive_training")
    parser.add_argument("--root", required=True)
    parser.add_argument("--java", required=True)
    parser.add_argument("--spark-home", required=True)
    parser.add_argument("--plugins", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=TRAINING_LIMIT_S)
    parser.add_argument("--attempts", type=int, default=ATTEMPTS_MAX)
    parser.add_argument("--held-by-input", action="store_true")
    given = parser.parse_args(arguments)
    os.nice(19)
    with contextlib.suppress(OSError, psutil.Error):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    held = given.held_by_input
    signal.signal(signal.SIGTERM, lambda *_: _on_sigterm(held_by_input=held))
    if held:
        _end_with_input()
    archives = Archives(given.root, given.java, given.spark_home)
    try:
        done = train(
            archives,
            plugins=given.plugins,
            limit_s=given.limit_s,
            attempts_max=given.attempts,
        )
    except TrainingFailed as error:
        sys.stdout.write(json.dumps({"problem": error.message}) + "\n")
        return 1
    return 0 if done else BUSY


if __name__ == "__main__":
    sys.exit(main())
