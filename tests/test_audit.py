"""``make audit`` reports that nothing is known only if a database was queried."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """#!{python}
import pathlib, sys
if {report!r}:
    pathlib.Path(sys.argv[sys.argv.index("--output") + 1]).write_text({report!r})
sys.exit("ERROR: nothing answers")
"""
CLEAN = {"name": "rich", "version": "15.0.0", "vulns": []}
BAD = {
    "name": "typer",
    "version": "0.29.2",
    "vulns": [{"id": "GHSA-1", "fix_versions": ["0.29.3"]}],
}
SKIPPED = {"name": "torch", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("dependencies", "status", "words"),
    [
        ([CLEAN, SKIPPED], 0, "no known vulnerabilities; packages looked up: 1"),
        ([CLEAN, BAD], 1, "typer 0.29.2: GHSA-1, fixed in 0.29.3"),
        ([SKIPPED, SKIPPED], 2, "nothing was audited: the package index"),
        (None, 2, "nothing was audited: ERROR: nothing answers"),
    ],
    ids=["clean", "vulnerable", "unknown", "unreachable"],
)
def test_an_audit_that_could_not_be_made_is_not_a_clean_one(
    tmp_path: Path, dependencies: list[dict[str, Any]] | None, status: int, words: str
) -> None:
    program = tmp_path / "bin" / "pip-audit"
    program.parent.mkdir()
    report = json.dumps({"dependencies": dependencies}) if dependencies else ""
    program.write_text(PROGRAM.format(python=sys.executable, report=report))
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "audit", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, words in done.stdout + done.stderr) == (status, True), done
