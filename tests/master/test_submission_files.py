"""The files of submissions: what a client sends and when, and how long the master keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from hrm.core.vocabulary.model import LaunchContext
from hrm.errors import HrmError, InvalidRequest
from hrm.master import submission_interpreter
from hrm.spark import submit
from hrm.spark.submit_options import parse
from hrm.v1 import common_pb2
from hrm.v1 import submission_pb2 as pb
from tests.master.submitting import stub, submission
from tests.master.test_services import TIMEOUT_S, Running, refused, registration, running


class Sender:
    """The client of spark-submit, off the loop of the master."""

    def __init__(self, master: Running) -> None:
        self.address, self.token = master.address, master.settings.token_file

    async def send(self, *arguments: str, before: Any = None) -> pb.Submission:
        return await asyncio.to_thread(self._send, arguments, before)

    def _send(self, arguments: tuple[str, ...], before: Any) -> pb.Submission:
        spec, files = submit.driver_spec(parse(arguments, {}))
        with submit.connect(self.address, self.token, None) as (client, _):
            if before is not None:
                before(client, files)
            return client.submit(spec, files)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text("print(1)\n" * 200_000 + "#")
    path.write_text(path.read_text()[: 1024 * 1024])
    return path


async def test_a_client_sends_each_file_once(master: Running, app: Path, tmp_path: Path) -> None:
    other = tmp_path / "data.txt"
    other.write_bytes(b"")
    sender = Sender(master)
    await sender.send("--files", str(other), str(app))
    await sender.send("--files", f"{other},local:/on/nodes,hdfs://h/x", str(app), "argument")
    listed = await stub(master).List(pb.ListSubmissionsRequest())
    assert [each.name for each in listed.submissions] == ["app.py", "app.py"]
    kept = sorted(p.stat().st_size for p in (master.settings.state_dir / "files").iterdir())
    assert kept == [0, 1024 * 1024]


@pytest.mark.parametrize("option", ["--files", "--archives"])
async def test_a_file_may_have_several_names(
    master: Running, app: Path, tmp_path: Path, option: str
) -> None:
    other = tmp_path / "data"
    other.write_bytes(b"some")
    listed = f"{other}#one,{other}#two,{other},{other}#two"
    spec, files = submit.driver_spec(parse([option, listed, str(app)], {}))
    named = [x.fragment for x in spec.resources if x.name == "data"]
    assert (named, sorted(files)) == (["one", "two", ""], ["app.py", "data"])
    sent = await Sender(master).send(option, listed, str(app))
    assert sent.submission_id.startswith("driver-")


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ("{here}/x#app.py", "two files are called 'app.py'"),
        ("{here}/x#z,{here}/y#z", "two files are called 'z'"),
        ("{here}/x#y,{here}/y", "two files are called 'y'"),
        ("{here}/x#../z", "'../z' after '#' cannot name a file"),
        ("hdfs://h/x#z", "hdfs://h/x#z: only a file that is sent can have another name"),
    ],
)
async def test_a_name_that_no_file_can_have_is_refused(
    master: Running, app: Path, tmp_path: Path, listed: str, why: str
) -> None:
    for name in ("x", "y"):
        (tmp_path / name).write_text(name)
    with pytest.raises(InvalidRequest, match=why):
        await Sender(master).send("--files", listed.format(here=tmp_path), str(app))


async def test_a_file_elsewhere_may_be_named_as_it_is(master: Running, app: Path) -> None:
    await Sender(master).send("--files", "hdfs://h/x#x,local:/y#z", str(app))


async def test_an_interrupted_upload_goes_on(master: Running, app: Path) -> None:
    def half(client: Any, files: dict[str, submit.LocalFile]) -> None:
        file = files["app.py"]
        file.read_digest()
        data = app.read_bytes()[: 512 * 1024]
        client.call("PutPiece", pb.PutPieceRequest(file=file.message(), offset=0, data=data))

    sent = await Sender(master).send(str(app), before=half)
    assert sent.submission_id.startswith("driver-")


async def test_a_file_over_the_limit_is_never_read(master: Running, tmp_path: Path) -> None:
    large = tmp_path / "large.jar"
    with large.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(InvalidRequest, match=r"2048\.0 MiB, more than the 1 MiB .*file_mib_max"):
        await Sender(master).send(str(large))


@pytest.mark.parametrize("how", ["it grows", "other bytes of the same size and age"])
async def test_a_file_that_changes_while_it_is_sent_is_refused(
    master: Running, app: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = submit.LocalFile.read_digest

    def then_change(file: submit.LocalFile) -> None:
        digest(file)
        if how == "it grows":
            with app.open("a") as more:
                more.write("#")
        else:
            import os

            app.write_bytes(b"#" * file.size)
            os.utime(app, ns=(file.changed_ns, file.changed_ns))

    monkeypatch.setattr(submit.LocalFile, "read_digest", then_change)
    with pytest.raises(InvalidRequest, match="has changed while it was sent"):
        await Sender(master).send(str(app))
    assert not (await stub(master).List(pb.ListSubmissionsRequest())).submissions


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/no/such.py"], "/no/such.py does not exist here"),
        (["--jars", "/no/*.jar", "{app}"], "no file matches"),
        (["--files", "{directory}", "{app}"], "is no file"),
        ([], "name the application"),
        (["pyspark-shell"], "cannot run pyspark-shell"),
        (["--driver-memory", "much", "{app}"], "spark.driver.memory is 'much'"),
        (["--driver-cores", "0", "{app}"], "spark.driver.cores"),
        (["--jars", "{other}", "{app}"], "have one name"),
        (["--py-files", "{app}", "{app}"], "is named in two lists"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    tmp_path: Path, app: Path, arguments: list[str], expected: str
) -> None:
    other = tmp_path / "other" / "app.py"
    other.parent.mkdir()
    other.touch()
    places = {"app": str(app), "directory": str(tmp_path), "other": str(other)}
    with pytest.raises(HrmError, match=expected):
        submit.driver_spec(parse([x.format(**places) for x in arguments], {}))


@pytest.mark.parametrize(
    ("main", "conf", "memory_mib"),
    [
        ("local:/a.jar", {}, 1024 + 384),
        ("local:/a.jar", {"spark.driver.memory": "8g"}, 8192 + 819),
        ("local:/a.py", {"spark.driver.memory": "8g"}, 8192 + 3276),
        ("local:/a.py", {"spark.driver.memoryOverhead": "1g"}, 2048),
        ("local:/a.jar", {"spark.driver.memoryOverheadFactor": "0.5"}, 1024 + 512),
        ("local:/a.jar", {"spark.driver.minMemoryOverhead": "500m"}, 1024 + 500),
    ],
)
def test_a_driver_holds_its_heap_and_what_is_next_to_it(
    main: str, conf: dict[str, str], memory_mib: int
) -> None:
    given = [f"--conf={key}={value}" for key, value in conf.items()]
    spec, files = submit.driver_spec(parse([*given, main], {}))
    assert (spec.memory_mib, files) == (memory_mib, {})
    assert spec.resources[0].uri == main


@pytest.mark.parametrize("name", ["", "..", "a/b", "a,b", "x" * 256])
async def test_names_that_lead_out_of_the_directory_are_refused(master: Running, name: str) -> None:
    digest = pb.FileDigest(sha256="0" * 64, size_bytes=1)
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, name=name, file=digest)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "cannot name a file"):
        await stub(master).Submit(submission(resources=[main]))


async def test_files_that_were_not_sent_are_missed(master: Running) -> None:
    digest = pb.FileDigest(sha256="0" * 64, size_bytes=1)
    main = pb.DriverResource(role=pb.RESOURCE_ROLE_MAIN, name="a.jar", file=digest)
    with refused(grpc.StatusCode.NOT_FOUND, "send it first"):
        await stub(master).Submit(submission(resources=[main]))
    with refused(grpc.StatusCode.NOT_FOUND, "no such submission"):
        await stub(master).Get(pb.GetSubmissionRequest(submission_id="driver-1"))


async def test_a_file_of_a_live_application_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission_interpreter, "CLEAN_INTERVAL_S", 0.01)
    contents = [b"of the application", b"of nothing"]
    digests = [hashlib.sha256(data).hexdigest() for data in contents]
    async with running(tmp_path) as master:
        for digest, data in zip(digests, contents, strict=True):
            file = pb.FileDigest(sha256=digest, size_bytes=len(data), name="f")
            await stub(master).PutPiece(pb.PutPieceRequest(file=file, data=data))
        early = common_pb2.LaunchFile(sha256=digests[0], size_bytes=18, name="agent.jar")
        launch = common_pb2.SparkLaunch(files=[early])
        found = await master.applications.Register(registration(launch=launch), timeout=TIMEOUT_S)
        kept = [master.settings.state_dir / "files" / digest for digest in digests]
        await all_gone(kept[1:])
        assert kept[0].exists()
        app = master.interpreter.core.master_state.applications[found.application_id]
        assert [file.sha256 for file in app.launch.files] == digests[:1]
        app.launch = LaunchContext()
        await all_gone(kept[:1])


async def all_gone(paths: list[Path]) -> None:
    """As soon as their last use is long ago."""
    async with asyncio.timeout(TIMEOUT_S):
        while any(path.exists() for path in paths):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path, (0, 0))
            await asyncio.sleep(0.02)
