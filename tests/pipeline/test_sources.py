"""What is sent with a task, and pipelines that no node could import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_samples import sample_steps

from hrm.errors import InvalidConfig, LimitReached
from hrm.pipelines import Pipeline
from hrm.pipelines.client import sources

SCRIPT = """
from hrm.pipelines import Pipeline
from hrm.pipelines.client.sources import sources_of

mine = Pipeline("mine")

@mine.subtask()
def shift(value):
    return value + 1

if __name__ == "__main__":
    found = sources_of(mine)
    print(found.reference, *[path for path, content in found.files if b"shift" in content])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_script_is_sent_as_a_module(folder: Path) -> None:
    (folder / "app.py").write_text(SCRIPT)
    for arguments in (["app.py"], ["-m", "app"]):
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=True,
            cwd=folder,
        )  # fmt: skip
        assert done.stdout.split() == ["app:mine", "app.py"]


def test_a_package_is_sent_as_a_whole_and_only_its_code(folder: Path) -> None:
    package = folder / "clips"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "parts" / "__init__.py").write_text("")
    (package / "parts" / "app.py").write_text(SCRIPT)
    (package / "notes.txt").write_text("not code")
    found = sources.sources_of(sources.load("clips.parts.app:mine"))
    assert found.reference == "clips.parts.app:mine"
    assert [path for path, _ in found.files] == [
        "clips/__init__.py", "clips/parts/__init__.py", "clips/parts/app.py",
    ]  # fmt: skip


def test_what_is_too_large_to_be_sent_states_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "large").mkdir()
    (folder / "large" / "__init__.py").write_text(SCRIPT)
    pipeline = sources.load("large:mine")
    monkeypatch.setattr(sources, "SOURCE_BYTES_MAX", 100)
    with pytest.raises(LimitReached, match="more than 100 bytes; install the package"):
        sources.sources_of(pipeline)


def test_installed_code_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_installed", lambda path: path == Path(sample_steps.__file__))
    found = sources.sources_of(sample_steps.arithmetic)
    assert found == ("pipeline_samples.sample_steps:arithmetic", ())


def test_a_pipeline_without_a_name_in_a_module_cannot_travel() -> None:
    local = Pipeline("local")
    local.subtask("a")(abs)
    with pytest.raises(InvalidConfig, match="no module has pipeline 'local'"):
        sources.sources_of(local)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nonsense", "names no pipeline; write MODULE:ATTRIBUTE"),
        ("no_such_module_at_all:p", "cannot be imported from .*ModuleNotFoundError"),
        (
            "pipeline_samples.sample_steps:not_a_pipeline",
            "is no hrm.pipelines.Pipeline; it has arith",
        ),
        ("pipeline_samples.sample_steps:absent", "is no hrm.pipelines.Pipeline"),
        ("json:loads", "it has none"),
    ],
)
def test_references_that_lead_nowhere(reference: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        sources.load(reference)
