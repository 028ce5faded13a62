"""kill -9 of the master during registrations: each that it has acknowledged exists afterwards."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import grpc
import pytest

from hrm.v1 import admin_pb2, application_pb2_grpc
from tests.hostile.application import registration
from tests.hostile.attack import Attack, Limits
from tests.hostile.cluster import Cluster

THREADS = 4
KILLS = 3
BETWEEN_S = (0.5, 1.5)


class Registrars:
    """Threads that register one application after another, and record what was acknowledged."""

    def __init__(self, target: str, token: str) -> None:
        self.acknowledged: list[str] = []
        self._call = (("authorization", f"Bearer {token}"),)
        self._target = target
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._register) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _register(self) -> None:
        options = (("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(self._target, options=options) as channel:
            stub = application_pb2_grpc.ApplicationServiceStub(channel)
            while not self._ending.is_set():
                try:
                    response = stub.Register(registration(), timeout=5, metadata=self._call)
                except grpc.RpcError:
                    self._ending.wait(0.02)
                    continue
                self.acknowledged.append(response.application_id)

    def end(self) -> list[str]:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        return list(self.acknowledged)


@pytest.mark.hostile
def test_acknowledged_registrations_survive_kills(tmp_path: Path) -> None:
    rng = random.Random(14)
    with Cluster(tmp_path) as cluster:
        master = cluster.start_master()
        port = cluster.port
        registrars = Registrars(cluster.address, cluster.token)
        try:
            for _ in range(KILLS):
                time.sleep(rng.uniform(*BETWEEN_S))
                master.kill()
                master = cluster.start_master(port=port)
        finally:
            acknowledged = registrars.end()
        with Attack(
            "14", f"{KILLS} kill -9 amid registrations", on=master, limits=Limits()
        ) as seen:
            lost = [x for x in acknowledged if not known(cluster, x)]
            seen.outcome = f"{len(acknowledged)} acknowledged, {len(lost)} lost"
            assert acknowledged
            assert not lost, lost[:5]


def known(cluster: Cluster, application_id: str) -> bool:
    request = admin_pb2.GetApplicationRequest(application_id=application_id)
    try:
        cluster.admin.GetApplication(request, timeout=20)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.NOT_FOUND, error
        return False
    return True
