"""Policies are found by name among all installed packages, with the reason if one does not load."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hrm import policies
from hrm.errors import InvalidConfig
from hrm.policies.min_wait import MinWait
from hrm.testing.virtual import VirtualCluster, unit
from tests.policies.packages import install_package

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "policies.md"

Install = Callable[[str, str, dict[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package where Python finds it, as an installer would: module and dist-info."""
    packages: list[str] = []

    def put(package: str, source: str, points: dict[str, str]) -> None:
        install_package(tmp_path, monkeypatch, package, source, points)
        packages.append(package)

    yield put
    for package in packages:
        sys.modules.pop(package, None)


def test_a_policy_is_made_for_its_scheduler() -> None:
    assert isinstance(policies.load("min-wait", 1), MinWait)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidConfig) as refusal:
        policies.load("best")
    assert "no placement policy is called 'best'" in refusal.value.message
    assert "placement_policy in hrm.toml" in refusal.value.message
    for name in policies.known():
        assert name in refusal.value.message


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_module_anywhere", "ModuleNotFoundError: No module named"),
        ("raise RuntimeError('the disk is full')", "RuntimeError: the disk is full"),
        ("def (", "SyntaxError"),
        ("other = 1", "AttributeError"),
        ("policy = 1", "TypeError: 'int' object is not callable"),
        ("class policy:\n  def __init__(self, index): self.x = 1 / index", "ZeroDivisionError"),
        ("def policy(index): return 'best-fit'", "which is no placement policy"),
        ("class policy:\n  name = 'p'\n  def __init__(self, index): pass", "no placement policy"),
    ],
)
def test_what_does_not_load_states_whose_it_is_and_why(
    install: Install, source: str, cause: str
) -> None:
    install("broken", source, {"broken-one": "broken:policy"})
    with pytest.raises(InvalidConfig) as refusal:
        policies.load("broken-one")
    assert cause in refusal.value.message
    assert "'broken-one' (broken:policy of broken 1.0)" in refusal.value.message


def test_one_broken_package_does_not_hurt_the_others(install: Install) -> None:
    install("broken", "raise RuntimeError('no')", {"broken-one": "broken:policy"})
    assert "broken-one" in policies.known()
    assert policies.load("fifo").name == "fifo"


def test_two_packages_of_one_name_are_distinguished_by_the_user(install: Install) -> None:
    install("mine", "policy = None", {"random": "mine:policy"})
    with pytest.raises(InvalidConfig, match=r"two packages provide .* mine:policy of mine 1\.0"):
        policies.load("random")


def test_the_documented_package_works(install: Install) -> None:
    """The document's example is installed unchanged, and places a whole cluster's work."""
    document = DOCUMENT.read_text()
    source, _ = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    (project,) = re.findall(r"```toml\n(\[project\].*?)```", document, re.DOTALL)
    lines = [line for line in f"{source}{project}".splitlines() if line.strip()]
    assert len(lines) <= 20, "the document promises a small package"
    points = tomllib.loads(project)["project"]["entry-points"][policies.GROUP]
    install("lean", source, points)
    policy = policies.load("most-memory", 0)
    assert policy.name == "most-memory"
    cluster = VirtualCluster(
        [unit("n1", memory_mib=4096), unit("n2", memory_mib=9000)],
        policy=lambda index: policies.load("most-memory", index),
        run_s=5.0,
    )
    app = cluster.submit(6)
    cluster.settle()
    assert cluster.states(app) == {"running": 6}
    assert [len(cluster.nodes[name].processes) for name in ("n1", "n2")] == [2, 4]
    cluster.advance(10)
    assert cluster.states(app) == {}


def test_the_documented_test_passes(tmp_path: Path) -> None:
    source, test = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "lean.py").write_text(source)
    (tmp_path / "test_lean.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lean.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_document_lists_every_policy() -> None:
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert listed == set(project["entry-points"][policies.GROUP])


def test_a_master_with_an_unknown_policy_ends_with_the_reason(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("hrm")), "master", "--port", "0"]
    command += ["--state-dir", str(tmp_path / "state"), "--token-file", str(tmp_path / "token")]
    command += ["--placement-policy", "wishful"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "no placement policy is called 'wishful'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_where_a_policy_comes_from_is_known_without_its_package(install: Install) -> None:
    install("broken", "raise RuntimeError('no')", {"broken-one": "broken:policy"})
    assert policies.origin("broken-one") == "broken:policy of broken 1.0"
    with pytest.raises(InvalidConfig, match="set placement_candidate in hrm"):
        policies.origin("wishful", "placement_candidate")
