"""Files by their content: sent in pieces, whole or not at all, kept while they are needed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import threading
from pathlib import Path

import pytest

from hrm.errors import InvalidRequest, LimitReached, NotFound, StaleEpoch
from hrm.master import file_store
from hrm.master.file_store import FileStore

DATA = random.Random(1).randbytes(300_000)
DIGEST = hashlib.sha256(DATA).hexdigest()
SIZE = len(DATA)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return FileStore(directory, file_mib_max=1, held_mib_max=2)


async def put(store: FileStore, offset: int, data: bytes, digest: str = DIGEST) -> int:
    return await store.put(digest, SIZE, "a.jar", offset, data)


async def content(store: FileStore, offset: int = 0, digest: str = DIGEST) -> bytes:
    return b"".join([data async for data in store.pieces(digest, offset)])


async def test_a_file_comes_in_pieces_and_goes_in_pieces(store: FileStore) -> None:
    assert await store.find([(DIGEST, SIZE, "a.jar")]) == [0]
    assert await put(store, 0, DATA[:100_000]) == 100_000
    assert await store.find([(DIGEST, SIZE, "a.jar")]) == [100_000]
    with pytest.raises(NotFound):
        await store.require([DIGEST])
    assert await put(store, 100_000, DATA[100_000:]) == SIZE
    await store.require([DIGEST])
    assert await store.find([(DIGEST, SIZE, "a.jar")]) == [SIZE]
    assert await content(store) == DATA
    assert await content(store, SIZE - 5) == DATA[-5:]


async def test_another_master_goes_on_where_the_last_one_ended(directory: Path) -> None:
    first = FileStore(directory, file_mib_max=1, held_mib_max=2)
    await put(first, 0, DATA[:100_000])
    second = FileStore(directory, file_mib_max=1, held_mib_max=2)
    assert await second.find([(DIGEST, SIZE, "a.jar")]) == [100_000]
    assert await put(second, 100_000, DATA[100_000:]) == SIZE


async def test_a_piece_that_comes_twice_or_out_of_order_does_no_harm(store: FileStore) -> None:
    await put(store, 0, DATA[:100])
    with pytest.raises(StaleEpoch, match="begins at 100"):
        await put(store, 0, DATA[:100])
    with pytest.raises(StaleEpoch):
        await put(store, 200, DATA[200:])
    await put(store, 100, DATA[100:])
    assert await put(store, 0, DATA[:100]) == SIZE, "it is whole already"
    assert await content(store) == DATA


async def test_what_is_not_what_its_hash_states_is_refused_and_forgotten(store: FileStore) -> None:
    with pytest.raises(InvalidRequest, match="has changed while it was sent"):
        await put(store, 0, DATA[:-1] + b"?")
    assert await store.find([(DIGEST, SIZE, "a.jar")]) == [0]


async def test_a_file_is_on_the_disk_before_it_has_its_name(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[list[str]] = []

    def fsync(descriptor: int) -> None:
        settled.append([path.name for path in directory.iterdir()])
        real_fsync(descriptor)

    real_fsync = os.fsync
    monkeypatch.setattr(os, "fsync", fsync)
    await put(store, 0, DATA)
    assert settled == [[f"{DIGEST}.part"]]


async def test_a_file_without_a_byte(store: FileStore) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    assert await store.put(empty, 0, "empty", 0, b"") == 0
    assert await content(store, digest=empty) == b""


@pytest.mark.parametrize(
    ("size", "fits"), [(1024 * 1024, True), (1024 * 1024 + 1, False), (2 << 30, False)]
)
async def test_a_file_over_the_limit_is_refused_by_its_size(
    store: FileStore, size: int, fits: bool
) -> None:
    if fits:
        store.check_size(size, "a.jar")
        return
    with pytest.raises(InvalidRequest, match="file_mib_max"):
        store.check_size(size, "a.jar")
    with pytest.raises(InvalidRequest, match="file_mib_max"):
        await store.find([(DIGEST, size, "a.jar")])


async def test_all_files_together_have_a_bound(store: FileStore) -> None:
    sizes = [(f"{n:064x}", 1024 * 1024, f"{n}.jar") for n in range(3)]
    assert await store.find(sizes[:2]) == [0, 0]
    with pytest.raises(LimitReached, match="files_held_mib"):
        await store.find(sizes)
    await put(store, 0, DATA)
    with pytest.raises(LimitReached):
        await store.find(sizes[:2])
    assert await store.find([(DIGEST, SIZE, "a.jar")]) == [SIZE], "what is there needs no room"


@pytest.mark.parametrize("digest", ["", "A" * 64, "../" + "a" * 61, "a" * 63])
async def test_only_a_hash_names_a_file(store: FileStore, digest: str) -> None:
    with pytest.raises(InvalidRequest):
        await put(store, 0, b"x", digest)
    with pytest.raises(NotFound):
        await content(store, digest=digest)
    with pytest.raises(NotFound):
        await store.require([digest])


async def test_a_piece_beyond_the_size_is_refused(store: FileStore) -> None:
    with pytest.raises(InvalidRequest, match="does not fit"):
        await put(store, 0, DATA + b"more")


async def test_what_is_being_hashed_stays(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing, go_on = threading.Event(), threading.Event()

    def slowly(path: Path) -> str:
        hashing.set()
        assert go_on.wait(10.0)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(file_store, "_settled_sha256", slowly)
    whole = asyncio.create_task(store.put(DIGEST, SIZE, "a.jar", 0, DATA))
    assert await asyncio.to_thread(hashing.wait, 10.0)
    _age(directory)
    assert await store.clean(set(), 60.0) == 0
    go_on.set()
    assert await whole == SIZE
    await store.require([DIGEST])


async def test_one_that_goes_away_does_not_interrupt_what_has_begun(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing, go_on = threading.Event(), threading.Event()

    def slowly(path: Path) -> str:
        hashing.set()
        assert go_on.wait(10.0)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(file_store, "_settled_sha256", slowly)
    first = asyncio.create_task(put(store, 0, DATA))
    assert await asyncio.to_thread(hashing.wait, 10.0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(put(store, 0, DATA))
    assert await store.find([(DIGEST, SIZE, "a.jar")]) == [SIZE], "its part has all"
    go_on.set()
    assert await second == SIZE, "it waits for the first, and finds the whole file"
    assert await content(store) == DATA
    assert store.held_bytes == SIZE


async def test_two_that_send_one_file_do_not_mix(store: FileStore) -> None:
    both = [put(store, 0, DATA[:1000]), put(store, 0, DATA[:1000])]
    output = await asyncio.gather(*both, return_exceptions=True)
    assert output[0] == 1000
    assert isinstance(output[1], StaleEpoch)
    assert await put(store, 1000, DATA[1000:]) == SIZE
    assert await content(store) == DATA


async def test_a_slow_disk_delays_no_other(store: FileStore, directory: Path) -> None:
    slow = directory / f"{DIGEST}.part"
    os.mkfifo(slow)  # opening it for writing fails until it has a reader
    waiting = asyncio.create_task(put(store, 0, DATA[:100]))
    other = hashlib.sha256(b"other").hexdigest()
    assert await store.put(other, 5, "other", 0, b"other") == 5
    assert await content(store, digest=other) == b"other"
    assert not waiting.done()
    reader = os.open(slow, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with asyncio.timeout(10.0):
            assert await waiting == 100
    finally:
        os.close(reader)


async def test_no_piece_costs_a_scan_of_the_whole_directory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FileStore(directory, file_mib_max=1, held_mib_max=2)
    await put(first, 0, DATA[:1000])
    store = FileStore(directory, file_mib_max=1, held_mib_max=2)
    with monkeypatch.context() as patched:
        for name in ("listdir", "scandir"):
            patched.setattr(os, name, lambda *_: pytest.fail("it reads the directory"))
        assert await store.find([(DIGEST, SIZE, "a.jar")]) == [1000]
        assert await put(store, 1000, DATA[1000:2000]) == 2000
        assert store.held_bytes == 2000
        with pytest.raises(InvalidRequest, match="has changed"):
            await put(store, 2000, b"?" * (SIZE - 2000))
        assert store.held_bytes == 0
        assert await put(store, 0, DATA) == SIZE
        assert store.held_bytes == SIZE
    (directory / DIGEST).unlink()  # by hand
    assert await store.clean(set(), 60.0) == 0
    assert store.held_bytes == 0


async def test_a_piece_that_the_disk_does_not_take_is_not_counted(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(part: Path, data: bytes) -> None:
        part.write_bytes(data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(file_store, "_append", full)
        with pytest.raises(LimitReached, match="No space left"):
            await put(store, 0, DATA)
    assert store.held_bytes == 10
    assert await put(store, 10, DATA[10:]) == SIZE


async def test_what_nothing_needs_goes_after_a_while(store: FileStore, directory: Path) -> None:
    await put(store, 0, DATA)
    other = hashlib.sha256(b"other").hexdigest()
    await store.put(other, 5, "other", 0, b"oth")
    assert await store.clean({DIGEST}, 60.0) == 0
    _age(directory)
    assert await store.clean({DIGEST}, 60.0) == 1, "the part that never became whole"
    await store.require([DIGEST])
    os.utime(directory / DIGEST, (1.0, 1.0))
    assert await store.find([(DIGEST, SIZE, "a.jar")]) == [SIZE], "to name it keeps it"
    assert await store.clean(set(), 60.0) == 0
    os.utime(directory / DIGEST, (1.0, 1.0))
    assert await store.clean(set(), 60.0) == 1
    assert store.held_bytes == 0


def _age(directory: Path) -> None:
    for path in directory.iterdir():
        os.utime(path, (1.0, 1.0))
