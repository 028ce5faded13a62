"""An environment of its own for every client, made once and kept in the benchmarks' cache.

Clients contradict each other in what they need (Airflow alone pins some 150 packages), and none of
it may change what HRM is tested with. A file of ``constraints/`` names every package of an
environment with its version, so that a result is of the same programs a year later; the environment
is made again when that file, or the list of packages, changes. All wheels are kept, so that it is
made again without the network.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import BenchmarkError

__all__ = ["Environment", "Missing", "Packages", "constraints_of", "prepare", "versions"]

_CONSTRAINTS = Path(__file__).parent / "constraints"
_INSTALL_LIMIT_S = 1800.0


class Missing(BenchmarkError):
    """A client cannot be installed on this machine; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """What is installed together: ``wanted`` are requirements, as ``pip install`` takes them."""

    name: str
    wanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that exists."""

    directory: Path

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"


def constraints_of(name: str) -> Path:
    """The file with the versions of an environment's packages; it may not exist yet."""
    return _CONSTRAINTS / f"{name}.txt"


def versions(name: str) -> dict[str, str]:
    """Package -> version, as an environment's constraints have them."""
    path = constraints_of(name)
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    return {package.lower().replace("_", "-"): version for package, version in pairs}


def _fingerprint(packages: Packages) -> str:
    path = constraints_of(packages.name)
    pinned = path.read_text() if path.exists() else ""
    text = "\n".join([sys.version, *packages.wanted, pinned])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(packages: Packages, cache_dir: Path) -> Environment:
    """The environment of ``packages``, made if it is not there.

    Raises:
        Missing: something could not be installed.
    """
    directory = cache_dir / "clients" / packages.name
    made = directory / "made"
    fingerprint = _fingerprint(packages)
    if made.exists() and made.read_text() == fingerprint:
        return Environment(directory)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        _install(packages, directory, cache_dir / "clients" / "wheels")
    except Missing:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    made.write_text(fingerprint)
    return Environment(directory)


def _install(packages: Packages, directory: Path, wheels: Path) -> None:
    """Make the environment, of wheels that are here or are brought."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(directory)], packages.name)
    path = constraints_of(packages.name)
    pinned = ["-c", str(path)] if path.exists() else []
    wanted = ["--find-links", str(wheels), *pinned, *packages.wanted]
    pip = [sys.executable, "-m", "pip", "--quiet"]
    into = [*pip, "--python", str(directory / "bin" / "python"), "install"]
    wheels.mkdir(parents=True, exist_ok=True)
    try:
        _run([*into, "--no-index", *wanted], packages.name)
    except Missing:  # not all of them are here
        _run([*pip, "wheel", "--wheel-dir", str(wheels), *wanted], packages.name)
        _run([*into, "--no-index", *wanted], packages.name)


def _run(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_INSTALL_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{name}: not installed within {_INSTALL_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        lines = [x.strip() for x in done.stderr.splitlines() if x.strip()]
        errors = [x for x in lines if x.startswith("ERROR")]
        raise Missing(f"{name}: {(errors or lines or ['pip gives no reason'])[-1][:200]}")
