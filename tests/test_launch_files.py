"""Files of an application from the driver's machine to nodes: what the wire takes and refuses."""

from __future__ import annotations

import pytest

from hrm.core.master.holdings import launch_bytes
from hrm.core.vocabulary.model import LaunchContext, LaunchFile
from hrm.errors import InvalidRequest
from hrm.v1 import common_pb2
from hrm.wire import codec

DIGEST = "0123456789abcdef" * 4


def message(**fields: object) -> common_pb2.SparkLaunch:
    sound: dict[str, object] = {"sha256": DIGEST, "size_bytes": 1, "name": "agent.jar"}
    return common_pb2.SparkLaunch(files=[sound | fields])


def test_what_is_sent_is_what_comes() -> None:
    files = (
        LaunchFile(sha256=DIGEST, size_bytes=7, name="agent.jar"),
        LaunchFile(sha256=DIGEST, size_bytes=0, name="Umgebung ä", archive="e.tar.gz"),
    )
    launch = LaunchContext(files=files)
    assert codec.to_launch(codec.from_launch(launch)) == launch


def test_they_count_as_what_an_application_holds() -> None:
    file = LaunchFile(sha256=DIGEST, size_bytes=1 << 30, name="agent.jar", archive="a.zip")
    assert launch_bytes(LaunchContext(files=(file,))) == 64 + 9 + 5


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "x" * 256])
def test_a_name_that_is_no_plain_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a file"):
        codec.to_launch(message(name=name))
    if name:
        with pytest.raises(InvalidRequest, match="cannot name a file"):
            codec.to_launch(message(archive=name))


@pytest.mark.parametrize("digest", ["", "0" * 63, "A" * 64, "../" + "0" * 61])
def test_only_a_hash_names_contents(digest: str) -> None:
    with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
        codec.to_launch(message(sha256=digest))


def test_a_size_is_not_negative() -> None:
    with pytest.raises(InvalidRequest, match="must not be negative"):
        codec.to_launch(message(size_bytes=-1))


def test_two_files_of_one_name_are_refused() -> None:
    sound = message().files[0]
    with pytest.raises(InvalidRequest, match=r"two files called 'agent\.jar'"):
        codec.to_launch(common_pb2.SparkLaunch(files=[sound, sound]))
