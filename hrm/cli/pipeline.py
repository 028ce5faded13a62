"""``hrm pipeline run|submit|result|list|cancel``: pipelines from the shell, a client like any
program's."""

from __future__ import annotations

import contextlib
import enum
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hrm import errors
from hrm.cli.client import document
from hrm.cli.console import Output, error_line, note, print_json, view
from hrm.cli.pipeline_views import result_document, results_table, tasks_table, workers_table
from hrm.cli.queries import TIMEOUT_S, MasterOption, OutputOption, TimeoutOption
from hrm.cli.signals import sigterm_as_interrupt

if TYPE_CHECKING:
    from hrm.pipelines.client.client import Client, Task
    from hrm.pipelines.client.outcome import TaskResult

__all__ = ["app"]

NOTE_AFTER_S = 3.0
NO_WORKERS = "no worker of a pipeline runs; they start as tasks come"
FORMAT_HELP = (
    "auto, json, arrow or pickle; empty: the pipeline's. A result that comes as json or arrow is "
    "data, and is never unpickled."
)

app = typer.Typer(no_args_is_help=True)
group = typer.Typer(no_args_is_help=True, help="Run pipelines of Python functions on the cluster.")
app.add_typer(group, name="pipeline")


class InputKind(enum.StrEnum):
    """What the pipeline gets for one ``--input``."""

    PATH = "path"
    BYTES = "bytes"
    JSON = "json"


class Class(enum.StrEnum):
    """How its tasks are treated where they wait."""

    BATCH = "batch"
    STREAM = "stream"


ReferenceArgument = Annotated[
    str, typer.Argument(metavar="MODULE:PIPELINE", help="Importable from this directory.")
]
InputsOption = Annotated[
    list[str], typer.Option("--input", "-i", help="One task's input; may be repeated.")
]
KindOption = Annotated[
    InputKind,
    typer.Option(
        "--as",
        help="What an --input is: a file whose path nodes can open, too; a file whose bytes are "
        "sent; or JSON.",
    ),
]
SizeOption = Annotated[
    float, typer.Option(min=0.0, help="Size of each input, for schedulers. 0: as measured.")
]
ClassOption = Annotated[Class, typer.Option("--class", help="Streams go first.")]
FormatOption = Annotated[str | None, typer.Option("--result-format", help=FORMAT_HELP)]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--node-label", help="That a node must have to run them; may be repeated."),
]
DirOption = Annotated[
    Path | None,
    typer.Option(
        "--result-dir",
        help="Results stay in this directory, which nodes share; nothing of them passes the "
        "master.",
    ),
]
QueueOption = Annotated[
    str, typer.Option("--queue", help="Of the application that the tasks are; else by rules.")
]


@group.command()
def run(
    reference: ReferenceArgument,
    inputs: InputsOption,
    kind: KindOption = InputKind.PATH,
    size_mb: SizeOption = 0.0,
    workload: ClassOption = Class.BATCH,
    save: Annotated[
        Path | None, typer.Option(help="Pickle each result into this directory, as N.pickle.")
    ] = None,
    result_format: FormatOption = None,
    result_dir: DirOption = None,
    queue: QueueOption = "",
    labels: LabelsOption = None,
    here: Annotated[
        bool, typer.Option("--here", help="In this process, without a cluster.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds until what is left is cancelled.")
    ] = 3600.0,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a pipeline over inputs and show what came back, and how long each step took."""
    from hrm.pipelines.client.sources import load

    pipeline = load(reference)
    values = [_value(text, kind) for text in inputs]
    sizes = [size_mb or _size_mb(text, kind) for text in inputs]
    if here:
        results = [_here(pipeline, value) for value in values]
    else:
        tasks = list(zip(values, sizes, strict=True))
        results = _on_cluster(
            pipeline, tasks, workload, master, queue, labels, timeout, result_format, result_dir
        )
    if save is not None:
        _save(results, save)
    if output is Output.JSON:
        print_json(
            {"results": [result_document(x, one) for x, one in zip(inputs, results, strict=True)]}
        )
    else:
        view(results_table(inputs, results))
        for one in results:
            for text in sorted({run.message for run in one.runs if run.ok and run.message}):
                note(text)
    failed = [one for one in results if not one.ok]
    for one in failed:
        error_line(f"task {one.task_id}: {one.error}")
    if failed:
        raise typer.Exit(1)


@group.command()
def submit(
    reference: ReferenceArgument,
    inputs: InputsOption,
    kind: KindOption = InputKind.PATH,
    size_mb: SizeOption = 0.0,
    workload: ClassOption = Class.BATCH,
    result_format: FormatOption = None,
    result_dir: DirOption = None,
    queue: QueueOption = "",
    labels: LabelsOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the master has the tasks.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds until what is left is cancelled.")
    ] = 3600.0,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a pipeline's tasks; with --detach their results are fetched later."""
    from hrm.pipelines.client.sources import load

    if not detach:
        run(
            reference, inputs, kind, size_mb, workload, None, result_format, result_dir, queue,
            labels, False, timeout, master, output,
        )  # fmt: skip
        return
    pipeline = load(reference)
    values = [(_value(x, kind), size_mb or _size_mb(x, kind)) for x in inputs]
    sent: list[str] = []
    with sigterm_as_interrupt(), _client(master, queue, labels, result_dir) as client:
        try:
            for value, size in values:
                ticket = client.send(
                    pipeline, value, size_mb=size, workload=workload.value,
                    result_format=result_format,
                )  # fmt: skip
                ticket.save()
                sent.append(ticket.task_id)
                if output is not Output.JSON:
                    print(ticket.task_id, flush=True)
        except (KeyboardInterrupt, errors.HrmError) as error:
            _note_what_goes_on(sent, len(values), interrupted=isinstance(error, KeyboardInterrupt))
            raise
        finally:
            if output is Output.JSON and sent:
                print_json({"tasks": sent})


@group.command()
def result(
    task_id: Annotated[
        str, typer.Argument(metavar="ID", help="As `hrm pipeline submit --detach` printed it.")
    ],
    save: Annotated[Path | None, typer.Option(help="Pickle the result into this file.")] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Drop it at the master once it is here.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for its end.")] = 3600.0,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Wait for a task that was submitted with --detach, and show its result."""
    from hrm.pipelines.client.client import Client
    from hrm.pipelines.client.tickets import Ticket

    ticket = Ticket.load(task_id)
    with sigterm_as_interrupt(), Client(master) as client:
        try:
            one = client.attach(ticket).outcome(timeout)
        except KeyboardInterrupt:
            note(
                f"interrupted: task {task_id} goes on; to read its result later: "
                f"hrm pipeline result {task_id}"
            )
            raise
        except TimeoutError as error:
            raise errors.Unavailable(str(error)) from None
        if forget:
            client.forget(ticket)
    if save is not None and one.ok:
        _save_to(one, save)
    if output is Output.JSON:
        print_json({"results": [result_document("", one)]})
    else:
        view(results_table([task_id], [one]))
    if not one.ok:
        error_line(f"task {one.task_id}: {one.error}")
        raise typer.Exit(1)
    if forget:
        ticket.forget()


@group.command(name="list")
def list_tasks(
    everything: Annotated[bool, typer.Option("--all", help="Include ended ones.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="At most this many, the latest; 0: all.")
    ] = 0,
    master: MasterOption = None,
    output: OutputOption = Output.TABLE,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """List pipeline tasks and the workers that run them."""
    from hrm.pipelines.client.client import Client

    with Client(master, patience_s=0.0, call_timeout_s=timeout) as client:
        response = client.tasks(everything=everything, limit=limit)
    if output is Output.JSON:
        print_json(document(response))
        return
    if response.nodes:
        view(workers_table(response))
    else:
        note(NO_WORKERS)
    if response.tasks:
        view(tasks_table(response.tasks))
    else:
        ended = "" if everything else " waits or runs; hrm pipeline list --all shows ended ones"
        note(f"no pipeline task{ended}; to run one: hrm pipeline run MODULE:PIPELINE --input FILE")


@group.command()
def cancel(
    task_id: Annotated[
        str, typer.Argument(metavar="ID", help="A task's id; `hrm pipeline list` lists them.")
    ],
    master: MasterOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Cancel a task; its running subtasks are stopped."""
    from hrm.pipelines.client.client import Client

    with Client(master, patience_s=0.0, call_timeout_s=timeout) as client:
        client.cancel(task_id, "cancelled with hrm pipeline cancel")
    note(f"cancelled {task_id}")


def _value(text: str, kind: InputKind) -> Any:
    if kind is InputKind.JSON:
        try:
            return json.loads(text)
        except ValueError as error:
            raise errors.InvalidRequest(f"--input {text!r} is no JSON: {error}") from error
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise errors.InvalidRequest(
            f"there is no file {path}; for other inputs than files: --as json"
        )
    return str(path) if kind is InputKind.PATH else path.read_bytes()


def _size_mb(text: str, kind: InputKind) -> float:
    if kind is InputKind.JSON:
        return len(text) / 1e6
    path = Path(text).expanduser()
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files) / 1e6


def _here(pipeline: Any, value: Any) -> TaskResult:
    from hrm.pipelines.client.outcome import TaskResult

    try:
        return TaskResult(task_id="here", value=pipeline.run_here(value), node="here")
    except errors.HrmError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return TaskResult(task_id="here", value=None, error=text, node="here")


def _client(
    master: str | None, queue: str, labels: list[str] | None, result_dir: Path | None
) -> Client:
    from hrm.pipelines.client.client import Client

    return Client(master, queue=queue, node_labels=labels or (), result_dir=result_dir or "")


def _on_cluster(
    pipeline: Any,
    inputs: list[tuple[Any, float]],
    workload: Class,
    master: str | None,
    queue: str,
    labels: list[str] | None,
    timeout_s: float,
    result_format: str | None,
    result_dir: Path | None,
) -> list[TaskResult]:
    import time

    from hrm.pipelines.client.progress_bar import progress_bar

    deadline = time.monotonic() + timeout_s
    with (
        sigterm_as_interrupt(),
        _client(master, queue, labels, result_dir) as client,
        progress_bar(pipeline.name, len(inputs)) as advance,
    ):
        tasks = []
        try:
            for value, size_mb in inputs:
                task = client.submit(
                    pipeline, value, size_mb=size_mb, workload=workload.value,
                    result_format=result_format,
                )  # fmt: skip
                tasks.append(task)
                task.when_done(advance)
            _note_what_is_missing(client, tasks)
            return [task.outcome(max(0.0, deadline - time.monotonic())) for task in tasks]
        except KeyboardInterrupt:
            _cancel_all(client, tasks, len(inputs))
            raise
        except TimeoutError:
            client.cancel_all(tasks, f"hrm pipeline run ended after {timeout_s:g} s")
            raise errors.Unavailable(
                f"not all tasks ended within {timeout_s:g} s, the others were cancelled; allow "
                f"more with --timeout"
            ) from None


def _cancel_all(client: Client, tasks: list[Task], wanted: int) -> None:
    """Cancel what has not ended, and say so: before it, because it may take seconds."""
    left = [one for one in tasks if not one.done()]
    ended, unsent = len(tasks) - len(left), wanted - len(tasks)
    more = (f"; {ended} had ended" if ended else "") + (
        f"; {unsent} were not submitted" if unsent else ""
    )
    note(f"interrupted: cancelling {len(left)} of {wanted} tasks{more}")
    client.cancel_all(left, "hrm pipeline run was interrupted")
    doubtful = sum(not one.done() for one in left)
    if doubtful:
        note(
            f"{client.target} has not confirmed that {doubtful} of them are cancelled, so they may "
            f"go on; to see them: hrm pipeline list; to end one: hrm pipeline cancel ID"
        )


def _note_what_goes_on(sent: list[str], wanted: int, *, interrupted: bool) -> None:
    """What has become of the tasks of a submission that is not whole."""
    if sent:
        why = "interrupted: " if interrupted else ""
        note(
            f"{why}{len(sent)} of {wanted} tasks are submitted, and go on; to read a result: "
            f"hrm pipeline result ID"
        )
    elif interrupted:
        note(f"interrupted: none of {wanted} tasks was submitted")
    if interrupted and len(sent) < wanted:
        note("one more may have arrived at the master; to see it: hrm pipeline list")


def _note_what_is_missing(client: Client, tasks: list[Task]) -> None:
    """Say what tasks wait for, where none runs yet."""
    with contextlib.suppress(TimeoutError):
        tasks[0].outcome(NOTE_AFTER_S)
        return
    latest = client.tasks(limit=1)
    if not latest.nodes and latest.tasks:
        note(f"waiting: {latest.tasks[-1].state}")


def _save(results: Iterable[TaskResult], directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(results):
            if one.ok:
                (directory / f"{number}.pickle").write_bytes(_pickled(one))
    except OSError as error:
        raise errors.InvalidRequest(f"cannot write results to {directory}: {error}") from error


def _save_to(one: TaskResult, path: Path) -> None:
    try:
        path.write_bytes(_pickled(one))
    except OSError as error:
        raise errors.InvalidRequest(f"cannot write the result to {path}: {error}") from error


def _pickled(one: TaskResult) -> bytes:
    """The value, also where it stays in a directory."""
    from hrm.pipelines.client.result_file import ResultFile

    value = one.value.load() if isinstance(one.value, ResultFile) else one.value
    return pickle.dumps(value, protocol=5)
