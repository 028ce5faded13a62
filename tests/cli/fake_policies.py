"""PolicyService with a prepared reply."""

from __future__ import annotations

import time
from typing import Any

import grpc

from hrm.v1 import policy_pb2 as pb
from hrm.v1 import policy_pb2_grpc


def example() -> pb.LearnedPolicy:
    return pb.LearnedPolicy(
        policy="ldwp-set", kind="cluster", heuristic="ect", model="ldwp-set-3", schema="abc",
        mode="canary-10", asked=1000, learned=92, shadowed=400, proposed=375, agreed=300,
        fallbacks={"over-budget": 3, "unknown-type": 7}, breaker_s=12.0,
        seconds_p50=0.00021, seconds_p99=0.0008, ratio_p95=1.31, reference_p95=1.25,
        rolled_back_at_s=time.time() - 90, rolled_back_why="watchdog: it was worse",
        last="unknown-type: it has never seen speech [x]",
    )  # fmt: skip


def candidate(**fields: Any) -> pb.LearnedPolicy:
    """Of the placement of containers."""
    return pb.LearnedPolicy(
        policy="most-memory", kind="placement", heuristic="min-wait", model="lean:MostMemory",
        mode="canary-10", asked=50, learned=5, compared=40, reference_compared=460, **fields,
    )  # fmt: skip


def of_agent(**fields: Any) -> pb.LearnedPolicy:
    """Of what waits for a shared GPU."""
    return pb.LearnedPolicy(
        policy="dqngpu-ddqn", kind="shared-gpu", heuristic="look-ahead", model="dqngpu-ddqn-1",
        mode="on", **fields,
    )  # fmt: skip


def _of_node(**fields: Any) -> pb.LearnedPolicy:
    return pb.LearnedPolicy(policy="iawp", kind="node", heuristic="pats", model="m", **fields)


class FakePolicies(policy_pb2_grpc.PolicyServiceServicer):
    """Replies with the example; remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.empty = False
        self.one: pb.LearnedPolicy | None = None
        """Shown instead of the example."""
        self.nodes: list[str] = []
        """Those that use ``iawp``; with some, there is no other policy."""

    def ShowPolicies(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> pb.ShowPoliciesResponse:
        self.requests.append(request)
        if request.policy == "nobody":
            context.abort(grpc.StatusCode.NOT_FOUND, "no learned policy 'nobody' is in use")
        if self.empty:
            return pb.ShowPoliciesResponse()
        if self.nodes:
            reports = [_of_node(mode="shadow", node=name) for name in self.nodes]
            return pb.ShowPoliciesResponse(policies=reports)
        if self.one is not None:
            return pb.ShowPoliciesResponse(policies=[self.one])
        shown = example()
        if request.records:
            shown.records.add(key="task-1", heuristic="n1: first", learned="n2: Q 1", same=False)
            shown.records.add(key="task-2", heuristic="n1: first", reason="fault: x", same=False)
        files = [pb.ModelFile(kind="ldwp-set", version=3, path="/m/ldwp-set-3.npz")]
        return pb.ShowPoliciesResponse(policies=[shown], models=files)

    def SetPolicyMode(  # noqa: N802
        self, request: Any, context: grpc.ServicerContext
    ) -> pb.LearnedPolicy:
        self.requests.append(request)
        if self.nodes:
            return _of_node(mode=request.mode, nodes=self.nodes)
        if self.one is not None:
            return self.one
        shown = example()
        shown.mode = request.mode
        return shown
