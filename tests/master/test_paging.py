"""Lists in pages: complete and in order together, each page bounded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm.errors import InvalidRequest
from hrm.master import paging
from hrm.v1 import admin_pb2, pipeline_pb2, pipeline_pb2_grpc, submission_pb2, submission_pb2_grpc
from tests.master.test_services import TIMEOUT_S, node, refused, registration, running

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@dataclass
class Text:
    text: str

    def ByteSize(self) -> int:  # noqa: N802 - protobuf's name
        return len(self.text)


def ask(size: int = 0, token: str = "") -> Any:
    return admin_pb2.ListNodesRequest(page_size=size, page_token=token)


def pages(elements: list[str], size: int, limit: int = 0) -> list[list[str]]:
    found, token = [], ""
    while True:
        messages, token = paging.page(elements, lambda x: (x,), Text, ask(size, token), limit=limit)
        found.append([one.text for one in messages])
        if not token:
            return found


@given(st.sets(st.text(max_size=5), max_size=40), st.integers(0, 10), st.integers(0, 50))
def test_the_pages_are_the_list(elements: set[str], size: int, limit: int) -> None:
    found = pages(list(elements), size, limit)
    ordered = sorted(elements)
    assert [one for page in found for one in page] == ordered[-limit:]
    assert all(len(page) <= (size or paging.PAGE_MAX) for page in found)
    assert all(found[:-1]), "no page but the last is empty"


def test_a_page_ends_where_it_grows_too_large() -> None:
    large = [f"{number}{'x' * (paging.PAGE_BYTES // 2)}" for number in range(5)]
    assert [len(page) for page in pages(large, 0)] == [2, 2, 1]
    larger = [f"{number}{'x' * (2 * paging.PAGE_BYTES)}" for number in range(3)]
    assert [len(page) for page in pages(larger, 0)] == [1, 1, 1], "each comes"


def test_what_comes_and_goes_meanwhile_neither_repeats_nor_hides_others() -> None:
    first, token = paging.page(list("bdfh"), lambda x: (x,), Text, ask(2))
    assert [one.text for one in first] == ["b", "d"]
    rest, token = paging.page(list("abceg"), lambda x: (x,), Text, ask(0, token))
    assert [one.text for one in rest] == ["e", "g"]
    assert token == ""


@pytest.mark.parametrize("token", ["x", "é", "e30=", "bnVsbA==", "W251bGxd", "WzFd", "W" * 1000])
def test_a_token_that_is_none(token: str) -> None:
    with pytest.raises(InvalidRequest, match="page_token is no token"):
        paging.page(["a"], lambda x: (x,), Text, ask(0, token))


def test_a_size_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="page_size is -1"):
        paging.page(["a"], lambda x: (x,), Text, ask(-1))


async def test_lists_of_the_master_come_in_pages(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        streams = []
        for number in range(3):
            stream = master.nodes.Connect(timeout=TIMEOUT_S)
            await stream.write(node(f"n{number}", f"i{number}"))
            await stream.read()
            streams.append(stream)
        for number in range(5):
            ask_for = registration(submission_key=f"k{number}", name=f"{number}" * 1_000)
            await master.applications.Register(ask_for, timeout=TIMEOUT_S)

        request = admin_pb2.ListApplicationsRequest(page_size=2, limit=3)
        first = await master.admin.ListApplications(request, timeout=TIMEOUT_S)
        assert [app.name[0] for app in first.applications] == ["2", "3"], "of the latest three"
        assert {len(app.name) for app in first.applications} == {paging.NAME_LISTED}
        request.page_token = first.next_page_token
        rest = await master.admin.ListApplications(request, timeout=TIMEOUT_S)
        assert [app.name[0] for app in rest.applications] == ["4"]
        assert not rest.next_page_token
        get = admin_pb2.GetApplicationRequest(application_id=rest.applications[0].application_id)
        assert len((await master.admin.GetApplication(get, timeout=TIMEOUT_S)).name) == 1_000

        nodes = admin_pb2.ListNodesRequest(page_size=2)
        two = await master.admin.ListNodes(nodes, timeout=TIMEOUT_S)
        nodes.page_token = two.next_page_token
        one = await master.admin.ListNodes(nodes, timeout=TIMEOUT_S)
        assert [x.name for x in (*two.nodes, *one.nodes)] == ["n0", "n1", "n2"]
        named = admin_pb2.ListNodesRequest(name="n1")
        (alone,) = (await master.admin.ListNodes(named, timeout=TIMEOUT_S)).nodes
        assert alone.name == "n1"

        alive = admin_pb2.ListNodesRequest(states=["NODE_STATE_ALIVE"], page_size=2)
        first_of_them = await master.admin.ListNodes(alive, timeout=TIMEOUT_S)
        assert [x.name for x in first_of_them.nodes] == ["n0", "n1"]
        lost = admin_pb2.ListNodesRequest(states=["NODE_STATE_LOST", "NODE_STATE_DRAINING"])
        assert not (await master.admin.ListNodes(lost, timeout=TIMEOUT_S)).nodes
        with refused(INVALID, "states has 77"):
            await master.admin.ListNodes(admin_pb2.ListNodesRequest(states=[77]), timeout=TIMEOUT_S)  # type: ignore[list-item]

        submissions = submission_pb2_grpc.SubmissionServiceStub(master.channel)
        pipelines = pipeline_pb2_grpc.PipelineServiceStub(master.channel)
        for bad, part in (({"page_token": "x"}, "page_token"), ({"page_size": -1}, "page_size")):
            for call, kind in (
                (master.admin.ListNodes, admin_pb2.ListNodesRequest),
                (master.admin.ListApplications, admin_pb2.ListApplicationsRequest),
                (submissions.List, submission_pb2.ListSubmissionsRequest),
                (pipelines.List, pipeline_pb2.ListPipelineTasksRequest),
            ):
                with refused(INVALID, part):
                    await call(kind(**bad), timeout=TIMEOUT_S)
        for stream in streams:
            stream.cancel()
