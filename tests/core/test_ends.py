"""What follows from each cause of an end: the table is complete, and all code uses it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import hrm
from hrm.core.appmaster.application_master import AppMasterCore
from hrm.core.appmaster.appmaster_limits import AppMasterLimits
from hrm.core.master.exclusion import CONFIRM_S, ExclusionTracker
from hrm.core.master.explain import explain_past
from hrm.core.messages import appmaster as am
from hrm.core.messages import commands as c
from hrm.core.messages import events as e
from hrm.core.messages import submissions as m
from hrm.core.submission.hosting import driver_event
from hrm.core.vocabulary.bounds import Bounds
from hrm.core.vocabulary.ends import (
    END_RULES,
    EXIT_CODE_RULES,
    Blame,
    EndRule,
    StartEvidence,
    end_rule,
)
from hrm.core.vocabulary.history import StateEvent
from hrm.core.vocabulary.model import (
    ApplicationId,
    ContainerEnd,
    ContainerState,
    ContainerStatus,
    EndCause,
    NodeName,
    Resources,
    container_id_of,
)
from hrm.core.vocabulary.node_requirement import NodeRequirement
from hrm.sim.actors.driver import seen as seen_in_simulator
from hrm.testing.virtual import VirtualCluster, unit
from hrm.wire import appmaster as app_wire
from hrm.wire import codec

ENDS = [
    ContainerEnd(cause=cause, exit_code=exit_code, message="why")
    for cause in EndCause
    for exit_code in (-1, 0, 1, 53, 56, 58, 143)
]
HERE = Path(hrm.__file__).parent
TABLE = "core/vocabulary/ends.py"
VERSIONED = NodeRequirement(spark="4.3.0")
each_end = pytest.mark.parametrize("end", ENDS, ids=lambda x: f"{x.cause.value}-{x.exit_code}")


def test_every_cause_has_its_row() -> None:
    assert set(END_RULES) == set(EndCause)
    assert all(not rule.complete or rule.ordinary for rule in _rules())
    assert all(not rule.ordinary or rule.blame is Blame.NONE for rule in _rules())
    assert all(not rule.ordinary or not rule.avoids_node for rule in _rules())
    assert all(rule.avoids_node or not rule.against_node for rule in _rules())
    assert all(not rule.unseen or rule.start is StartEvidence.UNKNOWN for rule in _rules())


@each_end
def test_why_calls_a_failure_only_what_counts_as_one(end: ContainerEnd) -> None:
    """What was preempted read as if it had ended badly."""
    event = StateEvent(
        event_id=1, at_s=1.0, kind="container", application_id="app", container_id="app-x1",
        from_state="running", to_state="ended", reason="why", cause=end.cause.value,
        exit_code=end.exit_code,
    )  # fmt: skip
    over = replace(event, event_id=3, kind="application", to_state="killed", cause="")
    _, lines = explain_past([event, replace(event, event_id=2), over])
    rule = end_rule(end)
    if rule.ordinary:
        assert lines == []
    elif rule.blame.caused_by_app:
        assert lines == [f"2 containers ended badly ({end.cause.value}): why"]
    else:
        how = "lost with their nodes" if end.cause is EndCause.NODE_LOST else end.cause.value
        assert lines == [f"2 containers were {how}, which counts as no failure: why"]


def _rules() -> list[EndRule]:
    return [*END_RULES.values(), *EXIT_CODE_RULES.values()]


@each_end
def test_an_exit_code_decides_of_one_that_exited_and_of_no_other(end: ContainerEnd) -> None:
    decides = end.cause is EndCause.EXITED and end.exit_code in EXIT_CODE_RULES
    assert end_rule(end) is (EXIT_CODE_RULES[end.exit_code] if decides else END_RULES[end.cause])


@pytest.mark.parametrize("code", [53, 56, 58])
def test_what_an_executor_cannot_help_is_not_counted_and_cannot_spin(code: int) -> None:
    rule = EXIT_CODE_RULES[code]
    assert rule.blame is Blame.NONE
    assert not rule.ordinary, "an end that nothing ordered is explained"
    assert rule.avoids_node is rule.against_node is (code == 53), "no directory: the node's fault"


@each_end
def test_the_appmaster_counts_pauses_and_notifies_spark(end: ContainerEnd) -> None:
    core = AppMasterCore(limits=AppMasterLimits(backoff_s=1.0))
    target = am.ProfileTarget(profile=0, count=1, vcores=1, heap_mib=512, memory_mib=896)
    core.handle(am.TargetsChanged(now=0.0, targets=(target,)))
    core.handle(am.SessionOpened(now=0.0, epoch=1, containers=(), last_executor_number=0))
    for state in (ContainerState.RUNNING, ContainerState.ENDED):
        how = replace(end, lost_host="10.0.0.1") if state is ContainerState.ENDED else None
        seen = am.container_seen("1", 0, state, "n1", how)
        commands = core.handle(am.ContainerListed(now=1.0, container=seen))
    (ended,) = [x for x in commands if isinstance(x, am.ExecutorEnded)]
    blame = end_rule(end).blame
    assert ended.exit_code == end.exit_code
    assert ended.caused_by_app is (blame is Blame.APPLICATION)
    assert ended.lost_host == ("10.0.0.1" if blame is Blame.NODE else "")
    assert len(core.failures) == (blame is Blame.APPLICATION)
    replaced = any(isinstance(x, am.RequestContainers) for x in commands)
    assert replaced is (blame is Blame.NODE)
    later = core.handle(am.AppMasterTicked(now=2.0))
    assert any(isinstance(x, am.RequestContainers) for x in later) is not replaced


@each_end
def test_an_executor_that_was_asked_to_go_is_no_failure_however_it_ends(end: ContainerEnd) -> None:
    core = AppMasterCore()
    core.adopt({"1": 0})
    core.handle(am.ExecutorsKilled(now=0.0, executor_ids=("1",)))
    seen = am.container_seen("1", 0, ContainerState.ENDED, "n1", end)
    (ended,) = core.handle(am.ContainerListed(now=1.0, container=seen))
    assert isinstance(ended, am.ExecutorEnded)
    assert not ended.caused_by_app
    assert not core.failures


@each_end
def test_the_wire_and_the_simulator_report_the_same_of_an_end(end: ContainerEnd) -> None:
    cluster, app = _one_container()
    status = _ended(cluster, app, end)
    assert app_wire.seen(codec.from_status(status)) == seen_in_simulator(status)
    assert seen_in_simulator(status).blame is end_rule(end).blame


@each_end
def test_a_node_is_evaluated_for_what_counts_against_it(end: ContainerEnd) -> None:
    cluster, app = _one_container(Bounds(node_failures=1))
    _ended(cluster, app, end)
    excluded = cluster.master.master_state.exclusions.avoided(app, cluster.now)
    assert bool(excluded) is end_rule(end).avoids_node


@pytest.mark.parametrize("end", [x for x in ENDS if end_rule(x).avoids_node], ids=str)
def test_others_leave_the_node_for_what_is_not_the_applications_own(end: ContainerEnd) -> None:
    exclusions = ExclusionTracker(Bounds(node_failures=1, node_failing_applications=1))
    app, node = ApplicationId("app-1"), NodeName("n1")
    assert exclusions.failed(app, node, end, 0.0)
    found = exclusions.tick(2 * CONFIRM_S, lambda _: True, nodes_alive=lambda: 4)
    assert found == ([node] if end_rule(end).against_node else [])
    assert exclusions.avoided(app, 2 * CONFIRM_S) == {node}
    assert exclusions.avoided(ApplicationId("app-2"), 2 * CONFIRM_S) == set(found)


def test_one_refusal_is_enough_for_a_node_that_lacks_what_an_application_needs() -> None:
    exclusions, why = ExclusionTracker(Bounds()), "user ada does not exist on this node"
    end = ContainerEnd(cause=EndCause.UNSUITABLE, message=why)
    assert exclusions.failed(ApplicationId("app-1"), NodeName("n1"), end, 0.0)
    (excluded,) = exclusions.of_application(ApplicationId("app-1"), 1.0)
    assert excluded.why == why


@each_end
def test_run_times_are_learned_from_what_is_complete(end: ContainerEnd) -> None:
    cluster, app = _one_container()
    unit_id = cluster.container(app, 1).unit_id
    times = cluster.master.master_state.finish_times
    before = times.rate_per_s(unit_id)
    _ended(cluster, app, end)
    assert (times.rate_per_s(unit_id) != before) is end_rule(end).complete


@each_end
def test_the_journal_explains_what_is_not_ordinary(end: ContainerEnd) -> None:
    event = StateEvent(
        event_id=1,
        at_s=0.0,
        kind="container",
        to_state="ended",
        cause=end.cause.value,
        exit_code=end.exit_code,
    )
    assert event.ends_badly is not end_rule(end).ordinary


def test_a_cause_that_a_newer_version_wrote_is_explained_too() -> None:
    event = StateEvent(event_id=1, at_s=0.0, kind="container", to_state="ended", cause="struck")
    assert event.ends_badly


@each_end
@pytest.mark.parametrize("started", [False, True])
def test_a_driver_may_live_or_may_never_have_been_tried(end: ContainerEnd, started: bool) -> None:
    cluster, app = _one_container()
    status = _ended(cluster, app, end, started_at_s=1.0 if started else 0.0)
    record = m.SubmissionRecord(
        submission_id=app, key="k", name="x", user="u", driver="", resources=Resources(1, 512)
    )
    event = driver_event(record, status, cluster.master.master_state, 9.0)
    assert isinstance(event, m.DriverEnded)
    rule = end_rule(end)
    assert event.lost is rule.unseen
    assert event.launched is (started and rule.start is not StartEvidence.FAILED)
    unknown = rule.start is StartEvidence.UNKNOWN and end.exit_code < 0
    assert event.waited is (not started and unknown)


def test_a_wrong_node_is_the_applications_fault_where_it_named_no_version() -> None:
    """Of an older HRM: nothing else would end it, on a cluster without its Spark."""
    cluster, app = _one_container(requires=None)
    _end_process(cluster, app, ContainerEnd(cause=EndCause.MISPLACED, message="why"))
    (container,) = cluster.app(app).ended
    assert container.end == ContainerEnd(cause=EndCause.UNSUITABLE, message="why")


def _one_container(
    bounds: Bounds | None = None, requires: NodeRequirement | None = VERSIONED
) -> tuple[VirtualCluster, ApplicationId]:
    cluster = VirtualCluster([unit("n1"), unit("n2")], bounds=bounds or Bounds())
    app = cluster.submit(1, requires=requires)
    cluster.settle()
    assert cluster.states(app) == {"running": 1}
    cluster.advance(0.5)
    return cluster, app


def _ended(
    cluster: VirtualCluster, app: ApplicationId, end: ContainerEnd, started_at_s: float = 1.0
) -> ContainerStatus:
    """The container ends so at its node; returns its status as the application gets it."""
    _end_process(cluster, app, end)
    notices = [x for x in cluster.notices[app] if isinstance(x, c.ContainerChanged)]
    (status,) = [x.status for x in notices if x.status.end is not None]
    assert status.end == end
    return replace(status, started_at_s=started_at_s)


def _end_process(cluster: VirtualCluster, app: ApplicationId, end: ContainerEnd) -> None:
    container_id = container_id_of(app, "1")
    (node,) = [x for x in cluster.nodes.values() if container_id in x.processes]
    del node.processes[container_id]
    cluster.submit_to_node(
        node, e.ProcessEnded(now=cluster.now, container_id=container_id, end=end)
    )
    # No longer, or the master would forget exclusions or place replacements meanwhile.
    cluster.advance(0.25)


class _Blames(ast.NodeVisitor):
    """Where causes are compared or collected, which is what a second table consists of."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    def visit_Compare(self, node: ast.Compare) -> None:
        if any(map(_is_cause, (node.left, *node.comparators))):
            self.lines.append(node.lineno)
        self.generic_visit(node)

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        if _is_cause(node.value):
            self.lines.append(node.lineno)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self._gathered(node, node.elts)

    def visit_List(self, node: ast.List) -> None:
        self._gathered(node, node.elts)

    def visit_Set(self, node: ast.Set) -> None:
        self._gathered(node, node.elts)

    def visit_Dict(self, node: ast.Dict) -> None:
        self._gathered(node, [x for x in node.keys if x is not None])

    def _gathered(self, node: ast.expr, members: list[ast.expr]) -> None:
        if members and all(map(_is_cause, members)):
            self.lines.append(node.lineno)
        self.generic_visit(node)


def _is_cause(node: ast.expr) -> bool:
    """``EndCause.LOST``, its value, or its number in a message."""
    if isinstance(node, ast.Attribute) and node.attr == "value":
        node = node.value
    if not isinstance(node, ast.Attribute):
        return False
    of = node.value
    return node.attr.startswith("END_CAUSE_") or (
        getattr(of, "id", getattr(of, "attr", "")) == "EndCause"
    )


def _blaming(source: str) -> list[int]:
    visitor = _Blames()
    visitor.visit(ast.parse(source))
    return visitor.lines


@pytest.mark.parametrize(
    "source",
    [
        "end.cause is EndCause.LOST",
        "model.EndCause.LOST == cause",
        "cause in (EndCause.LOST, EndCause.KILLED)",
        "frozenset({EndCause.LOST.value})",
        "cause == common_pb2.END_CAUSE_LOST",
        "table = {EndCause.LOST: 1}",
        "match cause:\n    case EndCause.LOST:\n        pass",
    ],
)
def test_a_second_table_is_found(source: str) -> None:
    assert _blaming(source)


def test_causes_are_distinguished_in_one_place() -> None:
    # They look at what is ordered for a victim, at what may be requested again, or at whether a
    # recording is whole, not at whose fault an end is.
    others = {
        "agent/gpu/use_records.py", "policies/shared_gpu/container_uses.py",
        "core/master/places.py", "core/master/state.py", "sim/oracle/bindings.py",
        "sim/oracle/grants.py", "sim/oracle/place_keeping.py", "sim/oracle/preemptions.py",
        "sim/oracle/started_gangs.py", "sim/oracle/taken_back.py",
    }  # fmt: skip
    found = {
        str(path.relative_to(HERE)): lines
        for path in sorted(HERE.rglob("*.py"))
        if "v1" not in path.parts and (lines := _blaming(path.read_text()))
    }
    assert set(found) == {TABLE} | others
