"""Builds a real text of a given size from texts that are on any machine.

    python -m benchmarks.text [--megabytes 50] [--cache-dir DIR]

Documentation, manual pages, licences, the descriptions of installed packages and, where that is not
enough (a bare container has none), the sources of Python's standard library. Files come in a fixed
order of places and names, decompressed and decoded as UTF-8; what is not text is skipped. If all of
it is still too little, it is repeated, and the result says how often.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import CONSOLE, cache_dir

__all__ = ["Text", "build_text", "places"]

_FILE_BYTES_MAX = 2**19
_FILE_BYTES_MIN = 200
_SUFFIXES = {
    "", ".txt", ".md", ".rst", ".gz", ".copyright",
    ".1", ".2", ".3", ".4", ".5", ".6", ".7", ".8", ".py", ".pyi",
}  # fmt: skip
# The typesetting of a manual page: request lines, fonts, special characters.
_ROFF = re.compile(r"^[.'].*$|\\f(?:\[\w*\]|\(..|.)|\\\*?\(..|\\\[\w+\]", re.MULTILINE)
# Change logs consist of hashes and file names more than of words.
_NO_PROSE = ("changelog", "changes", "news")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text file and where it came from."""

    path: str
    bytes: int
    files: int
    repeats: float

    def __str__(self) -> str:
        summary = f"{self.bytes / 1e6:.1f} MB of text from {self.files} files"
        return summary if self.repeats <= 1 else f"{summary}, repeated {self.repeats:.1f} times"


def places() -> list[Path]:
    """Where to search for texts, the most readable first."""
    return [
        Path("/usr/share/common-licenses"),
        Path("/usr/share/doc"),
        Path("/usr/share/man"),
        Path(sysconfig.get_paths()["purelib"]),
        Path(sysconfig.get_paths()["stdlib"]),
    ]


def _candidates(place: Path) -> Iterator[Path]:
    """The files below ``place`` in the order of their names; links are not followed."""
    try:
        entries = sorted(place.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink() or entry.name in ("__pycache__", "site-packages"):
            continue
        if entry.is_dir():
            yield from _candidates(entry)
        elif entry.suffix.lower() in _SUFFIXES and not entry.name.lower().startswith(_NO_PROSE):
            yield entry


def _read(path: Path) -> str | None:
    """The text of ``path``; None if it is not text, too small, too big, or not readable."""
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            return None
        data = path.read_bytes()
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(_FILE_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return None
    if "man" in path.parts:
        text = _ROFF.sub(" ", text)
    if "\0" in text or not _FILE_BYTES_MIN <= len(data) <= _FILE_BYTES_MAX:
        return None
    return text


def build_text(
    directory: Path, megabytes: float = 50, sources: Sequence[Path] | None = None
) -> Text:
    """The text of at least ``megabytes`` (10**6 bytes each) in ``directory``, built once.

    Raises:
        ValueError: ``megabytes`` is not positive.
        OSError: there is no text in ``sources`` at all, or ``directory`` is not writable.
    """
    if megabytes <= 0:
        raise ValueError(f"a text of {megabytes} MB cannot be built; ask for more than 0")
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"text-{megabytes:g}mb.txt"
    about = target.with_suffix(".json")
    if target.exists() and about.exists():
        kept = Text(**json.loads(about.read_text()))
        if target.stat().st_size == kept.bytes and kept.path == str(target):
            return kept
    wanted = int(megabytes * 1e6)
    partial = target.with_suffix(".partial")
    with partial.open("wb") as out:
        files = _gather(out.write, sources if sources is not None else places(), wanted)
        once = out.tell()
    if once == 0:
        partial.unlink()
        raise OSError(f"no texts in {', '.join(map(str, sources or places()))}")
    if once < wanted:
        whole = partial.read_bytes()
        with partial.open("ab") as out:
            while out.tell() < wanted:
                out.write(whole)
    partial.replace(target)
    size = target.stat().st_size
    text = Text(path=str(target), bytes=size, files=files, repeats=size / once)
    about.write_text(json.dumps(asdict(text)))
    return text


def _gather(write: Callable[[bytes], object], sources: Sequence[Path], wanted: int) -> int:
    """Write texts up to ``wanted`` bytes; returns the number of files used."""
    files = written = 0
    for place in sources:
        for path in _candidates(place):
            text = _read(path)
            if text is None:
                continue
            data = text.encode() if text.endswith("\n") else f"{text}\n".encode()
            write(data)
            files += 1
            written += len(data)
            if written >= wanted:
                return files
    return files


def main() -> None:
    """Build the text and describe it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--cache-dir", type=Path, default=cache_dir())
    given = parser.parse_args()
    with CONSOLE.status("reading the texts of this machine"):
        text = build_text(given.cache_dir, given.megabytes)
    CONSOLE.print(str(text))
    print(text.path)


if __name__ == "__main__":
    main()
