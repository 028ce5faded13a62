"""Each message is built and read in one place; what one side builds, the other reads."""

from __future__ import annotations

import ast
import functools
import math
from pathlib import Path
from typing import Any, get_args

import pytest

import hrm
from hrm import ownership_keys
from hrm.core.messages import appmaster as am
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages.state_changes import Subscribed
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.ends import Blame
from hrm.core.vocabulary.model import (
    ApplicationId,
    ApplicationState,
    ContainerEnd,
    ContainerId,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    EndCause,
    ExecutorTasks,
    Followed,
    LaunchContext,
    NodeName,
    Progress,
    Resources,
    StageProgress,
    TrainingReport,
    WorkloadClass,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.errors import InvalidRequest
from hrm.v1 import (
    admin_pb2,
    application_pb2,
    common_pb2,
    events_pb2,
    identity_pb2,
    node_pb2,
    pipeline_pb2,
    policy_pb2,
    scheduler_pb2,
    submission_pb2,
)
from hrm.wire import applications, driver_reports, shared_state
from hrm.wire import appmaster as appmaster_wire

HERE = Path(hrm.__file__).parent
APP = ApplicationId("app-1")
KEY = ownership_keys.new_key()
MODULES = {
    x.__name__.rpartition(".")[2]: x
    for x in (
        admin_pb2, application_pb2, common_pb2, events_pb2, identity_pb2, node_pb2, pipeline_pb2,
        policy_pb2, scheduler_pb2, submission_pb2,
    )
}  # fmt: skip

OF_A_COMMAND_LINE = {
    "BindNodeRequest": "cli/queries.py",
    "DriverSpec": "spark/submit.py",
    "FileDigest": "spark/submit.py",
    "FindFilesRequest": "spark/submit.py",
    "ListNodesRequest": "cli/queries.py",
    "PutPieceRequest": "spark/submit.py",
    "SubmitRequest": "spark/submit.py",
}
"""Made from typed arguments, which no record holds: where these are read, and nowhere else."""

PAGES = {
    "ListApplicationsResponse": "master/admin_service.py",
    "ListNodesResponse": "master/admin_service.py",
    "ListPipelineTasksResponse": "pipelines/master/service.py",
    "ListSubmissionsResponse": "master/submission_service.py",
    "ListTokensResponse": "master/identity_service.py",
    "ShowPoliciesResponse": "master/policy_service.py",
}
"""Lists of messages, put together where they are paged."""

OF_A_DRIVER = {"Progress", "Resources", "SparkLaunch", "StageProgress", "TrainingReport"}
"""Built a second time from a driver's JSON, by the AppMaster's side, which loads no ``codec``: its
checks and their types would make each ``spark-submit`` slower."""

# Envelopes hold one of several messages, each put into it where it is built.
ENVELOPES = {"NodeMessage", "MasterMessage", "ApplicationUpdate", "ApplicationNotice"}
ENVELOPES |= {"SchedulerMessage", "NodePipelineMessage", "MasterPipelineMessage"}
ENVELOPES |= {"PipelineTaskUpdate"}


def _built(tree: ast.AST) -> dict[str, set[str]]:
    """Of each message that a module builds, the functions in which it does."""
    modules: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "hrm.v1":
            modules |= {x.asname or x.name: x.name for x in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hrm.v1."):
            assert not any(x.asname for x in node.names), "a message under another name"
            names |= {x.name for x in node.names if not x.name.endswith("Stub")}
    found: dict[str, set[str]] = {}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            # One without fields is read into, or is empty.
            if not isinstance(node, ast.Call) or not (node.keywords or node.args):
                continue
            called = node.func
            if isinstance(called, ast.Name) and called.id in names:
                found.setdefault(called.id, set()).add(function.name)
            elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                module = MODULES.get(modules.get(called.value.id, ""))
                if module is not None and called.attr in module.DESCRIPTOR.message_types_by_name:
                    found.setdefault(called.attr, set()).add(function.name)
    return found


def _calls() -> set[str]:
    """Requests and replies of plain fields: the arguments of a call, and what it returns."""
    found = set()
    for module in MODULES.values():
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                for message in (method.input_type, method.output_type):
                    if all(x.message_type is None and x.enum_type is None for x in message.fields):
                        found.add(message.name)
    return found


def _strays(more: dict[str, str]) -> dict[str, set[tuple[str, str]]]:
    """Messages that are built outside ``hrm.wire``, or in two functions; with ``more`` modules."""
    where: dict[str, set[tuple[str, str]]] = {}
    built = _built_here() | {name: _built(ast.parse(source)) for name, source in more.items()}
    for name, messages in built.items():
        for message, functions in messages.items():
            where.setdefault(message, set()).update((name, x) for x in functions)
    calls = _calls()
    strays = {}
    for message, places in where.items():
        modules = {module for module, _ in places}
        if message in calls or modules == {PAGES.get(message)}:
            continue
        if modules == {OF_A_COMMAND_LINE.get(message)} and len(places) == 1:
            continue
        in_wire = all(module.startswith("wire/") for module in modules)
        several = len(places) > 1 and message not in ENVELOPES | OF_A_DRIVER
        if several or not in_wire:
            strays[message] = places
    return strays


@functools.cache
def _built_here() -> dict[str, dict[str, set[str]]]:
    paths = {str(path.relative_to(HERE)): path for path in sorted(HERE.rglob("*.py"))}
    texts = {name: x.read_text() for name, x in paths.items() if not name.startswith("v1/")}
    return {name: _built(ast.parse(text)) for name, text in texts.items() if "_pb2" in text}


def test_each_message_is_built_in_one_function_of_the_wire() -> None:
    assert _strays({}) == {}


def test_exceptions_are_those_that_there_are() -> None:
    built: dict[str, set[str]] = {}
    for name, messages in _built_here().items():
        for message in messages:
            built.setdefault(message, set()).add(name)
    assert len(built) > 80
    for message, module in (PAGES | OF_A_COMMAND_LINE).items():
        assert built[message] == {module}
    assert built.keys() >= ENVELOPES
    for message in OF_A_DRIVER:
        checked = built[message] - {"wire/appmaster.py"}
        assert checked in ({"wire/codec.py"}, {"wire/driver_reports.py"}), message


SECOND = """
from hrm.v1 import admin_pb2 as pb, pipeline_pb2
from hrm.v1.events_pb2 import StateEvent

async def again():
    pb.Node(name="n1")
    pb.KillApplicationRequest(application_id="app-1")
    pipeline_pb2.MasterPipelineMessage(drain=True)
    pb.Lease()
    return StateEvent(kind="node")

def twice():
    return pipeline_pb2.PipelineRun(run=1)
"""


def test_a_second_conversion_is_found() -> None:
    strays = _strays({"master/second.py": SECOND})
    assert set(strays) == {"Node", "MasterPipelineMessage", "StateEvent", "PipelineRun"}
    assert set(_strays({"wire/second.py": SECOND})) == {
        "Node", "StateEvent", "PipelineRun",
    }  # fmt: skip


# An application's session, both ways.

TARGET = am.ProfileTarget(
    profile=3, count=2, vcores=4, heap_mib=1024, memory_mib=1408, gpu_memory_mib=7, gpus=1
)
ASK = am.ContainerAsk(executor_id="5", target=TARGET, hosts=("h1",), locality_wait_s=2.0)
REQUEST = ContainerRequest(
    executor_id="5",
    resource_profile_id=3,
    resources=Resources(4, 1408, 7),
    heap_mib=1024,
    gpus=1,
    hosts=("h1",),
    locality_wait_s=2.0,
)
UPDATES: list[tuple[am.Command, e.MasterEvent]] = [
    *(
        (
            am.RequestContainers(asks=(ASK,), again=again),
            e.ContainersRequested(now=9.0, application_id=APP, requests=(REQUEST,), again=again),
        )
        for again in (None, False, True)
    ),
    (
        am.ReleaseContainers(executor_ids=("1", "2"), reason="why"),
        e.ContainersReleased(now=9.0, application_id=APP, executor_ids=("1", "2"), reason="why"),
    ),
    *(
        (
            am.ReportClass(workload_class=x.name, evidence="why"),
            e.WorkloadClassObserved(now=9.0, application_id=APP, workload_class=x, evidence="why"),
        )
        for x in WorkloadClass
    ),
    (
        am.ReportExclusions(hosts=("h1", "h2")),
        e.HostsExcluded(now=9.0, application_id=APP, hosts=frozenset({"h1", "h2"})),
    ),
    *(
        (
            am.FinishApplication(state=state, message="why"),
            e.ApplicationFinished(now=9.0, application_id=APP, state=state, message="why"),
        )
        for state in ApplicationState
        if state.ended
    ),
]
TO_SPARK = {
    am.ExecutorStarted, am.ExecutorEnded, am.FailApplication, am.RefuseProfile, am.KeepExecutors
}  # fmt: skip


def test_every_command_to_the_master_has_its_example() -> None:
    assert {type(x) for x, _ in UPDATES} | TO_SPARK == set(get_args(am.Command))


@pytest.mark.parametrize(("command", "event"), UPDATES, ids=lambda x: type(x).__name__)
def test_what_an_appmaster_wants_arrives(command: am.Command, event: e.MasterEvent) -> None:
    update = appmaster_wire.update(command)
    assert update is not None
    assert applications.to_event(update, APP, 9.0) == event


def test_progress_arrives_and_a_heartbeat_is_no_event() -> None:
    stage = StageProgress(stage_id=1, name="map", tasks_total=4, mean_task_s=0.5)
    progress = Progress(active_jobs=1, tasks_total=4, streaming_queries=("q",), stages=(stage,))
    names = ("active_jobs", "active_stages", "completed_stages", "tasks_total", "tasks_running",
             "tasks_completed", "tasks_failed", "mean_task_s")  # fmt: skip
    report: dict[str, Any] = {name: getattr(progress, name) for name in names}
    of_stage = {name: getattr(stage, name) for name in StageProgress.__dataclass_fields__}
    report |= {"streaming_queries": ["q"], "stages": [of_stage]}
    update = appmaster_wire.progress(report)
    expected = e.ProgressReported(now=9.0, application_id=APP, progress=progress)
    assert applications.to_event(update, APP, 9.0) == expected
    assert applications.to_event(appmaster_wire.heartbeat(), APP, 9.0) is None


def test_times_of_tasks_arrive_with_progress_and_are_no_part_of_it() -> None:
    tasks = ExecutorTasks(executor_id="3", stage="map", tasks=2, run_s=1.5, input_bytes=1 << 40)
    of_tasks = {name: getattr(tasks, name) for name in ExecutorTasks.__dataclass_fields__}
    names = ("active_jobs", "active_stages", "completed_stages", "tasks_total", "tasks_running",
             "tasks_completed", "tasks_failed", "mean_task_s")  # fmt: skip
    report: dict[str, Any] = {**dict.fromkeys(names, 0), "streaming_queries": [], "stages": []}
    none = {**of_tasks, "tasks": 0}
    update = appmaster_wire.progress({**report, "executor_tasks": [of_tasks, none]})
    event = applications.to_event(update, APP, 9.0)
    assert event == e.ProgressReported(
        now=9.0, application_id=APP, progress=Progress(), tasks=(tasks,)
    )
    assert isinstance(event, e.ProgressReported)
    assert not driver_reports.from_progress(event.progress).executor_tasks


def test_epochs_arrive_with_progress_as_they_were_stated() -> None:
    names = ("active_jobs", "active_stages", "completed_stages", "tasks_total", "tasks_running",
             "tasks_completed", "tasks_failed", "mean_task_s")  # fmt: skip
    report: dict[str, Any] = {**dict.fromkeys(names, 0), "streaming_queries": [], "stages": []}
    first = {"epoch": 1, "loss": 2.5, "seconds": 0.0}  # of accuracy it says nothing
    second = {"epoch": 2, "loss": "NaN", "accuracy": 0.75, "seconds": 3.5, "epochs": 9}
    update = appmaster_wire.progress({**report, "training": [first, second]})

    event = applications.to_event(update, APP, 9.0)

    assert isinstance(event, e.ProgressReported)
    one, two = event.training
    assert one == TrainingReport(epoch=1, loss=2.5)
    assert (two.epoch, two.accuracy, two.seconds, two.epochs) == (2, 0.75, 3.5, 9)
    assert math.isnan(two.loss)


@pytest.mark.parametrize(
    ("field", "value"),
    [("run_s", float("nan")), ("run_s", -1.0), ("run_s", float("inf")), ("tasks", -1),
     ("input_bytes", -1), ("executor_id", ""), ("executor_id", "../x")],
)  # fmt: skip
def test_times_of_tasks_that_cannot_be_are_refused(field: str, value: Any) -> None:
    tasks = common_pb2.ExecutorTasks(executor_id="1", stage="map", tasks=1, run_s=1.0)
    setattr(tasks, field, value)
    message = common_pb2.Progress(executor_tasks=[tasks])
    update = application_pb2.ApplicationUpdate(progress=message)
    with pytest.raises(InvalidRequest, match=field):
        applications.to_event(update, APP, 9.0)


def test_an_attachment_arrives_and_comes_first() -> None:
    attach = appmaster_wire.attach(APP, 7, KEY)
    assert applications.to_attachment(attach, 3, 9.0) == e.ApplicationAttached(
        now=9.0,
        call_id=0,
        application_id=APP,
        session=3,
        epoch=7,
        owner=ownership_keys.owner_of(KEY),
    )
    with pytest.raises(InvalidRequest, match="attached application may not send attach"):
        applications.to_event(attach, APP, 9.0)
    with pytest.raises(InvalidRequest, match="must be `attach`"):
        applications.to_attachment(appmaster_wire.heartbeat(), 3, 9.0)


def test_a_registration_arrives() -> None:
    fields: dict[str, Any] = {
        "name": "n", "user": "u", "queue": "t", "spark_version": "4.0", "driver_host": "h",
        "web_url": "http://h", "submission_key": "k",
    }  # fmt: skip
    launch = {"driver_url": "spark://h", "spark_version": "4.0", "environment": {"A": "b"},
              "decommissions": True,
              "java_options": ["-Xss1m"], "extra_class_path": ["/x"]}  # fmt: skip
    node = {"labels": ["ssd", "zone=a"], "scala": "2.13", "java": "17", "python": ""}
    request = appmaster_wire.registration(
        {
            **fields,
            "class": "stream",
            "gang_min": 2,
            "start": "cold: the first of its kind",
            "input_bytes": 1 << 40,
            "tags": ["etl", "x"],
            "priority": -7,
            "launch": launch,
            "node": node,
        },
        application_id=APP,
        ownership_key=KEY,
        submission_id="driver-1",
        submission_attempt=2,
        submission_ownership_key="unused here",
        followed=(7, "e7"),
    )
    assert applications.to_registration(request, 5, 9.0, ("ops",)) == e.ApplicationRegistered(
        now=9.0,
        call_id=5,
        application_id=APP,
        declared_class=WorkloadClass.STREAM,
        launch=LaunchContext(
            driver_url="spark://h",
            spark_version="4.0",
            environment=(("A", "b"),),
            java_options=("-Xss1m",),
            extra_class_path=("/x",),
            decommissions=True,
        ),
        gang_min=2,
        driver_start="cold: the first of its kind",
        input_bytes=1 << 40,
        tags=("etl", "x"),
        groups=("ops",),
        priority=-7,
        submission_id="driver-1",
        submission_attempt=2,
        owner=ownership_keys.owner_of(KEY),
        followed=Followed(7, "e7"),
        requires=NodeRequirement(
            labels=frozenset({"ssd", "zone=a"}), spark="4.0", scala="2.13", java="17"
        ),
        **fields,
    )


def test_a_priority_out_of_range_is_refused() -> None:
    request = application_pb2.RegisterApplicationRequest(submission_key="k", priority=2**30)
    with pytest.raises(InvalidRequest, match="priority is 1073741824; it must be from -999999999"):
        applications.to_registration(request, 1, 9.0)


def test_a_driver_on_a_node_requires_its_python_of_the_others() -> None:
    hello: dict[str, Any] = dict.fromkeys(
        ("name", "user", "queue", "driver_host", "web_url", "class", "submission_key"), ""
    )
    launch = {"driver_url": "", "spark_version": "4.0", "decommissions": True,
              "environment": {"HRM_DRIVER_PYTHON": "3.11"}, "java_options": [],
              "extra_class_path": []}  # fmt: skip
    request = appmaster_wire.registration(
        {**hello, "spark_version": "4.0", "launch": launch},
        application_id="", ownership_key=KEY, submission_id="", submission_attempt=0,
        submission_ownership_key="", followed=(0, ""),
    )  # fmt: skip
    assert request.requires.python == "3.11"
    request.requires.labels.append("no label")
    request.submission_key = "k"
    with pytest.raises(InvalidRequest, match="'no label' is no label of a node"):
        applications.to_registration(request, 1, 9.0)


def status(state: ContainerState, end: ContainerEnd | None = None) -> ContainerStatus:
    return ContainerStatus(
        container_id=ContainerId("app-1-x5"),
        application_id=APP,
        executor_id="5",
        resource_profile_id=3,
        workload_class=WorkloadClass.BATCH,
        resources=Resources(1, 512),
        state=state,
        node=NodeName("n1"),
        end=end,
    )


FAILED = ContainerEnd(cause=EndCause.EXITED, exit_code=1, message="why")
RUNS, ENDED = status(ContainerState.RUNNING), status(ContainerState.ENDED, FAILED)
RUNS_SEEN = am.ContainerSeen(executor_id="5", profile=3, phase=am.Phase.RUNNING, node="n1")
GONE = ContainerEnd(cause=EndCause.NODE_LOST, message="why", lost_host="10.0.0.1")
LOST, LOST_SEEN = status(ContainerState.ENDED, GONE), am.ContainerSeen(
    executor_id="5", profile=3, phase=am.Phase.ENDED, node="n1", blame=Blame.NODE, message="why",
    lost_host="10.0.0.1",
)  # fmt: skip
ENDED_SEEN = am.ContainerSeen(
    executor_id="5", profile=3, phase=am.Phase.ENDED, node="n1", exit_code=1,
    blame=Blame.APPLICATION, message="why",
)  # fmt: skip
NOTICES: list[tuple[c.Notice, am.Event]] = [
    (c.ContainerChanged(status=RUNS), am.ContainerListed(now=9.0, container=RUNS_SEEN)),
    (c.ContainerChanged(status=ENDED), am.ContainerListed(now=9.0, container=ENDED_SEEN)),
    (c.ContainerChanged(status=LOST), am.ContainerListed(now=9.0, container=LOST_SEEN)),
    (
        c.RequestRefused(executor_ids=("5",), resource_profile_id=3, message="why"),
        am.ExecutorsRefused(now=9.0, executor_ids=("5",), profile=3, message="why"),
    ),
    (c.ExecutorLimit(executors_max=2), am.ExecutorLimitSet(now=9.0, executors_max=2)),
    (c.ExecutorLimit(executors_max=None), am.ExecutorLimitSet(now=9.0, executors_max=None)),
    (
        c.EndApplication(state=ApplicationState.KILLED, message="why"),
        am.EndOrdered(now=9.0, message="why"),
    ),
]


def test_every_notice_has_its_example() -> None:
    assert {type(x) for x, _ in NOTICES} == set(get_args(c.Notice))


@pytest.mark.parametrize(("notice", "event"), NOTICES, ids=lambda x: type(x).__name__)
def test_what_the_master_reports_to_an_application_arrives(
    notice: c.Notice, event: am.Event
) -> None:
    assert appmaster_wire.events(applications.from_notice(notice), 0, 9.0) == [event]


def test_many_changes_arrive_in_one_message() -> None:
    message = applications.from_changes([RUNS, ENDED])
    assert appmaster_wire.events(message, 0, 9.0) == [
        am.ContainerListed(now=9.0, container=x) for x in (RUNS_SEEN, ENDED_SEEN)
    ]


def test_a_session_opens() -> None:
    admitted = c.ApplicationAdmitted(
        application_id=APP, epoch=7, containers=(RUNS,), last_executor_number=5, epoch_id="e7"
    )
    response = applications.from_admitted(admitted, 1.5, 15.0, "its-own")
    assert (response.application_id, response.epoch_id) == (APP, "e7")
    assert (response.heartbeat_interval_s, response.token) == (1.5, "its-own")
    hello = applications.attached(admitted)
    assert appmaster_wire.events(hello, response.last_executor_number, 9.0) == [
        am.SessionOpened(now=9.0, epoch=7, containers=(RUNS_SEEN,), last_executor_number=5)
    ]


# Calls of a scheduler in another process; its changes are in ``test_state_wire``.


def test_a_scheduler_gets_the_bounds_of_its_master() -> None:
    bounds = Bounds(waiting_limit=3, wait_max_s=4.0, default_duration_s=5.0, retry_delay_s=6.0)
    sent = Subscribed(session=11, followed=Followed(7, "e7"), bounds=bounds)
    assert shared_state.to_subscribed(shared_state.subscribed(sent).subscribed) == sent


def test_a_lease_is_asked_for_and_returned() -> None:
    asks = e.LeaseRequested(now=9.0, call_id=5, scheduler="s1", session=11, application_id=APP)
    asked = shared_state.from_lease_request(asks)
    assert shared_state.to_lease_request(asked, 5, 9.0) == asks
    gives = e.LeaseReturned(now=9.0, call_id=5, scheduler="s1", session=11, token=99)
    returned = shared_state.from_lease_return(gives)
    assert shared_state.to_lease_return(returned, 5, 9.0) == gives
    subscription = shared_state.subscription("s1", Followed(7, "e7"))
    assert (subscription.name, subscription.followed_epoch) == ("s1", 7)
