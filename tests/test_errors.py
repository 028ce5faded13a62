"""The tree of errors is drawn as it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hrm import errors

ROOT = Path(__file__).resolve().parents[1]
BRANCH = re.compile(r"^    ((?:│   |    )*)[├└]── (\w+)")


def drawn() -> dict[str, str]:
    """The parent of each error, as the docstring of ``hrm.errors`` draws it."""
    found, above = {}, ["HrmError"]
    for line in (errors.__doc__ or "").splitlines():
        branch = BRANCH.match(line)
        if branch:
            depth = len(branch[1]) // 4 + 1
            above[depth:] = [branch[2]]
            found[branch[2]] = above[depth - 1]
    return found


def defined() -> dict[str, str]:
    """The parent of each public error of the package, as it is written."""
    classes = [
        (node.name, base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", ""))
        for path in sorted((ROOT / "hrm").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for base in node.bases
    ]
    found: dict[str, str] = {}
    while True:
        more = {x: y for x, y in classes if y in {"HrmError", *found} and x not in found}
        if not more:
            return found
        found |= more


def test_the_tree_has_every_error_under_its_parent() -> None:
    assert drawn() == defined()
    assert len(drawn()) > 10


def test_every_error_of_the_module_is_public() -> None:
    here = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert here == set(errors.__all__)
