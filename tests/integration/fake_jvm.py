"""In place of Java in tests of the processes around a warm driver: it speaks the JVM's protocol.

As ``java … org.apache.spark.launcher.Main`` it prints the command that starts it again. As the warm
driver it behaves as the file ``behaviour`` next to it says, and becomes an "application" that
prints what it has got and ends as its last argument says.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

LAUNCHER = "org.apache.spark.launcher.Main"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"


def read(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def frame() -> bytes:
    (length,) = struct.unpack(">I", read(4))
    return read(length)


def application(order: dict[str, object]) -> int:
    arguments = order["arguments"]
    environment = order["environment"]
    assert isinstance(arguments, list) and isinstance(environment, dict)
    what = arguments[-1]
    print("arguments", *arguments, flush=True)
    print("variable", environment.get("SECRET_OF_ADA", ""), flush=True)
    print("properties", json.dumps(order["properties"]), file=sys.stderr, flush=True)
    if what == "echo":
        while line := os.read(0, 100):
            os.write(1, line)
        return 0
    if what == "wait":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        print("waiting", os.getpid(), flush=True)
        while True:
            signal.pause()
    if what == "much":
        os.write(1, b"x" * 300_000)
        return 0
    return int(what)


def warm(behaviour: str) -> int:
    replies = int(os.environ["HRM_WARM_REPLIES"])
    print("what was written before belongs to no application", flush=True)
    if behaviour == "fails":
        print("java.lang.Error: the rehearsal's reason", file=sys.stderr, flush=True)
        return 1
    if behaviour == "hangs":
        time.sleep(600)
    os.write(replies, b"ready\n")
    if behaviour == "deaf":
        time.sleep(600)
    order = json.loads(frame())
    if behaviour == "declines":
        os.write(replies, b"declined the addresses of this machine have changed\n")
        return 0
    os.write(replies, b"fits\n")
    frame()
    os.close(replies)
    return application(order)


def main() -> int:
    if LAUNCHER in sys.argv:
        java = str(Path(__file__).parent / "java")
        fixed = [word for word in sys.argv if word.startswith("spark.driver.")]
        words = [java, "-cp", "jars", *(f"-D{word}" for word in fixed), SUBMIT, *sys.argv]
        sys.stdout.write("\0\n" + "".join(f"{word}\0" for word in words))
        return 0
    return warm((Path(__file__).parent / "behaviour").read_text().strip())


if __name__ == "__main__":
    sys.exit(main())
