"""``hrm pipeline`` on a client that a test plays: what it shows, and what an interrupt leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from typer.testing import Result

from hrm.cli.pipeline_views import workers_table
from hrm.errors import LimitReached, NotFound
from hrm.pipelines.client.outcome import TaskResult
from hrm.pipelines.client.result_file import ResultFile
from hrm.pipelines.client.tickets import Ticket
from hrm.pipelines.core.model import ResultFormat
from hrm.v1 import pipeline_pb2 as pb

Run = Callable[..., Result]
ARITHMETIC = "pipeline_samples.sample_steps:arithmetic"


def ticket(task_id: str) -> Ticket:
    return Ticket(task_id=task_id, result_key="", ownership_key="", result_format="json")


class PlayedTask:
    """``value``: of its result; an exception: what waiting for it raises."""

    def __init__(self, task_id: str, value: Any) -> None:
        self.task_id, self.value, self.is_cancelled = task_id, value, False

    def done(self) -> bool:
        return self.is_cancelled or not isinstance(self.value, BaseException)

    def when_done(self, _call: Callable[[], None]) -> None:
        pass

    def outcome(self, _timeout_s: float | None = None) -> TaskResult:
        if isinstance(self.value, BaseException):
            raise self.value
        return TaskResult(task_id=self.task_id, value=self.value, node="n1")


class PlayedClient:
    """``values``: of its tasks, in turn."""

    target = "127.0.0.1:1"
    values: list[Any]
    responds = True

    def __init__(self, *_words: Any, **more: Any) -> None:
        self.more = more
        self._tasks = [PlayedTask(f"t{n}", value) for n, value in enumerate(self.values)]
        self._next = iter(self._tasks)

    def __enter__(self) -> PlayedClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def submit(self, *_words: Any, **_more: Any) -> PlayedTask:
        return next(self._next)

    def send(self, *_words: Any, **_more: Any) -> Ticket:
        task = next(self._next)
        if isinstance(task.value, BaseException):
            raise task.value
        return ticket(task.task_id)

    def attach(self, _ticket: Ticket) -> PlayedTask:
        return next(self._next)

    def cancel_all(self, tasks: list[PlayedTask], _reason: str) -> None:
        for one in tasks:
            one.is_cancelled = self.responds

    def tasks(self, **_more: Any) -> pb.ListPipelineTasksResponse:
        return pb.ListPipelineTasksResponse()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[PlayedClient]:
    class Played(PlayedClient):
        values: list[Any] = []  # noqa: RUF012 - a class for each test

    monkeypatch.setattr("hrm.pipelines.client.client.Client", Played)
    monkeypatch.setenv("HRM_HOME", str(tmp_path))
    return Played


def inputs(count: int) -> list[str]:
    return ["--as", "json", *(word for n in range(count) for word in ("-i", str(n)))]


def a_file(path: Path) -> ResultFile:
    return ResultFile(
        path=path, size=7, node="n1", kind=ResultFormat.JSON, wanted=ResultFormat.JSON,
        task_id="t0", placement=1, proof=b"", key=b"",
    )  # fmt: skip


def test_what_an_empty_list_says_to_type_is_a_command(hrm: Run, played: type[PlayedClient]) -> None:
    _, _, hint = hrm("pipeline", "list").stderr.partition("to run one: hrm ")
    words = hint.split()
    typed = hrm(*(str(__file__) if word == "FILE" else word for word in words))
    assert typed.exit_code == 1 and "the module 'MODULE'" in typed.stderr, "nothing is missing"


def test_json_has_the_values_and_pythons_text_only_of_what_json_lacks(
    hrm: Run, played: type[PlayedClient]
) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    plain = {"a": [1, 2.5, None, True, "ü"], "b": {}}
    path = Path("/mnt/shared/t1.json")
    played.values = [plain, a_file(path), (1, 2), float("nan"), {1: 2}, None, Odd()]
    done = hrm("pipeline", "run", ARITHMETIC, *inputs(7), "-o", "json")
    results = json.loads(done.stdout)["results"]
    assert [(one["value"], one.get("value_repr")) for one in results] == [
        (plain, None),
        ({"path": str(path), "size": 7}, None),
        (None, "(1, 2)"),
        (None, "nan"),
        (None, "{1: 2}"),
        (None, None),
        (None, f"<{Odd.__qualname__}, whose repr raises ValueError>"),
    ]
    assert "value_repr" not in results[5]


def test_the_path_of_a_result_is_shown_as_a_whole(hrm: Run, played: type[PlayedClient]) -> None:
    path = Path("/mnt", "long" * 30, "t0.json")
    played.values = [a_file(path), "long" * 30]
    shown = hrm("pipeline", "run", ARITHMETIC, *inputs(2)).stdout
    assert str(path) in shown
    assert "long" * 30 not in shown.replace(str(path), ""), "other values are truncated"


@pytest.mark.parametrize("command", ["run", "submit"])
def test_an_interrupted_run_says_how_many_tasks_it_cancels(
    hrm: Run, played: type[PlayedClient], command: str
) -> None:
    played.values = [1, KeyboardInterrupt(), KeyboardInterrupt()]
    done = hrm("pipeline", command, ARITHMETIC, *inputs(3))
    assert done.exit_code == 130
    assert done.stderr == "interrupted: cancelling 2 of 3 tasks; 1 had ended\n"
    played.responds = False
    done = hrm("pipeline", command, ARITHMETIC, *inputs(3))
    assert done.exit_code == 130
    assert "127.0.0.1:1 has not confirmed that 2 of them are cancelled" in done.stderr


def test_an_interrupted_submission_says_what_goes_on(hrm: Run, played: type[PlayedClient]) -> None:
    played.values = [1, 1, KeyboardInterrupt()]
    done = hrm("pipeline", "submit", ARITHMETIC, *inputs(3), "--detach", "-o", "json")
    assert done.exit_code == 130
    assert "interrupted: 2 of 3 tasks are submitted, and go on; to read" in done.stderr
    assert "one more may have arrived at the master" in done.stderr
    assert json.loads(done.stdout) == {"tasks": ["t0", "t1"]}
    played.values = [1, LimitReached("full")]
    done = hrm("pipeline", "submit", ARITHMETIC, *inputs(2), "--detach")
    assert done.exit_code == 1 and done.stdout == "t0\n"
    assert "1 of 2 tasks are submitted, and go on" in done.stderr and "full" in done.stderr


def test_an_interrupted_wait_says_that_the_task_goes_on(
    hrm: Run, played: type[PlayedClient]
) -> None:
    played.values = [KeyboardInterrupt()]
    ticket("t0").save()
    done = hrm("pipeline", "result", "t0")
    assert done.exit_code == 130
    assert "task t0 goes on; to read its result later: hrm pipeline result t0" in done.stderr


def test_what_was_forgotten_may_be_why_a_result_is_not_there(
    hrm: Run, played: type[PlayedClient]
) -> None:
    with pytest.raises(NotFound, match="or has been forgotten"):
        Ticket.load("t0")


def test_a_worker_shows_its_wait_and_the_p90_of_one_that_reports_it() -> None:
    response = pb.ListPipelineTasksResponse(policy="min-wait")
    response.nodes.add().load.expected_wait_s = 4.0
    reports = response.nodes.add().load
    reports.expected_wait_s, reports.expected_wait_p90_s = 4.0, 7.25
    columns = {str(column.header): list(column.cells) for column in workers_table(response).columns}
    assert columns["expected wait s"] == ["4.0", "4.0"]
    assert columns["P90"] == ["", "7.2"]
