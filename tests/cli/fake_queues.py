"""QueueService with prepared replies, for ``tests.cli.conftest``."""

from __future__ import annotations

from typing import Any

import grpc

from hrm.v1 import queues_pb2 as pb
from hrm.v1 import queues_pb2_grpc

__all__ = ["FakeQueues"]


def _amounts(cores: float, gib: float) -> pb.QueueAmounts:
    return pb.QueueAmounts(cores=cores, memory_mib=1024 * gib)


def example_queues() -> list[pb.Queue]:
    """``root`` with a team and ``root.default``; two applications wait in the team's queue."""
    whole = _amounts(100, 400)
    stated = pb.QueueStated(
        name="root.team",
        guaranteed=pb.QueueQuota(cores="25%", memory="25%", gpu_memory="25%"),
        maximum=pb.QueueQuota(cores="64"),
        max_running=10,
        weight=2.5,
        preemptible=False,
        submitters=pb.QueueNames(names=["ana", "[bo]"]),
        administrators=pb.QueueNames(),
    )
    waiting = [
        pb.QueueWait(
            application_id=f"app-{number}", user="[bo]", position=number, containers=4,
            reason="max-running", why="10 applications of [root.team] run, the most that may",
        )
        for number in (1, 2)
    ]  # fmt: skip
    return [
        pb.Queue(name="root", guaranteed=whole, maximum=whole, running=3, applications=5),
        pb.Queue(name="root.default", is_leaf=True, maximum=whole),
        pb.Queue(
            name="root.team",
            stated=stated,
            in_file=True,
            is_leaf=True,
            guaranteed=_amounts(25, 100),
            maximum=_amounts(64, 400),
            share=_amounts(40, 120.5),
            used=_amounts(30, 96),
            borrowed=_amounts(5, 0),
            pending=_amounts(8, 16),
            running=3,
            applications=5,
            past_use=0.125,
            waiting=waiting,
            waiting_total=2,
            observed=pb.QueueObserved(
                takes_part=True,
                throughput=0.756,
                entitled_cores=40,
                held_cores=33.6,
                speed=0.9,
                busy=0.5,
                wait_p50_s=2.4,
                wait_p90_s=75,
                wait_p99_s=4_000,
                starts=20,
            ),
            longest_wait_s=600,
        ),
    ]


def example_platforms() -> list[pb.QueuePlatform]:
    return [
        pb.QueuePlatform(platform="old", cores=8, held_cores=2, affinity=2 / 3),
        pb.QueuePlatform(platform="[new]", cores=32, held_cores=30, affinity=1.5),
    ]


def example_fairness() -> pb.QueueFairness:
    return pb.QueueFairness(
        queues=3, with_speeds=1, fairness=0.8765, jain=0.98, spread=1.5, half_life_s=600
    )


def example_kind() -> pb.LearnedKind:
    """It runs faster on a GPU node, and suffers from one kind of company."""
    return pb.LearnedKind(
        queue="root.team",
        name="[etl] #",
        platforms=[
            pb.LearnedPlatform(
                platform="cpu", run_s=12.5, relative=2.5, factor=1.25, observations=40,
                tasks_per_hour=288, egocentric=0.4, reciprocal=0.5,
            ),
            pb.LearnedPlatform(
                platform="[gpu]", run_s=5, relative=1, observations=2, tasks_per_hour=720,
                egocentric=2.5, reciprocal=2,
            ),
        ],
        company=pb.LearnedSlowdown(factor=1.5, least=1.2, most=1.875, observations=30),
        co_runners=[
            pb.LearnedSlowdown(
                queue="root.default", name="noisy", factor=2.25, least=1.5, most=300,
                observations=7,
            )
        ],
    )  # fmt: skip


class FakeQueues(queues_pb2_grpc.QueueServiceServicer):
    """``waits``: do applications wait? ``refusal``: what a change is refused with. ``fairness``:
    between queues. ``is_divided``: is the team's share, over platforms? ``kinds``: what has been
    learned, a page each, on ``platforms``."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.waits = True
        self.refusal = ""
        self.fairness = example_fairness()
        self.is_divided = True
        self.kinds = [example_kind()]
        self.platforms = ["cpu", "[gpu]"]

    def ListAffinities(  # noqa: N802
        self, request: pb.ListAffinitiesRequest, context: grpc.ServicerContext
    ) -> pb.ListAffinitiesResponse:
        self.requests.append(request)
        page = int(request.page_token or 0)
        more = str(page + 1) if page + 1 < len(self.kinds) else ""
        return pb.ListAffinitiesResponse(
            kinds=self.kinds[page : page + 1], platforms=self.platforms, next_page_token=more
        )

    def ListQueues(  # noqa: N802
        self, request: pb.ListQueuesRequest, context: grpc.ServicerContext
    ) -> pb.ListQueuesResponse:
        self.requests.append(request)
        listed = [x for x in example_queues() if x.name.startswith(request.name)]
        if not listed:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no queue {request.name}")
        for queue in listed:
            if not self.waits:
                queue.waiting_total = 0
            if queue.name == "root.team" and self.is_divided:
                queue.platforms.extend(example_platforms())
            del queue.waiting[request.waiting_limit if self.waits else 0 :]
        return pb.ListQueuesResponse(queues=listed, fairness=self.fairness)

    def ChangeQueues(  # noqa: N802
        self, request: pb.ChangeQueuesRequest, context: grpc.ServicerContext
    ) -> pb.ChangeQueuesResponse:
        self.requests.append(request)
        if self.refusal:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refusal)
        names = [*(each.name for each in request.queues), *request.removed]
        return pb.ChangeQueuesResponse(
            preempted_containers=[f"app-1-x{number}" for number in range(12)],
            held_back_applications=["app-7"],
            in_file=[name for name in names if name == "root.team"],
            queues=request.queues,
        )

    def WhatIf(  # noqa: N802
        self, request: pb.WhatIfRequest, context: grpc.ServicerContext
    ) -> pb.WhatIfResponse:
        self.requests.append(request)
        if request.executors == 1:
            return pb.WhatIfResponse(at_once=1, grace_s=15.0)
        return pb.WhatIfResponse(
            at_once=2,
            by_preemption=1,
            later=3,
            why="root.[team] has what it is guaranteed",
            preempted=[pb.PreemptedContainer(container_id="app-1-x3", application_id="app-1")],
            grace_s=15.0,
            later_s=90.0,
        )
