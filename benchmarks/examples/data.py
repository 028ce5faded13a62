"""The contents of the working directory of Spark's examples.

PyPI's pyspark brings ``data/`` but not ``examples/src/main/resources``: small files of the same
names and schemas are made here. Input for those that take a file is made as well.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["GREETING", "LINES", "feed_files", "lay_out", "resources", "serve_lines"]

LINES = (
    "spark streams and batch share one cluster",
    "a happy spark counts good words",
    "they love what spark does",
)
GREETING = "hello"
"""Sent first to each reader of the socket, and never again: a session that ends."""

_PEOPLE = (("Michael", None), ("Andy", 30), ("Justin", 19))
_SEND_INTERVAL_S = 0.5


def resources(directory: Path) -> None:
    """Make ``examples/src/main/resources`` in ``directory``."""
    directory.mkdir(parents=True)
    people = [{"name": n} if a is None else {"name": n, "age": a} for n, a in _PEOPLE]
    _write(directory / "people.json", (json.dumps(x) for x in people))
    _write(directory / "people.txt", (f"{n}, {a or 29}" for n, a in _PEOPLE))
    _write(directory / "people.csv", ["name;age;job", "Jorge;30;Developer", "Bob;32;Developer"])
    rows = (f"<person><name>{n}</name><age>{a or 29}</age></person>" for n, a in _PEOPLE)
    _write(directory / "people.xml", ["<people>", *rows, "</people>"])
    _write(directory / "kv1.txt", (f"{n}\x01val_{n}" for n in range(0, 500, 2)))
    _tables(directory)


def _tables(directory: Path) -> None:
    try:
        import pyarrow as pa
        from pyarrow import orc, parquet
    except ImportError:
        return  # the one example that reads these is skipped
    users = pa.table(
        {
            "name": ["Alyssa", "Ben"],
            "favorite_color": pa.array([None, "red"], pa.string()),
            "favorite_numbers": pa.array([[3, 9, 15, 20], []], pa.list_(pa.int32())),
        }
    )
    parquet.write_table(users, directory / "users.parquet")
    orc.write_table(users, directory / "users.orc")
    inner = directory / "dir1" / "dir2"
    inner.mkdir(parents=True)
    for path in (directory / "dir1" / "file1.parquet", inner / "file2.parquet"):
        parquet.write_table(pa.table({"file": [path.name]}), path)
    _write(directory / "dir1" / "file3.json", [json.dumps({"file": "corrupt.json"})])


def lay_out(work: Path, spark_home: Path, resources_dir: Path) -> None:
    """Make ``work`` a working directory: Spark's data, the resources, and files to read."""
    data = work / "data"
    data.mkdir(parents=True)
    for part in (spark_home / "data").iterdir():
        (data / part.name).symlink_to(part)
    parent = work / "examples" / "src" / "main"
    parent.mkdir(parents=True)
    (parent / "resources").symlink_to(resources_dir)
    chance = random.Random(7)
    _write(work / "numbers.txt", (str(chance.randrange(1000)) for _ in range(200)))
    _write(work / "words.txt", LINES * 20)
    _write(work / "text8_lines", [*(["china japan spark word"] * 60), *(LINES * 30)])
    points = [[chance.choice([0, 1]), *(chance.random() for _ in range(10))] for _ in range(100)]
    _write(work / "points.txt", (" ".join(map(str, x)) for x in points))
    _write(work / "points-labelled.txt", (" ".join(map(str, x)) for x in points))
    for name in ("training", "test", "lines"):
        (work / name).mkdir()


@contextmanager
def serve_lines() -> Iterator[int]:
    """A socket on loopback that sends ``GREETING``, then ``LINES`` repeatedly, to every client;
    yields its port."""
    done = threading.Event()
    threads: list[threading.Thread] = []

    def send(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(f"{GREETING}\n".encode())
                while not done.is_set():
                    connection.sendall("".join(f"{line}\n" for line in LINES).encode())
                    done.wait(_SEND_INTERVAL_S)
            except OSError:
                return  # the reader has disconnected

    def accept(listener: socket.socket) -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threads.append(threading.Thread(target=send, args=(connection,), daemon=True))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_SEND_INTERVAL_S)
        accepting = threading.Thread(target=accept, args=(listener,), daemon=True)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            done.set()
            for thread in (accepting, *threads):
                thread.join(5)


@contextmanager
def feed_files(directory: Path) -> Iterator[None]:
    """New files in ``directory``, which appear atomically: written elsewhere and moved."""
    done = threading.Event()
    points = ["(1.0,[1.0,2.0,3.0])", "(0.5,[0.1,0.2,0.3])"] * 5
    text = "\n".join(points if directory.name == "training" else LINES) + "\n"

    def feed() -> None:
        number = 0
        while not done.is_set():
            part = directory.parent / f"part-{number}"
            part.write_text(text)
            part.rename(directory / part.name)
            number += 1
            done.wait(1.0)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    try:
        yield
    finally:
        done.set()
        feeding.join(5)


def _write(path: Path, lines: Iterator[str] | list[str] | tuple[str, ...]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))
