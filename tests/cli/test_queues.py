"""``hrm queues`` and ``hrm queue …``: what they send, what they show, and how they fail."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from hrm.cli import console, queue_views
from hrm.v1 import common_pb2
from hrm.v1 import queues_pb2 as pb
from tests.cli.conftest import FakeMaster

Run = Callable[..., Result]


def test_the_tree_is_shown_with_what_each_queue_has(hrm: Run, master: FakeMaster) -> None:
    result = hrm("queues")
    assert result.exit_code == 0, result.stderr
    head, root, default, team = result.stdout.splitlines()
    assert head.split() == [
        "QUEUE", "GUARANTEED", "MAXIMUM", "SHARE", "NOW", "USED", "BORROWED", "PENDING", "APPS",
        "RUN/ALL", "WAITING",
    ]  # fmt: skip
    assert root.startswith("root ")
    assert default.startswith("  default ")
    assert " ".join(team.split()) == (
        "team 25, 100 GiB 64, 400 GiB 40, 120.5 GiB 30, 96 GiB 5, 0 MiB 8, 16 GiB 3/5 2"
    )
    assert master.queues.requests[0].waiting_limit == 0


def test_what_waits_is_shown_with_position_and_reason(hrm: Run, master: FakeMaster) -> None:
    result = hrm("queues", "--waiting", "--limit", "1")
    assert "root.team 1 app-1 [bo] 4 max-running 10 applications of [root.team] run" in " ".join(
        result.stdout.split()
    )
    assert "app-2" not in result.stdout
    assert "the first 1 of each queue are shown; for more: --limit 10" in result.stderr
    master.queues.waits = False
    assert hrm("queues", "--waiting").stderr == "no application waits\n"


def test_classes_and_priorities_are_shown_where_a_queue_has_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    urgent = common_pb2.PRIORITY_CLASS_URGENT
    wait = pb.QueueWait(
        application_id="app-1", user="bo", position=1, containers=2, reason="queue-share",
        why="others", priority_class=urgent, priority_tenths=41,
    )  # fmt: skip
    classes = [
        pb.QueueClass(priority_class=common_pb2.PRIORITY_CLASS_HIGHEST, applications=2),
        pb.QueueClass(priority_class=urgent, applications=1, waiting=1),
    ]
    stated = pb.QueueStated(order="classes", interrupts=True)
    queue = pb.Queue(name="root.a", is_leaf=True, stated=stated, waiting=[wait], classes=classes)
    console.view(queue_views.queue_view(queue))
    shown = " ".join(capsys.readouterr().out.split())
    assert "interrupts yes" in shown
    assert "classes 2 highest (0 waiting), 1 urgent (1 waiting)" in shown
    assert "root.a 1 4.1 urgent app-1 bo 2 queue-share others" in shown


def test_interruption_is_stated_with_the_order(hrm: Run, master: FakeMaster) -> None:
    hrm("queue", "set", "root.team", "--order", "classes", "--interrupts")
    (stated,) = master.queues.requests[-1].queues
    assert (stated.order, stated.interrupts) == ("classes", True)


def test_the_highest_class_that_users_may_have_is_stated_of_a_queue(
    hrm: Run, master: FakeMaster
) -> None:
    hrm("queue", "set", "root.team", "--maximum-class", "urgent")
    (stated,) = master.queues.requests[-1].queues
    assert stated.maximum_class == "urgent"
    assert hrm("queue", "set", "root.team", "--maximum-class", "5").exit_code == 2


def test_how_leaves_were_served_is_shown_with_the_fairness_between_them(
    hrm: Run, master: FakeMaster
) -> None:
    result = hrm("queues", "--fairness")
    assert result.exit_code == 0, result.stderr
    head, default, team, blank, last = result.stdout.splitlines()
    assert head.split() == [
        "QUEUE", "DUE", "CORES", "HELD", "SPEED", "THROUGHPUT", "BUSY", "WAITED", "P50", "P90",
        "P99", "WAITING", "NOW",
    ]  # fmt: skip
    assert default.split() == ["root.default", *9 * "-"]
    assert team.split() == [
        "root.team", "40", "33.6", "0.90", "0.76", "50%", "2.4s", "1m15s", "1h06m", "10m00s",
    ]  # fmt: skip
    assert blank == ""
    assert last == (
        "fairness 0.876 over 3 queues (Jain's index 0.980, greatest throughput over least 1.5); "
        "half of what counts is of the last 10m00s; speeds of platforms known for 1 of them"
    )


@pytest.mark.parametrize(
    ("fairness", "text"),
    [
        ({"queues": 1}, "fairness: unknown, 1 queue takes part; half"),
        ({}, "fairness: unknown, 0 queues take part; half"),
        ({"queues": 2}, "fairness: unknown, none got anything; half"),
        ({"queues": 2, "fairness": 0.0, "jain": 0.5}, "least infinite); half"),
        ({"queues": 2, "fairness": 1.0, "jain": 1.0}, "platforms unknown, each counts as 1"),
    ],
)
def test_what_is_unknown_of_fairness_is_said_in_words(
    hrm: Run, master: FakeMaster, fairness: dict[str, float], text: str
) -> None:
    master.queues.fairness = pb.QueueFairness(half_life_s=60, **fairness)  # type: ignore[arg-type]
    assert text in hrm("queues", "--fairness").stdout


def test_fairness_is_there_as_json(hrm: Run, master: FakeMaster) -> None:
    shown = json.loads(hrm("queues", "--fairness", "--output", "json").stdout)
    assert shown["fairness"]["fairness"] == 0.8765
    team = shown["queues"][2]
    assert (team["observed"]["throughput"], team["observed"]["wait_p99_s"]) == (0.756, 4_000)
    assert team["longest_wait_s"] == 600
    assert "observed" not in shown["queues"][0]


def test_all_of_it_is_there_as_json(hrm: Run, master: FakeMaster) -> None:
    shown = json.loads(hrm("queues", "--waiting", "--output", "json").stdout)
    assert [queue["name"] for queue in shown["queues"]] == ["root", "root.default", "root.team"]
    assert shown["queues"][2]["waiting"][1]["reason"] == "max-running"
    assert shown["queues"][2]["stated"]["guaranteed"]["cores"] == "25%"


def test_one_queue_is_shown_with_what_is_stated_of_it(hrm: Run, master: FakeMaster) -> None:
    shown = " ".join(hrm("queue", "show", "root.team").stdout.split())
    assert "guaranteed 25% of each resource maximum cores 64 weight 2.5" in shown
    assert "max running 10 preemptible no submitters ana, [bo] administrators nobody" in shown
    assert "stated in hrm.toml of the master" in shown
    assert "12.5% of the cluster" in shown
    assert "app-2" in shown
    unknown = hrm("queue", "show", "root.tema")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert unknown.stderr == "error: there is no queue root.tema\n"


def test_a_queue_is_created_of_all_that_may_be_stated(hrm: Run, master: FakeMaster) -> None:
    result = hrm(
        "queue", "create", "root.new", "--guaranteed", "cores=16, memory=64g", "--maximum", "50%",
        "--weight", "2", "--max-running", "0", "--order", "fair", "--driver-share", "0.1",
        "--minimum-user-limit", "0.25", "--user-limit-factor", "2", "--no-preemptible",
        "--submitters", "ana, bo", "--administrators", "eve",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert master.queues.requests[:1] == [
        pb.ChangeQueuesRequest(
            create=True,
            queues=[
                pb.QueueStated(
                    name="root.new",
                    guaranteed=pb.QueueQuota(cores="16", memory="64g"),
                    maximum=pb.QueueQuota(cores="50%", memory="50%", gpu_memory="50%"),
                    weight=2.0,
                    max_running=0,
                    order="fair",
                    driver_share=0.1,
                    minimum_user_limit=0.25,
                    user_limit_factor=2.0,
                    preemptible=False,
                    submitters=pb.QueueNames(names=["ana", "bo"]),
                    administrators=pb.QueueNames(names=["eve"]),
                )
            ],
        )
    ]
    assert result.stderr == ""
    assert "app-1-x9 and 2 more" in result.stdout
    assert "applications that get no more  app-7" in result.stdout


def test_a_new_queue_whose_last_part_is_taken_is_warned_of(hrm: Run, master: FakeMaster) -> None:
    result = hrm("queue", "create", "root.ml.team")
    assert result.exit_code == 0
    assert "warning: root.team is called team, too; name each of them whole" in result.stderr
    assert "--queue root.ml.team" in result.stderr


def test_what_is_not_given_is_not_changed(hrm: Run, master: FakeMaster) -> None:
    result = hrm("queue", "set", "root.team", "--preemptible", "--submitters", "")
    (request,) = master.queues.requests
    (stated,) = request.queues
    assert not request.create
    assert [field.name for field, _ in stated.ListFields()] == ["name", "preemptible", "submitters"]
    assert list(stated.submitters.names) == []
    assert "warning: hrm.toml of the master states root.team, too" in result.stderr
    assert '[queues."root.team"]' in result.stderr


def test_what_is_stated_is_taken_back(hrm: Run, master: FakeMaster) -> None:
    hrm("queue", "set", "root.a", "--unset", "max-running", "--unset", "--weight")
    (request,) = master.queues.requests
    assert list(request.unset) == ["max_running", "weight"]
    nothing = hrm("queue", "set", "root.a")
    assert nothing.exit_code == 1
    assert "give what to change, as --guaranteed 25%" in nothing.stderr


def test_a_dry_run_says_that_nothing_is_changed(hrm: Run, master: FakeMaster) -> None:
    result = hrm("queue", "remove", "root.team", "--dry-run")
    (request,) = master.queues.requests
    assert (request.dry_run, list(request.removed)) == (True, ["root.team"])
    assert result.stderr == "nothing is changed: this is what it would be\n"
    assert "root.team" in result.stdout
    assert "removed" in result.stdout


@pytest.mark.parametrize(
    ("amount", "part"),
    [
        ("25", "--guaranteed is '25'; give a part of all, as 25%"),
        ("", "--guaranteed is ''"),
        ("cores=16,disk=9", "--guaranteed has 'disk=9'; give a part of all, as 25%, or amounts"),
        ("cores=,memory=1g", "--guaranteed has 'cores='"),
        ("cores=1,cores=2", "--guaranteed has 'cores=2'"),
        ("cores=1,memory", "--guaranteed has 'memory'"),
    ],
)
def test_an_amount_that_is_none_is_refused_before_it_is_sent(
    hrm: Run, master: FakeMaster, amount: str, part: str
) -> None:
    result = hrm("queue", "create", "root.a", "--guaranteed", amount)
    assert (result.exit_code, master.queues.requests) == (1, [])
    assert part in result.stderr


def test_the_masters_refusal_is_one_line(hrm: Run, master: FakeMaster) -> None:
    master.queues.refusal = "the queues below root are guaranteed 110% of its cores together"
    result = hrm("queue", "create", "root.a", "--guaranteed", "60%")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {master.queues.refusal}\n"


def test_applications_show_their_queue_and_are_listed_by_it(hrm: Run, master: FakeMaster) -> None:
    assert "root.team" in hrm("apps", "--queue", "team").stdout
    assert master.requests[-1].queue == "team"
    assert "queue              root.team, priority 7" in hrm("app", "show", "app-0001").stdout
    master.empty = True
    assert "no applications in team or below it" in hrm("apps", "--queue", "team").stderr


def test_what_would_become_of_executors_is_shown(hrm: Run, master: FakeMaster) -> None:
    result = hrm(
        "whatif", "--queue", "team", "--executors", "6", "--executor-cores", "4",
        "--executor-memory", "8g", "--gpu-memory", "16g",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    (request,) = master.queues.requests
    assert (request.queue, request.executors) == ("team", 6)
    assert request.resources == common_pb2.Resources(
        vcores=4, memory_mib=8192 + 819, gpu_memory_mib=16384
    ), "with Spark's overhead"
    shown = " ".join(result.stdout.split())
    assert "6 of 4 vcores, 8.8 GiB, 16 GiB GPU memory in team" in shown
    assert "2 would start on what is free" in shown
    assert "1 would start within 15s; these would end for them: app-1-x3 (app-1)" in shown
    assert "3 would wait, the first for about 1m30s: root.[team] has what it is" in shown


def test_the_limits_that_apply_may_be_a_users(hrm: Run, master: FakeMaster) -> None:
    result = hrm("whatif", "--queue", "team", "--executors", "6", "--user", "[ana]")
    assert master.queues.requests[0].user == "[ana]"
    assert "6 of 1 vcores, 1.4 GiB in team, of [ana]" in result.stdout


def test_what_would_start_at_once_is_all_that_is_shown(hrm: Run, master: FakeMaster) -> None:
    options = ("--queue", "team", "--executors", "1", "--memory-overhead", "1g")
    shown = hrm("whatif", *options).stdout
    assert "1 would start on what is free" in shown
    assert "preemption" not in shown
    assert "later" not in shown
    assert master.queues.requests[0].resources.memory_mib == 2048
    assert json.loads(hrm("whatif", *options, "-o", "json").stdout)["at_once"] == 1


@pytest.mark.parametrize("option", ["--executor-memory", "--memory-overhead", "--gpu-memory"])
def test_a_size_that_is_none_is_refused(hrm: Run, master: FakeMaster, option: str) -> None:
    result = hrm("whatif", "--queue", "q", "--executors", "1", option, "lots")
    assert (result.exit_code, master.queues.requests) == (1, [])
    assert f"{option} is 'lots'; give a size such as 2g" in result.stderr


def test_parts_of_platforms_are_shown_with_what_is_held_of_them(
    hrm: Run, master: FakeMaster
) -> None:
    result = hrm("queues", "--platforms")
    assert result.exit_code == 0, result.stderr
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["QUEUE", "[new]", "old", "AFFINITY"],
        ["root.team", "30", "of", "32", "2", "of", "8", "1.5", "0.667"],
    ]
    master.queues.is_divided = False
    assert hrm("queues", "--platforms").stdout.startswith("no queue's share is divided: there is")
