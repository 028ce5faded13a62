"""Pipelines on a real master and real agents: results, failures by name, and an agent killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from pipeline_samples import sample_steps

from hrm import rpc
from hrm.config import AgentSettings, DeclaredGpu
from hrm.pipelines import Pipeline
from hrm.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    pipeline_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
)
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pw
from tests.conftest import PYTHON_PATH

REPOSITORY = Path(__file__).parents[2]
SAMPLES = "pipeline_samples.sample_steps"
LIMIT_S = 60.0
DONE = pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_DONE
FAILED = pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_FAILED


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for it, with a limit."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - other processes make it true
            await asyncio.sleep(0.05)


class PipelineCluster:
    """A master and agents, all of them processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token_file = directory / "token"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.master: subprocess.Popen[bytes] | None = None
        self.address = ""
        self._logs: list[Any] = []

    def _start(
        self, name: str, *arguments: str, python: str = sys.executable, **more: str
    ) -> subprocess.Popen[bytes]:
        """``more``: environment."""
        log = (self.directory / f"{name}.log").open("wb")
        self._logs.append(log)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HRM_")}
        environment = {**kept, "PYTHONPATH": PYTHON_PATH, "HRM_HOME": str(self.directory)}
        environment |= more
        return subprocess.Popen(
            [python, *arguments],
            env=environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    async def start(self) -> None:
        state = self.directory / "master"
        self.master = self._start(
            "master-process",
            *("-m", "hrm.cli", "master", "--port", "0", "--state-dir", str(state)),
            *("--token-file", str(self.token_file), "--node-timeout-s", "2"),
            *("--heartbeat-interval-s", "0.2", "--pipeline-worker-idle-s", "1"),
        )

        async def serving() -> bool:
            return (state / "address").exists()

        await until(serving)
        self.address = (state / "address").read_text().strip()

    def agent(
        self,
        name: str,
        *,
        cores: int = 2,
        gpus: int = 0,
        policy: str = "mct",
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """``more``: settings."""
        fields: dict[str, Any] = {
            "master": self.address,
            "name": name,
            "work_dir": self.directory / name,
            "token_file": self.token_file,
            "cores": cores,
            "memory_mib": 4096,
            "isolation": "none",
            "run_as": "off",
            "mps": "off",
            "pipeline_path": str(REPOSITORY / "tests" / "samples"),
            "pipeline_policy": policy,
            "gpus": tuple(DeclaredGpu(memory_mib=4096, name="P4") for _ in range(gpus)),
        }
        settings = AgentSettings(**{**fields, **more})
        script = REPOSITORY / "tests/agent/plain_agent.py"
        document = settings.model_dump_json()
        self.agents[name] = self._start(
            name + "-process", str(script), document, python=python, **(environment or {})
        )

    def hrm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``hrm pipeline`` as a user in front of this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "hrm.cli", "pipeline", *arguments, "--master", self.address],
            env={**os.environ, "PYTHONPATH": PYTHON_PATH, "COLUMNS": "200",
                 "HRM_HOME": str(self.directory), "HRM_TOKEN_FILE": str(self.token_file)},
            cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def close(self) -> None:
        processes = [*self.agents.values(), *([self.master] if self.master else [])]
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                process.kill()
                process.wait(10)
        for name in self.agents:  # containers outlive an agent that was killed
            for process_id in of_directory(self.directory / name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
        for log in self._logs:
            log.close()


def of_directory(work_dir: Path) -> list[int]:
    """The processes of the containers that an agent has started in its work directory."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(part.startswith(f"{work_dir}/") for part in process.info["cmdline"] or ())
    ]


class Client:
    def __init__(self, channel: Any) -> None:
        self.stub: Any = pipeline_pb2_grpc.PipelineServiceStub(channel)
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(channel)

    async def submit(self, pipeline: Pipeline, name: str, value: Any, **more: Any) -> str:
        reference = more.pop("reference", f"{SAMPLES}:{name}")
        request = pb.SubmitPipelineTaskRequest(
            pipeline=pw.from_pipeline(pipeline.spec(reference)),
            payload=pickle.dumps(value),
            **more,
        )
        task_id: str = (await self.stub.Submit(request)).task_id
        return task_id

    async def watch(self, *task_ids: str) -> dict[str, list[pb.PipelineTaskUpdate]]:
        """All updates of each, until all have ended."""
        updates: dict[str, list[pb.PipelineTaskUpdate]] = {one: [] for one in task_ids}
        async with asyncio.timeout(LIMIT_S):
            call = self.stub.Watch(pb.WatchPipelineTasksRequest(task_ids=task_ids))
            async for update in call:
                updates[update.task_id].append(update)
        return updates

    async def end(self, task_id: str) -> pb.PipelineTaskEnd:
        return (await self.watch(task_id))[task_id][-1].ended

    async def result(self, task_id: str) -> Any:
        call = self.stub.GetResult(pb.GetPipelineResultRequest(task_id=task_id))
        return pickle.loads(b"".join([chunk.data async for chunk in call]))

    async def workers(self) -> list[pb.PipelineNodeInfo]:
        return list((await self.stub.List(pb.ListPipelineTasksRequest())).nodes)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PipelineCluster]:
    cluster = PipelineCluster(tmp_path)
    try:
        await cluster.start()
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)


@pytest.fixture
async def client(cluster: PipelineCluster) -> AsyncIterator[Client]:
    token = rpc.read_token(cluster.token_file)
    async with rpc.channel(cluster.address, token) as channel:
        yield Client(channel)


async def joined(client: Client, number: int) -> None:
    async def there() -> bool:
        listed = await client.admin.ListNodes(admin_pb2.ListNodesRequest())
        alive = [x for x in listed.nodes if x.state == common_pb2.NODE_STATE_ALIVE]
        return len(alive) >= number

    await until(there)


async def running(client: Client, node: str) -> None:
    """Wait until a worker on the node has reported a run."""

    async def reported() -> bool:
        return any(x.node == node and x.load.running for x in await client.workers())

    await until(reported)


async def test_good_tasks_give_what_they_give_here_and_bad_ones_state_why(
    cluster: PipelineCluster, client: Client
) -> None:
    cluster.agent("n1", cores=4, gpus=1)
    await joined(client, 1)
    good = [await client.submit(sample_steps.arithmetic, "arithmetic", value) for value in range(6)]
    bad = {
        "raising": ["'divide'", "node n1", "raised (2 times)", "ZeroDivisionError", "sample_steps"],
        "hanging": ["'hang'", "n1", "limit of 0.5 s"],
        "greedy": ["'fill'", "n1", "memory_mib of 64 MiB"],
        "crashing": ["'crash'", "n1", "exit code 3"],
        "unpicklable": ["'make'", "n1", "does not pickle"],
    }
    failing = {name: await client.submit(getattr(sample_steps, name), name, 512) for name in bad}
    failing["absent"] = await client.submit(
        sample_steps.arithmetic, "arithmetic", 1, reference="no_such_module:pipeline"
    )
    bad["absent"] = ["'double'", "n1", "cannot be imported", "no_such_module"]
    updates = await client.watch(*good, *failing.values())
    for value, task_id in enumerate(good):
        end = updates[task_id][-1].ended
        assert end.outcome == DONE, end.message
        assert await client.result(task_id) == sample_steps.arithmetic.run_here(value)
        names = [timing.subtask for timing in end.timings]
        assert sorted(names) == ["add", "double", "negate", "square"]
    for name, words in bad.items():
        end = updates[failing[name]][-1].ended
        assert end.outcome == FAILED
        for word in words:
            assert word in end.message, end.message


async def test_a_declared_gpu_runs_the_gpu_version_and_states_what_it_is(
    cluster: PipelineCluster, client: Client
) -> None:
    cluster.agent("n1", gpus=1)
    await joined(client, 1)
    task_id = await client.submit(sample_steps.on_a_gpu, "on_a_gpu", 5)
    end = await client.end(task_id)
    assert await client.result(task_id) == (5, "")
    (timing,) = end.timings
    assert timing.device == pb.SubtaskDevice.SUBTASK_DEVICE_GPU
    assert "declared GPU" in timing.message and timing.row.gpu_model == "P4"


async def test_files_that_are_sent_along_are_what_runs(
    cluster: PipelineCluster, client: Client, tmp_path: Path
) -> None:
    cluster.agent("n1")
    await joined(client, 1)
    source = """
from hrm.pipelines import Pipeline
p = Pipeline("sent")
@p.subtask()
def shift(value):
    return value + {}
"""
    sent = Pipeline("sent")
    sent.subtask(name="shift")(abs)
    for shift in (1, 2):
        content = source.format(shift).encode()
        files = [pb.SourceFile(path="sent_along.py", content=content)]
        task_id = await client.submit(sent, "p", 40, reference="sent_along:p", files=files)
        assert (await client.end(task_id)).outcome == DONE
        assert await client.result(task_id) == 40 + shift


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to end"])
async def test_nothing_is_lost_when_an_agent_ends_midway(
    cluster: PipelineCluster, client: Client, how: signal.Signals
) -> None:
    for name in ("n1", "n2"):
        cluster.agent(name)
    await joined(client, 2)
    values = [0.3 + 0.01 * number for number in range(16)]
    tasks = [await client.submit(sample_steps.slow, "slow", value) for value in values]
    watching = asyncio.create_task(client.watch(*tasks))
    await running(client, "n2")
    os.killpg(cluster.agents["n2"].pid, how)
    updates = await watching
    ends = [updates[task_id][-1].ended for task_id in tasks]
    assert all(end.outcome == DONE for end in ends), [end.message for end in ends]
    assert [(await client.result(task_id))[0] for task_id in tasks] == values
    for task_id in tasks:
        ended = [one for one in updates[task_id] if one.WhichOneof("update") == "ended"]
        assert len(ended) == 1
    again = [end for end in ends if end.attempt > 1]
    assert all(end.node == "n1" for end in again)
    if how is signal.SIGTERM:  # workers of a killed agent go on, and may end what they have first
        assert again


async def test_cancelling_and_listing(cluster: PipelineCluster, client: Client) -> None:
    waiting = await client.submit(sample_steps.slow, "slow", 60.0)
    listed = await client.stub.List(pb.ListPipelineTasksRequest())
    assert "0 of 1 workers run" in listed.tasks[0].state
    cluster.agent("n1")
    await joined(client, 1)
    await running(client, "n1")
    await client.stub.Cancel(pb.CancelPipelineTaskRequest(task_id=waiting, reason="enough"))
    end = await client.end(waiting)
    assert end.outcome == pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_CANCELLED
    after = await client.submit(sample_steps.arithmetic, "arithmetic", 2)
    assert (await client.end(after)).outcome == DONE
    with pytest.raises(grpc.RpcError, match="no result"):
        await client.result(waiting)


async def test_a_run_without_nodes_reports_it_and_cancels_when_it_is_ended(
    cluster: PipelineCluster, client: Client, tmp_path: Path
) -> None:
    words = ["pipeline", "run", f"{SAMPLES}:arithmetic", "--as", "json", "--input", "2"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HRM_")}
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hrm.cli", *words, "--master", cluster.address,
        cwd=REPOSITORY, env={**kept, "HRM_TOKEN_FILE": str(cluster.token_file)},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert run.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        await run.stderr.readuntil(b"0 of 1 workers run (hrm app why pipelines-")
        (task,) = (await client.stub.List(pb.ListPipelineTasksRequest())).tasks
        run.terminate()
        await run.communicate()
    assert run.returncode
    end = await client.end(task.task_id)
    assert end.outcome == pb.PipelineTaskOutcome.PIPELINE_TASK_OUTCOME_CANCELLED


async def test_a_learned_policy_of_workers_is_trusted_as_users_state_and_new_ones_hear_of_it(
    cluster: PipelineCluster, client: Client
) -> None:
    token = rpc.read_token(cluster.token_file)
    async with rpc.channel(cluster.address, token) as channel:
        policies = policy_pb2_grpc.PolicyServiceStub(channel)

        async def shown() -> list[policy_pb2.LearnedPolicy]:
            request = policy_pb2.ShowPoliciesRequest(policy="iawp")
            return list((await policies.ShowPolicies(request)).policies)

        cluster.agent("n1", cores=1, gpus=1, policy="iawp")
        await joined(client, 1)
        first = [
            await client.submit(sample_steps.arithmetic, "arithmetic", one) for one in range(8)
        ]
        longest = await client.submit(sample_steps.arithmetic, "arithmetic", 8)
        await client.watch(*first)
        (one,) = await shown()
        assert (one.mode, one.node) == ("shadow", (await client.workers())[0].capacity.node)

        async def shadowed() -> bool:
            return any(x.shadowed for x in await shown())

        await until(shadowed)
        by = await _placed_by(client, only=first)
        assert by["mct"] > 0 and "iawp" not in by and by["profile"] >= 1, by
        request = policy_pb2.SetPolicyModeRequest(policy="iawp", mode="on")
        assert list((await policies.SetPolicyMode(request)).nodes) == [one.node]

        async def is_on() -> bool:
            return [x.mode for x in await shown()] == ["on"]

        await until(is_on)
        await client.end(longest)

        async def gone() -> bool:
            return not await client.workers()

        await until(gone)
        await client.end(await client.submit(sample_steps.arithmetic, "arithmetic", 1))
        await until(is_on)
        (other,) = await shown()
        assert other.node != one.node, "it is another worker"


async def _placed_by(client: Client, only: Sequence[str] = ()) -> Counter[str]:
    """Runs by the policy that placed them."""
    listed = await client.stub.List(pb.ListPipelineTasksRequest(all=True))
    found: Counter[str] = Counter()
    for task in listed.tasks:
        assert task.placed_by == "min-wait" and not task.fallback
        if not only or task.task_id in only:
            found.update(task.runs_placed_by)
    return found
