"""Archives of applications, good and hostile: what is unpacked, and what never leaves its place."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hrm.agent.containers import unpack as unpacking
from hrm.agent.containers.unpack import BadArchive, unpack

MIB = 1 << 20


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def link(name: str, leads_to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    return entry(name, type=kind, linkname=leads_to)


def tar(path: Path, *entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for each in entries:
            info, data = each if isinstance(each, tuple) else (each, b"")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Like an environment of venv-pack: programs, a link to the machine's Python, hard links."""
    return tar(
        tmp_path / "environment.tar.gz",
        entry("bin", type=tarfile.DIRTYPE, mode=0o755),
        (entry("bin/tool", mode=0o4777), b"#!/bin/sh\necho from the archive\n"),
        link("bin/python", "python3"),
        link("bin/python3", sys.executable),
        (entry("lib/deep/data", mode=0o640), b"data"),
        link("lib/same", "lib/deep/data", tarfile.LNKTYPE),
        link("lib64", "lib"),
    )


def test_an_environment_works_where_it_is_unpacked(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "environment"
    written = unpack(made, place, MIB)
    ran = subprocess.run([str(place / "bin/tool")], capture_output=True, check=True, text=True)
    assert ran.stdout == "from the archive\n"
    assert written == len(b"#!/bin/sh\necho from the archive\n") + len(b"data")
    assert (place / "bin/python").resolve() == Path(sys.executable).resolve()
    assert (place / "lib64/same").read_bytes() == b"data"
    assert (place / "lib/same").stat().st_ino == (place / "lib/deep/data").stat().st_ino
    assert stat.S_IMODE((place / "bin/tool").stat().st_mode) == 0o755, "no more than its user needs"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_zips_and_jars_keep_modes_and_links(tmp_path: Path) -> None:
    path = tmp_path / "environment.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        program = zipfile.ZipInfo("bin/tool")
        program.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(program, "x")
        other = zipfile.ZipInfo("bin/other")
        other.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(other, "tool")
        archive.writestr("empty/", "")
    for name in ("environment.zip", "environment.jar"):
        place = tmp_path / name.replace(".", "-")
        unpack(path, place, MIB, name)
        assert os.access(place / "bin/other", os.X_OK)
        assert (place / "empty").is_dir()


def test_what_is_no_archive_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"model")
    unpack(tmp_path / "model.bin", tmp_path / "model", MIB)
    assert (tmp_path / "model").read_bytes() == b"model"


HOSTILE: dict[str, list[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]] = {
    "a path above": [(entry("../outside"), b"x")],
    "an absolute path": [(entry("/tmp/outside"), b"x")],
    "a detour": [(entry("a/../../outside"), b"x")],
    "a link above": [link("a", "../outside")],
    "a link above, further in": [link("a/b", "../../outside")],
    "a hard link above": [link("a", "../kept", tarfile.LNKTYPE)],
    "a hard link to nothing": [link("a", "missing", tarfile.LNKTYPE)],
    "a file through a link": [link("a", "/tmp"), (entry("a/outside"), b"x")],
    "a file in place of a link": [link("a", "/etc/hostname"), entry("a", type=tarfile.DIRTYPE)],
    "a device": [entry("null", type=tarfile.CHRTYPE)],
    "a pipe": [entry("pipe", type=tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_is_written_outside(what: str, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    archive = tar(tmp_path / "bad.tgz", *HOSTILE[what])
    with pytest.raises(BadArchive):
        unpack(archive, tmp_path / "bad", MIB)
    assert {path.name for path in tmp_path.iterdir()} <= {"kept", "bad", "bad.tgz"}
    assert (tmp_path / "kept").stat().st_nlink == 1
    assert not Path("/tmp/outside").exists()


def test_a_later_file_replaces_a_link_instead_of_following_it(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    archive = tar(tmp_path / "a.tar.gz", link("a", f"{tmp_path}/kept"), (entry("a"), b"new"))
    unpack(archive, tmp_path / "place", MIB)
    assert (tmp_path / "kept").read_text() == "kept"
    assert (tmp_path / "place/a").read_text() == "new"


def test_bytes_are_counted_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(4 * MIB))
    unpack(path, tmp_path / "fits", 4 * MIB)
    with pytest.raises(BadArchive, match=r"more than the 3 MiB .*unpacked_mib_max"):
        unpack(path, tmp_path / "place", 4 * MIB - 1)
    assert (tmp_path / "place/zeros").stat().st_size < 4 * MIB


def test_entries_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar(tmp_path / "many.tar", *((entry(f"f{n}"), b"") for n in range(4)))
    monkeypatch.setattr(unpacking, "ENTRIES_MAX", 4)
    unpack(archive, tmp_path / "place", MIB)
    monkeypatch.setattr(unpacking, "ENTRIES_MAX", 3)
    with pytest.raises(BadArchive, match="more than 3 entries"):
        unpack(archive, tmp_path / "other", MIB)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_a_damaged_archive_is_named_as_such(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(BadArchive, match="damaged"):
        unpack(tmp_path / name, tmp_path / "place", MIB)


def test_a_place_that_is_taken_is_left_alone(made: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with pytest.raises(BadArchive, match="place exists already"):
        unpack(made, tmp_path / "place", MIB)


def run(order: dict[str, object], *command: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-I", "-S", str(unpacking.__file__), json.dumps(order)]
    return subprocess.run(
        [*program, "--", *command], capture_output=True, check=False, text=True, timeout=30
    )


def test_the_program_becomes_its_command(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    order = {"archives": [[str(made), str(place)]], "bytes_max": MIB}
    done = run(order, "/bin/sh", "-c", f"{place}/bin/tool; exit 7")
    assert (done.returncode, done.stdout) == (7, "from the archive\n")
    assert not made.exists(), "its disk is the application's again"


def test_the_program_ends_with_the_reason(tmp_path: Path) -> None:
    archive = tar(tmp_path / "bad.tgz", (entry("../outside"), b"x"))
    order = {"archives": [[str(archive), str(tmp_path / "bad")]], "bytes_max": MIB}
    done = run(order, "/bin/echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("HRM: cannot unpack bad.tgz to ")
    assert "leads out of the directory" in done.stderr
