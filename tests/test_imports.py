"""What a process loads: no module that only others need."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "module", ["hrm.agent.daemon", "hrm.spark.appmaster", "hrm.pipelines.client.client"]
)
def test_one_that_only_sends_messages_loads_nothing_that_schedules(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "deciders = ('hrm.core.scheduling.', 'hrm.core.master.')\n"
        "print([m for m in sys.modules if m.startswith(deciders)])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def _at_import(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when the module is imported: not those of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for each in child.orelse:
                yield from _at_import(ast.Module([each], []))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _at_import(child)


def _graph(*folders: str) -> dict[str, set[str]]:
    """Each module, and the modules that it imports; a package is its ``__init__``."""
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_relative_to(ROOT / "hrm/v1")
    }
    graph: dict[str, set[str]] = {}
    for module, path in trees.items():
        found = graph[module] = set()
        for node in _at_import(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            else:
                base = node.module or ""
                for name in (f"{base}.{alias.name}" for alias in node.names):
                    found.add(name if name in trees else base)
        found &= set(trees)
    return graph


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of a cycle, in order; empty if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_modules_import_each_other_in_no_circle() -> None:
    graph = _graph("hrm", "benchmarks")
    assert len(graph) > 300
    assert _circle(graph) == []


def test_a_circle_is_found_and_printed() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) in (
        ["a", "b", "c", "a"], ["b", "c", "a", "b"], ["c", "a", "b", "c"],
    )  # fmt: skip


def test_every_import_of_the_project_is_absolute() -> None:
    """The graph above reads no others."""
    relative = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("hrm", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []
