"""The queries: what they show, as a table and as JSON, and how they fail."""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import Result

from hrm.cli import client, render
from hrm.cli.row_table import LAID_OUT_MAX
from hrm.errors import HrmError
from hrm.v1 import admin_pb2, common_pb2, node_pb2
from tests.cli.conftest import (
    APPLICATION,
    FakeMaster,
    example_application,
    example_node,
    gpu_node,
)

Run = Callable[..., Result]


def test_status_states_what_is_there_and_what_is_free(hrm: Run, master: FakeMaster) -> None:
    result = hrm("status")
    assert result.exit_code == 0, result.stderr
    assert "2 alive, 0 draining, 1 lost" in result.stdout
    assert "5 of 8 vcores, 12 GiB of 16 GiB" in result.stdout
    assert "up 1h02m" in result.stdout
    assert "scheduler-1, 1.5s left" in result.stdout
    assert "2.1ms" in result.stdout
    row = result.stdout.splitlines()[-1].split()
    assert row == ["scheduler-0", "3", "5m00s", "0", "41", "0", "2.1ms", "21.5ms", "12s", "1h00m"]
    assert "3 running, 0 placed and not running yet, 0 without a place" in result.stdout
    assert "41 to start at once, 0 behind others of the unit; 0 refused" in result.stdout
    shown = " ".join(result.stdout.split())
    assert "off by 12% (median), 50% (90th percentile) over the latest 40 executors" in shown
    assert "2 executors without an estimate" in shown
    assert json.loads(hrm("status", "-o", "json").stdout)["run_time_errors"]["median"] == 0.124
    assert result.stderr == ""


def test_a_master_that_has_restarted_says_what_it_waits_for(hrm: Run, master: FakeMaster) -> None:
    assert "recovering" not in hrm("status").stdout
    master.recovery = admin_pb2.Recovery(nodes_known=4, nodes_back=1, ends_in_s=7.4)
    shown = " ".join(hrm("status").stdout.split())
    assert "recovering 1 of the 4 nodes known before the restart is back; it waits up to" in shown
    assert "7.4s more for the others" in shown
    document = json.loads(hrm("status", "-o", "json").stdout)
    assert document["recovery"]["nodes_back"] == 1
    master.empty = True
    assert "no node yet: the master has restarted; 1 of the 4" in hrm("nodes").stderr
    master.recovery.may_lack_nodes = True
    assert "there may be more" in hrm("status").stdout


def test_calls_refused_for_limits_are_shown_where_there_are_any() -> None:
    for refused, shown in ((0, False), (1_234, True)):
        console = Console(width=250)
        with console.capture() as captured:
            console.print(render.cluster_view(admin_pb2.Cluster(calls_refused=refused)))
        lines = captured.get().splitlines()
        found = [x for x in lines if x.startswith("calls refused") and "1234 for limits" in x]
        assert bool(found) is shown, lines


def test_run_times_known_and_their_errors_are_two_things() -> None:
    def shown(**fields: int) -> str:
        errors = admin_pb2.RunTimeErrors(**fields)
        cluster = admin_pb2.Cluster(started_at_s=time.time(), run_time_errors=errors)
        console = Console(width=250)
        with console.capture() as captured:
            console.print(render.cluster_view(cluster))
        return captured.get()

    assert "12 learned; no executor has done its work since this master started" in shown(
        learned=12
    )
    assert "12 learned; 3 executors without an estimate" in shown(learned=12, unknown=3)


def test_nodes_are_listed_with_their_queues(hrm: Run, master: FakeMaster) -> None:
    header, row = hrm("nodes").stdout.splitlines()
    assert header.split()[:3] == ["NODE", "STATE", "UNIT"]
    assert row.split()[:4] == ["node-1", "alive", "cpu-0", "1/4"]
    assert "2 GiB of 8 GiB" in row
    assert " 1/2 " in row  # waiting: stream, batch


def test_nodes_may_be_fewer_of_them_or_those_in_a_state(hrm: Run, master: FakeMaster) -> None:
    master.nodes = 2_500
    result = hrm("nodes", "--limit", "1200")
    assert len(result.stdout.splitlines()) == 1 + 1200
    assert result.stderr == "the first 1200 are shown; for all: hrm nodes --limit 0\n"
    assert len(json.loads(hrm("nodes", "--limit", "3", "-o", "json").stdout)["nodes"]) == 3
    whole = hrm("nodes", "--limit", "2500")
    assert (len(whole.stdout.splitlines()), whole.stderr) == (1 + 2500, "")
    assert len(hrm("nodes").stdout.splitlines()) == 1 + 2500
    master.requests.clear()
    assert hrm("nodes", "--state", "lost", "--state", "draining").exit_code == 0
    draining, lost = common_pb2.NODE_STATE_DRAINING, common_pb2.NODE_STATE_LOST
    assert list(master.requests[0].states) == [lost, draining]
    master.empty = True
    assert "no node is in such a state" in hrm("nodes", "--state", "lost").stderr
    assert hrm("nodes", "--state", "asleep").exit_code == 2


def test_a_long_table_has_the_columns_of_a_short_one() -> None:
    node = gpu_node(declared=True)
    node.name, node.spark_versions[0] = "[bold]ä\\", "4.3.0 [x]"
    node.excluded_for_s, node.exclusion = 9.0, "機械 fails"

    def lines(count: int) -> list[str]:
        console = Console(width=10_000)
        with console.capture() as captured:
            console.print(render.nodes_table([node] * count))
        return [line.rstrip() for line in captured.get().splitlines()]

    short, long = lines(LAID_OUT_MAX // 2), lines(LAID_OUT_MAX)
    assert len(long) == 1 + 2 * LAID_OUT_MAX, "two units each"
    assert long[: len(short)] == short


def test_a_long_table_is_written_fast() -> None:
    """rich took 0.65 ms a row."""
    table = render.nodes_table([example_node()] * 4000)
    console = Console(width=10_000)
    began_s = time.process_time()
    with console.capture():
        console.print(table)
    assert time.process_time() - began_s < 1.0


def test_a_node_reports_how_it_keeps_its_containers_apart(hrm: Run, master: FakeMaster) -> None:
    shown = hrm("node", "show", "node-1").stdout
    assert "1/4" in shown, "its units"
    assert "containers use 3 GiB, 40 GiB free" in shown
    assert "run as  containers run as root (run_as = off)" in shown
    document = json.loads(hrm("node", "show", "node-1", "-o", "json").stdout)
    assert document["remarks"] == ["run as: containers run as root (run_as = off)"]


def test_applications_are_listed_with_class_and_age(hrm: Run, master: FakeMaster) -> None:
    row = hrm("apps").stdout.splitlines()[1]
    for shown in (APPLICATION, "word [count]", "ada", "stream", "running", "1/0/4", "3m2"):
        assert shown in row
    assert [r.include_ended for r in master.requests] == [False]


def test_into_a_pipe_no_line_ends_in_blanks(hrm: Run, master: FakeMaster) -> None:
    for command in (["apps"], ["nodes"], ["app", "show", APPLICATION], ["status"]):
        lines = hrm(*command).stdout.splitlines()
        assert lines == [line.rstrip() for line in lines]


def test_an_ended_application_reports_its_age_and_how_long_it_took() -> None:
    now = time.time()
    ended = admin_pb2.Application(submitted_at_s=now - 7200, ended_at_s=now - 7110)
    live = admin_pb2.Application(submitted_at_s=now - 7200)
    live.progress.tasks_total = 4
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render.applications_table([ended, live]))
    header, of_ended, of_live = captured.get().splitlines()
    assert header.split()[-4:] == ["AGE", "ENDED", "AFTER", "MESSAGE"]
    tasks = of_ended.split()[-4]
    assert (tasks, of_ended.split()[-2:]) == ("-", ["2h00m", "1m30s"]), "nobody knows its tasks"
    assert of_live.split()[-2:] == ["2h00m", "-"]
    assert " 0/4 " in of_live


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["apps"],
            "no applications; hrm apps --all shows ended ones; to run one: hrm spark-submit",
        ),
        (["apps", "--all"], "no applications; to run one: hrm spark-submit app.py"),
        (["nodes"], "no node yet; start an agent: hrm agent --master"),
    ],
)
def test_a_list_of_nothing_has_no_header_and_states_what_to_type(
    hrm: Run, master: FakeMaster, command: list[str], expected: str
) -> None:
    master.empty = True
    result = hrm(*command)
    assert (result.exit_code, result.stdout) == (0, "")
    assert expected in result.stderr
    document = json.loads(hrm(*command, "-o", "json").stdout)
    assert list(document.values()) == [[]]


def test_all_asks_for_ended_applications_too(hrm: Run, master: FakeMaster) -> None:
    hrm("apps", "--all", "--limit", "7")
    assert [(r.include_ended, r.limit) for r in master.requests] == [(True, 7)]


def test_show_reports_how_each_container_ended(hrm: Run, master: FakeMaster) -> None:
    shown = hrm("app", "show", APPLICATION).stdout
    assert "query top-k, trigger ProcessingTime" in shown
    assert "memory_limit (exit code 137) over its limit of 1408 MiB" in shown
    assert "first container after 10s" in shown
    assert "cold: the first of its kind" in shown
    assert "3m00s per executor of resource profile 0 for 4 GiB of input (1m30s for 2 GiB:" in shown
    assert "mean of 12 that have ended)" in shown
    assert "the first 3 executors start together" in shown


def test_show_says_what_of_anothers_application_is_hidden(hrm: Run, master: FakeMaster) -> None:
    master.hides = True
    shown = hrm("app", "show", APPLICATION).stdout
    rows = {row.split()[0]: " ".join(row.split()[1:]) for row in shown.splitlines()}
    hidden = "only its user and operators see that"
    assert rows["progress"] == rows["streams"] == rows["driver"] == hidden
    assert rows["Spark"] == "4.3.0"
    assert rows["executors"] == f"1 running, 0 waiting, 4 pending; where they are: {hidden}"
    assert rows["class"] == "stream"
    assert "no executors" not in shown and "0 of 0" not in shown and "unknown" not in shown
    assert json.loads(hrm("app", "show", APPLICATION, "-o", "json").stdout)["hidden"]


def test_a_stream_is_not_said_to_start_one_by_one(hrm: Run, master: FakeMaster) -> None:
    """Its gang is known only until its first executors are placed."""
    master.gang_min = 0
    shown = hrm("app", "show", APPLICATION).stdout
    assert "over: what a stream requests after its first executors starts one by one" in shown


def test_why_gives_the_reason_first(hrm: Run, master: FakeMaster) -> None:
    lines = hrm("app", "why", APPLICATION).stdout.splitlines()
    assert lines == ["4 containers wait for 2 vcores each", "  - node-1 has 1 vcore free"]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [("+", "2.1 normal"), ("-", "1.9 normal"), ("+3", "2.3 normal"), ("-5", "1.5 normal")],
)
def test_a_priority_is_changed_by_steps(
    hrm: Run, master: FakeMaster, typed: str, shown: str
) -> None:
    result = hrm("app", "priority", APPLICATION, typed)
    assert shown in result.stdout


def test_steps_without_effect_are_reported_as_such(hrm: Run, master: FakeMaster) -> None:
    for before, stays in ((20, False), (23, True)):
        master.priority_tenths = before
        result = hrm("app", "priority", APPLICATION, "+3")
        assert "2.3 normal" in result.stdout
        assert ("its priority stays as it was" in result.stderr) is stays


@pytest.mark.parametrize("typed", ["", "3", "+0", "+x", "--3", "++", "+1001", "up"])
def test_what_is_no_step_is_refused(hrm: Run, master: FakeMaster, typed: str) -> None:
    result = hrm("app", "priority", APPLICATION, typed)
    assert result.exit_code == 1
    assert "as +3" in result.stderr
    assert f"STEPS is '{typed}'" in result.stderr


def test_kill_passes_the_reason_on(hrm: Run, master: FakeMaster) -> None:
    result = hrm("app", "kill", APPLICATION, "--reason", "too big")
    assert "killed" in result.stdout
    assert "too big" in result.stdout


def test_a_node_is_shown_with_its_shortcuts(hrm: Run, master: FakeMaster) -> None:
    shown = hrm("node", "show", "node-1").stdout
    row = next(line for line in shown.splitlines() if "executor-archive" in line)
    assert row.split()[:4] == ["executor-archive", "ready", "12", "3"]
    assert "/archives/[x]; last missed because of: the Java option -XX:+UseZGC" in row
    document = json.loads(hrm("node", "show", "node-1", "--output", "json").stdout)
    assert (document["name"], document["shortcuts"][0]["used"]) == ("node-1", 12)


def test_drain_and_back(hrm: Run, master: FakeMaster) -> None:
    drained = hrm("node", "drain", "node-1")
    assert "draining" in drained.stdout
    assert drained.stderr == "to return them to service: hrm node drain --undo node-1\n"
    assert "alive" in hrm("node", "drain", "node-1", "--undo").stdout


def test_the_way_back_from_a_drain_of_many_nodes_is_one_line(hrm: Run, master: FakeMaster) -> None:
    master.drains_any = True
    names = [f"node-{number}" for number in range(1, 501)]
    (line,) = hrm("node", "drain", *names).stderr.splitlines()
    assert line.endswith("--undo " + " ".join(names[:10]) + " ... (all 500 names)")


def test_of_many_executors_the_latest_are_shown(hrm: Run, master: FakeMaster) -> None:
    master.containers_total = 8_000
    shown = hrm("app", "show", APPLICATION).stdout
    more = f"hrm app show {APPLICATION} --limit 8000"
    assert f"the latest 1 executors; 7999 more: {more}" in shown
    hrm("app", "show", APPLICATION, "--limit", "7")
    hrm("app", "show", APPLICATION, "-o", "json")
    hrm("app", "show", APPLICATION, "-o", "json", "--limit", "7")
    assert [request.containers_limit for request in master.requests] == [100, 7, 0, 7]
    assert hrm("app", "show", APPLICATION, "--limit", "0").exit_code == 2


def test_bind_states_what_to_change_and_what_came_of_it(hrm: Run, master: FakeMaster) -> None:
    result = hrm("node", "bind", "node-1", "--mode", "even", "--reserve", "0")
    assert result.stdout.strip() == "node-1 is bound: even [all cores]"
    (request,) = master.requests
    assert request.mode == node_pb2.BINDING_MODE_EVEN
    assert (request.HasField("bound_cores"), request.HasField("reserve_cores")) == (False, True)
    assert "give what to change" in _one_line(hrm("node", "bind", "node-1"))
    assert "no such node: n9" in _one_line(hrm("node", "bind", "n9", "--bound-cores", "1"))
    assert hrm("node", "bind", "node-1", "--bound-cores", "0").exit_code == 2


@pytest.mark.parametrize("declared", [True, False])
def test_a_declared_gpu_is_never_shown_as_a_real_one(declared: bool) -> None:
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render.nodes_table([gpu_node(declared=declared)]))
    shown = captured.get()
    assert ("Fast One (declared) 8 GiB of 16 GiB" in shown) is declared
    assert "Fast One" in shown and "gpu0 (draining)" in shown


def test_a_unit_shows_what_its_containers_may_hold_now() -> None:
    node = gpu_node(declared=False)
    unit = node.resource_units[-1].unit
    unit.draining, unit.capacity.vcores, unit.lent.vcores = False, 4, 3
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render.nodes_table([node]))
    assert "gpu0 (3 vcores lent)" in captured.get()
    assert "0/1" in captured.get()


def test_units_that_share_their_cores_are_marked() -> None:
    node = gpu_node(declared=False)
    unit = node.resource_units[-1].unit
    unit.draining = False
    alone = node.resource_units.add().unit
    alone.CopyFrom(unit)
    alone.resource_unit_id, unit.pool = "gpu1", node.resource_units[0].unit.resource_unit_id
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render.nodes_table([node]))
    lines = [line for line in captured.get().splitlines() if "pu" in line]
    marked = [line for line in lines if "(shared cores)" in line]
    assert [line.split("(")[0].split()[-1] for line in marked] == [unit.pool, "gpu0"]
    assert any("gpu1" in line for line in lines)


def test_a_node_can_be_emptied(hrm: Run, master: FakeMaster) -> None:
    assert hrm("node", "drain", "node-1", "--move", "30").exit_code == 0
    assert master.requests[-1].move_within_s == 30.0
    assert hrm("node", "drain", "node-1", "--move", "3601").exit_code == 2
    asked = len(master.requests)
    output = _one_line(hrm("node", "drain", "node-1", "--undo", "--move", "5"))
    assert "--undo and --move exclude each other" in output
    assert len(master.requests) == asked


def test_an_excluded_node_is_shown_with_the_reason() -> None:
    for_all, for_some = gpu_node(declared=False), gpu_node(declared=False)
    for_all.excluded_for_s, for_all.exclusion = 75.0, "executors of 3 applications failed there"
    for_some.excluded_applications = 2
    console = Console(width=300)
    with console.capture() as captured:
        console.print(render.nodes_table([for_all, for_some]))
    shown = captured.get()
    assert "excluded for 1m15s: executors of 3 applications failed there" in shown
    assert "excluded for 2 of its applications" in shown


def test_logs_pass_bytes_on_as_they_are(hrm: Run, master: FakeMaster) -> None:
    master.log.append(b"\xff\n")
    result = hrm(
        "app", "logs", APPLICATION, "--executor", "2", "--stream", "stdout", "--tail", "64"
    )
    assert result.stdout_bytes == b"".join(master.log)
    request = master.requests[0]
    assert (request.executor_id, request.stream, request.tail_bytes) == ("2", "stdout", 64)


def test_the_log_of_a_driver_is_one_of_an_applications_logs(hrm: Run, master: FakeMaster) -> None:
    for arguments, asked in (((), "driver"), (("--attempt", "2"), "driver/2")):
        hrm("app", "logs", APPLICATION, "--executor", "driver", *arguments)
        assert master.requests[-1].executor_id == asked
    refused = hrm("app", "logs", APPLICATION, "--executor", "1", "--attempt", "2")
    assert refused.exit_code == 1
    assert "--attempt applies to drivers" in refused.stderr
    shown = hrm("app", "show", APPLICATION).stdout
    assert "where it was submitted (127.0.0.1), with its log" in shown


def test_where_the_driver_of_a_submission_has_its_log() -> None:
    app = example_application()
    app.submission_id, app.submission_attempt = "driver-1", 2
    console = Console(width=300)
    with console.capture() as captured:
        console.print(render.application_view(app))
    output = f"2 of driver-1; its log: hrm app logs {app.application_id} --executor driver"
    assert output in captured.get()


def test_a_link_to_a_log_is_one_line_for_one_that_asks(hrm: Run, master: FakeMaster) -> None:
    ask = ("app", "logs", APPLICATION, "--executor", "2", "--link")
    output = hrm(*ask).stdout
    assert output == f"http://node-1:1/{'x' * 200}?for=me\n"
    assert master.requests[-1].asker == getpass.getuser()
    assert (master.requests[-1].executor_id, master.requests[-1].stream) == ("2", "stderr")
    assert json.loads(hrm(*ask, "-o", "json").stdout)["expires_at_s"] == 9.0
    refused = hrm(*ask, "--follow")
    assert refused.exit_code != 0
    assert "--link opens the whole log" in refused.stderr
    assert hrm("app", "logs", "app-x", "--link").exit_code != 0


def test_logs_as_json_do_not_break_characters(hrm: Run, master: FakeMaster) -> None:
    document = json.loads(hrm("app", "logs", APPLICATION, "-o", "json").stdout)
    assert document["text"] == "first line\nzweite Zeile: ä"


def test_followed_logs_as_json_are_one_object_a_line(hrm: Run, master: FakeMaster) -> None:
    lines = hrm("app", "logs", APPLICATION, "--follow", "-o", "json").stdout.splitlines()
    assert "".join(json.loads(line)["text"] for line in lines) == "first line\nzweite Zeile: ä"


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["status"], "nodes_alive"),
        (["nodes"], "nodes"),
        (["apps"], "applications"),
        (["app", "show", APPLICATION], "containers_running"),
        (["app", "why", APPLICATION], "summary"),
        (["app", "kill", APPLICATION], "state"),
        (["node", "drain", "node-1"], "nodes"),
    ],
)
def test_json_is_one_object_with_the_names_of_the_contract(
    hrm: Run, master: FakeMaster, command: list[str], key: str
) -> None:
    result = hrm(*command, "--output", "json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    assert key in document


def test_json_has_the_fields_that_are_zero(hrm: Run, master: FakeMaster) -> None:
    document = json.loads(hrm("status", "-o", "json").stdout)
    assert document["nodes_draining"] == 0
    assert document["applications_ended"] == 0


def _one_line(result: Result) -> str:
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_unknown_application(hrm: Run, master: FakeMaster) -> None:
    for verb in ("show", "why", "kill", "logs"):
        output = _one_line(hrm("app", verb, "nope"))
        assert "no application nope; hrm apps --all" in output


def test_unknown_node(hrm: Run, master: FakeMaster) -> None:
    output = _one_line(hrm("node", "drain", "node-1", "node-9"))
    assert output == "error: no such node: node-9; hrm nodes lists them\n"
    assert _one_line(hrm("node", "show", "node-9")) == output


def test_no_server_listens(hrm: Run, master: FakeMaster) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        output = _one_line(hrm("status", "--master", target, "--timeout", "5"))
    assert target in output
    assert "hrm up" in output


def test_a_listener_that_never_replies(hrm: Run, master: FakeMaster) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        assert target in _one_line(hrm("status", "--master", target, "--timeout", "0.3"))


def test_a_wrong_token_is_refused(
    hrm: Run, master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-token-of-the-tests\n")
    wrong.chmod(0o600)
    monkeypatch.setenv("HRM_TOKEN_FILE", str(wrong))
    assert "HRM_TOKEN_FILE" in _one_line(hrm("nodes"))


def test_a_missing_token_file(
    hrm: Run, master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_TOKEN_FILE", str(tmp_path / "none"))
    assert str(tmp_path / "none") in _one_line(hrm("nodes"))


def test_no_cluster_at_all(hrm: Run) -> None:
    assert "hrm up" in _one_line(hrm("status"))


@pytest.mark.parametrize("address", [":7480", "host:", "host:x", "host:70000", "a b:1", "a/b"])
def test_a_malformed_address(hrm: Run, master: FakeMaster, address: str) -> None:
    assert "HOST:PORT" in _one_line(hrm("status", "--master", address))


def test_debug_shows_the_traceback(
    hrm: Run, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_DEBUG", "1")
    result = hrm("app", "show", "nope")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_colour_is_never_in_a_pipe(hrm: Run, master: FakeMaster) -> None:
    assert "\x1b" not in hrm("apps").stdout


def test_all_pages_of_a_list_are_one_response() -> None:
    asked: list[tuple[str, int]] = []

    def call(request: Any, timeout: float) -> admin_pb2.ListApplicationsResponse:
        asked.append((request.page_token, request.limit))
        number = int(request.page_token or 0)
        return admin_pb2.ListApplicationsResponse(
            applications=[admin_pb2.Application(name=f"a{number}")],
            next_page_token=str(number + 1) if number < 2 else "",
        )

    request = admin_pb2.ListApplicationsRequest(limit=7)
    response = client.all_pages(call, request, 1.0)
    assert [app.name for app in response.applications] == ["a0", "a1", "a2"]
    assert response.next_page_token == ""
    assert asked == [("", 7), ("1", 7), ("2", 7)]
    assert request.page_token == "", "what was asked stays as it is"


def test_a_list_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGES_MAX", 3)
    again = admin_pb2.ListNodesResponse(next_page_token="again")
    with pytest.raises(HrmError, match="does not end"):
        client.all_pages(lambda _request, timeout: again, admin_pb2.ListNodesRequest(), 1.0)
