"""What a driver's runner fetches and unpacks before the driver starts."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm.agent.drivers.driver_files import bring
from hrm.agent.drivers.driver_runner import spark_submit_arguments
from hrm.errors import HrmError, LaunchFailed, NotFound, Unavailable
from tests.agent.drivers.conftest import DATA, DIGEST, FakeMaster, Node


def archive_of(node: Node, master: FakeMaster, name: str, fragment: str) -> None:
    """The driver's archive has a Python of its own under that name."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, sys.executable
        archive.addfile(link)
    master.more = data.getvalue()
    digest = hashlib.sha256(master.more).hexdigest()
    node.document["resources"].append(
        {"role": "archive", "name": "env.tar.gz", "sha256": digest, "size": len(master.more),
         "uri": "", "fragment": fragment}
    )  # fmt: skip


def test_an_archive_is_unpacked_where_its_python_is_looked_for(
    node: Node, master: FakeMaster
) -> None:
    archive_of(node, master, "bin/python", "environment")
    node.document["resources"][0]["name"] = "a.py"
    node.document["conf"].append(["spark.pyspark.python", "./environment/bin/python"])
    code, out, err = node.run('./environment/bin/python -c "print(1)"; echo "$@"')
    assert code == 0, err
    assert out.splitlines()[0] == "1"
    assert f"--archives {node.work_dir}/app/env.tar.gz#environment" in out, "Spark has it, too"


@pytest.mark.parametrize(
    ("name", "fragment", "problem"),
    [
        ("../python", "environment", "leads out of the directory"),
        ("bin/python", "../environment", "give the name of a directory after '#'"),
        ("bin/python", "a.jar", "a.jar exists already"),
    ],
)
def test_an_archive_that_leaves_its_place_starts_no_driver(
    node: Node, master: FakeMaster, name: str, fragment: str, problem: str
) -> None:
    archive_of(node, master, name, fragment)
    code, out, err = node.run("echo started")
    assert (code, out) == (1, "")
    assert problem in err


def of_file(fragment: str, name: str = "x.txt") -> dict[str, object]:
    """A file of ``--files``, with the one content that the master has."""
    return {"role": "file", "name": name, "sha256": DIGEST, "size": len(DATA), "uri": "",
            "fragment": fragment}  # fmt: skip


def test_files_have_the_names_that_they_were_given(node: Node, master: FakeMaster) -> None:
    node.document["resources"] += [of_file("b.txt"), of_file("c d.txt"), of_file("", "e.txt")]
    code, out, err = node.run('cat "b.txt" "c d.txt" | wc -c; echo "$@"')
    assert code == 0, err
    size, arguments = out.splitlines()
    assert int(size) == 2 * len(DATA)
    app = node.work_dir / "app"
    assert f"--files {app}/b.txt,{app}/c d.txt,{app}/e.txt " in arguments, "Spark knows no '#'"
    assert master.fetched == [0], "once"


@pytest.mark.parametrize(
    ("fragment", "problem"),
    [
        ("../b.txt", "give a file's name after '#'"),
        ("a.jar", "x.txt cannot be named a.jar: File exists"),
    ],
)
def test_a_name_that_no_file_can_have_starts_no_driver(
    node: Node, fragment: str, problem: str
) -> None:
    node.document["resources"].append(of_file(fragment))
    code, out, err = node.run("echo started")
    assert (code, out) == (1, "")
    assert problem in err


def test_an_archive_is_unpacked_to_each_of_its_names(node: Node, master: FakeMaster) -> None:
    archive_of(node, master, "bin/python", "one")
    archive_of(node, master, "bin/python", "two")
    code, out, err = node.run('ls one/bin two/bin; echo "$@"')
    assert code == 0, err
    assert out.count("python\n") == 2
    archive = f"{node.work_dir}/app/env.tar.gz"
    assert f"--archives {archive}#one,{archive}#two " in out


def test_archives_keep_the_name_that_they_are_unpacked_under(tmp_path: Path) -> None:
    main = {"role": "main", "name": "", "sha256": "", "uri": "local:/a.py", "fragment": ""}
    archive = {"role": "archive", "name": "e.zip", "sha256": "1", "uri": "", "fragment": "env"}
    document = {
        "spark_submit": "s", "master": "h:1", "name": "", "main_class": "", "arguments": [],
        "options": ["--proxy-user", "u"], "resources": [main, archive],
    }  # fmt: skip
    command = spark_submit_arguments(document, tmp_path, tmp_path / "p")
    assert command[-5:] == [
        "--archives",
        f"{tmp_path}/e.zip#env",
        "--proxy-user",
        "u",
        "local:/a.py",
    ]


def test_the_next_driver_finds_the_files_on_the_node(node: Node, master: FakeMaster) -> None:
    assert node.run("exit 0")[0] == 0
    assert node.run("echo '# mine' >> a.jar")[0] == 0
    assert master.fetched == [0]
    (node.directory / "cache" / DIGEST).write_bytes(b"rotten")
    code, out, _ = node.run("cat a.jar | wc -c")
    assert (code, int(out)) == (0, len(DATA)), "what has rotted is fetched again"
    assert master.fetched == [0, 0]


def test_a_file_that_the_master_does_not_have_is_an_error(node: Node) -> None:
    node.document["resources"][0]["sha256"] = "0" * 64
    code, _, err = node.run("exit 0")
    assert code == 1
    assert "cannot be fetched: no such file" in err


def test_a_transfer_that_breaks_goes_on_where_it_was(tmp_path: Path) -> None:
    offsets = []

    def fetch(digest: str, offset: int) -> Iterator[bytes]:
        offsets.append(offset)
        yield DATA[offset : offset + 1000]
        if len(offsets) < 3:
            raise Unavailable("the connection broke")
        yield DATA[offset + 1000 :]

    bring(fetch, DIGEST, tmp_path / "a.jar", tmp_path / "cache")
    assert (tmp_path / "a.jar").read_bytes() == DATA
    assert offsets == [0, 1000, 2000]


@pytest.mark.parametrize(
    ("error", "data", "expected"),
    [(NotFound("it is gone"), b"", "it is gone"), (None, b"other", "is not what the master has")],
)
def test_what_is_not_the_file_is_never_run(
    tmp_path: Path, error: HrmError | None, data: bytes, expected: str
) -> None:
    def fetch(digest: str, offset: int) -> Iterator[bytes]:
        yield data
        if error is not None:
            raise error

    with pytest.raises(LaunchFailed, match=expected):
        bring(fetch, DIGEST, tmp_path / "a.jar", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
