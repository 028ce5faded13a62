"""One attack, watched: memory and descriptors of the attacked daemon, and the waits of others.

    with Attack("2", "1,100 idle connections", on=agent, probe=("log", endpoint, token)) as seen:
        ...
        seen.outcome = "the oldest are closed"

At the end it has measured, determines whether the daemon was harmed (``Limits``), writes a row for
the table in docs/security.md if ``HRM_HOSTILE_ROWS`` names a file, and fails the test if it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from tests.conftest import PATIENCE
from tests.hostile.cluster import ROOT, Daemon, wait_until

__all__ = ["Attack", "Limits", "write_row"]

ROWS = os.environ.get("HRM_HOSTILE_ROWS", "")
"""Read before any test, because tests have nothing of HRM's in their environment."""
SAMPLE_S = 0.1
WARM_S = 1.0
"""How long the neighbour calls before the attack, so that its connection is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an attack's effects. A busy machine gets more time (``HRM_TEST_PATIENCE``)."""

    growth_mib: float = 100.0
    latency_s: float = 1.0
    descriptors: int = 0
    """Growth of open descriptors; 0: not checked."""
    refused: int = 0
    """How many of the neighbour's calls may fail."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the table."""

    point: str
    attack: str
    attacked: str
    before_mib: float | None = None
    peak_mib: float | None = None
    after_mib: float | None = None
    worst_s: float | None = None
    outcome: str = ""


def write_row(row: Row) -> None:
    """For ``.ci/hostile-report``, which collects rows."""
    if ROWS:
        with Path(ROWS).open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


class Attack:
    """See the module. ``settle_s``: how long after the end its memory is measured again."""

    def __init__(
        self,
        point: str,
        name: str,
        *,
        on: Daemon,
        probe: tuple[str, ...] = (),
        limits: Limits | None = None,
        settle_s: float = 2.0,
    ) -> None:
        self.row = Row(point=point, attack=name, attacked=on.name)
        self.outcome = ""
        self._daemon = on
        self._probe = probe
        self._limits = limits or Limits()
        self._settle_s = settle_s
        self._ending = threading.Event()
        self._peak_mib = 0.0
        self._descriptors = 0
        self._neighbour: subprocess.Popen[bytes] | None = None
        self._replies: Path | None = None
        self._begun_s = 0.0

    def __enter__(self) -> Attack:
        self._since = len(self._daemon.log())
        if self._probe:
            self._start_neighbour()
        self._before_descriptors = self._daemon.descriptors()
        self.row.before_mib = self._peak_mib = self._daemon.memory_mib()
        self._sampler = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self._sampler.start()
        self._begun_s = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._rest()
        finally:
            self._end()
        problems = [f"{kind.__name__ if kind else ''}: {error}"] if error else self._problems()
        self.row.outcome = self.outcome or "held"
        if problems:
            self.row.outcome = "HURT: " + "; ".join(problems)[:300]
        write_row(self.row)
        if error is None:
            assert not problems, f"{self.row}\n{self._daemon.log()[-3_000:]}"

    @property
    def descriptors(self) -> int:
        """The most that the daemon had open so far, beyond those before."""
        return self._descriptors - self._before_descriptors

    def replies(self) -> list[tuple[float, float, str]]:
        """The replies to the neighbour since the attack began: when, seconds, status."""
        if self._replies is None:
            return []
        lines = self._replies.read_text().splitlines()
        found = [tuple(json.loads(line)) for line in lines if line.endswith("]")]
        return [x for x in found if x[0] + x[1] >= self._begun_s]

    def _start_neighbour(self) -> None:
        folder = self._daemon.log_file.parent
        self._replies = folder / f"neighbour-{time.monotonic_ns()}.jsonl"
        with self._replies.open("wb") as file:
            self._neighbour = subprocess.Popen(
                [sys.executable, "-m", "tests.hostile.neighbour", *self._probe],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
            )
        wait_until(
            lambda: '"OK"' in (self._replies or Path()).read_text(), "the neighbour is answered"
        )
        time.sleep(WARM_S)  # measured from here on, without its start

    def _sample(self) -> None:
        while not self._ending.wait(SAMPLE_S):
            self._peak_mib = max(self._peak_mib, self._daemon.memory_mib())
            self._descriptors = max(self._descriptors, self._daemon.descriptors())

    def _rest(self) -> None:
        """Wait for one more reply to the neighbour, then for memory to fall."""
        ended_s = time.monotonic()
        if self._probe:
            wait_until(
                lambda: any(at_s >= ended_s for at_s, _, _ in self.replies()),
                "the neighbour is answered after the attack",
                60.0,
            )
        time.sleep(max(0.0, self._settle_s - (time.monotonic() - ended_s)))

    def _end(self) -> None:
        self._ending.set()
        self._sampler.join()
        if self._neighbour is not None:
            self._neighbour.kill()
            self._neighbour.wait()
        self.row.peak_mib = self._peak_mib
        self.row.after_mib = self._daemon.memory_mib()
        if replies := self.replies():
            self.row.worst_s = max(took_s for _, took_s, _ in replies)

    def _problems(self) -> list[str]:
        limits, row, found = self._limits, self.row, []
        if not self._daemon.alive():
            found.append(f"{self._daemon.name} ended with {self._daemon.process.returncode}")
        growth_mib = (row.peak_mib or 0.0) - (row.before_mib or 0.0)
        if growth_mib > limits.growth_mib:
            found.append(f"its memory grew by {growth_mib:.0f} MiB")
        if (row.worst_s or 0.0) > PATIENCE * limits.latency_s:
            found.append(f"another caller waited {row.worst_s:.1f} s")
        refused = [outcome_text for _, _, outcome_text in self.replies() if outcome_text != "OK"]
        if len(refused) > limits.refused:
            found.append(f"{len(refused)} calls of another caller failed ({refused[0]})")
        if limits.descriptors and self.descriptors > limits.descriptors:
            found.append(f"it held {self.descriptors} descriptors more")
        if unhandled := self._daemon.unhandled(self._since):
            found.append(f"{len(unhandled)} unhandled errors in its log: {unhandled[0][:200]!r}")
        return found
