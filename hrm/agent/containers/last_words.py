"""Extracts the reason of a failure from the output of a process, as one line.

The last line of a log is seldom the reason. That is the line of the exception: after the frames in
Python's traceback, before them in Java's, whose cause follows further below. A Python driver's
output is on its stdout, and its JVM adds to stderr only that the program has failed. The latest
exception counts. Where HRM itself has ended the driver, its own line counts. This reads untrusted
text: the exit code decides how the container ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["LENGTH_MAX", "TAIL_BYTES", "last_words", "read_tail"]

LENGTH_MAX = 300
TAIL_BYTES = 65_536

_UNCAUGHT = re.compile(r'Exception in thread "main" (.+)')
_NAME = r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*"
_JAVA = re.compile(rf"{_NAME}(?:Exception|Error|Throwable)(?::\s.*)?")
_PYTHON = re.compile(rf"{_NAME}(?::\s.*)?")
_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = "Caused by: "
_PY4J = "py4j.protocol.Py4JJavaError: "
"""How Python calls any exception of the JVM."""
_OWN = "HRM: "
_FRAME = re.compile(r"\s+at \S|\s*\.\.\. \d+ (?:more|common frames omitted)|\s+Suppressed: ")
_CHATTER = re.compile(r"[\d/-]+[ T][\d:.,]+Z? (?:INFO|DEBUG|TRACE) ")
_BANNER = re.compile(
    "Using Spark's default log4j profile: |Setting default log level to |To adjust logging level "
    "use |Picked up (?:JAVA_TOOL|JDK_JAVA|_JAVA)_OPTIONS: |WARNING: (?:Using incubator modules: |"
    "A terminally deprecated method in |sun\\.misc\\.Unsafe::|Please consider reporting this to |"
    "A restricted method in |Use --enable-native-access=|Restricted methods will be blocked )|"
    "(?:OpenJDK|Java HotSpot\\(TM\\)) .* VM warning: (?:Sharing is only supported|"
    r"Options -Xverify:none )|SLF4J(?:\([IWD]\))?: |HRM: the Connect server is (?:not )?warm\b"
)
"""What Java, Spark and HRM print at every start, which is no reason of an end."""
_ENDED_BY_HRM = re.compile(r"HRM: (the driver is (?:ended|killed): .+)")
"""``hrm.agent.drivers.driver_runner`` and the plugin's ``DriverEnd`` write it."""
_WRAPPER_EXCEPTION = "org.apache.spark.SparkUserAppException"
"""What spark-submit throws when a Python program has failed: the reason is the program's."""


def last_words(stderr: str, stdout: str = "") -> str:
    """A clause for a message: the exception, else the last informative line of ``stderr``;
    empty where there is none. At most ``LENGTH_MAX`` characters of one line.

    ``stdout``: of a driver; empty for what has no exceptions there.
    """
    errors, own = stderr.splitlines(), stdout.splitlines()
    found = _ended_by_hrm(errors) or _uncaught(errors)
    if not found and stdout:
        found = _raised(own) or _raised(errors)
    if found:
        return _short(found)
    line = _latest(errors)
    if not line or _JAVA.fullmatch(line):
        return _short(line)
    return _short(f"the last line of its stderr: {line}")


def read_tail(path: Path) -> str:
    """The last ``TAIL_BYTES`` of a log; empty where it cannot be read. A link is not followed: the
    directory may be a user's, and the reader root."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(0, os.fstat(descriptor).st_size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _ended_by_hrm(lines: Sequence[str]) -> str:
    at = _last(lines, lambda line: _ENDED_BY_HRM.fullmatch(line.rstrip()) is not None)
    matched = None if at is None else _ENDED_BY_HRM.fullmatch(lines[at].rstrip())
    return "" if matched is None else matched[1]


def _uncaught(lines: Sequence[str]) -> str:
    """What ended a JVM's main thread, and the cause at the bottom of it."""
    at = _last(lines, lambda line: _UNCAUGHT.search(line) is not None)
    matched = None if at is None else _UNCAUGHT.search(lines[at])
    if at is None or matched is None or matched[1].startswith(_WRAPPER_EXCEPTION):
        return ""
    return _with_cause(matched[1], lines[at + 1 :])


def _with_cause(what: str, below: Sequence[str]) -> str:
    """``what``, and the last of the causes ``below``; HRM's own message alone, where it is one."""
    chain = [what]
    for line in below:
        if line.startswith(_CAUSE):
            chain.append(line.removeprefix(_CAUSE))
        elif _UNCAUGHT.search(line) or _CHATTER.match(line):
            break
    for each in chain:
        _, own, message = each.partition(f": {_OWN}")
        if own:
            return _OWN + message
    if len(chain) == 1:
        return what
    cause = chain[-1]
    # Both are reported: neither may take all the characters.
    return f"{_short(what, LENGTH_MAX // 2 - 15)}, caused by {_short(cause, LENGTH_MAX // 2)}"


def _raised(lines: Sequence[str]) -> str:
    """The exception of the last traceback of Python; a syntax error has none of its own."""
    start = _last(lines, lambda line: line.rstrip().endswith(_TRACEBACK))
    if start is None:
        at = _last(lines, lambda line: line.startswith(("SyntaxError: ", "IndentationError: ")))
        return "" if at is None else lines[at]
    for at in range(start + 1, len(lines)):
        line = lines[at]
        if line[:1].strip() and _PYTHON.fullmatch(line.rstrip()):
            # py4j puts the JVM's exception on a line of its own, and its causes below.
            more = lines[at + 1] if at + 1 < len(lines) else ""
            if line.startswith(_PY4J) and more.startswith(": "):
                return _with_cause(more.removeprefix(": "), lines[at + 2 :])
            return line.rstrip() + (more if more.startswith(": ") else "")
    return ""


def _latest(lines: Sequence[str]) -> str:
    """The last informative line; of a Java exception, its head."""
    below_frames = False
    for line in reversed(lines):
        if not line.strip() or _BANNER.match(line):
            continue
        if _CHATTER.match(line) and not below_frames:
            continue
        if _FRAME.match(line):
            below_frames = True
            continue
        return line.strip().removeprefix(_CAUSE)
    return ""


def _last(lines: Sequence[str], wanted: Callable[[str], bool]) -> int | None:
    return next((at for at in range(len(lines) - 1, -1, -1) if wanted(lines[at])), None)


def _short(text: str, length_max: int = LENGTH_MAX) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length_max else text[: length_max - 1] + "…"
