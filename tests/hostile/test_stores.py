"""State that is lost, old, or damaged: the master reports it in one line, or continues."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from hrm.v1 import admin_pb2, application_pb2_grpc
from tests.hostile.application import Application, registration
from tests.hostile.attack import Attack, Row, write_row
from tests.hostile.cluster import Cluster, Daemon, wait_until

PAGE = 4_096
IGNORED = shutil.ignore_patterns("*.sock", "*.log")


def grants(cluster: Cluster) -> None:
    with Application(cluster.address, cluster.token, name="after") as application:
        application.request("1")
        application.wait_running(1, 40.0)


# --- an epoch that went back --------------------------------------------------------------------


def served_for_a_while(cluster: Cluster) -> Daemon:
    """A master of the fourth epoch, so that there are older ones."""
    master = cluster.start_master()
    port = cluster.port
    for _ in range(3):
        master.end()
        master = cluster.start_master(port=port)
    return master


@pytest.mark.hostile
@pytest.mark.parametrize("loss", ["emptied", "an older copy"])
def test_a_state_directory_that_lost_its_epoch(tmp_path: Path, loss: str) -> None:
    """Agents have seen a newer epoch than the next master knows; it raises its own above theirs."""
    with Cluster(tmp_path) as cluster:
        cluster.start_master().end()
        shutil.copytree(cluster.state_dir, tmp_path / "copy")
        master = served_for_a_while(cluster)
        port, agent = cluster.port, cluster.start_agent()
        grants(cluster)
        master.end()
        with Attack("5", f"the master's state directory: {loss}", on=agent) as seen:
            shutil.rmtree(cluster.state_dir)
            if loss == "an older copy":
                shutil.copytree(tmp_path / "copy", cluster.state_dir)
            cluster.start_master(port=port)
            grants(cluster)
            epoch = cluster.status().epoch
            seen.outcome = f"the master goes on with epoch {epoch}, and grants"
            assert epoch > 4


# --- damage -------------------------------------------------------------------------------------


def overwritten(name: str, offset: int, data: bytes) -> Callable[[Path], None]:
    def damage(state_dir: Path) -> None:
        path = state_dir / name
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(offset if offset >= 0 else size // 2)
            file.write(data)

    return damage


def shortened(name: str, size: int) -> Callable[[Path], None]:
    return lambda state_dir: os.truncate(state_dir / name, size)


def replaced(name: str, data: bytes) -> Callable[[Path], None]:
    def damage(state_dir: Path) -> None:
        for path in state_dir.glob(f"{name}*"):
            path.unlink()
        (state_dir / name).write_bytes(data)

    return damage


def a_directory(name: str) -> Callable[[Path], None]:
    def damage(state_dir: Path) -> None:
        (state_dir / name).unlink(missing_ok=True)
        (state_dir / name).mkdir()

    return damage


NOISE = bytes(range(1, 256)) * 8
FOREIGN = "CREATE TABLE meta (a INTEGER); INSERT INTO meta VALUES (1);"

STORE: dict[str, Callable[[Path], None]] = {
    "the head of the store": overwritten("hrm.sqlite", 0, NOISE[:100]),
    "the first page of the store": overwritten("hrm.sqlite", 100, NOISE),
    "the second page of the store": overwritten("hrm.sqlite", PAGE, NOISE),
    "a later page of the store": overwritten("hrm.sqlite", 3 * PAGE + 64, NOISE),
    "the middle of the store": overwritten("hrm.sqlite", -1, NOISE),
    "the store cut to a page": shortened("hrm.sqlite", PAGE),
    "the store cut amid a page": shortened("hrm.sqlite", PAGE + 1_000),
    "an empty store": shortened("hrm.sqlite", 0),
    "a store that is text": replaced("hrm.sqlite", b"not a database\n" * 500),
    "a store that is a directory": a_directory("hrm.sqlite"),
    "the head of the journal": overwritten("events.sqlite", 0, NOISE[:100]),
    "the middle of the journal": overwritten("events.sqlite", -1, NOISE),
    "a journal that is text": replaced("events.sqlite", b"not a database\n" * 500),
    "modes of policies that are none": replaced("policies.json", b"\xff{]"),
}
TOKENS: dict[str, bytes] = {
    "an empty token": b"",
    "a token of white space": b" \n\n",
    "a token of three letters": b"abc\n",
    "a token of bytes": b"\xff\xfe\x00\x80" * 16,
    "a token with escapes": b"\x1b[2Jabcdefghijklmnopqrstuvwxyz0123456789\n",
    "a token of two lines": b"abcdefghijklmnopqrstuvwxyz\nabcdefghijklmnopqrstuvwxyz\n",
    "a token of a megabyte": b"x" * (1 << 20),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a cluster that has registered some applications and ended well."""
    directory = tmp_path_factory.mktemp("sound")
    with Cluster(directory) as cluster:
        cluster.start_master()
        cluster.start_agent()
        for _ in range(30):
            with Application(cluster.address, cluster.token):
                pass
        grants(cluster)
    return directory


def checked(cluster: Cluster, *flags: str) -> tuple[str, str]:
    """``served``, ``refused`` with one line (at the start, or when it met the damage), or ``HURT``
    and how; with the master's output."""
    master = cluster.start_master(*flags, wait=False)
    wait_until(lambda: not master.alive() or "ready on" in master.log(), "it starts, or not", 40)
    with contextlib.suppress(grpc.RpcError, OSError):
        application = registration()
        stub = application_pb2_grpc.ApplicationServiceStub(cluster.channel)
        response = stub.Register(application, timeout=20)
        cluster.admin.GetApplication(
            admin_pb2.GetApplicationRequest(application_id=response.application_id), timeout=20
        )
        master.end()
        hurt = "Traceback" in master.log()
        return ("HURT: served, with a traceback" if hurt else "served"), master.log()
    with contextlib.suppress(subprocess.TimeoutExpired):
        master.ended()
    outcome_text = master.log()
    if master.alive():
        return "HURT: alive, and serves nobody", outcome_text
    if "Traceback" in outcome_text or "error" not in outcome_text:
        return "HURT: ended with a traceback", outcome_text
    return "refused", outcome_text


def damaged(sound: Path, tmp_path: Path) -> Cluster:
    shutil.copytree(sound, tmp_path / "damaged", symlinks=True, ignore=IGNORED)
    return Cluster(tmp_path / "damaged")


def check_all(sound: Path, tmp_path: Path, damages: dict[str, Callable[[Cluster], None]],
              words: str) -> None:  # fmt: skip
    outcomes: dict[str, str] = {}
    for number, (name, damage) in enumerate(damages.items()):
        with damaged(sound, tmp_path / str(number)) as cluster:
            damage(cluster)
            outcome, outcome_text = checked(cluster)
            outcomes[name] = outcome
            if outcome.startswith("HURT"):
                print(f"{name}: {outcome}\n{outcome_text[-1_500:]}")
    hurt = [f"{name}: {outcome}" for name, outcome in outcomes.items() if "HURT" in outcome]
    count = {x: list(outcomes.values()).count(x) for x in ("refused", "served")}
    row = Row(point="6", attack=words, attacked="master")
    row.outcome = f"{count['refused']} refused with one line, {count['served']} served"
    if hurt:
        row.outcome = "HURT: " + "; ".join(hurt)
    write_row(row)
    assert not hurt, hurt


def of_state(damage: Callable[[Path], None]) -> Callable[[Cluster], None]:
    return lambda cluster: damage(cluster.state_dir)


def of_token(token: bytes) -> Callable[[Cluster], None]:
    def damage(cluster: Cluster) -> None:
        cluster.token_file.write_bytes(token)

    return damage


def test_a_store_and_a_journal_with_a_damaged_page(sound: Path, tmp_path: Path) -> None:
    names = ("the middle of the store", "the middle of the journal")
    chosen = {name: of_state(STORE[name]) for name in names}
    check_all(sound, tmp_path, chosen, "a page of the store, of the journal: overwritten")


@pytest.mark.hostile
@pytest.mark.timeout(300)
def test_stores_that_are_damaged(sound: Path, tmp_path: Path) -> None:
    chosen = {name: of_state(damage) for name, damage in STORE.items()}
    check_all(sound, tmp_path, chosen, f"{len(chosen)} damages of the store and the journal")


@pytest.mark.hostile
@pytest.mark.timeout(300)
def test_tokens_that_are_none(sound: Path, tmp_path: Path) -> None:
    chosen = {name: of_token(token) for name, token in TOKENS.items()}
    check_all(sound, tmp_path, chosen, f"{len(chosen)} token files that are none")


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own; skips where none can be made."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small file system, and not in every container")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.hostile
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_nothing(tmp_path: Path, fault: str) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk, Cluster(disk) as cluster:
        cluster.start_master().end()
        logs = tmp_path / "logs"
        logs.mkdir()
        if fault == "full":
            (disk / "filler").write_bytes(b"")
            with (disk / "filler").open("wb", buffering=0) as file:
                while True:
                    try:
                        file.write(b"x" * PAGE)
                    except OSError:
                        break
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        cluster.directory, cluster.state_dir = logs, disk / "master"
        outcome, outcome_text = checked(cluster)
        row = Row(point="6", attack=f"a {fault} disk at the start", attacked="master")
        row.outcome = outcome
        write_row(row)
        assert outcome in ("refused", "served"), outcome_text


# --- paths --------------------------------------------------------------------------------------


def test_a_relative_work_directory(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_master()
        agent = cluster.start_agent(work_dir="node-1")
        with Attack("7", "an agent with a relative work directory", on=agent) as seen:
            grants(cluster)
            seen.outcome = "a container runs"
