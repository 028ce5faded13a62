"""Files that a node keeps for the next driver: bounded by age and size, separate for each user."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm.agent.containers import file_cache
from hrm.agent.containers.file_cache import SweptFiles, own_place, sweep
from hrm.agent.run_as import Account, may_switch

NOW = 1_000_000.0
MIB = 1 << 20
as_root = pytest.mark.skipif(not may_switch(), reason="only root can become another user")


def digest(number: int) -> str:
    return f"{number:064x}"


def kept(place: Path, name: str, used_ago_s: float, mib: int = 1) -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(mib * MIB))
    os.utime(path, (NOW - used_ago_s, NOW - used_ago_s))
    return path


def swept(files: Path, *used: str, keep_s: float = 3600.0, mib: float = 100) -> SweptFiles:
    return sweep(files, used=set(used), keep_s=keep_s, bytes_max=int(mib * MIB), now=NOW)


def left(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_no_cache_is_no_error(tmp_path: Path) -> None:
    assert swept(tmp_path / "none") == SweptFiles()


def test_what_nothing_has_used_for_long_goes(tmp_path: Path) -> None:
    place = own_place(tmp_path, None)
    kept(place, digest(1), 3601.0)
    kept(place, f"{digest(2)}.77.part", 3601.0)
    kept(place, digest(3), 3599.0)
    assert swept(tmp_path).old == 2
    assert left(place) == [digest(3)]


def test_over_its_size_goes_what_was_used_longest_ago(tmp_path: Path) -> None:
    one, other = own_place(tmp_path, None), tmp_path / "4711"
    for number, place in ((2, one), (4, other), (1, other), (3, one)):
        kept(place, digest(number), 100.0 * number)
    kept(tmp_path, digest(9), 900.0)  # in the layout of an earlier version
    done = swept(tmp_path, mib=2)
    assert (done.old, done.too_much, done.bytes_left) == (0, 3, 2 * MIB)
    assert left(one) == [digest(2)]
    assert left(other) == [digest(1)]
    assert left(tmp_path) == sorted([one.name, "4711"])
    assert swept(tmp_path, mib=2) == SweptFiles(bytes_left=2 * MIB), "as much as is allowed stays"


def test_what_a_running_driver_needs_stays(tmp_path: Path) -> None:
    place = own_place(tmp_path, None)
    for number, ago_s in ((1, 9000.0), (2, 300.0), (3, 200.0), (4, 100.0)):
        kept(place, digest(number), ago_s)
    kept(place, f"{digest(5)}.1.part", 9000.0)
    assert swept(tmp_path, digest(1), digest(2), digest(5), mib=0).too_much == 2
    assert left(place) == [digest(1), digest(2), f"{digest(5)}.1.part"]
    assert swept(tmp_path, mib=0).bytes_left == 0


def test_what_is_used_while_it_is_examined_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(own_place(tmp_path, None), digest(1), 9000.0)
    real_remove = file_cache._remove

    def used_first(directory: Path, each: file_cache._Kept) -> bool:
        os.utime(path)
        return real_remove(directory, each)

    monkeypatch.setattr(file_cache, "_remove", used_first)
    assert swept(tmp_path).old == 0
    assert path.exists()


def test_what_is_no_file_of_the_cache_goes_and_no_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = kept(tmp_path / "outside", "precious", 9000.0)
    files = tmp_path / "files"
    place = own_place(files, None)
    (place / digest(1)).symlink_to(outside)
    (place / digest(2)).symlink_to(outside.parent)
    os.link(outside, place / digest(3))
    kept(place / "deep" / "er", "file", 0.0)
    (place / "deep" / "link").symlink_to(outside.parent)
    kept(place, "not-a-hash", 0.0)
    os.mkfifo(place / digest(4))
    kept(place, digest(5), 0.0)
    assert swept(files).foreign == 6
    assert left(place) == [digest(5)]
    assert left(outside.parent) == ["precious"]
    monkeypatch.setattr(file_cache, "ENTRIES_MAX", 1)
    kept(place, digest(6), 0.0)
    assert swept(files).foreign == 1, "names are bounded, too"


def test_a_link_in_the_place_of_a_users_directory_is_not_followed(tmp_path: Path) -> None:
    outside = kept(tmp_path / "outside", digest(1), 9000.0)
    files = tmp_path / "files"
    files.mkdir()
    (files / "4711").symlink_to(outside.parent)
    account = Account(name="ada", uid=4711, gid=4711, groups=(4711,), home="/")
    before = outside.parent.stat()
    assert own_place(files, account) == files / "4711"
    after = outside.parent.stat()
    assert (after.st_uid, after.st_mode) == (before.st_uid, before.st_mode)
    assert swept(files, mib=0).old == 0
    assert outside.exists()


# --- with several users -----------------------------------------------------------------------

BRING = """
import os, sys
from pathlib import Path
from hrm.agent.drivers.driver_files import bring
uid, gid = int(sys.argv[4]), int(sys.argv[5])
os.setgroups([])  # only now: the user may have no way to this Python
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
data = b"x" * 1000
def fetch(digest, offset):
    print("fetched")
    yield data[offset:]
bring(fetch, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
"""


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="hrm-cache-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def account_of(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, groups=(), home="/")


def brought(account: Account, name: str, target: Path, place: Path) -> bool:
    """Bring a file as that user; returns whether it was fetched."""
    ids = (str(account.uid), str(account.gid))
    command = [sys.executable, "-c", BRING, name, str(target), str(place), *ids]
    done = subprocess.run(command, timeout=60, check=True, capture_output=True, text=True)
    return "fetched" in done.stdout


def may(account: Account, *command: str) -> bool:
    done = subprocess.run(
        command, user=account.uid, group=account.gid, extra_groups=[], timeout=60, check=False,
        capture_output=True, cwd="/",
    )  # fmt: skip
    return done.returncode == 0


@as_root
def test_each_user_has_a_cache_that_no_other_can_see(open_dir: Path) -> None:
    files = open_dir / "files"
    hashed = hashlib.sha256(b"x" * 1000).hexdigest()
    fetched = []
    for number, name in enumerate(["nobody", "nobody", "daemon", "nobody"]):
        account = account_of(name)
        place = own_place(files, account)
        home = open_dir / f"home-{number}"
        home.mkdir(mode=0o700)
        os.chown(home, account.uid, account.gid)
        target = home / "a.jar"
        fetched.append(brought(account, hashed, target, place))
        assert target.read_bytes() == b"x" * 1000
        about = target.stat()
        assert (about.st_uid, about.st_mode & 0o777) == (account.uid, 0o600)
    assert fetched == [True, False, True, False], "once for each user"
    nobody, other = account_of("nobody"), account_of("daemon")
    for path, shell_command in (
        (files / str(nobody.uid), "ls"),
        (files / str(nobody.uid) / hashed, "cat"),
    ):
        assert path.stat().st_uid == nobody.uid
        assert path.stat().st_mode & 0o077 == 0
        assert may(nobody, shell_command, str(path))
        assert not may(other, shell_command, str(path))
    assert not may(nobody, "touch", str(files / "mine"))
    assert not may(nobody, "ls", str(files))
    assert left(files) == sorted([str(nobody.uid), str(other.uid)])
