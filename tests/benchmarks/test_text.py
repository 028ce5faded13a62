"""The text builder: real texts in a fixed order, repeated only where there are too few."""

from __future__ import annotations

import gzip
import sysconfig
from pathlib import Path

import pytest

from benchmarks.text import build_text, places


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "source"
    _write(place / "b.txt", "beta " * 100)
    _write(place / "a" / "README", "alpha " * 100)
    (place / "c.gz").write_bytes(gzip.compress(b"gamma " * 100))
    (place / "d.txt").write_bytes(b"\xff\xfe" * 200)
    _write(place / "e.so", "not a text " * 100)
    _write(place / "f.txt", "too small")
    (place / "g.txt").write_bytes(b"nul \0" * 100)
    (place / "h.gz").write_bytes(b"not a gzip file " * 100)
    (place / "link.txt").symlink_to(place / "b.txt")
    return place


def test_takes_every_text_once_in_the_order_of_names(tmp_path: Path, source: Path) -> None:
    text = build_text(tmp_path / "out", 0.001, [source])
    content = Path(text.path).read_text()
    assert text.files == 2  # alpha and beta are enough: nothing more is read
    assert content.startswith("alpha ")
    assert content.count("alpha") == 100
    assert text.bytes == len(content.encode()) >= 1_000
    assert text.repeats == 1.0


def test_repeats_what_is_too_little_and_reports_it(tmp_path: Path, source: Path) -> None:
    text = build_text(tmp_path / "out", 0.01, [source])
    content = Path(text.path).read_text()
    assert text.files == 3
    assert text.bytes >= 10_000
    assert text.repeats > 1
    assert content.count("gamma") == 100 * round(text.repeats)
    assert "repeated" in str(text)
    assert "too small" not in content
    assert "not a" not in content


def test_is_built_once_and_built_alike_again(tmp_path: Path, source: Path) -> None:
    first = build_text(tmp_path / "one", 0.002, [source])
    before = Path(first.path).stat().st_mtime_ns
    assert build_text(tmp_path / "one", 0.002, [source]) == first
    assert Path(first.path).stat().st_mtime_ns == before
    second = build_text(tmp_path / "two", 0.002, [source])
    assert Path(second.path).read_bytes() == Path(first.path).read_bytes()


def test_a_truncated_file_in_the_cache_is_built_again(tmp_path: Path, source: Path) -> None:
    first = build_text(tmp_path / "one", 0.002, [source])
    Path(first.path).write_text("cut")
    assert Path(build_text(tmp_path / "one", 0.002, [source]).path).stat().st_size == first.bytes


def test_manual_pages_are_read_without_their_typesetting(tmp_path: Path) -> None:
    page = ".TH LS 1\n\\fBls\\fR lists files\\(em\\fIall\\fP of \\f[CR]them\\f[]\n" * 10
    _write(tmp_path / "man" / "man1" / "ls.1", page)
    words = Path(build_text(tmp_path / "out", 0.0002, [tmp_path / "man"]).path).read_text().split()
    assert words[:6] == ["ls", "lists", "files", "all", "of", "them"]


def test_a_bare_machine_has_the_standard_library(tmp_path: Path) -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    assert places()[-1] == library
    text = build_text(tmp_path / "out", 1, [tmp_path / "no-such-place", library])
    assert text.bytes >= 1_000_000
    assert text.repeats == 1.0


def test_no_text_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no texts in"):
        build_text(tmp_path / "out", 1, [tmp_path / "empty"])
    with pytest.raises(ValueError, match="more than 0"):
        build_text(tmp_path / "out", 0, [tmp_path])
    assert list((tmp_path / "out").iterdir()) == []
