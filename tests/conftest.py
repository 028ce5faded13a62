"""What all tests share: they never touch the user's own cluster, and never need a network."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.spark_tools import (
    ARCHIVES_FROM,
    SparkTools,
    kept_for_later_runs,
    variables_of_users,
)

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

settings.register_profile("busy", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy")  # how long examples take says how busy the machine is, and no more

T = TypeVar("T")
HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
PYTHON_PATH = os.pathsep.join(map(str, (HERE.parent, SAMPLES)))
"""For processes of tests. Pipelines are sent with their whole package, so those of tests have one
of their own, ``pipeline_samples``."""
os.environ["PYTHONPATH"] = PYTHON_PATH

PATIENCE = float(os.environ.get("HRM_TEST_PATIENCE", "1"))
"""The factor by which time limits are extended, on a machine that is slow or busy. The checks stay
the same."""


KEPT_TOOLS = os.environ.get("HRM_TEST_ARCHIVES")
"""Read here, because tests have nothing of HRM's in their environment."""

PAPERS = (
    *("benchmarks/pipelines", "benchmarks/simulation", "benchmarks/traces"),
    *("benchmarks/test_paper_", "benchmarks/test_filter_", "benchmarks/test_neural_"),
)
"""Where the tests of papers' figures and of traces are, in this folder."""

LONG_FIRST = (
    *("test_embedding.py", "test_spark.py", "test_lost_nodes.py", "test_start_up.py"),
    *("test_submissions.py", "test_parts_fail.py", "test_settings.py", "test_localisation.py"),
    *("test_node_requirement.py", "test_plugin.py", "test_gpus.py", "test_fence.py"),
    "test_warm_drivers.py",
)
"""Modules of tests of Spark that take a minute or more, the longest first: one that was begun last
would keep one process busy while the others are done."""

POLL_S, POLL_SHARE, POLL_MAX_S = 0.02, 0.05, 0.25
"""How often a condition is tested: the pause is a share of the wait so far, within bounds."""


@pytest.fixture(scope="session")
def _of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this run, the same for all processes that share its tests."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def _tools(request: pytest.FixtureRequest, _of_all_workers: Path) -> SparkTools:
    """What tests with a real Spark share. It stays in pytest's cache, where pytest keeps one, or in
    the directory that ``HRM_TEST_ARCHIVES`` names."""
    place = _of_all_workers / "spark-tools"
    if KEPT_TOOLS:
        place = Path(KEPT_TOOLS)
    elif cache := getattr(request.config, "cache", None):
        place = kept_for_later_runs(cache.mkdir("spark-tools"))
    tools = SparkTools(place)
    marked = [item for item in request.session.items if item.get_closest_marker("spark")]
    if marked and not _missing_for_spark():
        tools.use_archives(make=len(marked) >= ARCHIVES_FROM)
    return tools


@pytest.fixture(autouse=True)
def _own_home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every test has an empty ``HRM_HOME``, and nothing of HRM's or Spark's in its environment."""
    for name in variables_of_users():
        monkeypatch.delenv(name)
    home = tmp_path / "hrm-home"
    monkeypatch.setenv("HRM_HOME", str(home))
    monkeypatch.setenv("HRM_AGENT_CLASS_ARCHIVE", "false")
    if request.node.get_closest_marker("spark"):
        tools: SparkTools = request.getfixturevalue("_tools")
        tools.furnish(home)
        for name, value in tools.environment(os.environ).items():
            monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def eventually() -> Callable[..., object]:
    """``eventually(condition, timeout_s)``: the first true value of ``condition``, or a failure
    that says what was waited for, or what was found instead.

    It polls often at first, and less often the longer it takes, to spare a busy machine.
    """

    def wait(
        condition: Callable[[], T], timeout_s: float = 10.0, what: str | Callable[[], str] = ""
    ) -> T:
        begun = time.monotonic()
        while not (value := condition()):
            waited_s = time.monotonic() - begun
            if waited_s > PATIENCE * timeout_s:
                seen = what() if callable(what) else what
                pytest.fail(f"not within {timeout_s:g} s: {seen or condition}")
            time.sleep(min(max(POLL_S, waited_s * POLL_SHARE), POLL_MAX_S))
        return value

    return wait


@contextlib.contextmanager
def small_disk(directory: Path, mib: int = 1) -> Iterator[Path]:
    """A file system of its own at ``directory``, so small that it can be filled; the test is
    skipped where none may be mounted."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "hrm-tests", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def _missing_for_spark() -> str:
    """Why a real Spark cannot run here; empty where it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed: make venv"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return "there is no Java 17+: .ci/ensure-java"
    result = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else f"{java} does not run: {result.stderr.strip()}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a real Spark are skipped with a reason where there is none; those of papers are
    marked by their location. The longest modules come first.

    Marked tests and the tests on real daemons share the machine with other load: one that fails is
    tried once more, and both tries are in the summary (``RERUN``), to be investigated.
    """
    rank = {name: number for number, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    marked = {item for item in items if item.get_closest_marker("spark")}
    for item in marked if PATIENCE != 1 else ():
        limit = item.get_closest_marker("timeout")
        limit_s = PATIENCE * (limit.args[0] if limit else 120.0)
        item.add_marker(pytest.mark.timeout(limit_s), append=False)
    for item in items:
        if item.path.relative_to(HERE).as_posix().startswith(PAPERS):
            item.add_marker(pytest.mark.papers)
        if item in marked or "integration" in item.path.parts:
            item.add_marker(pytest.mark.flaky(reruns=1))
    reason = _missing_for_spark() if marked else ""
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
