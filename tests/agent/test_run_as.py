"""Containers as other users, for real: requires root, and users that every machine has."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm.agent import daemon
from hrm.agent.containers import container_dir, shim
from hrm.agent.run_as import Account, RunAs, may_switch
from hrm.config import AgentSettings, load
from hrm.errors import InvalidConfig, LaunchFailed
from hrm.spark.launch import Launch
from hrm.v1 import common_pb2
from tests.agent.conftest import ENDED, RUNNING, AgentProcess, Master, StartAgent

Eventually = Callable[..., Any]
USER, OTHER = "games", "daemon"
"""Every machine has them; their uids are below the default bound."""
LOW = {"run_as_uid_min": 1}
as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="hrm-run-as-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def rules(work_dir: Path, **more: Any) -> RunAs:
    return RunAs(load(AgentSettings, work_dir=work_dir, **more))


def low(work_dir: Path, **more: Any) -> RunAs:
    """Rules that admit ``USER`` and ``OTHER``."""
    return rules(work_dir, **LOW, **more)


@as_root
async def test_no_shuffle_service_reads_as_root_what_users_point_it_to(
    open_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("t0ken-of-the-tests")
    token.chmod(0o600)
    settings = load(AgentSettings, work_dir=open_dir, token_file=token, shuffle_service=True)
    async with asyncio.timeout(60.0):
        status = await daemon.run(settings, lambda *_: Launch(argv=("true",), environment={}))
    assert status == 2
    assert "shuffle_service and run_as = submitter exclude each other" in capsys.readouterr().err


# --- the rules --------------------------------------------------------------------------------


@as_root
def test_a_user_of_the_machine_is_taken_at_their_word(open_dir: Path) -> None:
    entry = pwd.getpwnam(USER)
    account = low(open_dir).account_of(USER)
    assert account is not None
    assert (account.name, account.uid, account.gid) == (USER, entry.pw_uid, entry.pw_gid)
    assert account.gid in account.groups
    assert 0 not in account.groups


@as_root
@pytest.mark.parametrize("fallback", [None, USER])
@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("root", "user root may not own containers"),
        ("nobody", "user nobody may not own containers"),
        ("daemon", "has uid 1, and containers run with uid 2 and up"),
        ("hdfs", "user hdfs may not own containers"),
        ("", "the application names no user"),
        ("../etc", "cannot name a user"),
        ("0", "cannot name a user"),
        ("a b", "cannot name a user"),
        ("x" * 500, "cannot name a user"),
    ],
)
def test_one_that_is_refused_is_never_mapped(
    open_dir: Path, user: str, why: str, fallback: str | None
) -> None:
    banned = rules(
        open_dir, run_as_uid_min=2, run_as_banned="hdfs, yarn", run_as_fallback=fallback or ""
    )
    with pytest.raises(LaunchFailed, match=why):
        banned.account_of(user)


@as_root
def test_root_and_nobody_stay_refused_however_wide_the_bounds(open_dir: Path) -> None:
    lowest = low(open_dir, run_as_banned="", run_as_banned_groups="", run_as_uid_max=2**32 - 2)
    for user in ("root", "nobody"):
        with pytest.raises(LaunchFailed, match=f"user {user} may not own"):
            lowest.account_of(user)
    other = lowest.account_of(OTHER)
    assert other is not None
    assert other.uid == 1
    with pytest.raises(InvalidConfig, match="run_as_uid_min"):
        load(AgentSettings, run_as_uid_min=0)


@as_root
def test_one_that_does_not_exist_is_refused_or_becomes_the_fallback(open_dir: Path) -> None:
    with pytest.raises(LaunchFailed, match="user nixie-42 does not exist on this node"):
        rules(open_dir).account_of("nixie-42")
    account = low(open_dir, run_as_fallback=USER).account_of("nixie-42")
    assert account is not None
    assert account.name == USER


@as_root
@pytest.mark.parametrize("fallback", ["root", "nobody", "daemon", "nixie-42"])
def test_a_fallback_must_pass_the_same_rules(open_dir: Path, fallback: str) -> None:
    with pytest.raises(InvalidConfig, match=f"run_as_fallback: .*user {fallback}"):
        rules(open_dir, run_as_fallback=fallback)


PASSWD = """\
ada:x:1000:1000::/home/ada:/bin/sh
bob:x:1001:1001::/home/bob:/bin/sh
eve:x:1002:27::/home/eve:/bin/sh
dir:x:1200000:1000::/home/dir:/bin/sh
top:x:60000:1000::/home/top:/bin/sh
over:x:60001:1000::/home/over:/bin/sh
lent:x:61184:1000::/home/lent:/bin/sh
ghost:x:65534:1000::/home/ghost:/bin/sh
last:x:65535:1000::/home/last:/bin/sh
apt:x:1003:65534::/nonexistent:/bin/sh
"""
GROUP = """\
ada:x:1000:
bob:x:1001:
sudo:x:27:
docker:x:998:bob
video:x:44:ada
render:x:104:ada
team:x:2000:ada
nogroup:x:65534:
"""
ASK = """
import json, sys
from hrm.agent.run_as import RunAs
from hrm.config import AgentSettings, load
from hrm.errors import HrmError
user, settings = sys.argv[1], json.loads(sys.argv[2])
try:
    account = RunAs(load(AgentSettings, **settings)).account_of(user)
    print(json.dumps([account.name, *account.groups]))
except HrmError as error:
    print(json.dumps(error.message))
"""


def asked_where_they_are(directory: Path, user: str, **settings: Any) -> Any:
    """The rules' decision about ``user`` on a machine that has the users and groups above: the real
    ones of a mount namespace of its own. The groups, or why not."""
    for name, text in (("passwd", PASSWD), ("group", GROUP)):
        before = Path(f"/etc/{name}").read_text()
        mine = {field for line in text.splitlines() for field in line.split(":")[:3:2]}
        kept = [x for x in before.splitlines(True) if mine.isdisjoint(x.split(":")[:3:2])]
        (directory / name).write_text(text + "".join(kept))
        (directory / name).chmod(0o644)
    mounts = " && ".join(f"mount --bind {directory / n} /etc/{n}" for n in ("passwd", "group"))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh",
         sys.executable, "-c", ASK, user,
         json.dumps({"work_dir": str(directory / "work"), **settings})],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@functools.cache
def can_mount() -> bool:
    """Whether this process may have mounts of its own; root in a plain container may not."""
    return may_switch() and shutil.which("unshare") is not None and not subprocess.run(
        ["unshare", "--mount", "mount", "--bind", "/etc", "/mnt"], capture_output=True
    ).returncode  # fmt: skip


mounts = pytest.mark.skipif("not can_mount()", reason="needs mounts of its own")


@mounts
@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("eve", "user eve is in group sudo, by which a container could rule the node"),
        ("bob", "take bob out of docker, or docker out of that setting"),
        ("over", "has uid 60001, and containers run with uid 60000 at most"),
        ("dir", "raise run_as_uid_max"),
        ("ghost", "has uid 65534, that of nobody"),
        ("last", "has uid 65535, that of nobody"),
        ("lent", "one that systemd lends to services (61184 to 65519)"),
        ("apt", "is in the group of nobody (gid 65534)"),
    ],
)
def test_users_that_rule_the_node_or_are_unowned_are_refused(
    open_dir: Path, user: str, why: str
) -> None:
    assert why in asked_where_they_are(open_dir, user)
    as_fallback = asked_where_they_are(open_dir, "nixie-42", run_as_fallback=user)
    assert as_fallback.startswith("run_as_fallback: ")
    assert why in as_fallback, "asked for at the start, by the same rules"


@mounts
def test_bounds_can_be_moved_and_groups_be_let_in(open_dir: Path) -> None:
    assert asked_where_they_are(open_dir, "top") == ["top", 1000]
    wide: dict[str, Any] = {"run_as_uid_max": 2_000_000}
    assert asked_where_they_are(open_dir, "dir", **wide) == ["dir", 1000]
    for user in ("ghost", "last", "lent"):
        assert "submit as" in asked_where_they_are(open_dir, user, **wide)
    let_in = {"run_as_banned_groups": "sudo, no-such-group"}
    assert asked_where_they_are(open_dir, "bob", **let_in) == ["bob", 998, 1001]
    assert "group sudo" in asked_where_they_are(open_dir, "eve", **let_in)
    below = asked_where_they_are(open_dir, "ada", run_as_uid_max=999)
    assert "run_as_uid_max is 999, below run_as_uid_min (1000)" in below


@mounts
@pytest.mark.parametrize(
    ("setting", "groups"),
    [
        ("all", [44, 104, 1000, 2000]),
        ("none", [1000]),
        ("video, render, docker, no-such-group", [44, 104, 1000]),
    ],
)
def test_containers_have_those_of_the_users_groups_that_are_wanted(
    open_dir: Path, setting: str, groups: list[int]
) -> None:
    assert asked_where_they_are(open_dir, "ada", run_as_groups=setting) == ["ada", *groups]


@as_root
def test_the_rules_are_shown_with_the_node(open_dir: Path) -> None:
    output = rules(open_dir, run_as_banned_groups="sudo,docker", run_as_groups="video").remark
    assert output == (
        "containers run as their submitter, uid 1000 to 60000, none of them in any of 2 groups "
        "that could rule the node (run_as_banned_groups); with groups: of video; others are refused"
    )


@as_root
def test_a_work_directory_that_users_cannot_reach_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(InvalidConfig, match="choose another place with --work-dir"):
        rules(tmp_path / "work")


def test_without_root_containers_run_as_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    unable = rules(tmp_path)
    assert unable.account_of("root") is None
    assert unable.remark.startswith("containers run as uid 4711: only an agent that is root can")
    assert rules(tmp_path, run_as="off").remark == "containers run as uid 4711 (run_as = off)"


def test_a_home_that_is_not_there_is_replaced(tmp_path: Path) -> None:
    account = Account(name="ada", uid=2000, gid=2000, groups=(2000,), home="/nonexistent")
    assert account.environment(tmp_path)["HOME"] == str(tmp_path)


# --- the processes ----------------------------------------------------------------------------

IDENTITY = (
    "id -u; id -g; id -G; umask; pwd; echo $HOME $USER; "
    "grep -E 'Cap|NoNewPrivs' /proc/self/status; exit 3"
)


@as_root
async def test_nothing_of_the_agents_is_left_in_a_container(
    open_dir: Path, master: Master, start_agent: StartAgent
) -> None:
    start_agent(work_dir=str(open_dir / "work"), run_as="submitter", **LOW)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", IDENTITY, user=USER)
    status = await master.until_state("app-1-x1", ENDED)
    assert status.end.exit_code == 3, status.end.message
    directory = open_dir / "work/containers/app-1-x1"
    lines = (directory / "stdout").read_text().splitlines()
    entry = pwd.getpwnam(USER)
    assert lines[:5] == [
        str(entry.pw_uid), str(entry.pw_gid), str(entry.pw_gid), "0077", f"{directory}/work",
    ]  # fmt: skip
    assert lines[5] in (f"{entry.pw_dir} {USER}", f"{directory}/work {USER}"), "its home, if any"
    held = dict(line.split() for line in lines[6:])
    assert held.pop("NoNewPrivs:") == "1"
    assert {int(value, 16) for value in held.values()} == {0}
    assert sorted(held) == ["CapAmb:", "CapBnd:", "CapEff:", "CapInh:", "CapPrm:"]


@as_root
async def test_one_that_may_not_is_given_the_reason(
    open_dir: Path, master: Master, start_agent: StartAgent
) -> None:
    start_agent(work_dir=str(open_dir / "work"), run_as="submitter")
    await master.until(lambda: master.registrations)
    for number, user in enumerate(["root", "nixie-42"]):
        master.assign(f"app-1-x{number}", "true", user=user)
        end = (await master.until_state(f"app-1-x{number}", ENDED)).end
        assert end.cause == common_pb2.END_CAUSE_UNSUITABLE
        assert f"user {user} " in end.message
        assert "run_as = off" in end.message


PRY = (
    "for path in $THEIRS/work/secret $THEIRS/local $THEIRS/stdout $THEIRS/container.json "
    "/proc/$PID/environ; do cat $path > /dev/null 2>&1 && echo read $path; done; "
    "ls $THEIRS 2> /dev/null && echo listed; touch $THEIRS/x 2> /dev/null && echo wrote; "
    "kill -9 $PID 2> /dev/null && echo killed; echo tried"
)


@as_root
async def test_another_users_container_sees_nothing(
    open_dir: Path, master: Master, start_agent: StartAgent, eventually: Eventually
) -> None:
    start_agent(work_dir=str(open_dir / "work"), run_as="submitter", **LOW)
    await master.until(lambda: master.registrations)
    master.assign("app-1-x1", "echo hush > secret; cat secret; exec sleep 600", user=USER)
    await master.until_state("app-1-x1", RUNNING)
    theirs = open_dir / "work/containers/app-1-x1"
    eventually(lambda: "hush" in output(theirs))
    process = eventually(lambda: process_of(theirs))
    uid = pwd.getpwnam(USER).pw_uid
    for name in ("work", "local", "tmp", "stdout", "stderr"):
        about = (theirs / name).stat()
        assert (about.st_uid, about.st_mode & 0o077) == (uid, 0), name
    assert (theirs.stat().st_uid, theirs.stat().st_mode & 0o777) == (os.getuid(), 0o711)
    pid = str(process["pid"])

    master.assign("app-2-x1", PRY, user=OTHER, THEIRS=str(theirs), PID=pid)
    await master.until_state("app-2-x1", ENDED)
    assert (open_dir / "work/containers/app-2-x1/stdout").read_text() == "tried\n"
    # Its own user does find something in the same places, so the test would notice a leak.
    master.assign("app-1-x2", PRY, user=USER, THEIRS=str(theirs), PID=pid)
    await master.until_state("app-1-x2", ENDED)
    found = (open_dir / "work/containers/app-1-x2/stdout").read_text()
    assert f"read {theirs}/work/secret" in found
    assert f"read /proc/{pid}/environ" in found
    assert "wrote" not in found, "not even its own user may put files beside the agent's"
    assert f"read {theirs}/container.json" not in found


@as_root
async def test_an_adopted_container_of_another_user_is_reaped_whole(
    open_dir: Path, master: Master, start_agent: StartAgent, eventually: Eventually
) -> None:
    settings = {"work_dir": str(open_dir / "work"), "run_as": "submitter", **LOW}
    agent = start_agent(**settings)
    await master.until(lambda: master.registrations)
    daemon = "setsid sh -c 'echo $$ > daemon.pid; trap \"\" TERM; while :; do sleep 1; done' &"
    master.assign("app-1-x1", f"{daemon} exec sleep 600", user=USER)
    await master.until_state("app-1-x1", RUNNING)
    pid = _pid(open_dir, eventually)
    assert os.stat(f"/proc/{pid}").st_uid == pwd.getpwnam(USER).pw_uid  # noqa: PTH116
    await _replaced(agent, start_agent, master, settings)
    master.order_stop("app-1-x1", grace_s=0.5)
    await master.until_state("app-1-x1", ENDED)
    assert shim.start_ticks(pid) is None
    directory = open_dir / "work/containers/app-1-x1"
    gone = {"work", "local", "tmp", "spec.json"}
    eventually(lambda: gone.isdisjoint(path.name for path in directory.iterdir()))


def output(directory: Path) -> str:
    path = directory / "stdout"
    return path.read_text() if path.exists() else ""


def process_of(directory: Path) -> dict[str, Any]:
    """The shim's record of its processes; empty: none yet."""
    return container_dir.read_json(directory / "process.json")


def _pid(open_dir: Path, eventually: Eventually) -> int:
    path = open_dir / "work/containers/app-1-x1/work/daemon.pid"
    eventually(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


async def _replaced(
    agent: AgentProcess, start_agent: StartAgent, master: Master, settings: dict[str, Any]
) -> None:
    await agent.kill()
    start_agent(**settings)
    again = await master.until(lambda: len(master.registrations) == 2 and master.registrations[-1])
    assert [status.state for status in again.containers] == [RUNNING]
