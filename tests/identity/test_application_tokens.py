"""An application's own token, in a real AppMaster process: it outlives its user's, and no more."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hrm.identity.roles import AccessRole
from hrm.v1 import admin_pb2, identity_pb2
from tests.identity.calls import identities, made
from tests.master.test_services import TIMEOUT_S, Running, running
from tests.scheduler.test_daemon import Cluster
from tests.scheduler.test_daemon import until as core_until
from tests.spark.fake_driver import fake_driver, progress, target, until_registered
from tests.spark.fake_master import until

FAST = "appmaster.RECONNECT_DELAY_MAX_S = 0.5"


def of_user(master: Running, directory: Path, token: str) -> Any:
    """What a driver knows of its master."""
    file = directory / "users-token"
    file.write_text(token)
    file.chmod(0o600)
    return SimpleNamespace(address=master.address, token_file=file)


async def test_an_application_goes_on_with_its_own_token_and_ends_with_it(tmp_path: Path) -> None:
    async with running(tmp_path) as master:
        users = await made(master, AccessRole.SUBMITTER, name="u")
        place = of_user(master, tmp_path, users.token)
        apps = master.interpreter.core.master_state.applications
        async with fake_driver(place, tmp_path, setup=FAST) as driver:
            driver.send(target(1))
            await until_registered(driver)
            (app,) = apps.values()
            await until(lambda: app.session is not None, 10, "attached")
            first = app.session
            ask = identity_pb2.RevokeTokenRequest(token_id=users.info.token_id)
            await identities(master).RevokeToken(ask, timeout=TIMEOUT_S)
            driver.send(progress(7))
            await until(lambda: app.progress is not None, 20, "its session goes on")
            assert app.session == first
            master.interpreter.application_outboxes[app.application_id].close()
            await until(lambda: app.session not in (None, first), 20, "attached again")
            assert list(apps) == [app.application_id] and app.record.user == "u"
            kill = admin_pb2.KillApplicationRequest(application_id=app.application_id)
            await master.admin.KillApplication(kill, timeout=TIMEOUT_S)
            await until(lambda: driver.calls_of("failed"), 20, "the driver knows")
        audit = identity_pb2.ReadAuditRequest(name="u")
        found = (await identities(master).ReadAudit(audit, timeout=TIMEOUT_S)).entries
        registered = [
            (x.kind, x.role, x.result) for x in found if x.method == "ApplicationService/Register"
        ]
        assert registered[:2] == [("user", "submitter", "ok"), ("application", "application", "ok")]
        log = (tmp_path / "appmaster.log").read_text()
        assert users.token not in log and "hrmapp_" not in log


async def test_a_master_that_has_lost_its_state_gets_the_token_of_the_file(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        await cluster.start_master()
        port = cluster.address.rpartition(":")[2]
        place: Any = SimpleNamespace(address=cluster.address, token_file=tmp_path / "token")
        async with fake_driver(place, tmp_path, setup=FAST) as driver:
            driver.send(target(1))
            await until_registered(driver)
            cluster.master.kill()
            cluster.master.wait()
            await cluster.channel.close(None)
            shutil.rmtree(tmp_path / "master")
            await cluster.start_master(port=port)
            await core_until(partial(attached, cluster), "the application is back")
            assert driver.calls_of("failed") == []
    finally:
        await cluster.close()


async def attached(cluster: Cluster) -> bool:
    found = await cluster.admin.ListApplications(
        admin_pb2.ListApplicationsRequest(), timeout=TIMEOUT_S
    )
    return [x.containers_pending for x in found.applications] == [1]
