"""Which modules a task may bring: what a worker could not write is refused when it is submitted."""

from __future__ import annotations

import pytest

from hrm.errors import InvalidRequest
from hrm.v1 import pipeline_pb2 as pb
from hrm.wire import pipelines as pw


def files(*paths: str) -> list[pb.SourceFile]:
    return [pb.SourceFile(path=path, content=b"1") for path in paths]


def test_modules_have_relative_paths() -> None:
    longest = f"{'a' * 252}.py"
    found = pw.to_files(files("a.py", "b/c.py", "./b/d.py", "ab", longest))
    assert list(found) == ["a.py", "b/c.py", "b/d.py", "ab", longest]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["/etc/a.py"], "'/etc/a.py' is no relative path"),
        (["a.py", "b/../../a.py"], "without '..'"),
        (["a.py", "b.py", "a.py"], "'a.py' is there twice; send each file once"),
        (["b/a.py", "./b//a.py"], "'b/a.py' is there twice"),
        (["a", "b", "a/b/c.py"], "'a' is a file, and the directory of 'a/b/c.py'; rename or leave"),
        (["a/b/c.py", "a/b"], "'a/b' is a file, and the directory of 'a/b/c.py'"),
        (["b/" + "a" * 256], "a name of 256 bytes, more than the 255 that file systems allow"),
        (["b/" + "\u00e9" * 150 + "/c.py"], "a name of 300 bytes"),
        (["a/" * 600 + "b.py"], "has 1204 characters, more than the 1000 of a path"),
    ],
)
def test_paths_that_no_file_can_have_are_refused(paths: list[str], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        pw.to_files(files(*paths))
    assert words in str(refused.value)
