"""SparkLauncher follows a submission: its states go there, its wish to stop comes back.

A program that starts ``spark-submit`` by Spark's ``SparkLauncher`` names a port of its own in the
environment, where drivers report. In cluster deploy mode ``hrm submit`` takes the driver's part.
The protocol is Java's serialisation, so a small JVM with HRM's plugin speaks it
(``hrm/spark/plugin/LauncherRelay.scala``), in lines of text on its standard input and output.

It is a convenience: where that JVM cannot run, the submission goes on, and a warning says why.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from hrm import errors
from hrm.cli import console
from hrm.spark.submit import ENDED, state_name
from hrm.v1 import submission_pb2 as pb

__all__ = ["LauncherRelay", "relay"]

MAIN_CLASS = "org.apache.spark.scheduler.cluster.hrm.LauncherRelay"
END_LIMIT_S = 10.0
_JVM = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class LauncherRelay:
    """The states of one submission for the program behind ``process``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._submitted = False
        self._application_id = ""
        self._listener: threading.Thread | None = None

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Call ``stop``, in a thread of its own, when the launcher wants the application ended."""
        self._listener = threading.Thread(target=self._listen, args=(stop,), daemon=True)
        self._listener.start()

    def show(self, submission: pb.Submission) -> None:
        """Report what has changed. An application has an id once its driver has registered it."""
        if not self._submitted:
            self._submitted = True
            self._say("submitted")
        application_id = submission.application_ids[-1] if submission.application_ids else ""
        if application_id != self._application_id:
            self._application_id = application_id
            self._say(f"running {application_id}")
        if submission.state in ENDED:
            self._say(f"ended {state_name(submission.state)}")

    def close(self) -> None:
        """End the JVM, once it has passed on what was written."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_LIMIT_S)
        if self._listener is not None:
            self._listener.join(END_LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the JVM is gone, and has said why
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _listen(self, stop: Callable[[], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "stop":
                stop()


@contextlib.contextmanager
def relay() -> Iterator[LauncherRelay | None]:
    """The relay to the program that started this one; None: it cannot run."""
    found = _started()
    try:
        yield found
    finally:
        if found is not None:
            found.close()


def _started() -> LauncherRelay | None:
    from hrm.spark import build
    from hrm.spark.launch import find_java, find_spark

    try:
        spark = find_spark()
        class_path = [Path(build.plugin_jar(str(spark.home))), spark.home / "jars" / "*"]
        process = subprocess.Popen(
            [str(find_java().command), *_JVM, "-cp", ":".join(map(str, class_path)), MAIN_CLASS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
    except (errors.HrmError, build.BuildError, OSError) as error:
        console.note(f"HRM: warning: the launcher of this program cannot follow it: {error}")
        return None
    return LauncherRelay(process)
