"""A submission's states go to the program that started it, and its wish to stop comes back."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from hrm.cli.launcher_relay import LauncherRelay
from hrm.v1 import submission_pb2 as pb

LIMIT_S = 20.0
JVM = """
import sys
said = open(sys.argv[1], "w")
for line in sys.stdin:
    said.write(line)
    said.flush()
    if line == "running app-1\\n":
        print("stop", flush=True)
"""


def relay(said: Path, program: str = JVM) -> LauncherRelay:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(said)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return LauncherRelay(process)


def test_each_state_is_said_once_and_the_wish_to_stop_is_heard(tmp_path: Path) -> None:
    said, stopped = tmp_path / "said", threading.Event()
    subject = relay(said)
    subject.on_stop(stopped.set)
    submission = pb.Submission(state=pb.SUBMISSION_STATE_SUBMITTED)
    subject.show(submission)
    submission.state = pb.SUBMISSION_STATE_RUNNING
    subject.show(submission)
    submission.application_ids.append("app-1")
    subject.show(submission)
    subject.show(submission)
    assert stopped.wait(LIMIT_S)
    submission.application_ids.append("app-2")  # of its second driver
    subject.show(submission)
    submission.state = pb.SUBMISSION_STATE_KILLED
    subject.show(submission)
    subject.close()
    assert said.read_text().splitlines() == [
        "submitted", "running app-1", "running app-2", "ended KILLED",
    ]  # fmt: skip


def test_a_jvm_that_is_gone_disturbs_no_submission(tmp_path: Path) -> None:
    subject = relay(tmp_path / "said", "raise SystemExit(1)")
    subject._process.wait(LIMIT_S)
    for state in (pb.SUBMISSION_STATE_SUBMITTED, pb.SUBMISSION_STATE_FAILED):
        subject.show(pb.Submission(state=state))
    subject.close()
