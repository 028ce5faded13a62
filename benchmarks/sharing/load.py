"""What is submitted in an arm: the stream with its files, and batch jobs, so many at a time.

The applications, their arguments and their settings are the same in all arms, and so is what comes
to the stream and when. Whether they get executors is up to the manager.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.clusters import Cluster, Submission
from benchmarks.processes import BenchmarkError, wait_until
from benchmarks.sharing.inputs import TOP, Inputs
from benchmarks.sharing.machine import is_container
from benchmarks.sharing.plan import Plan, files_at, job_name
from benchmarks.sharing.store import paced, paced_settings

__all__ = [
    "END_LIMIT_S",
    "POLL_S",
    "Backlog",
    "Feed",
    "await_empty",
    "begin_stream",
    "kept_up",
    "now",
    "submit_stream",
]

END_LIMIT_S = 180.0
POLL_S = 0.2
_APP = Path(__file__).resolve().parent.parent / "apps" / "elastic_topk.py"
_READY_LIMIT_S = 240.0
_STEADY_LIMIT_S = 180.0
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""The second compiler does not pay for itself within minutes, and takes cores from the tasks."""


class Feed:
    """Brings the stream its files, as many at each trigger as the plan says."""

    def __init__(self, plan: Plan, files: Sequence[Path], target: Path) -> None:
        self._plan = plan
        self._files = files
        self._target = target
        self._stop = threading.Event()
        self._window_tick: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.delivered_s: list[float] = []
        self.tick = 0

    def start(self) -> None:
        self._target.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def begin_window(self) -> None:
        """From the next trigger on the load is that of the window."""
        self._window_tick = self.tick

    def end(self) -> int:
        """No more files; how many there were."""
        self._stop.set()
        self._thread.join(10.0)
        return len(self.delivered_s)

    def _run(self) -> None:
        origin_s = time.monotonic()
        while not self._stop.wait(max(0.0, origin_s + self.tick * self._plan.trigger_s - now())):
            window = self._window_tick
            self._deliver(files_at(self._plan, -1 if window is None else self.tick - window))
            self.tick += 1

    def _deliver(self, count: int) -> None:
        for _ in range(count):
            number = len(self.delivered_s)
            if number == len(self._files):
                return
            partial = self._target / f".{number:05d}"
            shutil.copyfile(self._files[number], partial)
            partial.rename(self._target / f"{number:05d}.txt")
            self.delivered_s.append(time.time())


def now() -> float:
    return time.monotonic()


@dataclass(slots=True)
class Backlog:
    """Keeps so many batch jobs submitted, in the order of the list: as many to each queue.

    ``jobs_max``: there are no more in the list; None: it has no end. ``more``: settings of each.
    """

    cluster: Cluster
    inputs: Inputs
    plan: Plan
    directory: Path
    queues: Sequence[str] = ("",)
    jobs_max: int | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    live: list[tuple[int, Submission]] = field(default_factory=list)
    ended: list[tuple[int, float]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    queue_of: list[str] = field(default_factory=list)
    begun_s: float = 0.0

    @property
    def submitted(self) -> int:
        return len(self.queue_of)

    @property
    def is_over(self) -> bool:
        """Has every job of the list ended?"""
        return self.jobs_max is not None and len(self.ended) >= self.jobs_max

    def place(self, number: int) -> Path:
        return self.directory / f"batch-{number:02d}"

    def turn(self) -> None:
        """Note what has ended, and submit as many."""
        for number, submission in list(self.live):
            if not submission.running:
                self.live.remove((number, submission))
                self.ended.append((number, time.time()))
                self._check(number, submission)
        while len(self.live) < self.plan.backlog and self.submitted != self.jobs_max:
            self.begun_s = self.begun_s or time.time()
            live = [self.queue_of[number] for number, _ in self.live]
            number = self.submitted
            self.queue_of.append(min(self.queues, key=live.count))
            self.live.append((number, self._submit(number)))

    def _submit(self, number: int) -> Submission:
        plan, where = self.plan, self.place(number)
        job = self.inputs.jobs[job_name(number, plan.queries)]
        settings = _settings(self.cluster, plan, where, plan.batch_executors, self.queue_of[number])
        settings |= paced_settings(self.inputs.jar, plan.batch_bytes_per_s, plan.split_bytes)
        settings |= self.more
        return self.cluster.submit(job.app, job.arguments(where), where, settings)

    def _check(self, number: int, submission: Submission) -> None:
        name = job_name(number, self.plan.queries)
        try:
            result = submission.result(END_LIMIT_S)
            found = self.inputs.jobs[name].check(result, self.place(number))
        except (BenchmarkError, OSError) as error:
            found = [str(error)]
        self.complaints += [f"batch job {number}, {name}: {text}" for text in found]

    def stop(self) -> None:
        for _, submission in self.live:
            submission.process.process.terminate()
        for _, submission in self.live:
            submission.stop()


def _settings(
    cluster: Cluster, plan: Plan, directory: Path, executors: int, queue: str = ""
) -> dict[str, str]:
    events = directory / "events"
    events.mkdir(parents=True, exist_ok=True)
    return {
        **({"spark.hrm.queue": queue} if queue else {}),
        **cluster.submit_settings(),
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.instances": str(executors),
        "spark.cores.max": str(executors * plan.slots),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    }


def submit_stream(
    cluster: Cluster, inputs: Inputs, plan: Plan, directory: Path, watched: Path,
    queue: str = "", more: Mapping[str, str] | None = None,
) -> Submission:  # fmt: skip
    """Submit the stream, which reads the files that come to ``watched``; ``more``: settings."""
    where = directory / "stream"
    most = plan.stream_executors_max
    settings = _settings(cluster, plan, where, most, queue)
    settings["spark.executor.instances"] = "1"
    file_bytes = inputs.stream[0].stat().st_size
    settings |= paced_settings(inputs.jar, round(file_bytes / plan.file_s), 2 * file_bytes)
    settings |= more or {}
    arguments: list[object] = [
        "--input", paced(watched), "--rows-per-file", plan.rows_per_file, "--slots", plan.slots,
        "--executors-max", most, "--trigger-s", plan.trigger_s, "--k", TOP,
        "--ready", directory / "ready", "--steady", directory / "steady",
        "--stop", directory / "stop",
        "--timeout", _READY_LIMIT_S + plan.window_s + plan.makespan_limit_s + END_LIMIT_S,
        "--checkpoint", where / "checkpoint",
    ]  # fmt: skip
    return cluster.submit(_APP, arguments, where, settings)


def begin_stream(stream: Submission, feed: Feed, directory: Path) -> None:
    """Until it keeps up with its base load.

    Raises:
        BenchmarkError: it has ended, or does not.
    """
    _wait_for(stream, (directory / "ready").exists, _READY_LIMIT_S, "the stream to begin")
    feed.start()
    steady = directory / "steady"
    _wait_for(stream, steady.exists, _STEADY_LIMIT_S, "the stream to keep up with its base load")


@contextlib.contextmanager
def kept_up(backlog: Backlog | None) -> Iterator[None]:
    """Jobs are submitted; the caller calls ``turn``, and what is left at the end is ended."""
    if backlog is None:
        yield
        return
    backlog.turn()
    try:
        yield
    finally:
        backlog.stop()


def _wait_for(stream: Submission, condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """As ``wait_until``, while the stream runs."""

    def holds() -> bool:
        if not stream.running:
            stream.result(1.0)
        return condition()

    wait_until(holds, limit_s, what)


def await_empty(clusters: Iterable[Cluster]) -> None:
    """Until no container of theirs runs: each does so in a directory of its cluster's."""
    places = [cluster.directory.resolve() for cluster in clusters]

    def empty() -> bool:
        for process in psutil.process_iter(["cmdline"]):
            if is_container(process.info["cmdline"] or []):
                with contextlib.suppress(psutil.Error, OSError):
                    if any(Path(process.cwd()).is_relative_to(place) for place in places):
                        return False
        return True

    wait_until(empty, END_LIMIT_S, "the containers of the last run to end", 0.5)
