"""docs/architecture.md has all interpreters of each machine."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
MACHINE = re.compile(r"`([\w/]+\.py)` \(`(\w+)`\)")


def rows() -> list[tuple[str, str, str]]:
    """Module, class and the rest of its row, of every machine in the table."""
    _, _, table = PAGE.read_text().partition("| machine | module | run live by |")
    table, _, _ = table.partition("\n\n")
    found = []
    for line in table.splitlines()[2:]:
        _, _, module, live, virtual, _ = line.split("|")
        found += [(path, name, live + virtual) for path, name in MACHINE.findall(module)]
    return found


@cache
def makers() -> dict[str, set[str]]:
    """By name of what is called, the modules that call it."""
    found: dict[str, set[str]] = {}
    for folder in ("hrm", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    name = path.relative_to(ROOT).as_posix()
                    found.setdefault(node.func.id, set()).add(name)
    return found


@pytest.mark.parametrize(("module", "name", "row"), rows(), ids=lambda x: x if x.isalpha() else "")
def test_the_table_names_every_module_that_makes_one_of_the_machines(
    module: str, name: str, row: str
) -> None:
    assert re.search(rf"^class {name}\b", (ROOT / module).read_text(), re.MULTILINE)
    missing = [path for path in sorted(makers()[name]) if f"`{path}`" not in row]
    assert not missing, f"the row of {name} does not have {', '.join(missing)}"


def test_the_table_is_read() -> None:
    assert {"MasterCore", "NodeCore", "AppMasterCore", "PipelineNode"} <= {x for _, x, _ in rows()}
