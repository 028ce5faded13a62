"""The token's file: whole or missing, private, and never used if it is something else."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hrm.errors import InvalidConfig, PermissionDenied
from hrm.token_file import TOKEN_CHARS_MAX, TOKEN_CHARS_MIN, create_token, read_token
from tests.conftest import small_disk

GOOD = "x" * TOKEN_CHARS_MIN


def written(directory: Path, content: bytes) -> Path:
    path = directory / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_new_token_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "made" / "token"
    token = create_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert create_token(path) == token == read_token(path)
    assert os.listdir(path.parent) == ["token"]  # noqa: PTH208 - names alone


def test_of_many_creators_one_makes_the_token_of_all(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with ThreadPoolExecutor(16) as pool:
        tokens = set(pool.map(create_token, [path] * 64))
    assert tokens == {read_token(path)}
    assert [found.name for found in tmp_path.iterdir() if "token" in found.name] == ["token"]


def test_a_full_disk_leaves_no_token(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(bytes(4 * 1024 * 1024))
        path = disk / "token"
        with pytest.raises(InvalidConfig, match=r"cannot write the token file .*No space left"):
            create_token(path)
        assert [found.name for found in disk.iterdir()] == ["filler"]
        (disk / "filler").unlink()
        assert read_token(path) if create_token(path) else False


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"abc", "has 3 characters; from 16 to 4096 are allowed"),
        (b"x" * (TOKEN_CHARS_MIN - 1), "has 15 characters"),
        (b"x" * (TOKEN_CHARS_MAX + 1), "more than 4096 characters"),
        (b"\x80\xff\x00" * 10, "something else than one line"),
        (b"two lines of\nsome length", "something else than one line"),
        ("höchstgeheimes-wort".encode(), "something else than one line"),
    ],
)
def test_what_is_no_token_is_refused_in_one_line(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InvalidConfig, match=expected) as caught:
        create_token(path)
    assert "\n" not in caught.value.message
    assert str(path) in caught.value.message


def test_the_shortest_and_the_longest_are_taken(tmp_path: Path) -> None:
    for token in (GOOD, "x" * TOKEN_CHARS_MAX):
        assert read_token(written(tmp_path, token.encode() + b"\n")) == token


def test_something_else_in_its_place_is_named(tmp_path: Path) -> None:
    directory, fifo, device = tmp_path / "directory", tmp_path / "fifo", Path("/dev/null")
    directory.mkdir()
    os.mkfifo(fifo, 0o600)
    for path, expected in (
        (directory, "is a directory; remove it, or name"),
        (fifo, "is no regular file"),
        (device, "is no regular file"),
    ):
        for reader in (read_token, create_token):
            with pytest.raises(InvalidConfig, match=expected):
                reader(path)


def test_a_dangling_link_is_not_followed_into_the_dark(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(PermissionDenied, match="no token file at"):
        create_token(path)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.encode())
    path.chmod(0o640)
    with pytest.raises(InvalidConfig, match="chmod 600"):
        read_token(path)


def test_a_daemon_reports_it_and_ends(tmp_path: Path) -> None:
    path = written(tmp_path, b"abc")
    done = subprocess.run(
        [sys.executable, "-m", "hrm.cli", "master", "--port", "0", "--token-file", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "has 3 characters" in line
