"""An application without Spark: registers, holds its session like an AppMaster, requests
containers, and tracks them.

Also a process of its own, for tests that stop or kill it::

    python -m tests.hostile.application HOST:PORT TOKEN_FILE CONTAINERS

It prints its id, then each change of a container as a JSON list: executor, state, cause.
"""

from __future__ import annotations

import json
import queue
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from hrm.v1 import application_pb2 as pb
from hrm.v1 import application_pb2_grpc, common_pb2
from tests.hostile.cluster import wait_until

__all__ = ["Application", "registration"]

CALL_S = 20.0
RETRY_S = 0.2
_OPTIONS = (("grpc.max_reconnect_backoff_ms", 1_000), ("grpc.enable_http_proxy", 0))
RUNNING = common_pb2.CONTAINER_STATE_RUNNING
ENDED = common_pb2.CONTAINER_STATE_ENDED


def owned(message: Any, key: str = "") -> dict[str, str]:
    """The secret that proves who owns an application, if ``message`` has a field for it."""
    known = "ownership_key" in message.DESCRIPTOR.fields_by_name
    return {"ownership_key": key or secrets.token_urlsafe(32)} if known else {}


def registration(command: str = "sleep 600", **fields: Any) -> pb.RegisterApplicationRequest:
    """Of an application whose executors run ``command``."""
    values: dict[str, Any] = {
        "submission_key": uuid.uuid4().hex,
        **owned(pb.RegisterApplicationRequest),
        "name": "app",
        "user": "somebody",
        "launch": common_pb2.SparkLaunch(environment={"COMMAND": command}),
        **fields,
    }
    return pb.RegisterApplicationRequest(**values)


class Application:
    """One application; a context manager that ends it with success."""

    def __init__(self, target: str, token: str, **fields: Any) -> None:
        # The channel of HRM's commands has no bidirectional streams; this one is its own.
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._stub = application_pb2_grpc.ApplicationServiceStub(self._channel)
        self._call: dict[str, Any] = {"metadata": [("authorization", f"Bearer {token}")]}
        self._registration = registration(**fields)
        self._out: queue.Queue[pb.ApplicationUpdate | None] = queue.Queue()
        self._asked: dict[str, pb.ContainerRequest] = {}
        self.containers: dict[str, common_pb2.ContainerStatus] = {}
        self.problems: list[str] = []
        self.refused: list[str] = []
        self.ended = ""
        self.sessions = 0
        self._closing = False
        self._thread = threading.Thread(target=self._live, daemon=True)
        response = self._stub.Register(self._registration, timeout=CALL_S, **self._call)
        self.application_id: str = response.application_id
        self._registration.application_id = self.application_id
        self._epoch = response.epoch
        self._thread.start()

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        state = common_pb2.APPLICATION_STATE_SUCCEEDED
        self._out.put(pb.ApplicationUpdate(finished=pb.ApplicationFinished(state=state)))
        self._out.put(None)
        self._thread.join(CALL_S)
        self._channel.close()

    def request(
        self,
        *executor_ids: str,
        vcores: int = 1,
        memory_mib: int = 64,
        gpu_memory_mib: int = 0,
    ) -> None:
        """``gpu_memory_mib``: of one GPU; 0: without a GPU."""
        resources = common_pb2.Resources(
            vcores=vcores, memory_mib=memory_mib, gpu_memory_mib=gpu_memory_mib
        )
        for executor_id in executor_ids:
            self._asked[executor_id] = pb.ContainerRequest(
                executor_id=executor_id, resources=resources, gpus=int(gpu_memory_mib > 0)
            )
        self._ask(*executor_ids)

    def _ask(self, *executor_ids: str, again: bool = False) -> None:
        wanted = [self._asked[x] for x in executor_ids]
        asking = pb.RequestContainers(containers=wanted, again=again)
        self._out.put(pb.ApplicationUpdate(request=asking))

    def send(self, update: pb.ApplicationUpdate) -> None:
        self._out.put(update)

    def running(self) -> list[str]:
        return [x for x, status in list(self.containers.items()) if status.state == RUNNING]

    def wait_running(self, number: int, timeout_s: float = 60.0) -> None:
        try:
            wait_until(lambda: len(self.running()) >= number, f"{number} containers run", timeout_s)
        except AssertionError as error:
            error.add_note(f"{self.problems[-3:]} {self.refused} {self.ended} {self.containers}")
            raise

    # --- the session --------------------------------------------------------------------------

    def _live(self) -> None:
        while not self._closing and not self.ended:
            try:
                self._session()
            except grpc.RpcError as error:
                self.problems.append(f"{error.code().name}: {error.details()}")
            if self._closing or self.ended:
                return
            time.sleep(RETRY_S)
            self._register_again()

    def _register_again(self) -> None:
        try:
            response = self._stub.Register(self._registration, timeout=CALL_S, **self._call)
            self._epoch = response.epoch
        except grpc.RpcError as error:
            self.problems.append(f"{error.code().name}: {error.details()}")
            return
        self._out = queue.Queue()
        self._ask(*self._asked, again=True)

    def _session(self) -> None:
        self.sessions += 1
        for notice in self._stub.Session(self._updates(), **self._call):
            match notice.WhichOneof("notice"):
                case "attached":
                    self._received(notice.attached.containers)
                case "changed":
                    self._received(notice.changed.containers)
                case "container":
                    self._received([notice.container])
                case "refused":
                    self.refused.append(notice.refused.message)
                case "end":
                    self.ended = notice.end.message or "ended"

    def _updates(self) -> Iterator[pb.ApplicationUpdate]:
        attach = pb.AttachApplication(
            application_id=self.application_id,
            epoch=self._epoch,
            **owned(pb.AttachApplication, getattr(self._registration, "ownership_key", "")),
        )
        yield pb.ApplicationUpdate(attach=attach)
        out = self._out
        while True:
            try:
                update = out.get(timeout=1.0)
            except queue.Empty:
                update = pb.ApplicationUpdate(heartbeat=pb.ApplicationHeartbeat())
            if update is None or out is not self._out:
                return
            yield update

    def _received(self, statuses: Any) -> None:
        for status in statuses:
            self.containers[status.executor_id] = status
            self.changed(status)

    def changed(self, status: common_pb2.ContainerStatus) -> None:
        """Called with each change; for subclasses."""


class _Loud(Application):
    def changed(self, status: common_pb2.ContainerStatus) -> None:
        line = [status.executor_id, status.state, status.end.message]
        print(json.dumps(line), flush=True)


def main(target: str, token_file: str, containers: str) -> None:
    application = _Loud(target, Path(token_file).read_text().strip())
    print(json.dumps(application.application_id), flush=True)
    application.request(*(str(n) for n in range(1, int(containers) + 1)))
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
