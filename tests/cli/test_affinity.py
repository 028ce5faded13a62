"""``hrm affinity``: what it shows, and what it says is missing."""

from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from hrm.v1 import queues_pb2 as pb
from tests.cli.conftest import FakeMaster
from tests.cli.fake_queues import example_kind

Run = Callable[..., Result]


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]


def test_platforms_and_company_are_shown_by_application(hrm: Run, master: FakeMaster) -> None:
    result = hrm("affinity")
    _, cpu, gpu, _, any_company, noisy = lines(result)
    assert cpu == "[etl] # root.team cpu 12.5s 2.50x 2.00x to 3.12x 40 288 0.40 0.50"
    assert gpu == "[etl] # root.team [gpu] 5s 1.00x unknown 2 720 2.50 2.00"
    assert any_company == "[etl] # root.team any 1.50x 1.20x to 1.88x 30"
    assert noisy == "[etl] # root.team noisy root.default 2.25x 1.50x to 300x 7"
    assert result.stderr == ""


def test_times_that_are_not_for_the_caller_are_left_out(hrm: Run, master: FakeMaster) -> None:
    master.queues.kinds[0].hidden = True
    assert lines(hrm("affinity"))[1] == (
        "[etl] # root.team cpu - 2.50x 2.00x to 3.12x 40 - 0.40 0.50"
    )


def test_queue_and_company_are_asked_for(hrm: Run, master: FakeMaster) -> None:
    hrm("affinity", "--queue", "team", "--co-runners", "7")
    assert master.queues.requests == [pb.ListAffinitiesRequest(queue="team", co_runners_limit=7)]


def test_all_pages_are_there_as_json(hrm: Run, master: FakeMaster) -> None:
    other = example_kind()
    other.name = "other"
    master.queues.kinds.append(other)
    shown = json.loads(hrm("affinity", "--output", "json").stdout)
    assert [kind["name"] for kind in shown["kinds"]] == ["[etl] #", "other"]
    assert shown["platforms"] == ["[gpu]", "cpu"]
    assert shown["kinds"][0]["platforms"][0]["relative"] == 2.5
    assert shown["kinds"][0]["co_runners"][0]["most"] == 300


def test_where_nothing_is_known_it_says_how_that_changes(hrm: Run, master: FakeMaster) -> None:
    master.queues.kinds, master.queues.platforms = [], ["cpu"]
    result = hrm("affinity")
    assert result.stdout == ""
    nothing, platforms = result.stderr.splitlines()
    assert nothing.startswith("nothing is learned yet: drivers report")
    assert platforms == (
        "all nodes are of platform cpu; platforms are compared once nodes state theirs: "
        "platform in hrm.toml [agent]"
    )
    master.queues.platforms = []
    assert "there are no nodes" in hrm("affinity").stderr


def test_one_platform_of_two_is_no_comparison(hrm: Run, master: FakeMaster) -> None:
    del master.queues.kinds[0].platforms[1]
    assert "no application has run on two platforms yet" in hrm("affinity").stderr
