"""Files of ``--files`` with a name after ``#``, for a driver in client mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hrm.spark.renamed_files import RenameError, main, renamed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.txt", "c.txt", "two words.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "links").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def links(here: Path, listed: str) -> list[tuple[str, str]]:
    """Names of the files that Spark is given, and their contents."""
    uris = renamed(str(here / "links"), listed).split(",")
    paths = [Path(uri.removeprefix("file://").replace("%20", " ")) for uri in uris]
    return [(path.name, path.read_text()) for path in paths]


def test_a_file_has_the_name_after_its_hash(here: Path) -> None:
    assert links(here, f"{here}/a.txt#b.txt,c.txt") == [("b.txt", "a.txt"), ("c.txt", "c.txt")]


def test_one_file_may_have_several_names(here: Path) -> None:
    given = links(here, "a.txt#b.txt, a.txt#d.txt, a.txt")
    assert given == [("b.txt", "a.txt"), ("d.txt", "a.txt"), ("a.txt", "a.txt")]


@pytest.mark.parametrize(
    "named", ["two words.txt#b c.txt", "file:{here}/two%20words.txt#b c.txt", "two*.txt#b c.txt"]
)
def test_paths_patterns_and_addresses_name_files(here: Path, named: str) -> None:
    assert links(here, named.format(here=here)) == [("b c.txt", "two words.txt")]


def test_a_name_that_a_file_has_already_needs_no_link(here: Path) -> None:
    listed = "hdfs:///x/e.txt#e.txt,local:/x/n.txt#m.txt,a.txt#a.txt"
    assert renamed(str(here / "links"), listed) == "hdfs:///x/e.txt,local:/x/n.txt,a.txt"


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ("hdfs:///x/e.txt#b.txt", "only a file of this machine can have another name"),
        ("a.txt#d/b.txt", "give a file's name after '#', not a path"),
        ("a.txt#..", "give a file's name after '#', not a path"),
        ("a.txt#", "give a file's name after '#', not a path"),
        ("a.txt#c.txt,c.txt", "another file is named c.txt"),
        ("a.txt#b.txt,c.txt#b.txt", "another file is named b.txt"),
        ("none.txt#b.txt", "there is no such file here"),
        ("?.txt#b.txt", "2 files match it; name one"),
        ("links#b.txt", "this is no file, and only a file can have another name"),
    ],
)
def test_what_cannot_be_named_is_one_clear_line(
    here: Path, listed: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RenameError, match=why):
        renamed(str(here / "links"), listed)
    (here / "more").mkdir()
    assert main([str(here / "more"), listed]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("HRM: --files ")
    assert err.count("\n") == 1


def test_the_links_of_a_driver_that_never_made_a_context_are_removed(here: Path) -> None:
    renamed(str(here / "links"), "a.txt#b.txt")
    command = [sys.executable, "-m", "hrm.spark.appmaster"]
    links = {"HRM_RENAMED_DIR": str(here / "links")}
    of_driver = links | {"HRM_APPMASTER_PID": "1"}
    for variables, stay in ((of_driver, True), (links, False)):
        subprocess.run(
            command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, check=True,
            timeout=60,
        )  # fmt: skip
        assert (here / "links").exists() is stay
    assert (here / "a.txt").exists()
